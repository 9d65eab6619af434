"""VGG13 on MNIST with one convolution computed by SpAMM (the paper's Section 4.3.2).  Needs PyTorch: extra ``vgg``."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np

from spectile.core.atomic_file import atomic_write
from spectile_study.cases.spamm.networks.im2col import col2im, im2col
from spectile_study.inputs.mnist import Split, load_mnist, mnist_folder, network_input

#: Output channels of the two convolutions of each stage; a stage ends in max pooling.
STAGES = (64, 128, 256, 512, 512)
BATCH = 100
EPOCHS = 2
LEARNING_RATE = 1e-3
#: Prediction accuracy of the paper's unmodified network.
PAPER_ACCURACY = 0.966

Product = Callable[[Any, Any], Any]


def _torch() -> Any:
    try:
        import torch
    except ImportError:
        raise ModuleNotFoundError("VGG13 needs PyTorch, which is not installed: install the extra vgg") from None
    return torch


def network() -> Any:
    """Return an untrained VGG13 with batch normalisation for 32 x 32 pixels and three channels.

    Convolutions are called ``conv<stage><place>``: conv21 is the first of the second stage.  Five poolings leave one
    pixel of 512 channels, which one linear layer classifies.
    """
    nn = _torch().nn
    layers: OrderedDict[str, Any] = OrderedDict()
    channels = 3
    for stage, width in enumerate(STAGES, start=1):
        for place in (1, 2):
            layers[f"conv{stage}{place}"] = nn.Conv2d(channels, width, 3, padding=1)
            layers[f"norm{stage}{place}"] = nn.BatchNorm2d(width)
            layers[f"relu{stage}{place}"] = nn.ReLU()
            channels = width
        layers[f"pool{stage}"] = nn.MaxPool2d(2)
    layers["flatten"] = nn.Flatten()
    layers["linear"] = nn.Linear(channels, 10)
    return nn.Sequential(layers)


def train(split: Split, seed: int, device: str, epochs: int = EPOCHS) -> Any:
    """Return the network trained by Adam on batches of 100, in evaluation mode.

    Parameters
    ----------
    split : Split
        Images and labels.
    seed : int
        Seed of the first weights and of the order of the images.
    device : str
        ``"cuda"`` or ``"cpu"``.
    epochs : int
        Passes over the training part.
    """
    torch = _torch()
    torch.manual_seed(seed)
    model = network().to(device)
    images, labels = _on(split.train_images, device), _labels(split.train_labels, device)
    steps = epochs * (len(images) // BATCH)
    optimiser = torch.optim.Adam(model.parameters(), lr=LEARNING_RATE)
    schedule = torch.optim.lr_scheduler.OneCycleLR(optimiser, max_lr=2 * LEARNING_RATE, total_steps=max(steps, 2))
    model.train()
    for _ in range(epochs):
        order = torch.randperm(len(images), device=device)
        for chosen in order[: len(images) // BATCH * BATCH].split(BATCH):
            optimiser.zero_grad(set_to_none=True)
            scores = model(_three_channels(images[chosen]))
            torch.nn.functional.cross_entropy(scores, labels[chosen]).backward()
            optimiser.step()
            schedule.step()
    return model.eval()


def trained_network(resources: Path, split: Split, seed: int, device: str) -> Any:
    """Return the trained network, from ``<resources>/vgg13`` where it was trained before.

    Raises
    ------
    ValueError
        If its accuracy stays below the paper's 96.6 %.
    """
    torch = _torch()
    path = resources / "vgg13" / f"weights_{seed}.npz"
    if path.exists():
        model = network()
        with np.load(path) as kept:
            model.load_state_dict({name: torch.from_numpy(np.array(kept[name])) for name in kept.files})
        return model.to(device).eval()
    model = train(split, seed, device)
    reached = _share_right(model, split, device)
    if reached < PAPER_ACCURACY:
        raise ValueError(
            f"VGG13 reached an accuracy of {reached:.4f}, below the paper's {PAPER_ACCURACY}: train longer"
        )
    with atomic_write(path) as partial, partial.open("wb") as file:
        np.savez(file, **{name: value.cpu().numpy() for name, value in model.state_dict().items()})
    return model


class Layer:
    """One convolution of the trained network as a matrix product, and the accuracy when the product is replaced.

    Parameters
    ----------
    name : {"conv21", "conv31", ...}
        Convolution.
    model : torch.nn.Sequential
        Trained network of :func:`network`.
    split : Split
        Data set; the validation part is classified.
    device : str
        ``"cuda"``: arrays are CuPy's, sharing memory with PyTorch's tensors; ``"cpu"``: NumPy's.

    Attributes
    ----------
    weights : array of float32, shape (outputs, 9 * inputs)
        The paper's matrix A.
    images : int
        Number of validation images.
    """

    def __init__(self, name: str, model: Any, split: Split, device: str) -> None:
        torch = _torch()
        names = [child for child, _ in model.named_children()]
        if name not in names or not name.startswith("conv"):
            raise ValueError(f"VGG13 has no convolution {name!r}: choose one of conv11, conv12, ..., conv52")
        place = names.index(name)
        self._before, self._conv, self._after = model[:place], model[place], model[place + 1 :]
        self.weights = _array(self._conv.weight.detach().reshape(self._conv.out_channels, -1))
        self._labels = _labels(split.validation_labels, device)
        self.images = len(split.validation_labels)
        images = _on(split.validation_images, device)
        with torch.no_grad(), _exact(torch):
            # The layers before do not depend on the product: their output is computed once.
            self._inputs = [self._before(_three_channels(part)) for part in images.split(BATCH)]

    def patches(self, batch: int = 0) -> Any:
        """Return the im2col matrix of a validation batch, the paper's B: shape (9 * inputs, batch * height * width)."""
        return im2col(_array(self._inputs[batch]))

    def accuracy(self, product: Product | None = None) -> float:
        """Return the share of validation images classified right.

        Parameters
        ----------
        product : callable, optional
            ``product(weights, patches)`` in place of the layer's product; the unmodified convolution by default.
        """
        torch = _torch()
        right = 0
        with torch.no_grad(), _exact(torch):
            for features, labels in self._batches():
                if product is None:
                    output = self._conv(features)
                else:
                    count, _, height, width = features.shape
                    columns = product(self.weights, im2col(_array(features)))
                    output = _tensor(col2im(columns, count, height, width)) + self._conv.bias[:, None, None]
                right += int((self._after(output).argmax(1) == labels).sum())
        return right / self.images

    def _batches(self) -> Iterator[tuple[Any, Any]]:
        return zip(self._inputs, self._labels.split(BATCH), strict=True)


