"""What is used of CuPy beyond its documentation is there in the CuPy that is installed, and is named in one place."""

from __future__ import annotations

import ast
import sys
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest

from spectile.core import cupy_parts

SOURCES = Path(__file__).parents[3] / "src/spectile"
#: Modules of CuPy that a release may move, beside those with a leading underscore.
UNDOCUMENTED = ("cupy_backends", "cupy.cuda.compiler", "cupy.cuda.device", "cupy.cuda.driver", "cupy.cuda.function")


@pytest.mark.parametrize("name", cupy_parts.PLACES)
def test_each_part_is_there(name: str) -> None:
    pytest.importorskip("cupy")
    try:
        found = cupy_parts.part(name)
    except ImportError as error:
        if ".so" not in str(error):
            raise
        pytest.skip(f"a library of CUDA is missing: {error}")
    assert callable(found) or hasattr(found, "__name__")
    if name.endswith(("Error", "Exception")):
        assert issubclass(found, Exception)


def _undocumented(tree: ast.AST) -> set[str]:
    """Return the names of CuPy's own parts that a module reaches."""
    found = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            names = [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom) and node.module:
            names = [f"{node.module}.{alias.name}" for alias in node.names]
        elif (isinstance(node, ast.Attribute) and node.attr == "_from_parts") or (
            isinstance(node, ast.Constant) and node.value == "_from_parts"
        ):
            names = ["cupyx._from_parts"]
        else:
            continue
        ours = [name for name in names if name.split(".")[0] in ("cupy", "cupyx", "cupy_backends")]
        found |= {name for name in ours if name.startswith(UNDOCUMENTED) or "._" in name}
    return found


def test_undocumented_parts_are_noticed() -> None:
    for line, undocumented in (
        ("from cupy.cuda.function import Module", True),
        ("from cupy.cuda import device, nvrtc", True),
        ("import cupy_backends.cuda.libs.cublas", True),
        ("def f():\n    from cupy._core import core", True),
        ("csr_matrix._from_parts(data)", True),
        ("import cupy\nfrom cupyx.scipy.sparse import csr_matrix\nfrom cupy.cuda import nvrtc, runtime", False),
    ):
        assert bool(_undocumented(ast.parse(line))) is undocumented, line


def test_no_other_module_reaches_for_undocumented_parts() -> None:
    reaching = {
        path.relative_to(SOURCES).as_posix()
        for path in SOURCES.rglob("*.py")
        if _undocumented(ast.parse(path.read_text()))
    }
    assert reaching == {"core/cupy_parts.py"}


def _other_arithmetic(tree: ast.AST) -> list[str]:
    """Return calls by names of NumPy's under which CuPy has another arithmetic of float64.

    ``add.reduceat`` subtracts sums of everything before; ``maximum.at`` and ``minimum.at`` compare in single precision,
    but take unsigned integers as they are.
    """
    calls = [node for node in ast.walk(tree) if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute)]
    found = []
    for call in calls:
        name = ast.unparse(call.func)
        of_bits = ".view(" in ast.unparse(call.args[-1]) if call.args else False
        if name.endswith((".reduceat", ".maximum.at", ".minimum.at")) and not name.startswith("np.") and not of_bits:
            found.append(name)
    return found


def test_no_module_takes_what_cupy_computes_otherwise() -> None:
    assert _other_arithmetic(ast.parse("xp.add.reduceat(x, i); cupy.maximum.at(y, i, x)")) != []
    assert _other_arithmetic(ast.parse("np.add.reduceat(x, i); xp.maximum.at(y.view('u8'), i, x.view('u8'))")) == []
    found = {path.name: _other_arithmetic(ast.parse(path.read_text())) for path in SOURCES.rglob("*.py")}
    assert {name: calls for name, calls in found.items() if calls} == {}


@pytest.fixture(params=["from parts", "constructor"])
def made(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> type:
    """Return a class of matrices as CuPy 14.1 and later have it, or as those before."""

    class Matrix(SimpleNamespace):
        def __init__(self, arrays: tuple, shape: tuple[int, int]) -> None:
            super().__init__(data=arrays[0], indices=arrays[1], indptr=arrays[2], shape=shape)

        if request.param == "from parts":

            @classmethod
            def _from_parts(cls, data, indices, indptr, shape, has_canonical_format=None):
                matrix = cls((data, indices, indptr), shape)
                if has_canonical_format is not None:
                    matrix.has_canonical_format = has_canonical_format
                return matrix

    for name in ("cupyx", "cupyx.scipy", "cupyx.scipy.sparse"):
        monkeypatch.setitem(sys.modules, name, SimpleNamespace(csr_matrix=Matrix))
    cupy_parts._csr.cache_clear()
    yield Matrix
    cupy_parts._csr.cache_clear()


def test_matrices_are_made_of_their_arrays(made: type) -> None:
    indptr, indices, data = np.array([0, 1, 2]), np.array([1, 0]), np.array([3.0, 4.0])
    matrix = cupy_parts.csr_matrix((2, 2), indptr, indices, data, has_canonical_format=True)
    assert matrix.indptr is indptr and matrix.indices is indices and matrix.data is data
    assert matrix.shape == (2, 2) and matrix.has_canonical_format is True
    assert not hasattr(cupy_parts.csr_matrix((2, 2), indptr, indices, data), "has_canonical_format")
    wide = np.array([0, 1]), np.array([2**31]), np.ones(1)
    if hasattr(made, "_from_parts"):
        assert cupy_parts.csr_matrix((1, 2**31 + 1), *wide).shape == (1, 2**31 + 1)
    else:  # it would cut the column to 32 bits
        with pytest.raises(OverflowError, match=r"needs CuPy 14\.1"):
            cupy_parts.csr_matrix((1, 2**31 + 1), *wide)
