"""The translation units of the product by tiles: what needs no values, and counting and multiplication by precision."""

from __future__ import annotations

from dataclasses import dataclass

from spectile.core.compile import PORTABLE, Unit


@dataclass(frozen=True)
class Elements:
    """What the elements of tiles are in one precision.

    Attributes
    ----------
    dtype : str
        Name of the type of the elements.
    code : int
        ``PRECISION`` of ``product.cu``.
    tensor : bool
        Whether tensor cores multiply them.
    """

    dtype: str
    code: int
    tensor: bool = True


#: By the name of the precision.
ELEMENTS = {
    "float64": Elements("float64", 64),
    "float32": Elements("float32", 32, tensor=False),
    "tf32": Elements("float32", 19),
    "float16": Elements("float16", 16),
}


def _product(elements: Elements, tensor: bool) -> Unit:
    bits = elements.dtype.removeprefix("float")
    defines = {"PRECISION": str(elements.code), "INPUT_BITS": bits, "TENSOR": str(int(tensor))}
    return Unit(__package__, ("product.cu",), PORTABLE, defines)


LIST = Unit(__package__, ("list.cu",), PORTABLE)
PRODUCT = {name: _product(elements, elements.tensor) for name, elements in ELEMENTS.items()}
#: The same without tensor cores (the paper's nonTCU).
PLAIN = _product(ELEMENTS["float16"], tensor=False)
UNITS = (LIST, PLAIN, *PRODUCT.values())
