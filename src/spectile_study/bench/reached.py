"""What of the sources a case runs: the definitions that its driver reaches, and the kernels that it launched.

A definition is a function, a class or a variable of a module.  It reaches what its names mean, followed through imports
and packages that pass a name on, and a module whole where that stands for itself; annotations reach nothing.  A table
of ``spectile_study.cases`` called ``STUDIES`` holds the drivers of a paper by study, of which a case takes its own.
What lies in a package or module called ``cuda`` is not reached on a CPU.

Python's definitions count as the driver reaches them, for a call may come to each.  Of the sources in CUDA C++ those
count whose kernels were launched, with what they include: a record says which.

To follow the names takes seconds, and every Snakemake of a run and of its jobs asks: what was found is kept in files of
this user on this machine, one for each content of all sources.
"""

from __future__ import annotations

import ast
import contextlib
import functools
import gc
import hashlib
import json
import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

from spectile.core.atomic_file import atomic_write
from spectile_study.bench import sources
from spectile_study.bench.private_folder import private_folder
from spectile_study.bench.sources import printed, template_of, with_names

#: A module and a name in it; "" stands for what the module does beside defining names.
Node = tuple[str, str]
_PACKAGES = ("spectile", "spectile_study")
_DOTTED = re.compile(r"(?:spectile|spectile_study)(?:\.\w+)+")
_IMPORT = (ast.Import, ast.ImportFrom)
_COMPOUND = (ast.If, ast.Try, ast.For, ast.While, ast.With)


class Module:
    """A module's definitions and what its imports mean.

    Attributes
    ----------
    defined : dict of str to list
        Statements that give each name a value; by "" those that do more than to define names.
    imported : dict of str to set
        Dotted paths by name: a name may mean one thing in one branch and another in the next.
    """

    def __init__(self, name: str, path: Path) -> None:
        self.name = name
        self.package = name if path.stem == "__init__" else name.rpartition(".")[0]
        self.defined: dict[str, list[ast.stmt]] = {"": []}
        self.imported: dict[str, set[str]] = {}
        for statement in ast.parse(path.read_text()).body:
            self._take(statement)

    def _take(self, statement: ast.stmt) -> None:
        if isinstance(statement, _IMPORT):
            self._import(statement)
        elif isinstance(statement, ast.If) and "TYPE_CHECKING" in ast.dump(statement.test):
            for each in (*statement.body, *statement.orelse):
                self._take(each)
        elif not (isinstance(statement, ast.Expr) and isinstance(statement.value, ast.Constant)):
            names = set(_bound(statement))
            if isinstance(statement, _COMPOUND) or not names:
                self._import(statement)
                names.add("")
            for name in names:
                self.defined.setdefault(name, []).append(statement)

    def _import(self, statement: ast.stmt) -> None:
        for name, paths in self.aliases(looked_at(statement)[1]).items():
            self.imported.setdefault(name, set()).update(paths)

    def aliases(self, imports: Iterable[ast.Import | ast.ImportFrom]) -> dict[str, set[str]]:
        """Return what imports mean: dotted paths by name."""
        found: dict[str, set[str]] = {}
        for node in imports:
            if isinstance(node, ast.ImportFrom):
                above = self.package.rsplit(".", node.level - 1)[0] if node.level else ""
                origin = ".".join(filter(None, (above, node.module)))
                pairs = [(each.asname or each.name, f"{origin}.{each.name}") for each in node.names]
            else:
                roots = [each.name.partition(".")[0] for each in node.names]
                meant = [each.name if each.asname else root for each, root in zip(node.names, roots, strict=True)]
                pairs = [(each.asname or path, path) for each, path in zip(node.names, meant, strict=True)]
            for name, path in pairs:
                found.setdefault(name, set()).add(path)
        return found

    def meanings(self, dotted: str, own: Mapping[str, set[str]]) -> Iterator[Node]:
        """Return what a dotted name means in this module, where `own` are the imports of the statement it stands in."""
        root, _, rest = dotted.partition(".")
        for path in own.get(root, set()) | self.imported.get(root, set()):
            yield from find(f"{path}.{rest}".strip("."))
        if root in self.defined:
            yield self.name, root


