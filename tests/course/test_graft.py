"""New text for a running module changes the objects that everybody holds, or nothing."""

from __future__ import annotations

import abc
import enum
import gc
import importlib
import inspect
import sys
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from mooncake_edu.course.graft import Graft


class Toy:
    """A package of two modules: `layer`, which gets new texts, and `user`, which imports from it by name."""

    def __init__(self, folder: Path, name: str, text: str, user: str) -> None:
        package = folder / name
        package.mkdir()
        (package / "__init__.py").write_text("")
        (package / "layer.py").write_text(text)
        (package / "user.py").write_text(f"from __future__ import annotations\nfrom {name}.layer import {user}\n")
        self.layer: Any = importlib.import_module(f"{name}.layer")
        self.user: Any = importlib.import_module(f"{name}.user")
        self.text = text
        self.graft = Graft(self.layer)

    def edit(self, old: str, new: str) -> list[str]:
        """Replace a piece of the text, make it live, and return what there is to tell."""
        assert old in self.text
        return self.become(self.text.replace(old, new))

    def become(self, text: str) -> list[str]:
        """Make a whole new text live."""
        notes = self.graft.run(self.text, text)
        self.text = text
        return notes


@pytest.fixture(autouse=True, scope="module")
def small_heap() -> Iterator[None]:
    """What was there before these tests is not searched for holders and garbage, which takes most of the time."""
    gc.collect()
    gc.freeze()
    yield
    gc.unfreeze()


@pytest.fixture
def toy(tmp_path: Path, request: pytest.FixtureRequest) -> Iterator[Any]:
    """Makes the toy package from a text and the names that `user` imports."""
    names: list[str] = []
    sys.path.insert(0, str(tmp_path))

    def make(text: str, user: str = "*") -> Toy:
        names.append(f"toy{abs(hash(request.node.nodeid)) % 10**8}_{len(names)}")
        importlib.invalidate_caches()
        return Toy(tmp_path, names[-1], inspect.cleandoc(text) + "\n", user)

    yield make
    sys.path.remove(str(tmp_path))
    for module in [module for module in sys.modules if module.partition(".")[0] in names]:
        del sys.modules[module]


FUNCTION = """
def double(value, times=2, *, plus=0):
    return value * times + plus
"""


def test_a_function_gets_code_defaults_docstring_and_annotations_and_stays_itself(toy: Any) -> None:
    t = toy(FUNCTION, "double as twice")
    before = t.layer.double
    t.become('def double(value: int, times=3, *, plus=1) -> int:\n    """More."""\n    return value * times + plus\n')
    assert t.user.twice is before is t.layer.double
    assert before(5) == 16
    assert (before.__doc__, before.__annotations__) == ("More.", {"value": int, "return": int})


CLASS = """
from abc import ABC, abstractmethod

class Base:
    def name(self):
        return "base"

class Child(Base):
    size = 1

    def name(self):
        return super().name() + " child"

    @classmethod
    def make(cls):
        return cls()

    @staticmethod
    def two():
        return 2

    @property
    def area(self):
        return self.size ** 2
"""


def test_a_class_stays_itself_with_its_objects_subclasses_and_bound_methods(toy: Any) -> None:
    t = toy(CLASS)
    child, make, two = t.user.Child(), t.user.Child.make, t.user.Child.two
    heir = type("Heir", (t.user.Child,), {})()
    name = child.name
    t.edit('" child"', '" infant"')
    t.edit("return cls()", "return (cls, 1)")
    t.edit("return 2", "return 22")
    t.edit("self.size ** 2", "self.size * 10")
    t.edit("size = 1", "size = 7")
    assert t.layer.Child is t.user.Child is type(child)
    assert name() == heir.name() == "base infant"
    assert (make(), two(), child.area) == ((t.user.Child, 1), 22, 70)


