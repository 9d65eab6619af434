"""Plant single faults in the library and see which the tests find: ``python -m tests.random.mutate --help``.

Works on a copy of the tree in a temporary folder, where the tests pass without a fault, one fault at a time, and prints
those that no test found: each is equivalent (nothing that a caller can see changes), or a gap of the tests.
"""

from __future__ import annotations

import argparse
import ast
import os
import random
import re
import shutil
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from queue import SimpleQueue

ROOT = Path(__file__).resolve().parents[2]
SYSTEMS = ("nearsparse", "tiles", "density", "tsparse", "evd", "kpm", "autodiff", "torch", "jax", "core")
COMPARISONS: dict[type, type] = {
    ast.Lt: ast.LtE,
    ast.LtE: ast.Lt,
    ast.Gt: ast.GtE,
    ast.GtE: ast.Gt,
    ast.Eq: ast.NotEq,
    ast.NotEq: ast.Eq,
    ast.Is: ast.IsNot,
    ast.IsNot: ast.Is,
    ast.In: ast.NotIn,
    ast.NotIn: ast.In,
}
ARITHMETIC: dict[type, type] = {
    ast.Add: ast.Sub,
    ast.Sub: ast.Add,
    ast.Mult: ast.Add,
    ast.Div: ast.Mult,
    ast.FloorDiv: ast.Mult,
    ast.Mod: ast.FloorDiv,
    ast.BitAnd: ast.BitOr,
    ast.BitOr: ast.BitAnd,
    ast.LShift: ast.RShift,
    ast.RShift: ast.LShift,
}

#: Functions whose arguments may be swapped.
SYMMETRIC = ("min", "max", "np.array_equal", "np.maximum", "np.result_type", "np.promote_types", "np.may_share_memory")


def places(tree: ast.Module) -> Iterator[tuple[int, str]]:
    """Yield where and how a single fault can be planted in a module: the node's number, and the kind."""
    skipped = set(_unseen(tree))
    for number, node in enumerate(ast.walk(tree)):
        if node not in skipped and hasattr(node, "lineno"):
            for kind in _kinds(node):
                yield number, kind


def planted(source: str, number: int, kind: str) -> tuple[int, str, str]:
    """Return the line of a fault, what it is, and the source with it."""
    tree = ast.parse(source)
    node = next(node for k, node in enumerate(ast.walk(tree)) if k == number)
    before = ast.unparse(node).splitlines()[0][:60]
    after = _change(tree, node, kind).splitlines()[0][:60]
    return node.lineno, f"{kind}: {before}  ->  {after}", ast.unparse(ast.fix_missing_locations(tree))  # type: ignore[attr-defined]


def _unseen(tree: ast.Module) -> Iterator[ast.AST]:
    """Yield nodes whose change no caller sees: docstrings, annotations, messages of errors, imports, __all__."""
    for node in ast.walk(tree):
        hidden: list[ast.AST] = []
        if isinstance(node, ast.Raise | ast.Assert | ast.Import | ast.ImportFrom | ast.JoinedStr):
            hidden = [node]
        elif isinstance(node, ast.AnnAssign):
            hidden = [node.annotation]
        elif isinstance(node, ast.FunctionDef):
            hidden = [*node.decorator_list, *([node.returns] if node.returns else [])]
            hidden += [
                argument.annotation
                for argument in ast.walk(node.args)
                if isinstance(argument, ast.arg) and argument.annotation
            ]
        elif (isinstance(node, ast.If) and "TYPE_CHECKING" in ast.unparse(node.test)) or (
            isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant)
        ):
            hidden = [node]
        for one in hidden:
            yield from ast.walk(one)


