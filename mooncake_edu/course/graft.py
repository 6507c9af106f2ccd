"""New text for a module that runs already: its definitions are grafted into the objects that everybody holds.

The statements of the text run one after another in the module's own namespace. What a statement defines is merged
into the object that bore the name before, ahead of the next statement, so that bases, defaults and tables made
further down refer to objects that stay. If anything fails, every change is taken back.
"""

from __future__ import annotations

import ast
import gc
import inspect
import sys
from collections.abc import Callable, Iterator
from enum import Enum
from functools import cached_property, partial, partialmethod
from types import CellType, FunctionType, GetSetDescriptorType, MemberDescriptorType, MethodType, ModuleType
from typing import Any

from mooncake_edu.layers import bound

MISSING = object()
DEFINITIONS = (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)
WRAPPERS = (staticmethod, classmethod, property, cached_property, partialmethod)
OF_FUNCTIONS = (
    "__code__", "__defaults__", "__kwdefaults__", "__doc__", "__annotations__", "__type_params__", "__dict__"
)
"""What a function is made of besides its closure, which cannot be replaced but filled anew."""

OF_THIS_CLASS = (GetSetDescriptorType, MemberDescriptorType)
"""Descriptors that fit the objects of one class only."""


class Journal:
    """Changes of attributes and names, which can be taken back."""

    def __init__(self) -> None:
        self._undo: list[Callable[[], object]] = []

    def set(self, owner: Any, name: str, value: object) -> None:
        """Give an attribute a value."""
        old = vars(owner).get(name, MISSING) if isinstance(owner, type) else getattr(owner, name)
        setattr(owner, name, value)
        self._undo.append(partial(delattr, owner, name) if old is MISSING else partial(setattr, owner, name, old))

    def delete(self, owner: type, name: str) -> None:
        """Remove an attribute of a class."""
        self._undo.append(partial(setattr, owner, name, vars(owner)[name]))
        delattr(owner, name)

    def watch(self, names: dict[str, Any]) -> None:
        """Note a namespace as it is, so that whatever changes in it can be taken back."""
        self._undo.append(partial(_restore, names, dict(names)))

    def undo(self) -> None:
        """Take every change back, the latest first."""
        while self._undo:
            self._undo.pop()()


def _restore(names: dict[str, Any], before: dict[str, Any]) -> None:
    for name in names.keys() - before.keys():
        del names[name]
    names.update(before)