def load_layer(name: str, resources: Path, seed: int, on_gpu: bool) -> Layer:
    """Return a layer of the network trained on MNIST; see `spectile_study.inputs.mnist` for the data's place."""
    _torch()
    device = "cuda" if on_gpu else "cpu"
    split = load_mnist(mnist_folder(resources), seed)
    return Layer(name, trained_network(resources, split, seed, device), split, device)


def _exact(torch: Any) -> Any:
    """Return a context in which convolutions are float32, not TF32."""
    return torch.backends.cudnn.flags(enabled=True, benchmark=False, deterministic=True, allow_tf32=False)


def _share_right(model: Any, split: Split, device: str) -> float:
    torch = _torch()
    images, labels = _on(split.validation_images, device), _labels(split.validation_labels, device)
    with torch.no_grad(), _exact(torch):
        right = sum(
            int((model(_three_channels(part)).argmax(1) == wanted).sum())
            for part, wanted in zip(images.split(BATCH), labels.split(BATCH), strict=True)
        )
    return right / len(labels)


def _on(images: np.ndarray, device: str) -> Any:
    return _torch().from_numpy(network_input(images)[:, 0].copy()).to(device)


def _three_channels(images: Any) -> Any:
    return images[:, None].expand(-1, 3, -1, -1).contiguous()


def _labels(labels: np.ndarray, device: str) -> Any:
    return _torch().from_numpy(labels.astype(np.int64)).to(device)


def _array(tensor: Any) -> Any:
    """Return a tensor as a NumPy or CuPy array that shares its memory."""
    tensor = tensor.detach().contiguous()
    if tensor.device.type == "cpu":
        return tensor.numpy()
    import cupy

    return cupy.from_dlpack(tensor)


def _tensor(array: Any) -> Any:
    return _torch().from_numpy(array) if isinstance(array, np.ndarray) else _torch().from_dlpack(array)
