"""What sources say: programs without comments, docstrings and layout, and their digests."""

from __future__ import annotations

import ast
import functools
import hashlib
import re
from collections.abc import Callable, Iterable
from pathlib import Path

SOURCES = Path(__file__).resolve().parents[2]


def files_digest(files: Iterable[Path]) -> str:
    """Return the sha256 of what `files` hold, whatever their names and order."""
    return hashlib.sha256("".join(sorted(map(_file_digest, files))).encode()).hexdigest()


@functools.cache
def _file_digest(path: Path) -> str:
    return hashlib.sha256(path.read_bytes()).hexdigest()


#: What encloses the name of another source in a template; no program holds it.
MARK = "\0"


def with_names(template: str, named: Callable[[str], str]) -> str:
    """Return a program whose template marks names of other sources, with what `named` gives in their places."""
    return "".join(named(part) if number % 2 else part for number, part in enumerate(template.split(MARK)))


def template(path: Path) -> str:
    """Return a Python or CUDA source without comments, docstrings and layout, the same in every version of Python.

    Marks stand around what names another source: ``"spectile.core.launch"`` or ``"rows/hash.cu"``.
    """
    text = path.read_text()
    if path.suffix == ".py":
        return printed(ast.parse(text))
    if path.suffix not in {".cu", ".cuh"}:
        return text
    text = text.replace("\\\n", " ")  # lines that go on, of macros
    # A string may hold what looks like a comment.
    code = re.sub(
        r'"(?:\\.|[^"\\])*"|//[^\n]*|/\*.*?\*/', lambda m: m[0] if m[0][0] == '"' else " ", text, flags=re.DOTALL
    )
    code = re.sub(r'(#include *")([^"]*)"', lambda m: f'{m[1]}{MARK}{m[2]}{MARK}"', code)
    # Blanks count in strings, and between words.
    return re.sub(r'"(?:\\.|[^"\\])*"|\s+', lambda m: m[0] if m[0][0] == '"' else _blank(m), code)


def _blank(found: re.Match[str]) -> str:
    before, after = found.string[max(0, found.start() - 1) : found.start()], found.string[found.end() : found.end() + 1]
    return " " if re.fullmatch(r"\w\w", before + after) else ""


def printed(node: object) -> str:
    """Return a syntax tree as text; fields that are empty, or new in a later Python, leave no trace."""
    parts: list[str] = []
    _print(node, parts.append)
    return "".join(parts)


def _print(node: object, put: Callable[[str], None]) -> None:
    kind = type(node)
    fields = FIELDS.get(kind)
    if fields is not None:
        put(f"{kind.__name__}(")
        for name in fields:
            value = getattr(node, name, None)
            if value is None or value == []:
                continue
            if name == "body" and kind in _DOCUMENTED and ast.get_docstring(node, clean=False) is not None:  # type: ignore[arg-type]
                value = value[1:]
            put(f"{name}=")
            if type(value) is str:
                marked = name == "module" or (name == "value" and value.endswith((".cu", ".cuh")))
                put(f"{MARK}{value}{MARK}" if marked else repr(value))
            else:
                _print(value, put)
            put(",")
        put(")")
    elif isinstance(node, list):
        put("[")
        for each in node:
            _print(each, put)
            put(",")
        put("]")
    else:
        put(repr(node))


#: What each kind of node holds, but whether a name is read or written: that follows from its place.
FIELDS: dict[type, tuple[str, ...]] = {
    kind: tuple(name for name in kind._fields if name != "ctx")
    for kind in vars(ast).values()
    if isinstance(kind, type) and issubclass(kind, ast.AST)
}
_DOCUMENTED = (ast.Module, ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef)


@functools.cache
def template_of(path: Path) -> str:
    """Return a source's template, read once: for itself and for those that name it."""
    return template(path)
