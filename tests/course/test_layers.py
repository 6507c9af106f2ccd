"""Layer files hold nothing that could not be edited live, and nothing that would not fit a listing."""

from __future__ import annotations

import ast
import hashlib
from collections import Counter
from collections.abc import Iterator

import pytest

from mooncake_edu import layers
from mooncake_edu.course.weave import MOST_LINES

THERE = [name for name in layers.LAYERS if (layers.path("kvcache").parent / f"{name}.py").exists()]
DECORATORS = {"dataclass", "property", "setter", "staticmethod", "classmethod", "abstractmethod", "override"}
"""Decorators that make the same of the same text and note nothing elsewhere."""


def faults(text: str) -> Iterator[str]:
    """What a layer file holds that defeats a live edit or a listing."""
    tree = ast.parse(text)
    for node in ast.walk(tree):
        for decorator in getattr(node, "decorator_list", []):
            called = decorator.func if isinstance(decorator, ast.Call) else decorator
            name = called.attr if isinstance(called, ast.Attribute) else getattr(called, "id", "?")
            if name not in DECORATORS:
                yield f"decorator {name}"
        if isinstance(node, ast.ClassDef) and node.keywords:
            yield f"class {node.name} names {node.keywords[0].arg}"
        if isinstance(node, ast.ClassDef) and node not in tree.body:
            yield f"class {node.name} is nested"
        if isinstance(node, ast.FunctionDef) and node.name in (
            "__init_subclass__",
            "__set_name__",
            "__class_getitem__",
        ):
            yield f"{node.name} notes classes"
        if isinstance(node, ast.ImportFrom) and node.names[0].name == "*":
            yield "star import"
    for node in tree.body:
        if isinstance(node, ast.Expr) and not isinstance(node.value, ast.Constant):
            yield f"line {node.lineno} does something when imported"
    times = Counter(name for node in tree.body for name in set(layers.bound(node)))
    yield from (f"{name} is bound twice" for name, count in times.items() if count > 1)
    yield from long_statements(text)


def long_statements(text: str) -> Iterator[str]:
    """Statements that no listing could hold whole."""
    lines = text.removesuffix("\n").split("\n")
    starts = sorted(layers.starts(text))
    for first, past in zip(starts, [*starts[1:], len(lines) + 1], strict=True):
        count = len("\n".join(lines[first - 1 : past - 1]).rstrip().split("\n"))
        if count > MOST_LINES:
            yield f"line {first} begins a statement of {count} lines"


@pytest.mark.parametrize("layer", THERE)
def test_a_layer_holds_nothing_that_defeats_edits_and_listings(layer: str) -> None:
    assert list(faults(layers.read(layers.path(layer)))) == []


@pytest.mark.parametrize(
    ("text", "fault"),
    [
        ("@register\ndef f(): pass", "decorator register"),
        ("class A:\n    @cache(1)\n    def f(self): pass", "decorator cache"),
        ("@some.hook\nclass A: pass", "decorator hook"),
        ("class A(metaclass=Meta): pass", "class A names metaclass"),
        ("class A:\n    class B: pass", "class B is nested"),
        ("def f():\n    class B: pass", "class B is nested"),
        ("class A:\n    def __init_subclass__(cls): pass", "__init_subclass__ notes classes"),
        ("from math import *", "star import"),
        ("print(1)", "line 1 does something when imported"),
        ("def f(): pass\nf = 1", "f is bound twice"),
        ("class A:\n    def f(self):\n" + "        x = 1\n" * 40, "line 2 begins a statement of 41 lines"),
    ],
)
def test_every_such_thing_is_seen(text: str, fault: str) -> None:
    assert fault in list(faults(text))


def test_a_function_of_forty_lines_fits() -> None:
    assert list(faults("import math\n\ndef f():\n" + "    x = 1\n" * 39 + "\n\n" + "y = 1\n" * 1)) == []


def test_the_names_of_a_listing_are_those_its_statements_bind() -> None:
    text = (
        "from __future__ import annotations\n"
        "import a.b, c as d\n"
        "from e import f as g, h\n"
        "X, (Y, *Z) = 1, (2, 3)\n"
        "W: int = 1\n"
        "if X:\n    V = 1\nelse:\n    def u(): t = 1\n"
        "class S:\n    R = 1\n    def q(self): pass\n"
        "for P in [o for o in []]: pass\n"
    )
    every = ["a", "d", "g", "h", "X", "Y", "Z", "W", "V", "u", "S", "P"]
    assert sorted(layers.names(text, 1, 99)) == sorted(every)
    assert layers.names(text, 3, 3) == ["g", "h"]
    assert layers.names(text, 12, 12) == ["S"] == layers.names(text, 10, 10)
    assert layers.names(text, 99, 99) == []


def test_a_layer_that_is_not_there_is_refused_with_those_that_are() -> None:
    for name in ("cli", "nothing", "../kvcache", "admission" if "admission" not in THERE else "?"):
        with pytest.raises(layers.LayerError, match="the layers are kvcache, prefix"):
            layers.path(name)


def test_versions_of_a_file_differ_in_their_digests() -> None:
    assert layers.digest("x = 1\n") == hashlib.sha256(b"x = 1\n").hexdigest()[:16] != layers.digest("x = 1 \n")


@pytest.mark.parametrize("layer", THERE)
def test_a_layer_uses_nothing_before_it_is_defined(layer: str) -> None:
    assert layers.too_early(layers.read(layers.path(layer))) == []


@pytest.mark.parametrize(
    ("text", "early"),
    [
        ("a = b\nb = 1", True),
        ("@b\ndef a(): pass\ndef b(f): return f", True),
        ("def a(x=b): pass\nb = 1", True),
        ("def a(*, x=b): pass\nb = 1", True),
        ("class A(b): pass\nclass b: pass", True),
        ("class A:\n    x: int = b\nb = 1", True),
        ("if 1:\n    a = b\nb = 1", True),
        ("def a(): return b\nb = 1", False),
        ("a = lambda: b\nb = 1", False),
        ("class A:\n    def f(self): return b\nb = 1", False),
        ("class A:\n    x: b\nb = int", False),
        ("b = 1\na = b\nb = 2", False),
        ("a = len\nlen = 1", False),
    ],
)
def test_what_an_import_would_not_find_yet_is_seen(text: str, early: bool) -> None:
    assert bool(layers.too_early("from __future__ import annotations\n" + text)) == early
    if early:
        with pytest.raises(NameError):
            exec(compile("from __future__ import annotations\n" + text, "text", "exec"), {})
    else:
        exec(compile("from __future__ import annotations\n" + text, "text", "exec"), {})