def _bound(statement: ast.stmt) -> Iterator[str]:
    """Return the names to which a statement of a module gives a value."""
    if isinstance(statement, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
        yield statement.name
    elif isinstance(statement, _COMPOUND):
        for child in ast.iter_child_nodes(statement):
            if isinstance(child, ast.stmt | ast.ExceptHandler):
                for inner in child.body if isinstance(child, ast.ExceptHandler) else [child]:
                    yield from _bound(inner)
    else:
        yield from (
            node.id for node in ast.walk(statement) if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store)
        )


def looked_at(statement: ast.stmt) -> tuple[set[str], list[ast.Import | ast.ImportFrom]]:
    """Return the dotted names in a statement, modules and scripts that its strings name, and its imports.

    Annotations are left out.
    """
    names: set[str] = set()
    imports: list[ast.Import | ast.ImportFrom] = []
    ahead: list[Any] = [statement]
    while ahead:
        node = ahead.pop()
        if isinstance(node, _IMPORT):
            imports.append(node)
        elif isinstance(node, ast.Constant):
            if isinstance(node.value, str) and (node.value.endswith(".py") or _DOTTED.fullmatch(node.value)):
                names.add(node.value)
        elif isinstance(node, ast.Name | ast.Attribute) and (name := _dotted(node)):
            names.add(name)
        elif isinstance(node, list):
            ahead += node
        elif isinstance(node, ast.AST):
            fields = (each for each in sources.FIELDS[type(node)] if each not in ("annotation", "returns"))
            ahead += [getattr(node, field, None) for field in fields]
    return names, imports


def _dotted(node: ast.expr) -> str:
    """Return a name with its attributes, or "" for attributes of anything else."""
    if isinstance(node, ast.Attribute):
        above = _dotted(node.value)
        return f"{above}.{node.attr}" if above else ""
    return node.id if isinstance(node, ast.Name) else ""


@functools.cache
def _paths() -> dict[str, Path]:
    """Return the path of each module of ours by its name."""
    found = {}
    for package in _PACKAGES:
        for path in (sources.SOURCES / package).rglob("*.py"):
            parts = path.relative_to(sources.SOURCES).with_suffix("").parts
            found[".".join(parts[:-1] if parts[-1] == "__init__" else parts)] = path
    return found


@functools.cache
def _module(name: str) -> Module:
    gc.freeze()  # syntax trees are many objects, all of them kept: no garbage is looked for in those that were made
    return Module(name, _paths()[name])


@functools.cache
def find(dotted: str) -> tuple[Node, ...]:
    """Return the definitions that a dotted path means: one, all of a module, or none of ours."""
    parts = dotted.split(".")
    for cut in range(len(parts), 0, -1):
        name = ".".join(parts[:cut])
        if name in _paths():
            break
    else:
        return ()
    module, rest = _module(name), parts[cut:]
    if rest:
        return tuple(module.meanings(".".join(rest), {}))
    passed_on = [path for paths in module.imported.values() for path in paths] if name == module.package else []
    return (*((name, each) for each in module.defined), *(node for path in passed_on for node in find(path)))


def _script(path: Path) -> tuple[Node, ...]:
    return next((find(name) for name, known in _paths().items() if known == path), ())


class Definition:
    """What a definition says and reaches.

    Parameters
    ----------
    node : tuple of str
        Module and name.
    study : str
        Study of the case, whose driver is the only one that a table of studies holds.
    """

    def __init__(self, node: Node, study: str) -> None:
        module = _module(node[0])
        statements = [_of_study(each, study) if _is_table(node) else each for each in module.defined[node[1]]]
        says = [with_names(printed(each), lambda other: "") for each in statements]
        #: Digest of the program, whatever the names of the files that it imports from.
        self.says = hashlib.sha256("\n".join(says).encode()).hexdigest()
        #: Definitions by the name under which this one knows them.
        self.reaches: dict[str, tuple[Node, ...]] = {}
        for statement in statements:
            names, imports = looked_at(statement)
            own = module.aliases(imports)
            for name in names:
                if name.endswith(".py"):
                    found = _script(_paths()[node[0]].parent / name)
                else:
                    found = tuple(module.meanings(name, own))
                    if not found and name.startswith(_PACKAGES):
                        found = find(name)
                if found:
                    self.reaches[name] = found
        self.targets = {each for found in self.reaches.values() for each in found}


