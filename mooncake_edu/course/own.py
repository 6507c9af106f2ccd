"""Tells whether an answer is the package's own object in another dress."""

from __future__ import annotations

import functools
import inspect
import sys
import types
from collections.abc import Iterator
from typing import Any

LIBRARIES = sys.stdlib_module_names | {"mooncake_edu", "numpy", "torch", "plotly", "IPython"}
"""Modules whose code is not the reader's, so nothing is looked for inside."""

PLAIN = frozenset(
    ("__module__", "__qualname__", "__doc__", "__dict__", "__weakref__", "__annotations__", "__slots__",
     "__orig_bases__", "__parameters__", "__firstlineno__", "__static_attributes__")
)  # fmt: skip
"""What every class holds in itself; a subclass with nothing else changes nothing."""

MOST = 1_000


def own_object(answer: Any, own: tuple[object, ...]) -> str | None:
    """The name of the object among `own` that `answer` is, wraps or calls by name; None for an answer of its own.

    Looks through partial objects, bound methods, decorators that keep what they wrap, subclasses without a change,
    instances, and the names that the reader's functions use. Runs nothing of the answer.
    """
    seen: dict[int, Any] = {}  # by identity, and kept alive so that no identity is used twice
    waiting = [answer]
    while waiting and len(seen) < MOST:
        thing = waiting.pop()
        if id(thing) in seen:
            continue
        seen[id(thing)] = thing
        for mine in own:
            if thing is mine or (_code(thing) is not None and _code(thing) is _code(mine)):
                return str(getattr(mine, "__qualname__", type(mine).__name__))
        waiting += _inside(thing)
    return None


def _code(thing: Any) -> types.CodeType | None:
    return thing.__code__ if isinstance(thing, types.FunctionType) else None


def _inside(thing: Any) -> Iterator[Any]:
    """What a thing hands its calls on to."""
    if isinstance(thing, functools.partial | functools.partialmethod):
        yield thing.func
    elif isinstance(thing, types.MethodType | staticmethod | classmethod):
        yield thing.__func__
    elif isinstance(thing, types.FunctionType):
        if not _is_library(thing.__globals__.get("__name__")):  # what a decorator has copied says another module
            yield from _used(thing)
    elif isinstance(thing, type):
        if not _is_library(thing.__module__):
            yield from _made_of(thing)
    else:
        yield type(thing)
    wrapped = inspect.getattr_static(thing, "__wrapped__", None)
    if wrapped is not None:
        yield wrapped


def _is_library(module: object) -> bool:
    return str(module).partition(".")[0] in LIBRARIES


def _made_of(class_: type) -> Iterator[Any]:
    changes = [value for name, value in vars(class_).items() if name not in PLAIN]
    yield from (changes or class_.__bases__)


def _used(function: types.FunctionType) -> Iterator[Any]:
    """The objects that a function names: globals, variables around it, modules and what it takes from them."""
    names = set(_names(function.__code__))
    found = [function.__globals__[name] for name in names if name in function.__globals__]
    found += [sys.modules[name] for name in names if name in sys.modules]
    for cell in function.__closure__ or ():
        try:
            found.append(cell.cell_contents)
        except ValueError:  # not bound yet
            continue
    for thing in found:
        if isinstance(thing, types.ModuleType):
            yield from (vars(thing)[name] for name in names if name in vars(thing))
        else:
            yield thing


def _names(code: types.CodeType) -> Iterator[str]:
    yield from code.co_names
    for constant in code.co_consts:
        if isinstance(constant, types.CodeType):
            yield from _names(constant)
