"""The product with the topological insulator, whose matrix is not stored."""