class Graft:
    """The objects of one module, over any number of new texts.

    An object that could not stay is remembered: when the text makes it fit again, it comes back.
    """

    def __init__(self, module: ModuleType) -> None:
        self._module = module
        self._displaced: dict[str, list[Any]] = {}
        self._journal = Journal()
        self._replaced: list[tuple[Any, str]] = []

    def run(self, old: str, new: str) -> list[str]:
        """Make the module what the text `new` says; it was what `old` says.

        Returns one line for each object that could not stay what it was, with what still holds the old one.
        Raises what compiling or running the text raises, and then leaves every object as it was.
        """
        self._journal, self._replaced = Journal(), []
        try:
            self._journal.watch(vars(self._module))
            self._run(ast.parse(old), ast.parse(new, self._file), new)
        except BaseException:
            self._journal.undo()
            raise
        gc.collect()  # the classes that served as patterns would still be listed among the subclasses of their bases
        return [note for old_object, why in self._replaced if (note := self._note(old_object, why))]

    @property
    def _file(self) -> str:
        return str(self._module.__file__)

    def _run(self, old: ast.Module, new: ast.Module, text: str) -> None:
        """Run each statement that is new, mentions a name that is, or is a definition that has moved."""
        whole = compile(text, self._file, "exec", dont_inherit=True)  # finds what only the compiler does
        flags = whole.co_flags & annotations.compiler_flag  # the feature that the module may have imported
        places: dict[str, set[int]] = {}
        for node in old.body:
            places.setdefault(ast.dump(node), set()).add(node.lineno)
        changed: set[str] = set()
        for node in new.body:
            before = places.get(ast.dump(node), set())
            mentioned = {child.id for child in ast.walk(node) if isinstance(child, ast.Name)}
            fresh = not before or bool(mentioned & changed)
            if fresh:
                changed.update(bound(node))
            if fresh or (isinstance(node, DEFINITIONS) and node.lineno not in before):
                code = compile(ast.Module([node], []), self._file, "exec", flags, dont_inherit=True)
                self._statement(code, fresh)
        left = {name for node in new.body for name in bound(node)}
        for name in {name for node in old.body for name in bound(node)} - left:
            self._remove(name)

    def _statement(self, code: Any, fresh: bool) -> None:
        names = vars(self._module)
        before = dict(names)
        exec(code, names)
        for name, value in list(names.items()):
            old = before.get(name, MISSING)
            if old is value:
                continue
            names[name] = self._merge(old, value) if fresh else self._move(old, value)
            if old is not MISSING and names[name] is not old:
                self._rebind(name, old, names[name])

    def _merge(self, old: Any, new: Any) -> Any:
        """The object that is `new` from now on: the old one, or one that was displaced before, if either can be."""
        if old is new:
            return old
        if isinstance(old, staticmethod | classmethod) and type(old) is type(new):
            kept = self._merge(old.__func__, new.__func__)
            return old if kept is old.__func__ else type(new)(kept)
        if not (isinstance(new, FunctionType | type) and self._is_own(new)):
            return old if _same(old, new) else new
        known = self._displaced.setdefault(new.__qualname__, [])
        for candidate in (old, *known):
            if not misfit(candidate, new):
                self._graft(candidate, new)
                break
        else:
            candidate = new
        if candidate is not old and isinstance(old, FunctionType | type) and self._is_own(old):
            known.append(old)
            self._replaced.append((old, misfit(old, new)))
        return candidate

    def _graft(self, old: Any, new: Any) -> None:
        if isinstance(old, FunctionType):
            for name in OF_FUNCTIONS:
                if hasattr(new, name):
                    self._journal.set(old, name, getattr(new, name))
            for cell, new_cell in zip(old.__closure__ or (), new.__closure__ or (), strict=True):
                self._journal.set(cell, "cell_contents", new_cell.cell_contents)
            return
        _hand_over(new, old)
        mine, others = attributes(old), attributes(new)
        for name, value in others.items():
            kept = self._merge(mine.get(name, MISSING), value)
            if kept is not mine.get(name, MISSING):
                self._journal.set(old, name, kept)
        for name in mine.keys() - others.keys():
            self._journal.delete(old, name)

    def _move(self, old: Any, new: Any) -> Any:
        """Give functions that have moved, and nothing else has happened to, the lines where they now are."""
        if isinstance(new, type) and isinstance(old, type):
            _hand_over(new, old)
            for name in attributes(new).keys() & attributes(old).keys():
                self._move(vars(old)[name], vars(new)[name])
            if "__firstlineno__" in vars(new):  # how Python 3.13 and later find a class
                self._journal.set(old, "__firstlineno__", vars(new)["__firstlineno__"])
        elif isinstance(new, FunctionType):
            if isinstance(old, FunctionType) and not misfit(old, new):
                self._journal.set(old, "__code__", new.__code__)
        elif isinstance(new, WRAPPERS) and type(old) is type(new):
            for name in ("__func__", "fget", "fset", "fdel", "func"):
                self._move(getattr(old, name, None), getattr(new, name, None))
        return old

    def _rebind(self, name: str, old: Any, new: Any) -> None:
        """Let every module that has the old object under any name have the new one.

        A constant may be the same object as another one by chance, so only what imports it by its name gets it.
        """
        places = _everywhere(old) if self._is_own(old) else importers(self._module, name)
        for names, key in list(places):
            if names.get(key) is old:
                self._journal.watch(names)
                names[key] = new

    def _remove(self, name: str) -> None:
        old = vars(self._module).pop(name, MISSING)
        if not self._is_own(old):
            return
        self._displaced.setdefault(getattr(old, "__qualname__", name), []).append(old)
        main = vars(sys.modules["__main__"])
        if main.get(name) is old:
            self._journal.watch(main)
            del main[name]
        self._replaced.append((old, "it is gone"))

    def _is_own(self, value: object) -> bool:
        return getattr(value, "__module__", None) == self._module.__name__

    def _note(self, old: Any, why: str) -> str:
        holders = _holders(old)
        if not holders and not isinstance(old, type):
            return ""
        keep = f"{', '.join(holders)} keep the old one" if holders else "nothing keeps the old one"
        return f"{getattr(old, '__qualname__', old)} is another object now, since {why}: {keep}"


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
    own = {name: value for name, value in vars(cls).items() if not isinstance(value, OF_THIS_CLASS)}
    own.pop("_abc_impl", None)
    if issubclass(cls, Enum):
        own = {name: value for name, value in own.items() if isinstance(value, (FunctionType, *WRAPPERS))}
    return own


def _hand_over(new: type, old: type) -> None:
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
            todo += [getattr(part, name, None) for name in ("__func__", "fget", "fset", "fdel", "func")]


def _contents(cell: CellType) -> object:
    try:
        return cell.cell_contents
    except ValueError:  # nothing yet
        return None


def _same(old: object, new: object) -> bool:
    try:
        return type(old) is type(new) and bool(old == new)
    except Exception:  # arrays, for one, are neither equal nor unequal
        return False


def _modules() -> list[ModuleType]:
    return [module for module in list(sys.modules.values()) if isinstance(module, ModuleType)]


def _everywhere(value: object) -> Iterator[tuple[dict[str, Any], str]]:
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
        for node in ast.walk(ast.parse(inspect.getsource(module))):
            if isinstance(node, ast.ImportFrom) and node.module == source.__name__:
                yield from ((vars(module), alias.asname or name) for alias in node.names if alias.name == name)


def _holders(old: Any) -> list[str]:
    """What still refers to an object that was replaced, in words."""
    counts = {"object": 0, "bound method": 0}
    if isinstance(old, type):
        counts["object"] = sum(type(other) is old for other in gc.get_objects())
    else:
        counts["bound method"] = sum(isinstance(other, MethodType) for other in gc.get_referrers(old))
    places = [f"{count} {what}{'s' * (count != 1)}" for what, count in counts.items() if count]
    heirs: list[type] = old.__subclasses__() if isinstance(old, type) else []
    current = [heir for heir in heirs if getattr(sys.modules.get(heir.__module__), heir.__name__, None) is heir]
    modules = sorted({names["__name__"] for names, _ in _everywhere(old) if "__name__" in names})
    return places + [f"the subclass {heir.__name__}" for heir in current] + modules