def test_super_reaches_the_base_in_a_method_that_is_new_in_an_edited_class(toy: Any) -> None:
    t = toy(CLASS)
    child = t.user.Child()
    t.edit(
        "    size = 1\n",
        "    size = 1\n\n    def loud(self):\n        return super().name().upper() + __class__.__name__\n",
    )
    assert child.loud() == "BASEChild"
    t.edit("    def name(self):\n        return super().name()", "    def name(self):\n        return Base.name(self)")
    assert child.name() == "base child"
    t.edit("return Base.name(self)", "return super().name()")
    assert child.name() == "base child"


@pytest.mark.parametrize(
    ("method", "use"),
    [
        ("@property\n    def one(self):\n        return super().one + 1", lambda child: child.one),
        ("@cached_property\n    def one(self):\n        return super().one + 1", lambda child: child.one),
        ("@classmethod\n    def one(cls):\n        return super().one + 1", lambda child: child.one()),
        ("@contextmanager\n    def one(self):\n        yield super().one + 1", lambda child: child.one().__enter__()),
    ],
)
def test_super_reaches_the_base_through_whatever_wraps_a_method(
    toy: Any, method: str, use: Callable[[Any], int]
) -> None:
    head = "from contextlib import contextmanager\nfrom functools import cached_property\n\n"
    t = toy(head + "class Base:\n    one = 1\n\nclass Child(Base):\n    pass\n")
    child = t.user.Child()
    t.edit("    pass\n", f"    {method}\n")
    assert use(child) == use(t.user.Child()) == 2


def test_a_removed_method_is_gone_and_the_base_s_shows_again(toy: Any) -> None:
    t = toy(CLASS)
    child, text = t.user.Child(), t.text
    held = t.user.Child.name
    t.edit('    def name(self):\n        return super().name() + " child"\n', "")
    assert child.name() == "base"
    t.become(text)
    assert child.name() == "base child"
    assert t.user.Child.name is held


def test_an_abstract_class_demands_what_its_edit_makes_abstract(toy: Any) -> None:
    t = toy("from abc import ABC, abstractmethod\n\nclass Policy(ABC):\n    def pick(self):\n        return 1\n")
    policy, text = t.user.Policy(), t.text
    t.user.Policy.register(int)
    t.edit("    def pick", "    @abstractmethod\n    def pick")
    assert (
        isinstance(policy, t.layer.Policy) and isinstance(1, t.layer.Policy) and isinstance(t.layer.Policy, abc.ABCMeta)
    )
    with pytest.raises(TypeError, match="abstract"):
        t.user.Policy()
    t.become(text)
    assert t.user.Policy().pick() == 1


DATACLASS = """
from dataclasses import dataclass

@dataclass
class Point:
    x: int
    y: int = 0

    def sum(self):
        return self.x + self.y

@dataclass(frozen=True, slots=True)
class Pair:
    left: int
    right: int

    def sum(self):
        return self.left + self.right

class Holder:
    pair = Pair(1, 2)

    def swap(self):
        return Pair(self.pair.right, self.pair.left)
"""


def test_a_dataclass_gets_a_field_and_stays_itself(toy: Any) -> None:
    t = toy(DATACLASS)
    point = t.user.Point(1)
    t.edit("    y: int = 0\n", "    y: int = 0\n    z: int = 5\n")
    assert (t.user.Point(1, 2), repr(t.user.Point(1, 2))) == (t.layer.Point(1, 2, 5), "Point(x=1, y=2, z=5)")
    assert type(point) is t.layer.Point and point.z == 5


def test_slots_stay_themselves_while_their_fields_do(toy: Any) -> None:
    t = toy(DATACLASS)
    pair = t.user.Pair(1, 2)
    assert t.edit("self.left + self.right", "self.left - self.right") == []
    assert pair.sum() == -1 and t.layer.Pair is t.user.Pair is type(pair) and pair == t.layer.Pair(1, 2)
    t.edit("frozen=True, slots", "slots")
    pair.left = 9
    assert pair.sum() == 7


