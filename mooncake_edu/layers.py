"""The seven layer files: their names, their text, and where a listing of their lines may begin."""

from __future__ import annotations

import ast
import hashlib
from collections.abc import Iterator
from pathlib import Path

from mooncake_edu.errors import UserError

LAYERS = ("kvcache", "prefix", "store", "transfer", "prefill", "conductor", "admission")


class LayerError(UserError):
    """There is no such layer file, or its lines cannot be had."""


def path(layer: str) -> Path:
    """The package's own file of a layer; raises LayerError where there is none."""
    file = Path(__file__).with_name(f"{layer}.py")
    if layer not in LAYERS or not file.exists():
        there = [name for name in LAYERS if file.with_name(f"{name}.py").exists()]
        raise LayerError(f"{layer!r} is no layer: the layers are {', '.join(there)}")
    return file


def read(file: Path) -> str:
    """The text of a source file, its lines ended by single line feeds as everywhere but in some checkouts."""
    return file.read_text(encoding="utf-8")


def digest(text: str) -> str:
    """Sixteen hex digits that tell one version of a layer file from another."""
    return hashlib.sha256(text.encode()).hexdigest()[:16]


def starts(text: str) -> set[int]:
    """The lines at which a listing may begin: those of statements of the module and of its classes.

    A statement begins with its decorators and with the comments right above it.
    """
    lines = text.split("\n")
    return {_first_line(node, lines) for node in _statements(ast.parse(text))}


def _statements(tree: ast.Module) -> Iterator[ast.stmt]:
    for node in tree.body:
        yield node
        if isinstance(node, ast.ClassDef):
            yield from node.body


def _first_line(node: ast.stmt, lines: list[str]) -> int:
    decorators: list[ast.expr] = getattr(node, "decorator_list", [])
    first = min([node.lineno, *(decorator.lineno for decorator in decorators)])
    while first > 1 and lines[first - 2].startswith(" " * node.col_offset + "#"):
        first -= 1
    return first


def names(text: str, start: int, stop: int) -> list[str]:
    """The names that the statements of a module bind which touch the lines `start` to `stop`, imports included."""
    touched = [node for node in ast.parse(text).body if node.lineno <= stop and start <= (node.end_lineno or 0)]
    return [name for node in touched for name in bound(node)]


def bound(node: ast.stmt) -> Iterator[str]:
    """The names that a statement of a module binds, those inside `if` and `try` included."""
    match node:
        case ast.ImportFrom(module="__future__"):
            return
        case ast.Import() | ast.ImportFrom():
            yield from (alias.asname or alias.name.partition(".")[0] for alias in node.names)
        case ast.FunctionDef() | ast.AsyncFunctionDef() | ast.ClassDef():
            yield node.name
        case _:
            for child in ast.walk(node):
                if isinstance(child, ast.Name) and isinstance(child.ctx, ast.Store):
                    yield child.id
                elif child is not node and isinstance(child, ast.stmt):
                    yield from bound(child)