def _kinds(node: ast.AST) -> Iterator[str]:
    if isinstance(node, ast.Compare) and len(node.ops) == 1 and type(node.ops[0]) in COMPARISONS:
        yield "comparison"
    elif (
        isinstance(node, ast.BinOp)
        and type(node.op) in ARITHMETIC
        and not isinstance(node.left, ast.Constant | ast.JoinedStr)
    ):
        yield "arithmetic"
    elif isinstance(node, ast.BoolOp):
        yield "and/or"
        yield "term left out"
    elif isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.Not):
        yield "not left out"
    elif isinstance(node, ast.Constant) and isinstance(node.value, int | float):
        yield "constant"
    elif isinstance(node, ast.Call) and len(node.args) > 1 and not any(isinstance(x, ast.Starred) for x in node.args):
        if ast.unparse(node.func) not in SYMMETRIC:
            yield "arguments swapped"
    elif isinstance(node, ast.AugAssign | ast.Expr) and not isinstance(getattr(node, "value", None), ast.Constant):
        yield "statement left out"
    elif isinstance(node, ast.IfExp):
        yield "branches swapped"
    elif isinstance(node, ast.If) and not any(isinstance(x, ast.Raise) for x in node.body):
        yield "condition true"
    elif isinstance(node, ast.Return) and node.value is None:
        yield "statement left out"


def _change(tree: ast.AST, node: ast.AST, kind: str) -> str:
    """Plant a fault at a node and return what stands there now."""
    if kind == "comparison":
        node.ops = [COMPARISONS[type(node.ops[0])]()]  # type: ignore[attr-defined]
    elif kind == "arithmetic":
        node.op = ARITHMETIC[type(node.op)]()  # type: ignore[attr-defined]
    elif kind == "and/or":
        node.op = ast.Or() if isinstance(node.op, ast.And) else ast.And()  # type: ignore[attr-defined]
    elif kind == "term left out":
        del node.values[-1]  # type: ignore[attr-defined]
        if len(node.values) == 1:  # type: ignore[attr-defined]
            node.values.append(node.values[0])  # type: ignore[attr-defined]
    elif kind == "not left out":
        node.operand = ast.UnaryOp(ast.Not(), node.operand)  # type: ignore[attr-defined]
    elif kind == "constant":
        value = node.value  # type: ignore[attr-defined]
        node.value = not value if isinstance(value, bool) else value + 1 if isinstance(value, int) else value * 2 or 1.0  # type: ignore[attr-defined]
    elif kind == "arguments swapped":
        node.args[0], node.args[1] = node.args[1], node.args[0]  # type: ignore[attr-defined]
    elif kind == "branches swapped":
        node.body, node.orelse = node.orelse, node.body  # type: ignore[attr-defined]
    elif kind == "condition true":
        node.test = ast.Constant(True)  # type: ignore[attr-defined]
    elif kind == "statement left out":
        for parent in ast.walk(tree):
            for name in ("body", "orelse", "finalbody"):
                block = getattr(parent, name, None)
                if isinstance(block, list) and node in block:
                    block[block.index(node)] = ast.Pass()
                    return "(nothing)"
    return ast.unparse(ast.fix_missing_locations(node))


def sources(system: str, backend: str) -> list[Path]:
    """Return the modules of a system that run on a CPU, or those that run on a GPU."""
    folder = ROOT / "src/spectile" / system
    apart = {"cuda", "distributed", "multi", "compile.py", "device.py", "devices.py", "launch.py", "tensor_map.py"}
    return sorted(
        p
        for p in folder.rglob("*.py")
        if p.name != "__init__.py"
        and ("cuda" in p.parts if backend == "cuda" else not apart & set(p.relative_to(folder).parts))
    )


def sample(system: str, backend: str, count: int, seed: int) -> list[tuple[Path, int, str, str]]:
    """Return some faults of a system: file, line, what it is, and the whole source with it."""
    all_of_them = [(path, *place) for path in sources(system, backend) for place in places(ast.parse(path.read_text()))]
    chosen = random.Random(seed).sample(all_of_them, min(count, len(all_of_them)))
    print(f"{system}: {len(chosen)} of {len(all_of_them)} faults", flush=True)
    return [(path.relative_to(ROOT), *planted(path.read_text(), number, kind)) for path, number, kind in chosen]


