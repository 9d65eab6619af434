"""What a call of SpAMM must satisfy, checked before any work, and its operands with what follows from them."""

from __future__ import annotations

import dataclasses
import functools
import importlib
import math
import reprlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np

from spectile.core import arrays, pointers, precisions
from spectile.core.arrays import on_device
from spectile.core.choice import Candidate, not_taken
from spectile.core.device import Backend, backends, choose_backend
from spectile.core.host import in_kind_of
from spectile.core.options import kind_of, leading, number, word
from spectile.core.placement import Work
from spectile.core.tiling import ceil_div
from spectile.nearsparse.result import SpammResult
from spectile.nearsparse.types import ALL, ASKED, COMPLEX, OF_DTYPE, NormMap, Request, Split

#: Scalar operations for each tile product of a search for its threshold.
SEARCH = 30


@dataclass
class Operands:
    """A product's arrays, host arrays as NumPy's, or lists of their parts on several devices."""

    a: Any
    b: Any
    c: Any
    out: Any
    on_gpu: bool
    #: The first operand and `out` as they were given.
    like: Any
    given: Any
    distributed: bool = False
    #: Whether these are the transposes of what was given, in the other order.
    swapped: bool = False

    def _parts(self) -> list[tuple[Any, Any, Any, Any]]:
        """Return A, B, C and the result of each device, or of the one product that is not distributed."""
        if not self.distributed:
            return [(self.a, self.b, self.c, self.out)]
        nothing = [None] * len(self.a)
        return list(zip(self.a, self.b, self.c or nothing, self.out or nothing, strict=True))

    def backend(
        self, wanted: Backend, block: int, precision: str | None = None, valid_ratio: float | None = None
    ) -> Literal["cpu", "cuda"]:
        """Return where a product with this share of its tile products is made; with a share of 0 its threshold alone.

        Where there is a choice, complex ones are the CPU's, and those of precisions that it lacks a GPU's.
        """
        wanted, work = self._choice(wanted, block, precision, valid_ratio)
        return choose_backend(wanted, self.on_gpu, "nearsparse", work)

    def other_place(
        self, taken: str, wanted: Backend, block: int, precision: str | None, valid_ratio: float | None
    ) -> list[Candidate]:
        """Return the backend that was not taken, if there was a choice, and why."""
        wanted, work = self._choice(wanted, block, precision, valid_ratio)
        return [] if work is None else not_taken(taken, backends(wanted, self.on_gpu, work))

    def _choice(
        self, wanted: Backend, block: int, precision: str | None, valid_ratio: float | None
    ) -> tuple[Backend, Callable[[], Work] | None]:
        row = None if precision is None else ALL.get(precisions.short(str(precision)))
        free = word("backend", wanted, "auto", "cpu", "cuda") == "auto" and not self.on_gpu
        if free and np.dtype(self.a.dtype).kind == "c":
            return "cpu", None
        if row is not None and not row.on_cpu:
            return wanted, None
        return wanted, lambda: self.work(block, 1.0 if valid_ratio is None else valid_ratio)

    def work(self, block: int, valid_ratio: float) -> Work:
        """Return what a product of arrays of the host costs: all that is not known to be skipped is multiplied."""
        shape, given = result_shape(self.a.shape, self.b.shape), [x for x in (self.a, self.b, self.c) if x is not None]
        read, wide = sum(x.nbytes for x in given), _dtype(self.a) in ("float64", "complex128")
        products = math.prod(shape) * self.a.shape[-1] * (4 if _dtype(self.a) in COMPLEX else 1)
        return Work(
            real="float64" if wide else "float32",
            flops=2 * valid_ratio * products,
            streamed=read,
            scalar=0,
            steps=1,
            moved=read + math.ceil(valid_ratio) * math.prod(shape) * self.a.dtype.itemsize,
            split=SEARCH * products / block**3,
        )

    def precision(self, wanted: str | None, backend: str) -> str:
        """Return the key of the precision of all parts, or raise where they have none."""
        if not self.distributed:
            return check_precision(self.a, self.b, wanted, backend)
        keys = {check_precision(a, b, wanted, backend) for a, b, _, _ in self._parts()}
        if len(keys) > 1:
            raise TypeError(f"the distributed operands have several dtypes ({', '.join(sorted(keys))}): convert them")
        return keys.pop()

    def check_results(self, request: Request) -> None:
        """Raise where C or out have another shape or dtype than the product."""
        for a, b, c, out in self._parts():
            shape = result_shape(_shape(a), _shape(b))
            if c is not None:
                _check_result_array("c", c, shape, None)
                if check_dtype("c", c) in COMPLEX and request.arithmetic.parts == 1:
                    raise TypeError(f"c is complex and the product is {request.arithmetic.output}: convert a and b")
            elif request.beta != 0:
                raise ValueError(
                    f"beta = {request.beta:g} needs c: pass the matrix of shape {shape} that beta multiplies"
                )
            if out is not None:
                _check_result_array("out", out, shape, request.arithmetic.output)
                _check_writable(out, shape, request.arithmetic.output)

    def check_spread(self, devices: int, split: Split) -> None:
        """Raise where the operands do not fit so many devices."""
        if self.distributed:
            _check_lists({"a": self.a, "b": self.b, "c": self.c, "out": self.out}, devices)
        _check_parts([a for a, *_ in self._parts()], [b for _, b, *_ in self._parts()], split)

    @property
    def on_host_and_simple(self) -> bool:
        """Whether this is one product, with entries, of matrices in host memory."""
        return not self.on_gpu and self.a.ndim == self.b.ndim == 2 and 0 not in (*self.a.shape, self.b.shape[1])

    def transposed(self) -> Operands:
        """Return B^T, A^T and C^T, of the product C^T = B^T A^T."""
        a, b, c = (None if x is None else x.swapaxes(-1, -2) for x in (self.a, self.b, self.c))
        return dataclasses.replace(self, a=b, b=a, c=c, swapped=True)

    @property
    def by_columns(self) -> bool:
        """Whether A, B and C lie column by column (Fortran's order), so that their transposes need no copy."""
        given = [x for x in (self.a, self.b, self.c) if x is not None]
        return not self.distributed and self.out is None and all(map(_lies_by_columns, given))

    def in_kind(self, result: SpammResult) -> SpammResult:
        """Return the result with `out`, or C in the kind of the operands."""
        if self.swapped:
            result.c = result.c.swapaxes(-1, -2)
        if self.out is not None:
            result.c = self.given
        elif not self.on_gpu:
            result.c = in_kind_of(self.like)(result.c)
        return result


