"""New text for a module that runs already: its definitions are grafted into the objects that everybody holds.

The statements of the text run one after another in the module's own namespace. What a statement defines is merged
into the object that bore the name before, ahead of the next statement, so that bases, defaults and tables made
further down refer to objects that stay. If anything fails, every change is taken back.
"""

from __future__ import annotations

import ast
import gc
import sys
from collections.abc import Callable
from functools import partial
from types import CodeType, FunctionType, ModuleType
from typing import Any

from mooncake_edu.course import objects
from mooncake_edu.layers import bound

MISSING = object()
DEFINITIONS = (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)
OF_FUNCTIONS = (
    "__code__",
    "__defaults__",
    "__kwdefaults__",
    "__doc__",
    "__annotations__",
    "__type_params__",
    "__dict__",
)
"""What a function is made of besides its closure, which cannot be replaced but filled anew."""


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
            self._run(ast.parse(old), ast.parse(new))
        except BaseException:
            self._journal.undo()
            raise
        self._journal = Journal()  # it holds what was replaced
        gc.collect()  # the classes that served as patterns would still be listed among the subclasses of their bases
        return [note for displaced, what in self._replaced if (note := self._note(displaced, what))]

    @property
    def _file(self) -> str:
        return str(self._module.__file__)

    def _run(self, old: ast.Module, new: ast.Module) -> None:
        """Run each statement that is new, binds or mentions a name that is, or is a definition that has moved."""
        flags = self._flags(new)
        before, after = _binders(old), _binders(new)
        places = {ast.dump(node, include_attributes=True) for node in old.body}  # those of methods, too
        known = {ast.dump(node) for node in old.body} if flags == self._flags(old) else set()
        rebound = {name for name in after if before.get(name) != after[name]}
        changed = before.keys() - after.keys()
        for name in changed:
            self._remove(name)
        for node in new.body:
            dump, binds = ast.dump(node), set(bound(node))
            mentions = {child.id for child in ast.walk(node) if isinstance(child, ast.Name)}
            fresh = dump not in known or bool(binds & rebound or mentions & changed)
            defines = isinstance(node, DEFINITIONS)
            if fresh or (defines and ast.dump(node, include_attributes=True) not in places):
                code = compile(ast.Module([node], []), self._file, "exec", flags, dont_inherit=True)
                changed |= self._statement(code, fresh) | (binds if fresh and defines else set())

    def _flags(self, tree: ast.Module) -> int:
        """Whether a text has this module's import from the future; raises SyntaxError for what only compilers find."""
        whole = compile(tree, self._file, "exec", dont_inherit=True)
        return whole.co_flags & annotations.compiler_flag

    def _statement(self, code: CodeType, fresh: bool) -> set[str]:
        """Run a statement and merge what it binds; returns the names that stand for another object than before."""
        names = vars(self._module)
        before = dict(names)
        exec(code, names)
        changed = {name for name, value in names.items() if before.get(name, MISSING) is not value}
        for name in changed:
            old, new = before.get(name, MISSING), names[name]
            if old is MISSING and not fresh:
                del names[name]  # the module has removed it since, and nobody has asked to define it anew
                continue
            names[name] = self._merge(old, new) if fresh else self._move(old, new)
            if old is not MISSING and names[name] is not old:
                self._rebind(name, old, names[name])
        return {name for name in changed if names.get(name, MISSING) is not before.get(name, MISSING)}

    def _merge(self, old: Any, new: Any) -> Any:
        """The object that is `new` from now on: the old one, or one that was displaced before, if either can be."""
        if old is new:
            return old
        if isinstance(old, staticmethod | classmethod) and type(old) is type(new):
            kept = self._merge(old.__func__, new.__func__)
            return old if kept is old.__func__ else type(new)(kept)
        if isinstance(new, FunctionType | type) and self._is_own(new):
            candidates = [old, *self._displaced.get(new.__qualname__, [])]
            kept = next((candidate for candidate in candidates if not objects.misfit(candidate, new)), new)
            if kept is not new:
                self._graft(kept, new)
        else:
            kept = old if objects.same(old, new) else new
        if kept is not old:
            self._displace(old, new)
        return kept

    def _displace(self, old: Any, new: Any = MISSING) -> None:
        if isinstance(old, FunctionType | type) and self._is_own(old):
            self._displaced.setdefault(old.__qualname__, []).append(old)
            what = "was removed" if new is MISSING else f"was replaced, since {objects.misfit(old, new)}"
            self._replaced.append((old, what))

    def _graft(self, old: Any, new: Any) -> None:
        """Let `old` have what makes up `new`."""
        if isinstance(old, FunctionType):
            for name in OF_FUNCTIONS:
                if hasattr(new, name):
                    self._journal.set(old, name, getattr(new, name))
            for cell, new_cell in zip(old.__closure__ or (), new.__closure__ or (), strict=True):
                self._journal.set(cell, "cell_contents", new_cell.cell_contents)
            return
        objects.hand_over(new, old)
        mine, others = objects.attributes(old), objects.attributes(new)
        for name, value in others.items():
            kept = self._merge(mine.get(name, MISSING), value)
            if kept is not mine.get(name, MISSING):
                self._journal.set(old, name, kept)
        for name in mine.keys() - others.keys():
            self._journal.delete(old, name)
            self._displace(mine[name])

    def _move(self, old: Any, new: Any) -> Any:
        """Give functions that have moved, and nothing else has happened to, the lines where they now are."""
        if isinstance(new, type) and isinstance(old, type):
            for name in objects.attributes(new).keys() & objects.attributes(old).keys():
                self._move(vars(old)[name], vars(new)[name])
            if "__firstlineno__" in vars(new):  # how Python 3.13 and later find a class
                self._journal.set(old, "__firstlineno__", vars(new)["__firstlineno__"])
        elif isinstance(new, FunctionType):
            if isinstance(old, FunctionType) and not objects.misfit(old, new):
                self._journal.set(old, "__code__", new.__code__)
        elif isinstance(new, objects.WRAPPERS) and type(old) is type(new):
            for name in objects.WRAPPED:
                self._move(getattr(old, name, None), getattr(new, name, None))
        return old

    def _rebind(self, name: str, old: Any, new: Any) -> None:
        """Let every module that has the old object under any name have the new one.

        What is no function or class of this name, a constant or an alias, may be the same object as something else,
        so only who imports it by its name gets the new one.
        """
        named = self._is_own(old) and getattr(old, "__qualname__", None) == name
        places = objects.everywhere(old) if named else objects.importers(self._module, name)
        for names, key in list(places):
            if names.get(key) is old:
                self._journal.watch(names)
                names[key] = new

    def _remove(self, name: str) -> None:
        old = vars(self._module).pop(name, MISSING)
        if self._is_own(old):
            main = vars(sys.modules["__main__"])
            if main.get(name) is old:
                self._journal.watch(main)
                del main[name]
            self._displace(old)

    def _is_own(self, value: object) -> bool:
        return getattr(value, "__module__", None) == self._module.__name__

    def _note(self, old: Any, what: str) -> str:
        still = objects.holders(old)
        if not still and isinstance(old, FunctionType):
            return ""
        return f"{old.__qualname__} {what}; still with the old one: {', '.join(still) or 'nothing'}."


def _binders(tree: ast.Module) -> dict[str, list[str]]:
    """The statements that bind each name of a module, in order."""
    binders: dict[str, list[str]] = {}
    for node in tree.body:
        for name in bound(node):
            binders.setdefault(name, []).append(ast.dump(node))
    return binders
