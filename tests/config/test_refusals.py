"""Whatever cannot work is refused in one line that names the file, the key, the value and what is allowed."""

from __future__ import annotations

import json
import math
from collections.abc import Iterator
from typing import Any, NamedTuple, get_args

import pytest
from annotated_types import Ge, Gt, Le
from hypothesis import given
from hypothesis import strategies as st
from pydantic import BaseModel, BeforeValidator

from mooncake_edu.config import Config, EngineConfig, limits_of
from mooncake_edu.errors import ConfigError
from mooncake_edu.quantities import Quantity, SloReader

# Every key that another key's check looks at is out of its way.
BASE: dict[str, dict[str, Any]] = {
    "model": {"name": "tiny"},
    "engine": {"token_budget": 2**20, "max_batch": 1, "blocks": 8},
    "hardware": {"compute": 1e12, "memory": 1e9, "host": 1e9, "network": 1e9},
}


class Bounded(NamedTuple):
    """A key with a range of numbers; `whole` if they are whole."""

    section: str
    key: str
    low: int | float
    high: int | float
    whole: bool


def bounded() -> Iterator[Bounded]:
    """Every key of every section that has a range."""
    for section, field in Config.model_fields.items():
        tables = [kind for kind in (field.annotation, *get_args(field.annotation)) if _is_table(kind)]
        for key, inner in tables[0].model_fields.items():
            kind, limits = limits_of(inner)
            reader = next((limit.func for limit in limits if isinstance(limit, BeforeValidator)), None)
            if isinstance(reader, SloReader):
                yield Bounded(section, key, math.ulp(0), 1e6, False)
            elif isinstance(reader, Quantity):
                yield Bounded(section, key, reader.low, reader.high, kind is int)
            elif any(isinstance(limit, Ge | Gt) for limit in limits):
                low = next(limit.ge if isinstance(limit, Ge) else math.nextafter(limit.gt, math.inf)  # type: ignore
                           for limit in limits if isinstance(limit, Ge | Gt))  # fmt: skip
                high = next(limit.le for limit in limits if isinstance(limit, Le))
                yield Bounded(section, key, low, high, kind is int)  # type: ignore[arg-type]


def _is_table(kind: Any) -> bool:
    return isinstance(kind, type) and issubclass(kind, BaseModel)


BOUNDED = list(bounded())


def toml(section: str, key: str, value: Any) -> str:
    """A configuration in which that key has that value."""
    tables = {name: dict(keys) for name, keys in BASE.items()}
    tables.setdefault(section, {})[key] = value
    if (section, key) == ("engine", "memory"):
        del tables["engine"]["blocks"]
    text = ""
    for name, keys in tables.items():
        text += f"[[{name}]]\n" if name == "instances" else f"[{name}]\n"
        text += "".join(f"{name} = {written(value)}\n" for name, value in keys.items())
    return text


def written(value: Any) -> str:
    """A value as TOML writes it."""
    return repr(value) if isinstance(value, float) else json.dumps(value)


def refused(text: str) -> str:
    """The line with which a configuration is refused."""
    with pytest.raises(ConfigError) as caught:
        Config.from_toml(text, "some.toml")
    line = str(caught.value)
    assert "\n" not in line
    assert line.startswith("some.toml: ")
    return line


def test_the_ranges_of_all_sections_are_tested() -> None:
    assert {case.section for case in BOUNDED} == {
        "model", "engine", "hardware", "instances", "slo", "policies", "tiers", "transport", "simulation",
        "admission",
    }  # fmt: skip
    assert len(BOUNDED) >= 20


@pytest.mark.parametrize("case", BOUNDED, ids=lambda case: f"{case.section}.{case.key}")
def test_both_ends_of_a_range_are_accepted_and_the_next_values_refused(case: Bounded) -> None:
    for value in (case.low, case.high):
        Config.from_toml(toml(case.section, case.key, value))
    below = case.low - 1 if case.whole else math.nextafter(case.low, -math.inf)
    above = case.high + 1 if case.whole else math.nextafter(case.high, math.inf)
    for value in (below, above):
        line = refused(toml(case.section, case.key, value))
        assert f".{case.key} {value!r} is not allowed" in line
        assert case.section in line
        assert f"{case.high:.0f}" in line or str(case.high) in line


@given(st.data())
def test_any_number_is_accepted_exactly_if_it_is_in_the_range(data: st.DataObject) -> None:
    case = data.draw(st.sampled_from(BOUNDED))
    if case.whole:
        value: int | float = data.draw(st.one_of(st.integers(), st.integers(int(case.low), int(case.high))))
    else:
        value = data.draw(st.one_of(st.floats(), st.floats(case.low, case.high)))
    text = toml(case.section, case.key, value)
    if case.low <= value <= case.high:
        Config.from_toml(text)
    else:
        assert case.key in refused(text)