def operands(a: Any, b: Any, c: Any, out: Any) -> Operands:
    """Return the operands of a product on one device, or on the host."""
    if _is_plain(a) and _is_plain(b) and c is out is None:
        return Operands(a, b, None, None, False, a, None)
    on_gpu, like = on_device(a) or on_device(b), a
    (a, b), c = widened(a, b), None if c is None else widened(c)[0]
    a, b = _array("a", a, on_gpu), _array("b", b, on_gpu)
    c = None if c is None else _array("c", c, on_gpu)
    return Operands(a, b, c, _target(out), on_gpu, like, out)


def _is_plain(array: Any) -> bool:
    """Return whether this is what every other host array is made to be: NumPy's own, of NumPy's types, as they lie."""
    return type(array) is np.ndarray and array.dtype.isbuiltin == 1 and array.dtype.isnative and array.flags.aligned


def _array(name: str, array: Any, on_gpu: bool) -> Any:
    """Return an operand: what is no array on a GPU is read as one of the host, also beside operands on a GPU."""
    return array if on_gpu and on_device(array) else host_array(name, array)


def spread_operands(a: Any, b: Any, c: Any, out: Any, split: Split, backend: str) -> Operands:
    """Return the operands of a product over several devices."""
    if backend == "cpu":
        raise ValueError('devices are GPUs: leave out backend="cpu", or devices')
    if isinstance(a, list | tuple):
        _check_lists({"b": b, "c": c, "out": out}, len(a))
        pairs = [widened(*pair) for pair in zip(a, b, strict=True)]
        a, b = [_array("a", x, True) for x, _ in pairs], [_array("b", y, True) for _, y in pairs]
        c = None if c is None else [_array("c", widened(part)[0], True) for part in c]
        return Operands(a, b, c, out, True, a, out, distributed=True)
    if split != "rows":
        raise ValueError("split = 'columns' is said of operands distributed by columns: see distribute")
    whole = operands(a, b, c, out)
    for name, array in (("a", a), ("b", b), ("c", c), ("out", out)):
        if array is not None and on_device(array) != whole.on_gpu:
            raise ValueError(f"of a and b one is a GPU array, and {name} lies elsewhere: move one of them")
    return whole


