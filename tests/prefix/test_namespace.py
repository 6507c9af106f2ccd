"""KVCache of two namespaces never matches: all that its bytes depend on, or that keeps tenants apart, is in the key."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

from mooncake_edu.kvcache import BlockPool, BlockTable
from mooncake_edu.prefix import KeyChain, Namespace, PrefixCache, block_keys

unhurried = settings(deadline=None, suppress_health_check=[HealthCheck.too_slow])  # the machine may be busy

FIELDS = ("model", "revision", "dtype", "block_size", "adapter", "adapter_version", "salt")
# Texts that look like parts of an encoding are the ones that could be taken for another.
TEXT = st.one_of(st.text(max_size=6), st.sampled_from(["a", "ab", "1:a;", "salt:1:x;", ";", ":", "0", "\ud800"]))
NAMESPACE = st.builds(Namespace, TEXT, TEXT, TEXT, st.integers(1, 512), TEXT, TEXT, TEXT)
BASE = Namespace("smollm2", "r1", "float32", 4, "summary", "v1", "tenant")


def parse(data: bytes) -> dict[str, str]:
    """Reads an encoding back, which can only work if nothing in it is ambiguous."""
    found = {}
    while data:
        tag, length, rest = data.split(b":", 2)
        value, end, data = rest[: int(length)], rest[int(length) : int(length) + 1], rest[int(length) + 1 :]
        assert end == b";"
        found[tag.decode()] = value.decode("utf-8", "surrogatepass")
    return found


@unhurried
@given(NAMESPACE)
@example(Namespace("\ud800", "", "", 1))  # JSON can carry half a surrogate pair
def test_an_encoding_can_be_read_back_to_every_field(namespace: Namespace) -> None:
    assert parse(namespace.encode()) == {name: str(getattr(namespace, name)) for name in FIELDS}


@unhurried
@given(NAMESPACE, NAMESPACE)
def test_distinct_namespaces_have_distinct_encodings(one: Namespace, other: Namespace) -> None:
    assert (one.encode() == other.encode()) == (one == other)


@unhurried
@given(NAMESPACE, st.permutations(FIELDS))
def test_values_that_change_places_make_another_namespace(namespace: Namespace, order: list[str]) -> None:
    """A5, vllm 44701: adapter "X" and salt "X" gave one key."""
    texts = {name: getattr(namespace, name) for name in FIELDS if name != "block_size"}
    moved = replace(namespace, **dict(zip([n for n in order if n in texts], texts.values(), strict=True)))
    assert (moved.encode() == namespace.encode()) == (moved == namespace)


def hit(cache: PrefixCache, namespace: Namespace, tokens: np.ndarray[Any, Any], size: int = 4) -> int:
    return len(cache.match(KeyChain(namespace.encode(), size), tokens))


@pytest.fixture
def tokens() -> np.ndarray[Any, Any]:
    return np.arange(17, dtype=np.uint32)


@pytest.fixture
def cache(tokens: np.ndarray[Any, Any]) -> PrefixCache:
    """A cache that holds four blocks, computed under BASE."""
    pool = BlockPool(8)
    cache, table = PrefixCache(pool), BlockTable(pool, 4)
    table.extend(len(tokens))
    assert cache.publish(table, KeyChain(BASE.encode(), 4), tokens, 0) == 4
    table.release()
    assert hit(cache, BASE, tokens) == 4
    return cache


OTHERS = {
    "bfloat16": replace(BASE, dtype="bfloat16"),
    "another weights revision": replace(BASE, revision="r2"),
    "another model": replace(BASE, model="qwen"),
    "another salt": replace(BASE, salt="stranger"),
    "no salt": replace(BASE, salt=""),
    "another adapter": replace(BASE, adapter="sql"),
    "no adapter": replace(BASE, adapter="", adapter_version=""),
}


@pytest.mark.parametrize("what", OTHERS)
def test_a_block_of_one_namespace_is_a_miss_for_another(
    cache: PrefixCache, tokens: np.ndarray[Any, Any], what: str
) -> None:
    """A6, lmdeploy 4930: key without dtype or weights revision."""
    assert hit(cache, OTHERS[what], tokens) == 0
    assert hit(cache, BASE, tokens) == 4


@pytest.mark.parametrize("size", [1, 2, 8, 16])
def test_a_block_of_one_size_is_a_miss_for_another_size(
    cache: PrefixCache, tokens: np.ndarray[Any, Any], size: int
) -> None:
    """A6: the size is in the namespace, and even where it were not, the keys of other sizes differ."""
    assert hit(cache, replace(BASE, block_size=size), tokens, size) == 0
    assert hit(cache, BASE, tokens, size) == 0


def test_after_an_adapter_is_reloaded_with_other_weights_nothing_is_shared(
    cache: PrefixCache, tokens: np.ndarray[Any, Any]
) -> None:
    """A4, vllm 3264, 30931 and 42125: adapter not in the key; same name, other weights."""
    assert hit(cache, replace(BASE, adapter_version="v2"), tokens) == 0


def test_a_name_in_one_field_is_not_the_same_name_in_another() -> None:
    """A5, vllm 44701: adapter "X" and salt "X" gave one key; also ("ab", "c") against ("a", "bc")."""
    plain = Namespace("m", "r", "float32", 16)
    pairs = [
        (replace(plain, adapter="X"), replace(plain, salt="X")),
        (replace(plain, adapter="X"), replace(plain, adapter_version="X")),
        (replace(plain, adapter="ab", adapter_version="c"), replace(plain, adapter="a", adapter_version="bc")),
        (replace(plain, model="m;salt:1:x"), replace(plain, salt="x")),
        (replace(plain, block_size=1, dtype="6"), replace(plain, block_size=16, dtype="")),
    ]
    for one, other in pairs:
        assert block_keys([1], 1, one.encode()) != block_keys([1], 1, other.encode())
