"""Functions of the CPU where compiled code can be kept, where it cannot, and where what was kept is damaged."""

import errno
import functools
import importlib.util
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import numba
import numpy as np
import pytest

from spectile.core import jit

SOURCES = Path(__file__).parents[3] / "src"
COMPILED = sorted(
    path.relative_to(SOURCES).with_suffix("").as_posix().replace("/", ".")
    for path in SOURCES.glob("spectile/**/*.py")
    if re.search(r"^@njit\(", path.read_text(), flags=re.MULTILINE)
)
# Importing a module decorates its functions; two small ones are compiled.
CHILD = f"""
import importlib, warnings
with warnings.catch_warnings(record=True) as caught:
    warnings.simplefilter("always")
    for name in {COMPILED}:
        importlib.import_module(name)
    import numpy as np
    from spectile.kpm.cpu.patterns import __file__ as where
    from spectile.nearsparse import norm_map, tune_tau
    norms = norm_map(np.full((64, 64), 2.0))
    assert norms.norms.tolist() == [[64.0, 64.0]] * 2 and tune_tau(norms, norms, 0.5)[1] in (0.0, 1.0)
print(where)
for warning in caught:
    if issubclass(warning.category, RuntimeWarning):
        print(warning.message)
"""


@pytest.fixture
def unwritable(tmp_path):
    """Return a copy of the library, and variables of a process, that leave Numba no folder to write to."""
    copy = tmp_path / "site/spectile"
    shutil.copytree(SOURCES / "spectile", copy, ignore=shutil.ignore_patterns("__pycache__", "cubins"))
    folders = [copy, *(path for path in copy.rglob("*") if path.is_dir())]
    for folder in folders:
        # Root may write to any folder, but nobody below a file.
        (folder / "__pycache__").touch()
        folder.chmod(0o555)
    home = tmp_path / "home"
    home.touch()
    kept = {name: value for name, value in os.environ.items() if name not in ("NUMBA_CACHE_DIR", "PYTHONWARNINGS")}
    homes = {"HOME": str(home), "XDG_CACHE_HOME": str(home / "cache"), "PYTHONPATH": str(copy.parent)}
    yield kept | homes | {"PYTHONDONTWRITEBYTECODE": "1"}
    for folder in folders:
        folder.chmod(0o755)