def test_other_slots_make_another_class_everywhere_and_the_note_says_who_has_the_old_one(toy: Any) -> None:
    t = toy(DATACLASS, "Pair as Two")
    before, kept, text = t.user.Two, [t.user.Two(1, 2) for _ in range(3)], t.text
    heir = type("Heir", (before,), {"__module__": t.user.__name__})
    t.user.Heir, t.user.alias = heir, before
    notes = t.edit("    right: int\n", "    right: int\n    more: int = 0\n")
    assert t.user.Two is t.user.alias is t.layer.Pair is not before
    assert t.layer.Holder().swap() == t.user.Two(2, 1, 0)
    assert notes == [
        "Pair was replaced, since its slots changed; still with the old one: 3 objects, the subclass Heir."
    ]
    assert t.become(text)[0].startswith("Pair was replaced, since its slots changed")
    assert t.user.Two is before is type(kept[0])


ENUM = """
from enum import Enum, StrEnum

class Kind(StrEnum):
    HOT = "hot"
    COLD = "cold"

    def loud(self):
        return self.upper()

    @property
    def short(self):
        return self[0]

TABLE = {Kind.HOT: 1, Kind.COLD: 2}
"""


def test_an_enum_stays_itself_while_its_members_do(toy: Any) -> None:
    t = toy(ENUM)
    hot, table = t.user.Kind.HOT, t.user.TABLE
    assert t.edit("self.upper()", "self.upper() + '!'") == []
    assert (hot.loud(), hot.short) == ("HOT!", "h")
    t.edit("    def loud", "    def quiet(self):\n        return self.lower()\n\n    def loud")
    assert hot.quiet() == "hot"
    assert t.layer.Kind is t.user.Kind is type(hot) and t.layer.Kind.HOT is hot and t.user.TABLE is table


def test_other_members_make_another_enum_everywhere_and_the_first_comes_back(toy: Any) -> None:
    t = toy(ENUM)
    before, hot, text = t.user.Kind, t.user.Kind.HOT, t.text
    (note,) = t.edit('    COLD = "cold"\n', '    COLD = "cold"\n    WARM = "warm"\n')
    assert note.startswith("Kind was replaced, since its members changed; still with the old one: 2 objects")
    assert t.user.Kind is t.layer.Kind is not before and isinstance(t.user.Kind, enum.EnumMeta)
    assert list(t.user.TABLE) == [t.user.Kind.HOT, t.user.Kind.COLD]
    t.become(text)
    assert t.user.Kind is t.layer.Kind is before and t.layer.Kind.HOT is hot


def test_a_named_tuple_stays_itself_while_its_fields_do(toy: Any) -> None:
    t = toy("""
        from typing import NamedTuple

        class Pair(NamedTuple):
            a: int

            def sum(self):
                return self.a
        """)
    pair = t.user.Pair(3)
    assert t.edit("return self.a", "return -self.a") == [] and pair.sum() == -3
    t.edit("    a: int\n", "    a: int\n    b: int\n")
    assert t.user.Pair(1, 2).b == 2 and type(pair) is not t.user.Pair and pair.sum() == -3


def test_other_bases_make_another_class_and_so_do_its_subclasses(toy: Any) -> None:
    t = toy("class A:\n    v = 1\n\nclass B:\n    v = 2\n\nclass C(A):\n    pass\n\nclass D(C):\n    w = 3\n")
    before, text = (t.user.C, t.user.D), t.text
    old = t.user.D()
    notes = t.edit("class C(A)", "class C(B)")
    assert t.user.D().v == 2 and old.v == 1
    assert t.user.C is t.layer.C is not before[0] and t.user.D is t.layer.D is not before[1]
    assert notes == [
        "C was replaced, since its bases changed; still with the old one: nothing.",
        "D was replaced, since its bases changed; still with the old one: 1 object.",
    ]
    t.become(text)
    assert before == (t.user.C, t.user.D)


