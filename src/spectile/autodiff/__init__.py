"""What the modules for PyTorch and JAX share: derivatives, in the arrays of any library."""
