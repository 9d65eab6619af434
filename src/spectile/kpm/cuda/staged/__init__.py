"""The product with V staged through shared memory by an inspector's plan."""