def result_shape(shape_a: tuple[int, ...], shape_b: tuple[int, ...]) -> tuple[int, ...]:
    """Return the shape of A B, with leading dimensions broadcast as in `numpy.matmul`."""
    for name, shape in (("a", shape_a), ("b", shape_b)):
        if len(shape) < 2:
            raise ValueError(
                f"{name} has shape {shape}, and at least two dimensions are needed: reshape a vector to a matrix with "
                "one row or column"
            )
    if shape_a[-1] != shape_b[-2]:
        raise ValueError(
            f"operands of shapes {shape_a} and {shape_b} do not multiply: the columns of a ({shape_a[-1]}) must be the "
            f"rows of b ({shape_b[-2]})"
        )
    if len(shape_a) == len(shape_b) == 2:
        return shape_a[0], shape_b[1]
    return (*leading(a=shape_a[:-2], b=shape_b[:-2]), shape_a[-2], shape_b[-1])


def check_choice(*asked: Any) -> tuple[str, float]:
    """Return the name and value of the one of `ASKED`, or the first of it, that is given; raise unless in its range."""
    given = [pair for pair in zip(ASKED, asked, strict=False) if pair[1] is not None]
    if len(given) != 1:
        what = " and ".join(name for name, _ in given) or "none"
        names = ASKED[: max(len(asked), len(ASKED) - 1)]
        words = f"{', '.join(names[:-1])} and {names[-1]}"
        raise ValueError(f"give exactly one of {words}; {what} {'was' if not given else 'were'} given")
    name, value = given[0]
    wanted = number(name, value)
    if name == "tau":
        good, why = wanted >= 0, "is not a threshold: it is compared with products of norms, give a number >= 0"
    elif name == "valid_ratio":
        good, why = 0 < wanted <= 1, "lies outside (0, 1]: give the share of tile products to keep"
    else:
        good, why = 0 < wanted < math.inf, "is not a tolerance: give a finite number > 0"
    if not good:
        raise ValueError(f"{name} = {reprlib.repr(value)} {why}")
    return name, wanted


def kept(name: str, given: Any, block: Any) -> tuple[Any, Any]:
    """Return a matrix and the norms of its tiles, or None where they are not kept."""
    if not isinstance(given, NormMap):
        return given, None
    if given.matrix is None:
        raise ValueError(f"{name} is a norm map without its matrix: pass what norm_map returns, or the matrix")
    if given.block != block:
        raise ValueError(f"{name} has the norms of tiles of {given.block}, and block is {block}: give both one block")
    norms = given.norms
    return given.matrix, pointers.without_read_only(norms) if isinstance(norms, np.ndarray) else norms