def lines(variables):
    done = subprocess.run([sys.executable, "-c", CHILD], env=variables, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stderr
    where, *warned = done.stdout.splitlines()
    assert where.startswith(variables["PYTHONPATH"])
    return warned


def test_where_nothing_can_be_written_functions_are_compiled_and_it_is_said_once(unwritable):
    (warned,) = lines(unwritable)
    assert "compiles the functions of the CPU anew" in warned and "NUMBA_CACHE_DIR" in warned


def test_a_folder_that_is_named_is_used(unwritable, tmp_path):
    assert not lines(unwritable | {"NUMBA_CACHE_DIR": str(tmp_path / "cache")})
    assert list((tmp_path / "cache").rglob("norms.*.nbc"))


def test_every_function_that_is_kept_is_compiled_through_core():
    assert {name.split(".")[1] for name in COMPILED} >= {"nearsparse", "tsparse", "evd", "kpm"}
    for path in SOURCES.rglob("*.py"):
        if path != SOURCES / "spectile/core/jit.py":
            assert not re.search(r"cache=True|\"cache\"", path.read_text()), f"{path} is to use spectile.core.jit.njit"


def test_fast_arithmetic_stays_in_the_functions_that_ask_for_it():
    """Loops that Numba compiles for one of them, and helpers that it calls first, are not given to the others."""
    x = np.random.default_rng(1).standard_normal(1003)
    options = {"fastmath": {"reassoc", "contract", "nsz"}}

    def total(x):
        return x.sum()

    @jit.njit()
    def helper(x):
        result = 0.0
        for i in range(len(x)):
            result += x[i]
        return result

    @jit.njit(**options)
    def by_helper(x):
        return helper(x)

    in_order = functools.reduce(float.__add__, x.tolist(), 0.0)
    for fast in (jit.njit(**options)(total), by_helper):
        assert fast(x) == pytest.approx(in_order, abs=1e-11)
    assert jit.njit()(total)(x) == in_order and helper(x) == in_order


def test_each_operation_of_a_complex_product_is_rounded():
    def product(x, y):
        return x * y

    fast, plain = jit.njit(fastmath={"contract"})(product), jit.njit()(product)
    for a, b, c, d in np.random.default_rng(2).standard_normal((200, 4)).tolist():
        re, im = (float.__sub__(a * c, b * d), float.__add__(a * d, b * c))
        assert fast(complex(a, b), complex(c, d)) == pytest.approx(complex(re, im), rel=1e-14)
        assert plain(complex(a, b), complex(c, d)) == complex(re, im)


PRODUCTS = """
import numba, numpy
from spectile.core.jit import njit
from spectile.tsparse.cpu.kernels import plus_times

@numba.njit(forceinline=True)
def helper(x, y):
    return x * y

fast = njit(fastmath={"contract"})(lambda x, y: helper(x, y))
plain = njit()(lambda x, y: plus_times(0j, x, y))
a, b, c, d = numpy.random.default_rng(2).standard_normal((4, 200)).tolist()
for a, b, c, d in zip(a, b, c, d):
    fast(complex(a, b), complex(c, d))
    assert plain(complex(a, b), complex(c, d)) == complex(a * c - b * d, a * d + b * c)
"""


def test_products_of_sparse_matrices_are_rounded_whatever_was_compiled_before():
    # A process of its own: Numba keeps the product of complex numbers that it compiled first.
    done = subprocess.run([sys.executable, "-c", PRODUCTS], capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode == 0, done.stderr


FUNCTION = """
from spectile.core.jit import njit

@njit()
def plus(x, y):
    return x + {constant} * y
"""


@pytest.fixture
def module(tmp_path, monkeypatch):
    """Return ``module(constant)``: a new import of one compiled function, as another process has it."""
    monkeypatch.setattr(numba.config, "CACHE_DIR", str(tmp_path / "cache"))
    monkeypatch.setattr(jit, "_SAID", set())
    source = tmp_path / "module.py"
    source.write_text(FUNCTION.format(constant=1))

    def load(constant=None):
        if constant is not None:
            source.write_text(FUNCTION.format(constant=constant))
            os.utime(source, (constant, constant))
            shutil.rmtree(tmp_path / "__pycache__", ignore_errors=True)
        spec = importlib.util.spec_from_file_location("module", source)
        loaded = importlib.util.module_from_spec(spec)
        spec.loader.exec_module(loaded)
        return loaded.plus

    return load


def files(folder):
    return sorted(folder.rglob("*.nbc"))


def compiled(function):
    """Return how many signatures this import has compiled, and how many it has found."""
    return sum(function.stats.cache_misses.values()), sum(function.stats.cache_hits.values())


def test_each_signature_is_kept_and_found(module, tmp_path):
    first = module()
    assert first(1, 2) == 3 and first(1.5, 2) == 3.5 and compiled(first) == (2, 0)
    assert len(files(tmp_path / "cache")) == 2
    second = module()
    assert second(1, 2) == 3 and second(1.5, 2) == 3.5 and second(1, 2.5) == 3.5 and compiled(second) == (1, 2)


def test_another_version_of_the_source_is_compiled(module, tmp_path):
    assert module(2)(1, 2) == 5
    (path,) = files(tmp_path / "cache")
    other = module(3)
    assert other(1, 2) == 7 and compiled(other) == (1, 0)
    assert files(tmp_path / "cache") == [path]  # the old one is replaced
    assert compiled(other := module()) == (0, 0) and other(1, 2) == 7 and compiled(other) == (0, 1)


def test_the_file_of_another_signature_is_not_taken(module, tmp_path):
    """As it is left where two processes write at once, or a copy of the folder mixes files."""
    function = module()
    assert function(1, 2) == 3 and function(1.5, 2.0) == 3.5
    one, another = files(tmp_path / "cache")
    one.write_bytes(another.read_bytes())
    again = module()
    assert again(1, 2) == 3 and again(1.5, 2.0) == 3.5 and compiled(again) == (1, 1)


@pytest.mark.parametrize(
    "damage",
    [
        lambda held: b"",
        lambda held: held[:40],
        lambda held: held[:64],
        lambda held: held[: len(held) // 2],
        lambda held: held[:-1],
        lambda held: held[:-9] + bytes([held[-9] ^ 1]) + held[-8:],
        lambda held: bytes(len(held[:50])),
    ],
)
def test_a_damaged_file_is_said_once_compiled_anew_and_replaced(module, tmp_path, damage):
    function = module()
    assert function(1, 2) == 3 and function(1.5, 2.0) == 3.5
    for path in files(tmp_path / "cache"):
        path.write_bytes(damage(path.read_bytes()))
    again = module()
    with pytest.warns(RuntimeWarning, match="is damaged .*: it is compiled anew and replaced") as caught:
        assert again(1, 2) == 3 and again(1.5, 2.0) == 3.5
    assert len(caught) == 1 and compiled(again) == (2, 0)
    repaired = module()
    assert repaired(1, 2) == 3 and repaired(1.5, 2.0) == 3.5 and compiled(repaired) == (0, 2)


def test_a_file_that_pickle_does_not_read_is_damaged(module, tmp_path, monkeypatch):
    """Its content is whole, and was written where other names could be imported."""
    monkeypatch.setattr(jit, "dumps", lambda data: b"cnowhere\nnothing\n.")
    assert module()(1, 2) == 3
    monkeypatch.undo()
    monkeypatch.setattr(numba.config, "CACHE_DIR", str(tmp_path / "cache"))
    monkeypatch.setattr(jit, "_SAID", set())
    with pytest.warns(RuntimeWarning, match="nowhere"):
        assert module()(1, 2) == 3
    assert compiled(function := module()) == (0, 0) and function(1, 2) == 3 and compiled(function) == (0, 1)


def refused(code):
    def write(*_, **__):
        raise OSError(code, os.strerror(code))

    return write


@pytest.mark.parametrize("code", [errno.ENOSPC, errno.EACCES, errno.EROFS, errno.EDQUOT])
def test_what_cannot_be_written_is_said_once_and_ends_no_call(module, tmp_path, monkeypatch, code):
    with monkeypatch.context() as full:
        full.setattr(Path, "write_bytes", refused(code))
        function = module()
        with pytest.warns(RuntimeWarning, match=rf"{os.strerror(code)}\), so every process compiles") as caught:
            assert function(1, 2) == 3 and function(1.5, 2.0) == 3.5
    assert len(caught) == 1 and not list((tmp_path / "cache").rglob("*.nb*"))
    assert function(1, 2) == 3  # and has it in memory
    again = module()
    assert again(1, 2) == 3 and compiled(again) == (1, 0) and len(files(tmp_path / "cache")) == 1


@pytest.mark.parametrize("mode", [0o777, 0o1777, 0o757])
def test_no_code_is_loaded_from_a_folder_that_everybody_may_write(module, tmp_path, mode):
    function = module()
    assert function(1, 2) == 3
    (kept,) = files(tmp_path / "cache")
    kept.parent.chmod(mode)
    again = module()
    with pytest.warns(RuntimeWarning, match=r"cannot be used \(everybody may write to it\), so every process compiles"):
        assert again(1, 2) == 3
    assert compiled(again) == (1, 0)
    kept.parent.chmod(0o755)
    assert compiled(trusted := module()) == (0, 0) and trusted(1, 2) == 3 and compiled(trusted) == (0, 1)


@pytest.mark.skipif(os.geteuid() != 0, reason="only root gives files away")
def test_no_code_is_loaded_from_another_users_folder(module, tmp_path):
    assert module()(1, 2) == 3
    (kept,) = files(tmp_path / "cache")
    os.chown(kept.parent, 12345, -1)
    again = module()
    with pytest.warns(RuntimeWarning, match=r"cannot be used \(user 12345 owns it\)"):
        assert again(1, 2) == 3
    assert compiled(again) == (1, 0)


def test_a_folder_that_is_gone_at_the_first_call_ends_no_call(module, tmp_path):
    function = module()
    shutil.rmtree(tmp_path / "cache")
    (tmp_path / "cache").touch()
    with pytest.warns(RuntimeWarning, match="so every process compiles"):
        assert function(1, 2) == 3


def test_what_is_kept_can_be_removed(module, tmp_path):
    function = module()
    assert function(1, 2) == 3 and files(tmp_path / "cache")
    function._cache.flush()
    assert not files(tmp_path / "cache")


CALLEE = """
from spectile.core.jit import njit

@njit()
def part(x):
    return x + {number}
"""
BY_NAME = """
from spectile.core.jit import njit
from callee import part

@njit()
def whole(x):
    return 2 * part(x)
"""
OF_MODULE = """
from spectile.core.jit import njit
import callee

@njit()
def whole(x):
    return 3 * callee.part(x)
"""
CALLER = """
import sys
import by_name, of_module

sys.stdout.write(f"{by_name.whole(1)} {of_module.whole(1)}")
"""


def test_a_function_is_compiled_anew_where_one_that_it_calls_has_changed(tmp_path):
    for name, text in {"by_name": BY_NAME, "of_module": OF_MODULE, "caller": CALLER}.items():
        (tmp_path / f"{name}.py").write_text(text)
    paths = os.pathsep.join((str(tmp_path), str(SOURCES)))
    variables = os.environ | {"PYTHONPATH": paths, "NUMBA_CACHE_DIR": str(tmp_path / "kept")}
    (tmp_path / "kept").mkdir(mode=0o700)
    said = []
    for number in (1, 10, 10):
        (tmp_path / "callee.py").write_text(CALLEE.format(number=number))
        command = [sys.executable, "-B", tmp_path / "caller.py"]
        said.append(subprocess.run(command, env=variables, capture_output=True, text=True, check=True).stdout)
    assert said == ["4 6", "22 33", "22 33"]
