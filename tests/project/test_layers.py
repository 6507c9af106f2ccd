"""Layers add, they never mutate: each imports only what lies below it."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest

PACKAGE = Path(__file__).parents[2] / "mooncake_edu"
LAYERS = ("kvcache", "prefix", "store", "transfer", "prefill", "conductor", "admission")
EVERYONE = {"config", "request", "events", "model", "errors", "quantities"}
ALONE = {"conductor": {"prefix"}, "admission": {"prefix"}}
"""Layers that may see fewer of those below."""


def allowed(layer: str) -> set[str]:
    """The parts of the package that a layer may import."""
    return EVERYONE | ALONE.get(layer, set(LAYERS[: LAYERS.index(layer)]))


def imports(source: str) -> Iterator[str]:
    """The parts of the package that a source imports, wherever in it, by their first name."""
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Import):
            names = [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            module = ("mooncake_edu." if node.level else "") + (node.module or "")
            names = [f"{module.rstrip('.')}.{alias.name}" for alias in node.names]
        else:
            continue
        for name in names:
            package, _, rest = name.partition(".")
            if package == "mooncake_edu":
                yield rest.partition(".")[0]


@pytest.mark.parametrize("layer", [name for name in LAYERS if (PACKAGE / f"{name}.py").exists()])
def test_a_layer_imports_only_what_lies_below_it(layer: str) -> None:
    assert set(imports((PACKAGE / f"{layer}.py").read_text(encoding="utf-8"))) <= allowed(layer)


@pytest.mark.parametrize(
    "line",
    [
        "import mooncake_edu.engine",
        "from mooncake_edu.engine import Engine",
        "from mooncake_edu import engine",
        "from . import engine",
        "from .engine import Engine",
        "def f():\n    import mooncake_edu.engine.text as text",
    ],
)
def test_every_form_of_import_is_seen(line: str) -> None:
    assert list(imports(line)) == ["engine"]


def test_the_rule_forbids_what_lies_above() -> None:
    assert "prefix" not in allowed("kvcache")
    assert "kvcache" in allowed("prefix")
    assert not {"kvcache", "store", "engine", "tiers", "cli"} & allowed("conductor")
