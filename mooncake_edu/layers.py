"""The seven layer files: their names, their text, where a listing may begin, and a folder that replaces them.

If the environment variable MOONCAKE_EDU_LAYERS names a folder, the layer files in it take the place of the package's
in every process that inherits it.
"""

from __future__ import annotations

import ast
import builtins
import hashlib
import os
import sys
from collections.abc import Iterator
from importlib.abc import MetaPathFinder
from importlib.machinery import ModuleSpec
from importlib.util import spec_from_file_location
from pathlib import Path

from mooncake_edu.errors import UserError

LAYERS = ("kvcache", "prefix", "store", "transfer", "prefill", "conductor", "admission")

VARIABLE = "MOONCAKE_EDU_LAYERS"
"""The environment variable that names a folder of the reader's own layer files."""


class LayerError(UserError):
    """There is no such layer file, or its lines cannot be had."""


def replaced() -> dict[str, Path]:
    """The layers whose files come from the folder that MOONCAKE_EDU_LAYERS names, with those files.

    Raises LayerError if it names a folder that is not there or has no layer file.
    """
    named = os.environ.get(VARIABLE)
    if not named:
        return {}
    folder = Path(named)
    files = {layer: file for layer in LAYERS if (file := folder / f"{layer}.py").is_file()}
    if not files:
        what = "has no layer file" if folder.is_dir() else "is no folder"
        raise LayerError(f"{VARIABLE}={named} {what}: make one with `mooncake-edu course weave tangle`")
    return files


class _Finder(MetaPathFinder):
    """Finds a layer in the folder of the reader's own, which is looked at when the first layer is imported."""

    def find_spec(self, name: str, path: object = None, target: object = None) -> ModuleSpec | None:
        package, _, layer = name.rpartition(".")
        if package != "mooncake_edu" or layer not in LAYERS or (file := replaced().get(layer)) is None:
            return None
        return spec_from_file_location(name, file)


def replace() -> None:
    """Let the layers of this process, and of those it starts, come from the reader's folder, as far as it has them."""
    os.environ[VARIABLE] = os.path.abspath(os.environ[VARIABLE])  # wherever they are started
    sys.meta_path.insert(0, _Finder())


def path(layer: str) -> Path:
    """The package's own file of a layer; raises LayerError where there is none."""
    files = {name: file for name in LAYERS if (file := Path(__file__).with_name(f"{name}.py")).exists()}
    if layer not in files:
        raise LayerError(f"{layer!r} is no layer: the layers are {', '.join(files)}")
    return files[layer]


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


def bound(node: ast.AST) -> Iterator[str]:
    """The names that a statement of a module binds, those inside `if` and `try` included."""
    match node:
        case ast.ImportFrom(module="__future__"):
            return
        case ast.Import() | ast.ImportFrom():
            yield from (alias.asname or alias.name.partition(".")[0] for alias in node.names)
        case ast.FunctionDef() | ast.AsyncFunctionDef() | ast.ClassDef():
            yield node.name
        case ast.Name(ctx=ast.Store()):
            yield node.id
        case ast.ListComp() | ast.SetComp() | ast.DictComp() | ast.GeneratorExp():
            return  # its names are its own
        case _:
            for child in ast.iter_child_nodes(node):
                yield from bound(child)


def too_early(text: str) -> list[tuple[int, str]]:
    """Line and name of what a module's statements use, when it is imported, before a later statement defines it."""
    body = ast.parse(text).body
    later = [set(bound(node)) for node in body]
    found, before = [], set(dir(builtins)) | {"__name__", "__file__", "__doc__"}
    for number, node in enumerate(body):
        coming = set().union(*later[number + 1 :]) - before - later[number]
        found += [(line, name) for line, name in _used_at_once(node) if name in coming]
        before |= later[number]
    return found


def _used_at_once(node: ast.AST) -> Iterator[tuple[int, str]]:
    """The names that running a statement looks up; not those that a function looks up when it is called."""
    match node:
        case ast.FunctionDef() | ast.AsyncFunctionDef():
            inside: list[ast.AST] = [*node.decorator_list, *node.args.defaults, *filter(None, node.args.kw_defaults)]
        case ast.Lambda():
            inside = [*node.args.defaults, *filter(None, node.args.kw_defaults)]
        case ast.AnnAssign():
            inside = [node.value] if node.value else []
        case ast.Name(ctx=ast.Load()):
            yield node.lineno, node.id
            return
        case _:
            inside = list(ast.iter_child_nodes(node))
    for child in inside:
        yield from _used_at_once(child)