def check_kept(name: str, given: Any, block: int, measure: Callable[[Any, int], Any], matrix: Any) -> None:
    """Raise where kept norms are not those of a matrix, as the largest of them in each tile row show."""
    there = on_device(matrix)
    matrix = arrays.to_device(matrix, name)[0] if there else matrix
    norms = np.asarray(arrays.to_device(given, name)[0].get() if on_device(given) else given, np.float64)
    if norms.shape == tuple(ceil_div(size, block) for size in matrix.shape):
        if not norms.size:
            return
        xp: Any = importlib.import_module("cupy") if there else np
        rows, columns = matrix.shape
        largest = norms.argmax(axis=1)
        down = xp.arange(rows)
        across = block * xp.asarray(largest)[down // block][:, None] + xp.arange(block)
        strip = matrix[down[:, None], xp.minimum(across, columns - 1)]
        strip[across >= columns] = 0
        fresh = measure(strip, block)[:, 0]
        wanted = norms[np.arange(len(norms)), largest]
        if np.allclose(fresh.get() if there else fresh, wanted, rtol=1e-4, atol=0.0, equal_nan=True):
            return
    raise ValueError(f"{name} is not what it was when its norms were taken: call norm_map({name}) again")


def check_scalars(block: Any, alpha: Any = 1.0, beta: Any = 0.0) -> tuple[int, float, float]:
    """Return a tile size and factors as Python's numbers; raise where one is out of range."""
    if isinstance(block, bool) or not isinstance(block, (int, np.integer)) or block < 1:
        raise ValueError(f"block = {reprlib.repr(block)} is not a tile size: give a positive integer, 32 in the paper")
    if block >= 2**31:
        raise ValueError(f"block = {reprlib.repr(block)} is larger than any matrix: 32 is usual")
    factors = number("alpha", alpha), number("beta", beta)
    for name, value in zip(("alpha", "beta"), factors, strict=True):
        if not math.isfinite(value):
            raise ValueError(f"{name} = {value} is not finite: give a real number")
    return int(block), *factors


def check_one_batch(a: Any, b: Any) -> None:
    """Raise for operands that `distribute` does not cut."""
    batch = result_shape(_shape(a), _shape(b))[:-2]
    if len(batch) > 1 or any(_shape(x)[:-2] not in ((), batch) for x in (a, b)):
        raise ValueError("distribute takes two matrices, or a batch of them along one leading dimension: reshape it")


def check_two_matrices(a: Any, b: Any) -> None:
    """Raise unless these are two matrices that multiply."""
    shape = result_shape(_shape(a), _shape(b))
    if len(shape) > 2:
        raise ValueError(f"this is of one product, and a and b have {len(shape)} dimensions: pass one of them")


def check_search(iterations: Any, tolerance: Any) -> tuple[int, float]:
    """Return a number of bisections and a tolerance as Python's numbers; raise for those that no search has."""
    if not isinstance(iterations, int | np.integer) or not 1 <= iterations < 2**31:
        raise ValueError(
            f"iterations = {reprlib.repr(iterations)} counts no bisections: give a positive integer, as 20"
        )
    wanted = number("tolerance", tolerance)
    if not wanted >= 0:
        raise ValueError(f"tolerance = {wanted} is not a tolerance: give a number >= 0")
    return int(iterations), wanted


def norms(norms_a: Any, norms_b: Any) -> tuple[Any, Any, bool]:
    """Return two norm maps as arrays, and whether one of them is on a GPU."""
    on_gpu = on_device(norms_a) or on_device(norms_b)
    return _array("the norm map of a", norms_a, on_gpu), _array("the norm map of b", norms_b, on_gpu), on_gpu


def check_norms_are_real(*maps: Any) -> None:
    """Raise for norm maps of another kind than real numbers."""
    for norms in maps:
        if np.dtype(_dtype(norms)).kind not in "fiu":
            raise TypeError(f"a norm map holds {_dtype(norms)}, and norms are real: pass what norm_map returns")


def check_maps(norms_a: Any, norms_b: Any) -> None:
    """Raise for two arrays that are not the norm maps of a product; reads device arrays back."""
    for name, norms in (("the norm map of a", norms_a), ("the norm map of b", norms_b)):
        if norms.size and not norms.min() >= 0:
            raise ValueError(f"{name} holds negative numbers or NaN, as no norm map does: pass what norm_map returns")
    if norms_a.ndim != 2 or norms_b.ndim != 2 or norms_a.shape[1] != norms_b.shape[0]:
        raise ValueError(
            f"norm maps of shapes {norms_a.shape} and {norms_b.shape} do not multiply: the columns of the first must "
            "be the rows of the second"
        )


def check_finite_norms(norms_a: Any, norms_b: Any) -> None:
    """Raise for norms that no search on the CPU compares: infinity times zero is no number."""
    for name, norms in (("a", norms_a), ("b", norms_b)):
        if norms.max(initial=0.0) == math.inf:
            raise ValueError(
                f"the norm map of {name} holds infinity: pass a matrix of finite entries instead, or scale it"
            )


def matrix(a: Any) -> Any:
    """Return a host matrix as NumPy's."""
    a = host_array("a", a)
    if a.ndim != 2:
        raise ValueError(f"a norm map is of a matrix, not of an array with {a.ndim} dimensions: pass one matrix")
    check_dtype("a", a)
    return a


def check_precision(a: Any, b: Any, precision: str | None, backend: str) -> str:
    """Return the key of the precision of two operands, or raise where they have none."""
    kind, other = check_dtype("a", a), check_dtype("b", b)
    if kind != other:
        raise TypeError(f"a is {kind} and b is {other}: convert one, a mixed product would hide a conversion")
    name = OF_DTYPE[kind] if precision is None else precisions.short(str(precision))
    if name not in ALL:
        word("precision", precision, *map(precisions.canonical, ALL))
    row = ALL[name]
    if row.dtype != kind:
        raise TypeError(f"precision {precision!r} multiplies {row.dtype}, and the operands are {kind}: convert them")
    if backend == "cpu" and not row.on_cpu:
        raise ValueError(f"precision {precision!r} needs CUDA's tensor cores: use 'float32' on the CPU")
    return name


def check_dtype(name: str, array: Any) -> str:
    """Return the dtype of an array, or raise where SpAMM does not multiply it."""
    dtype = _dtype(array)
    if dtype not in OF_DTYPE:
        raise TypeError(
            f"{name} has dtype {dtype}: SpAMM multiplies float16, bfloat16, float32, float64, complex64 and "
            "complex128, convert it first"
        )
    return dtype


def widened(*arrays: Any) -> tuple[Any, ...]:
    """Return operands of bfloat16 in float32, which holds their products exactly; all of them are of it, or none.

    They are PyTorch's, or have the method `astype`; TypeError is raised if one is of another dtype.
    """
    kinds = [_dtype(x) if hasattr(x, "dtype") else "" for x in arrays]
    if "bfloat16" not in kinds:
        return arrays
    if set(kinds) != {"bfloat16"}:
        raise TypeError(f"a is {kinds[0]} and b is {kinds[1]}: convert one, a mixed product would hide a conversion")
    return tuple(x.float() if hasattr(x, "float") else x.astype("float32") for x in arrays)


def refuse_with_error(name: str, array: Any) -> None:
    """Raise for a matrix that has an error of its own, as a `TileMatrix`: bounds would be of its entries alone."""
    error = getattr(array, "error", None)
    if hasattr(array, "to_dense") and isinstance(error, tuple) and any(error):
        raise TypeError(
            f"{name} is {kind_of(array)} with an error of its own, which no bound would hold: multiply such "
            f"matrices by @ or multiply(), or pass {name}.to_dense() and add what its error makes of the product"
        )


def host_array(name: str, array: Any) -> Any:
    """Return a host array of any library as NumPy's, sharing its memory unless kernels cannot read it there."""
    refuse_with_error(name, array)
    array = arrays.host_array(name, array)
    return array if array.dtype.isnative and array.flags.aligned else pointers.operand(name, array)


def _target(out: Any) -> Any:
    """Return `out`, of the host as NumPy's array of the same memory; refuse what would be written to a copy."""
    if out is None or type(out) is np.ndarray:
        return out
    shared = hasattr(out, "__dlpack__") or hasattr(out, "__cuda_array_interface__")
    if isinstance(out, list | tuple) or not shared:
        raise TypeError(f"out is {kind_of(out)}, which cannot be written: pass an array of the product's shape")
    return out if on_device(out) else arrays.host_array("out", out)


def _check_writable(out: Any, shape: tuple[int, ...], dtype: str) -> None:
    if isinstance(out, np.ndarray):
        pointers.output("out", out, dtype, shape)
    elif not hasattr(out, "__dlpack__") and out.__cuda_array_interface__["data"][1]:
        raise ValueError("out is read-only: pass an array that can be written")


def _check_result_array(name: str, array: Any, shape: tuple[int, ...], dtype: str | None) -> None:
    if _shape(array) != shape:
        raise ValueError(f"{name} has shape {_shape(array)}, and the product has {shape}")
    if dtype is not None and _dtype(array) != dtype:
        raise TypeError(f"{name} is {_dtype(array)}, and the product is {dtype}: pass an array of that dtype")


def _lies_by_columns(array: Any) -> bool:
    if not hasattr(array, "strides") or not isinstance(array.strides, tuple) or 1 in array.shape[-2:]:
        return False
    rows, columns = array.strides[-2:]
    return bool(array.size and rows == array.dtype.itemsize and columns >= rows * array.shape[-2])


def _check_lists(operands: dict[str, Any], count: int) -> None:
    """Raise where distributed operands are not lists of one array for each device."""
    for name, parts in operands.items():
        if parts is not None and not (isinstance(parts, list | tuple) and len(parts) == count):
            raise ValueError(
                f"{name} is no list of {count} arrays, one for each device, as lists of distributed operands are: "
                "see distribute"
            )


def _check_parts(a: Sequence[Any], b: Sequence[Any], split: Split) -> None:
    """Check the shapes of parts and copies, or of the operands that are whole."""
    shapes_a, shapes_b = [_shape(x) for x in a], [_shape(x) for x in b]
    if max(map(len, (*shapes_a, *shapes_b))) > 2:
        empty = all(0 in (*result_shape(x, y), x[-1]) for x, y in zip(shapes_a, shapes_b, strict=True))
        if len(a) > 1 and (split != "rows" or {len(x) for x in (*shapes_a, *shapes_b)} - {2, 3}):
            raise ValueError("a distributed batch has whole products on every device, along one leading dimension")
    else:
        copies, cut, axis = (shapes_b, shapes_a, 0) if split == "rows" else (shapes_a, shapes_b, 1)
        if len(set(copies)) > 1:
            name = "b" if split == "rows" else "a"
            raise ValueError(f"{name} has shapes {copies}, and every device holds all of {name}: see distribute")
        empty = 0 in (sum(x[axis] for x in cut), *copies[0])
    if empty:
        raise ValueError("a product without entries is not spread: leave devices out")


def _shape(array: Any) -> tuple[int, ...]:
    return tuple(array.shape if hasattr(array, "shape") else array.__cuda_array_interface__["shape"])


def _dtype(array: Any) -> str:
    if not hasattr(array, "dtype"):
        return str(np.dtype(array.__cuda_array_interface__["typestr"]))
    return _name(array.dtype) if isinstance(array.dtype, np.dtype) else str(array.dtype).removeprefix("torch.")


#: The name of a NumPy dtype, which takes longer to make than to look up.
_name = functools.lru_cache(maxsize=64)(str)