def main() -> int:
    """Plant the faults and print the score and those that no test found."""
    parser = argparse.ArgumentParser(prog="python -m tests.random.mutate", description=__doc__)
    parser.add_argument("system", choices=SYSTEMS)
    parser.add_argument("--backend", choices=("cpu", "cuda"), default="cpu", help="modules of which (default: cpu)")
    parser.add_argument("--count", type=int, default=25)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--timeout", type=float, default=300.0, help="seconds that the tests of one fault may take")
    parser.add_argument("--minutes", type=float, default=60.0, help="no fault is begun after so many minutes")
    parser.add_argument("--processes", type=int, default=1, help="faults that are looked for at a time")
    parser.add_argument("tests", nargs="*", help="files of tests (default: the system's), and options of pytest")
    arguments = parser.parse_intermixed_args()
    faults = sample(arguments.system, arguments.backend, arguments.count, arguments.seed)
    tests = arguments.tests or [f"tests/{'gpu' if arguments.backend == 'cuda' else 'cpu'}/{arguments.system}"]
    end = time.monotonic() + 60 * arguments.minutes
    with tempfile.TemporaryDirectory(prefix="mutants-") as folder:
        trees: SimpleQueue[Path] = SimpleQueue()
        for number in range(arguments.processes):
            tree = Path(folder) / f"tree{number}"
            apart = shutil.ignore_patterns(".git", ".venv", "results", "resources", "__pycache__", "logs")
            shutil.copytree(ROOT, tree, ignore=apart, symlinks=True)
            trees.put(tree)

        def judge(fault: tuple[Path, int, str, str]) -> str | None:
            path, line, words, source = fault
            tree, begun = trees.get(), time.monotonic()
            verdict = None
            if begun < end:
                whole = (tree / path).read_text()
                write(tree, path, source)
                verdict = run_tests(tree, tests, arguments.timeout)
                write(tree, path, whole)
                print(f"{verdict} {path}:{line} {words} ({time.monotonic() - begun:.0f} s)", flush=True)
            trees.put(tree)
            return verdict

        if run_tests(tree, tests, None) != "survived":
            parser.exit(1, f"without any fault, too, pytest fails: {' '.join(tests)}\n")
        with ThreadPoolExecutor(arguments.processes) as pool:
            verdicts = Counter(filter(None, pool.map(judge, faults)))
    print(", ".join(f"{count} {verdict}" for verdict, count in verdicts.items()))
    return 0


def write(tree: Path, path: Path, source: str) -> None:
    """Write a module, and let Numba compile anew what may hold its functions: it knows each by its own file alone."""
    (tree / path).write_text(source)
    for other in (tree / path).parents[len(path.parts) - 4].rglob("*.py"):
        text = other.read_text()
        if "njit" in text and re.search(rf"\b{path.stem}\b", text):
            os.utime(other)


def run_tests(tree: Path, tests: list[str], timeout_s: float | None) -> str:
    """Return whether the tests find what is in a tree; "late" where they do not end, by the fault or the machine.

    "no test" is where pytest has none by these names.
    """
    environment = os.environ | {
        "PYTHONPATH": os.pathsep.join([str(tree / "src"), *filter(None, [os.environ.get("PYTHONPATH")])]),
        "NUMBA_CACHE_DIR": str(tree / ".numba"),
        "PYTHONDONTWRITEBYTECODE": "1",
    }
    command = [
        "nice",
        sys.executable,
        "-m",
        "pytest",
        "-q",
        "-x",
        "-p",
        "no:cacheprovider",
        "--no-header",
        "--tb=no",
        *tests,
    ]
    process = subprocess.Popen(
        command, cwd=tree, env=environment, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, start_new_session=True
    )
    try:
        return {0: "survived", 4: "no test", 5: "no test"}.get(process.wait(timeout_s), "killed")
    except subprocess.TimeoutExpired:
        os.killpg(process.pid, 9)
        process.wait()
        return "late"


if __name__ == "__main__":
    sys.exit(main())
