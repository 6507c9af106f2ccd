"""What objects of a module are made of, who refers to them, and whether one can become another and stay itself."""

from __future__ import annotations

import ast
import gc
import linecache
import sys
from collections.abc import Iterator
from enum import Enum
from functools import cached_property, partialmethod
from types import CellType, FunctionType, GetSetDescriptorType, MemberDescriptorType, MethodType, ModuleType
from typing import Any

WRAPPERS = (staticmethod, classmethod, property, cached_property, partialmethod)
"""What may stand around the functions of a class."""

WRAPPED = ("__func__", "fget", "fset", "fdel", "func")
"""Where these keep their functions."""

OF_ONE_CLASS = (GetSetDescriptorType, MemberDescriptorType)
"""Descriptors that fit the objects of one class only."""


def misfit(old: Any, new: Any) -> str:
    """Why an object cannot take over what makes up `new` and stay itself; empty if it can."""
    if type(old) is not type(new):
        return "its kind changed"
    if (old.__module__, old.__qualname__) != (new.__module__, new.__qualname__) or "<" in new.__qualname__:
        return "its name changed"
    if isinstance(new, FunctionType):
        same = old.__globals__ is new.__globals__ and old.__code__.co_freevars == new.__code__.co_freevars
        return "" if same else "what it closes over changed"
    if old.__bases__ != new.__bases__:
        return "its bases changed"
    for what, name in (("slots", "__slots__"), ("fields", "_fields")):
        if vars(old).get(name) != vars(new).get(name):
            return f"its {what} changed"
    return "its members changed" if _members(old) != _members(new) else ""


def _members(cls: type) -> dict[str, object]:
    return {name: member.value for name, member in cls.__members__.items()} if issubclass(cls, Enum) else {}


def attributes(cls: type) -> dict[str, Any]:
    """What a class has of its own and another one may take over; of an enum, whose members stay, only functions."""
    own = {name: value for name, value in vars(cls).items() if not isinstance(value, OF_ONE_CLASS)}
    own.pop("_abc_impl", None)
    if issubclass(cls, Enum):
        own = {name: value for name, value in own.items() if isinstance(value, (FunctionType, *WRAPPERS))}
    return own


def hand_over(new: type, old: type) -> None:
    """Let the functions of a class, whose `super()` and whose decorators refer to it, refer to the one that stays."""
    for value in attributes(new).values():
        for cell in cells(value):
            if _contents(cell) is new:
                cell.cell_contents = old


def cells(value: object) -> Iterator[CellType]:
    """The closure cells of the functions in an attribute of a class, however they are wrapped."""
    todo, seen = [value], set()
    while todo:
        part = todo.pop()
        if id(part) in seen:
            continue
        seen.add(id(part))
        if isinstance(part, FunctionType):
            yield from part.__closure__ or ()
            todo += [_contents(cell) for cell in part.__closure__ or ()]
        elif isinstance(part, WRAPPERS):
            todo += [getattr(part, name, None) for name in WRAPPED]


def _contents(cell: CellType) -> object:
    try:
        return cell.cell_contents
    except ValueError:  # nothing yet
        return None


def same(old: object, new: object) -> bool:
    """Whether two values are of one kind and equal; those that cannot be compared are not."""
    try:
        return type(old) is type(new) and bool(old == new)
    except Exception:  # arrays, for one, are neither equal nor unequal
        return False


def _modules() -> list[ModuleType]:
    return [module for module in list(sys.modules.values()) if isinstance(module, ModuleType)]


def everywhere(value: object) -> Iterator[tuple[dict[str, Any], str]]:
    """The namespaces of modules that have an object, each with its name there."""
    for module in _modules():
        yield from ((vars(module), name) for name, other in list(vars(module).items()) if other is value)


def importers(source: ModuleType, name: str) -> Iterator[tuple[dict[str, Any], str]]:
    """The namespaces of the package's modules, and of the reader, that import a name, each with its name there."""
    yield vars(sys.modules["__main__"]), name
    package = source.__name__.partition(".")[0]
    for module in _modules():
        if module.__name__.partition(".")[0] != package or not module.__file__:
            continue
        for node in ast.walk(ast.parse("".join(linecache.getlines(module.__file__)))):
            if isinstance(node, ast.ImportFrom) and node.module == source.__name__:
                yield from ((vars(module), alias.asname or name) for alias in node.names if alias.name in (name, "*"))


def holders(old: Any) -> list[str]:
    """What still refers to an object that was replaced, in words."""
    counts = {"object": 0, "bound method": 0}
    if isinstance(old, type):
        counts["object"] = sum(type(other) is old for other in gc.get_objects())
    else:
        counts["bound method"] = sum(isinstance(other, MethodType) for other in gc.get_referrers(old))
    places = [f"{count} {what}{'s' * (count != 1)}" for what, count in counts.items() if count]
    heirs: list[type] = old.__subclasses__() if isinstance(old, type) else []
    current = [heir for heir in heirs if getattr(sys.modules.get(heir.__module__), heir.__name__, None) is heir]
    modules = sorted({names["__name__"] for names, _ in everywhere(old) if "__name__" in names})
    return places + [f"the subclass {heir.__name__}" for heir in current] + modules
