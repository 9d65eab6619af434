"""The paper's product: 8x8 bitmap tiles, a sorted list of their products, which tensor cores multiply (Algorithm 1)."""