def test_tables_and_defaults_hold_the_objects_that_stay(toy: Any) -> None:
    t = toy("""
        class Lru:
            name = "lru"

        def pick(kind=Lru):
            return kind

        TABLE = {"lru": Lru, "pick": pick}
        """)
    lru, pick, table = t.user.Lru, t.user.pick, t.user.TABLE
    t.edit('name = "lru"', 'name = "least recently used"')
    assert pick() is lru and lru.name == "least recently used"
    assert t.layer.TABLE is table and table == {"lru": lru, "pick": pick}


def test_a_constant_reaches_those_who_import_it_and_nobody_who_has_an_equal_one(
    toy: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    t = toy("LIMIT = 4\n\nTWICE = LIMIT * 2\n\ndef limit():\n    return LIMIT, TWICE\n", "LIMIT as most, TWICE")
    t.user.other = t.layer.LIMIT
    monkeypatch.setattr(sys.modules["__main__"], "LIMIT", t.layer.LIMIT, raising=False)
    monkeypatch.setattr(sys.modules["__main__"], "TWICE", 9, raising=False)
    t.edit("LIMIT = 4", "LIMIT = 5")
    assert (vars(sys.modules["__main__"])["LIMIT"], vars(sys.modules["__main__"])["TWICE"]) == (5, 9)
    assert (t.user.most, t.user.TWICE, t.layer.limit()) == (5, 10, (5, 10))
    assert t.user.other == 4


def test_what_the_text_does_when_imported_it_does_once(toy: Any) -> None:
    t = toy("DONE = []\n\nDONE.append(1)\n\nX = 1\n")
    t.edit("X = 1", "\n\nX = 2")
    assert (t.layer.DONE, t.layer.X) == ([1], 2)


def test_state_that_no_edit_touches_stays(toy: Any) -> None:
    t = toy("""
        from threading import Lock

        LOCK = Lock()
        seen = []

        class Count:
            made = 0

        def see(value):
            seen.append(value)
            return len(seen)
        """)
    lock = t.layer.LOCK
    t.user.see(1)
    t.user.Count.made = 5
    t.edit("return len(seen)", "return -len(seen)")
    t.edit("import Lock\n", "import Lock, Event\n\n\n")
    assert t.user.see(2) == -2
    assert t.layer.LOCK is lock and isinstance(t.layer.Event(), threading.Event)
    assert t.user.Count.made == 5


@pytest.mark.parametrize(
    ("old", "new", "error"),
    [
        ("size = 1", "size = (1", SyntaxError),
        ("size = 1", "\tsize = 1", SyntaxError),
        ("size = 1", "return 1", SyntaxError),
        ("size = 1", "size = nothing", NameError),
        ("return 2", "return 2\n\n    raise KeyError('at definition')", KeyError),
        ("class Child(Base)", "class Child(Base, int, bool)", TypeError),
        ("import ABC", "import ABC, Nothing", ImportError),
        ("return 2", "return 2\n\n    raise KeyboardInterrupt", KeyboardInterrupt),
    ],
)
def test_an_edit_that_fails_leaves_everything_as_it_was(
    toy: Any, old: str, new: str, error: type[BaseException]
) -> None:
    t = toy(CLASS + "\n\nclass Last:\n    pass\n")
    child = t.user.Child()
    attributes, names = dict(vars(t.user.Child)), dict(vars(t.layer))
    changed = t.text.replace('"base"', '"other"').replace("size ** 2", "size").replace(old, new)
    with pytest.raises(error):
        t.graft.run(t.text, changed.replace("class Last:\n    pass\n", ""))
    assert dict(vars(t.user.Child)) == attributes and dict(vars(t.layer)) == names
    assert (child.name(), child.size, child.area, child.two()) == ("base child", 1, 1, 2)
    assert t.edit('"base"', '"good"') == [] and child.name() == "good child"


def test_an_edit_that_fails_late_takes_back_what_it_rebound_elsewhere(toy: Any) -> None:
    t = toy(DATACLASS + "\nLAST = 1\n")
    pair = t.user.Pair
    with pytest.raises(ZeroDivisionError):
        t.edit("    right: int\n", "    right: int\n    more: int\n\n    size = 1 // 0\n")
    for old, new in (("    right: int\n", "    right: int\n    more: int = 1\n"), ("left: int", "left: int | None")):
        with pytest.raises(ZeroDivisionError):
            t.graft.run(t.text, t.text.replace(old, new).replace("LAST = 1", "LAST = 1 // 0"))
        assert t.user.Pair is t.layer.Pair is pair and t.layer.LAST == t.user.LAST == 1


def test_a_removed_function_is_gone_from_the_module_and_the_note_says_who_has_it(toy: Any) -> None:
    t = toy(FUNCTION + "\ndef triple(value):\n    return double(value, 3)\n")
    before, text = t.layer.double, t.text
    (note,) = t.edit("def double", "def twofold")
    assert note == f"double was removed; still with the old one: {t.user.__name__}."
    with pytest.raises(NameError):
        t.user.triple(1)
    t.become(text)
    assert t.layer.double is t.user.double is before and t.user.triple(2) == 6


def test_a_wrapped_function_is_unwrapped_by_the_text_without_the_wrapper(toy: Any) -> None:
    t = toy(FUNCTION)
    before, text = t.layer.double, t.text
    wrapper = "\ndef louder(function):\n    def loud(value):\n        return function(value) + 100\n    return loud\n"
    t.become(text + wrapper + "\ndouble = louder(double)\n")
    assert t.user.double(1) == 102
    t.become("# moved\n" + text + wrapper + "\ndouble = louder(double)\n")
    assert t.user.double(1) == 102
    t.become(text)
    assert t.user.double(1) == 2 and t.user.double is before


def test_an_alias_follows_the_text_and_never_drags_its_object_along(toy: Any) -> None:
    t = toy("def f():\n    return 1\n\ndef g():\n    return 2\n\nh = f\n")
    t.edit("h = f", "def h():\n    return 3")
    assert (t.user.f(), t.user.g(), t.user.h()) == (1, 2, 3)
    t.edit("def g():\n    return 2", "g = f")
    assert (t.user.f(), t.user.g(), t.user.h()) == (1, 1, 3) and t.user.g is t.user.f


def test_lines_move_with_the_text_above_them(toy: Any) -> None:
    t = toy(CLASS + ENUM + DATACLASS)
    pair, kind = t.user.Pair(1, 2), t.user.Kind.HOT
    kinds = [t.layer.Pair, t.layer.Kind, t.layer.Child]
    t.become("# one\n# two\n" + t.text)
    assert [t.layer.Pair, t.layer.Kind, t.layer.Child] == kinds and type(pair) is kinds[0] and type(kind) is kinds[1]
    lines = t.text.split("\n")
    for function in (t.layer.Pair.sum, t.layer.Kind.loud, t.layer.Child.area.fget, t.layer.Child.make.__func__):
        assert f"def {function.__name__}" in "".join(lines[function.__code__.co_firstlineno - 1 :][:2])


def test_annotations_are_values_once_the_text_does_not_put_them_off(toy: Any) -> None:
    future = "from __future__ import annotations\n"
    t = toy(future + "\ndef f(x: int): pass\n\ndef g(x: Nothing): pass\n")
    with pytest.raises(NameError, match="Nothing"):
        t.graft.run(t.text, t.text.replace(future, ""))
    assert t.layer.f.__annotations__ == {"x": "int"}
    t.edit("Nothing", "float")
    t.edit(future, "")
    assert (t.layer.f.__annotations__, t.layer.g.__annotations__) == ({"x": int}, {"x": float})


def test_no_pattern_stays_among_the_subclasses(toy: Any) -> None:
    t = toy(CLASS)
    t.edit("size = 1", "size = 2")
    t.edit('"base"', '"other"')
    assert t.layer.Base.__subclasses__() == [t.layer.Child]


SLOTS = {
    "limit": ["LIMIT = 1", "LIMIT = 2", "LIMIT: int = 3\nOTHER = LIMIT"],
    "f": ["def f(x=LIMIT):\n    return x", "def f(x=5, y=1):\n    '''Say.'''\n    return x + y", "f = abs"],
    "Base": [
        "class Base:\n    def who(self):\n        return 'base'",
        "class Base:\n    tag = LIMIT\n\n    def who(self):\n        return 'BASE'\n\n"
        "    def more(self):\n        return f(2)",
    ],
    "Child": [
        "class Child(Base):\n    def who(self):\n        return super().who() + '+'",
        "class Child(Base):\n    pass",
        "@dataclass(slots=True)\nclass Child:\n    a: int = 1\n\n    def who(self):\n        return self.a",
        "@dataclass\nclass Child(Base):\n    b: int = LIMIT\n\n"
        "    @property\n    def who(self):\n        return lambda: self.b",
    ],
    "Kind": [
        "class Kind(Enum):\n    A = 1\n\n    def who(self):\n        return self.value",
        "class Kind(Enum):\n    A = 1\n    B = 2\n\n    def who(self):\n        return self.name",
    ],
    "table": ["TABLE = {'c': Child, 'f': f}", "TABLE = [Child().who(), Kind.A.who()]"],
}
HEAD = "from dataclasses import dataclass\nfrom enum import Enum\n"
PROBES: tuple[Callable[[Any], object], ...] = (
    lambda m: m.LIMIT,
    lambda m: (m.f(-3), m.f.__doc__),
    lambda m: (m.Base().who(), getattr(m.Base(), "tag", None), hasattr(m.Base, "more") and m.Base().more()),
    lambda m: [cls.__name__ for cls in m.Child.__mro__],
    lambda m: (
        [getattr(m.Child(), name, None) for name in "ab"],
        m.Child().who() if callable(m.Child().who) else m.Child().who,
    ),
    lambda m: isinstance(m.Child(), m.Base),
    lambda m: [(kind, kind.who()) for kind in m.Kind],
    lambda m: sorted(map(str, m.TABLE)),
    lambda m: isinstance(m.TABLE, dict) and (m.TABLE["c"] is m.Child, m.TABLE["f"] is m.f),
)


def observed(module: Any) -> list[str]:
    """What the names in a module do."""
    return [repr(probe(module)) for probe in PROBES]


def joined(choice: dict[str, int], blank: int) -> str:
    return HEAD + "\n" * blank + "\n\n".join(SLOTS[name][choice[name]] for name in SLOTS) + "\n"


texts = st.builds(
    joined,
    st.fixed_dictionaries({name: st.integers(0, len(choices) - 1) for name, choices in SLOTS.items()}),
    st.integers(0, 2),
)


@settings(max_examples=30)
@given(st.lists(texts, min_size=2, max_size=4))
def test_after_any_edits_the_module_does_what_a_fresh_import_of_the_text_does(
    tmp_path_factory: Any, run: list[str]
) -> None:
    folder = tmp_path_factory.mktemp("toy")
    sys.path.insert(0, str(folder))
    try:
        name = f"toy_{folder.name.replace('-', '_')}"
        names = "LIMIT, f, Base, Child, Kind, TABLE"
        t = Toy(folder, name, run[0], names)
        first = [getattr(t.layer, name) for name in ("Base", "Child", "Kind")]
        for text in [*run[1:], run[0]]:
            t.become(text)
            fresh = sys.modules["fresh"] = ModuleType("fresh")
            exec(compile(text, "fresh", "exec", dont_inherit=True), vars(fresh))
            assert observed(t.layer) == observed(fresh) == observed(t.user)
        assert [getattr(t.layer, name) for name in ("Base", "Child", "Kind")] == first
    finally:
        sys.path.remove(str(folder))
        for module in [module for module in sys.modules if module.startswith(name) or module == "fresh"]:
            del sys.modules[module]
