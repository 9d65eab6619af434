"""A small convolutional network on scikit-learn's digits, one convolution computed by SpAMM: VGG13's study in seconds.

8 x 8 pixels; two convolutions (3 x 3, 32 channels each), each followed by ReLU, max pooling and one linear layer.  It
stands in for VGG13 on MNIST where there is no GPU, and is labelled as a stand-in.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

from spectile.core.atomic_file import atomic_write
from spectile_study.cases.spamm.networks.im2col import col2im, im2col

CHANNELS = (32, 32)
BATCH = 100
EPOCHS = 4
LEARNING_RATE = 2e-3
SIZE = 8

Product = Callable[[Any, Any], Any]


class DigitsNetwork:
    """The trained network and the digits held out of its training.

    Attributes
    ----------
    parameters : dict of array
        ``conv1`` (32, 9), ``conv2`` (32, 288), ``linear`` (10, 512), float32.
    images : array, shape (held out, 1, 8, 8)
        A fifth of the 1,797 digits, pixels in [0, 1].
    labels : array, shape (held out,)
        Their digits.
    """

    def __init__(self, parameters: dict[str, Any], images: Any, labels: Any) -> None:
        self.parameters, self.images, self.labels = parameters, images, labels

    def operands(self) -> tuple[Any, Any]:
        """Return weights (32, 288) and patches (288, 6400) of the second convolution for one batch of 100 digits."""
        first = _convolve(self.parameters["conv1"], self.images[:BATCH])
        return self.parameters["conv2"], im2col(first)

    def accuracy(self, product: Product = np.matmul) -> float:
        """Return the share of held-out digits that are recognised when `product` computes the second convolution."""
        right = 0
        for start in range(0, len(self.images), BATCH):
            images = self.images[start : start + BATCH]
            scores = _forward(self.parameters, images, product)[-1]
            right += int((scores.argmax(axis=0) == self.labels[start : start + BATCH]).sum())
        return right / len(self.labels)


def trained_network(seed: int, resources: Path | None = None) -> DigitsNetwork:
    """Return the network trained by Adam on four fifths of the digits; its parameters are kept under `resources`.

    Raises
    ------
    FileNotFoundError
        If scikit-learn is not installed.
    """
    try:
        from sklearn.datasets import load_digits
    except ModuleNotFoundError:
        raise FileNotFoundError("the digits come with scikit-learn, which is not installed: install it") from None
    data = load_digits()
    rng = np.random.default_rng(seed)
    order = rng.permutation(len(data.target))
    images = (data.images[order, None] / 16).astype(np.float32)
    labels = data.target[order]
    held_out = len(labels) // 5
    path = None if resources is None else resources / "digits" / f"network_{seed}.npz"
    if path is not None and path.exists():
        with np.load(path) as kept:
            parameters = {name: kept[name] for name in kept.files}
    else:
        from threadpoolctl import threadpool_limits

        with threadpool_limits(1, user_api="blas"):  # the products are small: waiting threads would cost more
            parameters = train(images[held_out:], labels[held_out:], rng)
        if path is not None:
            with atomic_write(path) as partial, partial.open("wb") as file:
                np.savez(file, **parameters)
    return DigitsNetwork(parameters, images[:held_out], labels[:held_out])


def train(images: Any, labels: Any, rng: np.random.Generator) -> dict[str, Any]:
    """Return the parameters after `EPOCHS` epochs of Adam on the cross entropy."""
    first, second = CHANNELS
    shapes = {"conv1": (first, 9), "conv2": (second, 9 * first), "linear": (10, second * (SIZE // 2) ** 2)}
    parameters = {
        name: (rng.standard_normal(shape) * np.sqrt(2 / shape[1])).astype(np.float32) for name, shape in shapes.items()
    }
    moments = {name: (np.zeros_like(p), np.zeros_like(p)) for name, p in parameters.items()}
    step = 0
    for _ in range(EPOCHS):
        for chosen in np.array_split(rng.permutation(len(labels)), len(labels) // BATCH):
            step += 1
            gradients = _gradients(parameters, images[chosen], labels[chosen])
            for name, gradient in gradients.items():
                mean, square = moments[name]
                mean += 0.1 * (gradient - mean)
                square += 0.001 * (gradient**2 - square)
                rate = LEARNING_RATE * np.sqrt(1 - 0.999**step) / (1 - 0.9**step)
                parameters[name] -= rate * mean / (np.sqrt(square) + 1e-8)
    return parameters


def _convolve(weights: Any, images: Any, product: Product = np.matmul) -> Any:
    return np.maximum(col2im(product(weights, im2col(images)), len(images), *images.shape[2:]), 0)


def _forward(parameters: dict[str, Any], images: Any, product: Product = np.matmul) -> tuple[Any, ...]:
    first = _convolve(parameters["conv1"], images)
    second = _convolve(parameters["conv2"], first, product)
    quarters = second.reshape(len(images), CHANNELS[1], SIZE // 2, 2, SIZE // 2, 2)
    features = quarters.max(axis=(3, 5)).reshape(len(images), -1)
    return first, second, quarters, features, parameters["linear"] @ features.T


def _gradients(parameters: dict[str, Any], images: Any, labels: Any) -> dict[str, Any]:
    first, second, quarters, features, scores = _forward(parameters, images)
    chance = np.exp(scores - scores.max(axis=0))
    chance /= chance.sum(axis=0)
    chance[labels, np.arange(len(labels))] -= 1
    chance /= len(labels)
    back = (parameters["linear"].T @ chance).T.reshape(len(images), CHANNELS[1], SIZE // 2, 1, SIZE // 2, 1)
    back = (back * (quarters == quarters.max(axis=(3, 5), keepdims=True))).reshape(second.shape) * (second > 0)
    back = back.swapaxes(0, 1).reshape(CHANNELS[1], -1)
    below = (parameters["conv2"].T @ back).reshape(CHANNELS[0], 3, 3, len(images), SIZE, SIZE)
    spread = np.zeros((CHANNELS[0], len(images), SIZE + 2, SIZE + 2), np.float32)
    for i in range(3):
        for j in range(3):
            spread[:, :, i : i + SIZE, j : j + SIZE] += below[:, i, j]
    inner = spread[:, :, 1:-1, 1:-1] * (first.swapaxes(0, 1) > 0)
    return {
        "linear": chance @ features,
        "conv2": back @ im2col(first).T,
        "conv1": inner.reshape(CHANNELS[0], -1) @ im2col(images).T,
    }