def _is_table(node: Node) -> bool:
    return node[0].startswith("spectile_study.cases.") and node[1].endswith("STUDIES")


def _of_study(statement: ast.stmt, study: str) -> ast.stmt:
    """Return the table of studies with the entry of one alone, or none."""
    assert isinstance(statement, ast.Assign | ast.AnnAssign) and isinstance(statement.value, ast.Dict)
    pairs = zip(statement.value.keys, statement.value.values, strict=True)
    kept = [(key, value) for key, value in pairs if isinstance(key, ast.Constant) and key.value == study]
    table = ast.Dict([key for key, _ in kept], [value for _, value in kept])
    return ast.Assign([ast.Name(id="STUDIES", ctx=ast.Store())], table)


_definition = functools.cache(Definition)


def _look_up(node: Node, study: str) -> Definition:
    return _definition(node, study if _is_table(node) else "")


@functools.cache
def _begun(module: str) -> tuple[Node, ...]:
    """Return what importing a module does beside defining names: its own statements, and those of its packages."""
    parts = module.split(".")
    return tuple((name, "") for cut in range(1, len(parts) + 1) if (name := ".".join(parts[:cut])) in _paths())


@functools.cache
def reached(drivers: tuple[str, ...], study: str, backend: str) -> tuple[Node, ...]:
    """Return the definitions that a case reaches, in order.

    Parameters
    ----------
    drivers : tuple of str
        Dotted paths of what builds and measures the case.
    study : str
        The case's study, "" if its paper has one alone.
    backend : {"cpu", "cuda"}
        What the case is measured on.
    """
    ahead = [node for driver in drivers for node in find(driver)]
    found: set[Node] = set()
    while ahead:
        node = ahead.pop()
        if node not in found and not (backend == "cpu" and _is_of_a_device(node)):
            found.add(node)
            ahead += [*_begun(node[0]), *_look_up(node, study).targets]
    return tuple(sorted(found))


@functools.cache
def _line(node: Node, study: str, backend: str) -> str:
    """Return what a definition says, and each of its names with what that means; a table stands for itself alone."""
    definition = _look_up(node, study)
    known = []
    for name, found in definition.reaches.items():
        meant = [each for each in found if not _is_table(each) and not (backend == "cpu" and _is_of_a_device(each))]
        known.append(f"{name}={','.join(sorted(_look_up(each, '').says for each in meant))}")
    return " ".join([definition.says, *sorted(known)])


def _is_of_a_device(node: Node) -> bool:
    return "cuda" in node[0].split(".")


#: Files of this many contents of the sources are kept, the latest.
FILES = 20


@functools.cache
def _file() -> Path | None:
    """Return where what is found for these sources is kept, or None where no folder is this user's own."""
    folder = private_folder("spectile-digests")
    total = hashlib.sha256()
    for path in sorted(path for path in sources.SOURCES.rglob("*") if path.suffix in {".py", ".cu", ".cuh"}):
        content = path.read_bytes()
        total.update(f"{path.relative_to(sources.SOURCES)} {len(content)} ".encode())
        total.update(content)
    return folder / f"{total.hexdigest()}.json" if folder else None


def _read(path: Path | None) -> dict[str, Any]:
    with contextlib.suppress(OSError, ValueError):
        kept = json.loads(path.read_text()) if path else None
        if isinstance(kept, dict):
            return kept
    return {}


def _write(path: Path, kept: Mapping[str, Any]) -> None:
    with contextlib.suppress(OSError), atomic_write(path) as partial:
        partial.write_text(json.dumps({**_read(path), **kept}))
    with contextlib.suppress(OSError):  # another process removes them, too
        for old in sorted(path.parent.glob("*.json"), key=lambda each: each.stat().st_mtime_ns)[:-FILES]:
            old.unlink()