@given(st.text(max_size=400))
def test_any_text_is_a_configuration_or_refused_in_one_line(text: str) -> None:
    try:
        Config.from_toml(text, "some.toml")
    except ConfigError as error:
        assert len(str(error).splitlines()) <= 1 or "is not TOML" in str(error)


def test_a_misspelt_table_is_told_before_that_its_right_name_is_missing() -> None:
    assert refused('[modle]\nname = "tiny"\n').endswith("modle is no known key: did you mean 'model'?")


@pytest.mark.parametrize(
    ("section", "key", "value", "remedy"),
    [
        ("engine", "block_sise", 1, "did you mean 'block_size'?"),
        ("policies", "placment", "random", "did you mean 'placement'?"),
        ("instances", "roles", "decode", "did you mean 'role'?"),
        ("transport", "zebra", 1, "use one of name, slice, retries"),
        ("engne", "block_size", 1, "did you mean 'engine'?"),
    ],
)
def test_an_unknown_key_is_answered_with_the_nearest_known_one(section: str, key: str, value: Any, remedy: str) -> None:
    line = refused(toml(section, key, value))
    assert line.endswith(f"is no known key: {remedy}")
    assert section in line


@pytest.mark.parametrize(
    ("section", "key", "value", "allowed"),
    [
        ("model", "dtype", "int8", "one of float32, bfloat16, float16"),
        ("model", "name", "", "text of at least one character"),
        ("engine", "block_size", 16.0, "a whole number from 1 to 512"),
        ("engine", "block_size", "16", "a whole number from 1 to 512"),
        ("engine", "block_size", True, "a whole number from 1 to 512"),
        ("engine", "prefix_sharing", 1, "true or false"),
        ("engine", "memory", "1 GoB", '"1 GiB"'),
        ("engine", "memory", "1.5 B", '"1 GiB"'),
        ("tiers", "dram", "5 PiB", '"1 GiB"'),
        ("tiers", "ssd", "-1 GiB", '"1 GiB"'),
        ("hardware", "network", "100 GB", '"100 GB/s"'),
        ("slo", "ttft", "10", '"10x"'),
        ("slo", "tbt", "-5x", '"10x"'),
        ("slo", "tbt", math.nan, '"10x"'),
        ("instances", "role", "both", "one of prefill, decode, coupled"),
        ("policies", "kvcache_balancing_threshold", math.inf, "a number from 1 to 1000"),
    ],
)
def test_a_value_of_another_kind_is_answered_with_what_is_allowed(
    section: str, key: str, value: Any, allowed: str
) -> None:
    line = refused(toml(section, key, value))
    assert f".{key} " in line
    assert line.endswith(allowed) or allowed in line.split("is not allowed: use ")[1]


def test_a_batch_larger_than_the_token_budget_is_refused() -> None:
    line = refused('[model]\nname="tiny"\n[engine]\nblocks=1\ntoken_budget=8\nmax_batch=9')
    assert "engine.token_budget 8 is below max_batch 9" in line
    Config.from_toml('[model]\nname="tiny"\n[engine]\nblocks=1\ntoken_budget=9\nmax_batch=9')


@pytest.mark.parametrize(("keys", "given"), [("", "neither"), ("blocks=1\nmemory=1024", "both")])
def test_the_kvcache_has_one_size(keys: str, given: str) -> None:
    assert f"engine.memory and blocks: {given} given" in refused(f'[model]\nname="tiny"\n[engine]\n{keys}')


@pytest.mark.parametrize(("role", "other"), [("prefill", "decode"), ("decode", "prefill")])
def test_prefill_and_decode_instances_need_each_other(role: str, other: str) -> None:
    text = toml("instances", "role", role)
    assert f"instances: role '{role}' needs one of role '{other}'" in refused(text)
    Config.from_toml(text + f'[[instances]]\nrole = "{other}"\n')


def test_a_section_made_in_code_is_refused_with_the_same_words() -> None:
    with pytest.raises(ConfigError, match=r"^block_size 0 is not allowed: use a whole number from 1 to 512$"):
        EngineConfig(block_size=0, blocks=1)
    with pytest.raises(ConfigError, match=r"^token_budget 1 is below max_batch 2"):
        EngineConfig(token_budget=1, max_batch=2, blocks=1)


def test_memory_below_one_block_is_refused_with_the_bytes_of_a_block() -> None:
    with pytest.raises(ConfigError, match=r"engine.memory 1599 is below one block of 16 tokens, 1600 bytes"):
        EngineConfig(memory=1599).count_blocks(100)
    assert EngineConfig(memory=1600).count_blocks(100) == 1


@pytest.mark.parametrize("content", [None, b"\xff\xfe", b"[model", b"a = 1\na = 2"])
def test_a_file_that_cannot_be_read_is_named(tmp_path: Any, content: bytes | None) -> None:
    path = tmp_path / "my.toml"
    if content is not None:
        path.write_bytes(content)
    with pytest.raises(ConfigError, match=r"my\.toml: (cannot be read|is not TOML)"):
        Config.load(path)
