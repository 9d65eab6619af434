"""A convolution as a matrix product (im2col), for NumPy and CuPy arrays."""

from __future__ import annotations

from typing import Any


def im2col(images: Any, kernel: int = 3, padding: int = 1) -> Any:
    """Return the patches under a square kernel as columns: weights @ patches is the convolution (stride 1).

    Parameters
    ----------
    images : array, shape (batch, channels, height, width)
        NumPy or CuPy.
    kernel : int
        Height and width of the kernel.
    padding : int
        Rows and columns of zeros added at each side.

    Returns
    -------
    array, shape (channels * kernel**2, batch * out_height * out_width)
        Rows run over channel, then the kernel's rows and columns, as the weights of a convolution do when they are
        flattened; columns run over image, then position.
    """
    batch, channels, height, width = images.shape
    out_height, out_width = height + 2 * padding - kernel + 1, width + 2 * padding - kernel + 1
    if out_height < 1 or out_width < 1:
        raise ValueError(f"a kernel of {kernel} does not fit images of {height} x {width} padded by {padding}")
    xp = _namespace(images)
    padded = xp.zeros((channels, batch, height + 2 * padding, width + 2 * padding), images.dtype)
    padded[:, :, padding : padding + height, padding : padding + width] = images.swapaxes(0, 1)
    patches = xp.empty((channels, kernel, kernel, batch, out_height, out_width), images.dtype)
    for i in range(kernel):
        for j in range(kernel):
            patches[:, i, j] = padded[:, :, i : i + out_height, j : j + out_width]
    return patches.reshape(channels * kernel * kernel, batch * out_height * out_width)


def col2im(product: Any, batch: int, height: int, width: int) -> Any:
    """Return the product of weights and patches as images, shape (batch, channels, height, width), contiguous."""
    images = product.reshape(product.shape[0], batch, height, width).swapaxes(0, 1)
    return _namespace(product).ascontiguousarray(images)


def _namespace(array: Any) -> Any:
    import numpy

    if isinstance(array, numpy.ndarray):
        return numpy
    import cupy

    return cupy