def _kept(function: Callable[..., Any]) -> Any:
    """Keep what `function` returns for its arguments and these sources, in this process and for others."""

    @functools.cache
    def found(*arguments: Any) -> Any:
        path, key = _file(), json.dumps([function.__name__, *arguments])
        before = _read(path)
        if key not in before:
            before = {key: function(*arguments)}
            if path:
                _write(path, before)
        return before[key]

    return functools.update_wrapper(found, function)


@_kept
def programs(drivers: tuple[str, ...], study: str, backend: str) -> str:
    """Return the sha256 of the programs of all definitions that a case reaches, whatever the names of their files."""
    lines = [_line(node, study if _is_table(node) else "", backend) for node in reached(drivers, study, backend)]
    return hashlib.sha256("\n".join(sorted(lines)).encode()).hexdigest()


@_kept
def kernels() -> dict[str, str]:
    """Return the sha256 of each CUDA source, by its path below the sources, with all that it may include."""
    files = {path for path in sources.SOURCES.rglob("*.cu*") if path.suffix in {".cu", ".cuh"}}
    return {path.relative_to(sources.SOURCES).as_posix(): _with_headers(path, files) for path in sorted(files)}


def _with_headers(path: Path, files: set[Path]) -> str:
    seen: dict[Path, str] = {}
    ahead = [path]
    while ahead:
        source = ahead.pop()
        if source in seen:
            continue
        text = template_of(source)
        seen[source] = with_names(text, lambda name: "")
        ahead += [place for name in text.split(sources.MARK)[1::2] for place in _meant(name, source) if place in files]
    return hashlib.sha256("\n".join(sorted(seen.values())).encode()).hexdigest()


def _meant(name: str, source: Path) -> Iterator[Path]:
    """Return where a header may lie: in its own package, beside the source or above it, or in core."""
    package, _, name = name.rpartition(":")
    if package:
        yield sources.SOURCES.joinpath(*package.split("."), name)
    else:
        yield from (folder / name for folder in source.parents if folder.is_relative_to(sources.SOURCES))
        yield sources.SOURCES / "spectile/core" / name


@_kept
def may_launch(drivers: tuple[str, ...], study: str, backend: str) -> dict[str, str]:
    """Return the CUDA sources of core and of the systems that a case reaches; of `reached` with these parameters."""
    if backend == "cpu":
        return {}
    modules = {_paths()[module] for module, _ in reached(drivers, study, backend)}
    systems = {_system(path.relative_to(sources.SOURCES).parts) for path in modules} | {("spectile", "core")}
    return {name: says for name, says in kernels().items() if _system(Path(name).parts) in systems}


def _system(parts: tuple[str, ...]) -> tuple[str, ...]:
    return parts[: 3 if parts[:2] == ("spectile_study", "cases") else 2]


def source_names(package: str, names: Iterable[str]) -> Iterator[str]:
    """Return the paths below the sources of a unit's files, as :class:`spectile.core.compile.Unit` names them."""
    for each in names:
        of, _, name = each.rpartition(":")
        yield f"{(of or package).replace('.', '/')}/{name}"


def digest(programs: str, kernels: Mapping[str, str]) -> str:
    """Return the sha256 of programs and kernels, whatever the names of their files."""
    return hashlib.sha256(" ".join([programs, *sorted(set(kernels.values()))]).encode()).hexdigest()


@_kept
def digest_of_all(drivers: tuple[str, ...], study: str, backend: str) -> str:
    """Return the sha256 of all sources that can change a case's numbers; of `reached` with these parameters."""
    return digest(programs(drivers, study, backend), may_launch(drivers, study, backend))


def forget() -> None:
    """Read the sources anew from now on."""
    here = (_paths, _module, find, _definition, _begun, _line, reached, programs, kernels, may_launch)
    for each in (sources.template_of, *here, digest_of_all, _file):
        each.cache_clear()
