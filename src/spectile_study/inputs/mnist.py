"""MNIST from the four official files, checked, as VGG takes it: 32 x 32 pixels, three channels.

The files ``{train,t10k}-{images-idx3,labels-idx1}-ubyte.gz`` lie in the folder that ``SPECTILE_MNIST`` names, or in
``<resources>/mnist``.  Their content is checked, not their compression, which mirrors differ in.
"""

from __future__ import annotations

import gzip
import hashlib
import math
import os
import struct
import zlib
from pathlib import Path
from typing import NamedTuple

import numpy as np

#: sha256 of the uncompressed official files.
CONTENT = {
    "train-images-idx3-ubyte": "ba891046e6505d7aadcbbe25680a0738ad16aec93bde7f9b65e87a2fc25776db",
    "train-labels-idx1-ubyte": "65a50cbbf4e906d70832878ad85ccda5333a97f0f4c3dd2ef09a8a9eef7101c5",
    "t10k-images-idx3-ubyte": "0fa7898d509279e482958e8ce81c8e77db3f2f8254e26661ceb7762c4d494ce7",
    "t10k-labels-idx1-ubyte": "ff7bcfd416de33731a308c3f266cc351222c34898ecbeaf847f06e48f7ec33f2",
}
#: Mean and standard deviation of the 28 x 28 training pixels, scaled to [0, 1].
MEAN, DEVIATION = 0.1307, 0.3081
TRAINING_SHARE = 0.8


class Split(NamedTuple):
    """The data set in two parts: uint8 images of shape (count, 28, 28) and uint8 labels."""

    train_images: np.ndarray
    train_labels: np.ndarray
    validation_images: np.ndarray
    validation_labels: np.ndarray


def mnist_folder(resources: Path) -> Path:
    """Return the folder of the four files: what ``SPECTILE_MNIST`` names, or ``<resources>/mnist``."""
    named = os.environ.get("SPECTILE_MNIST")
    return Path(named) if named else resources / "mnist"


def load_mnist(folder: Path, seed: int = 1) -> Split:
    """Read all 70,000 images and split them at random, 80 % for training and the rest for validation.

    Parameters
    ----------
    folder : Path
        Folder of the four ``.gz`` files.
    seed : int
        Seed of the permutation that splits.

    Raises
    ------
    FileNotFoundError
        If a file is missing.
    ValueError
        If a file is not the official one.
    """
    parts = [read_idx(folder / f"{name}.gz", digest) for name, digest in CONTENT.items()]
    images, labels = np.concatenate(parts[0::2]), np.concatenate(parts[1::2])
    order = np.random.default_rng(seed).permutation(len(images))
    train, validation = np.split(order, [int(TRAINING_SHARE * len(images))])
    return Split(images[train], labels[train], images[validation], labels[validation])


def read_idx(path: Path, sha256: str | None = None) -> np.ndarray:
    """Read a gzipped file of the IDX format with unsigned bytes.

    Parameters
    ----------
    path : Path
        The file.
    sha256 : str, optional
        Digest that its uncompressed content must have.

    Returns
    -------
    array of uint8
        Of the shape that the header states.

    Raises
    ------
    FileNotFoundError
        If there is no such file.
    ValueError
        If it is damaged, of another format or size, or of another content.
    """
    if not path.exists():
        raise FileNotFoundError(f"{path} does not exist: let SPECTILE_MNIST name the folder of MNIST's four .gz files")
    try:
        content = gzip.decompress(path.read_bytes())
    except (OSError, EOFError, zlib.error) as error:
        raise ValueError(f"{path} is not a whole gzip file ({error}): fetch it again") from None
    if len(content) < 4 or content[:3] != b"\x00\x00\x08" or len(content) < 4 + 4 * content[3]:
        raise ValueError(f"{path} is not an IDX file of unsigned bytes: its magic number is {content[:4].hex()}")
    shape = struct.unpack(f">{content[3]}I", content[4 : 4 + 4 * content[3]])
    data = np.frombuffer(content, np.uint8, offset=4 + 4 * content[3])
    if data.size != math.prod(shape):
        raise ValueError(f"{path} holds {data.size} bytes of data and its header states {shape}: fetch it again")
    if sha256 is not None and hashlib.sha256(content).hexdigest() != sha256:
        raise ValueError(f"{path} is not the official file: the sha256 of its content is not {sha256[:12]}...")
    return data.reshape(shape)


def network_input(images: np.ndarray) -> np.ndarray:
    """Return images as the network takes them: padded to 32 x 32, normalised, in three equal channels, float32.

    Parameters
    ----------
    images : array of uint8, shape (count, 28, 28)
        Images.

    Returns
    -------
    array of float32, shape (count, 3, 32, 32)
        A read-only view: the three channels share memory.
    """
    padded = np.pad(images, ((0, 0), (2, 2), (2, 2)))
    normalised = ((padded / 255 - MEAN) / DEVIATION).astype(np.float32)
    return np.broadcast_to(normalised[:, None], (len(images), 3, 32, 32))
