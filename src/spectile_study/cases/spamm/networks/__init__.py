"""Convolutional networks with one product thresholded (the paper's Table 5)."""
