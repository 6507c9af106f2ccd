"""Eviction: what each policy lets go is what its rule says, tails go before heads, and nobody beats Belady."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Hashable, Sequence
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mooncake_edu.store import POLICIES, Belady, ChainCache, Eviction, Kept, Lfu, Lru, S3Fifo

Chain = tuple[str, ...]


def chain(path: str) -> Chain:
    """The keys of a path: each names its whole prefix."""
    return tuple(path[: end + 1] for end in range(len(path)))


PATHS = st.text("abc", min_size=1, max_size=5)
USES = st.lists(PATHS, min_size=1, max_size=40).map(lambda paths: [chain(path) for path in paths])


class Plain:
    """The same cache written down as its rule says: among all leaves, look for the one of the lowest rank."""

    def __init__(self, capacity: int, rank: Callable[[Plain, str], Any]) -> None:
        self.capacity, self.rank = capacity, rank
        self.since: dict[str, int] = {}
        self.used: dict[str, int] = {}
        self.uses: dict[str, int] = {}
        self.now = 0

    def match(self, keys: Chain) -> int:
        return sum(1 for _ in itertools.takewhile(self.since.__contains__, keys))

    def use(self, keys: Chain) -> list[str]:
        self.now += 1
        for key in keys:
            self.since.setdefault(key, self.now)
            self.used[key] = self.now
            self.uses[key] = self.uses.get(key, 0) + 1
        gone = []
        while len(self.since) > self.capacity:
            leaves = [key for key in self.since if not any(key == other[:-1] for other in self.since)]
            least = min(leaves, key=lambda key: self.rank(self, key))
            for column in (self.since, self.used, self.uses):
                del column[least]
            gone.append(least)
        return gone


RULES: dict[str, Callable[[Plain, str], Any]] = {
    "lru": lambda plain, key: plain.used[key],
    "lfu": lambda plain, key: (plain.uses[key], plain.used[key]),
    "length-aware": lambda plain, key: (plain.uses[key], -len(key), plain.used[key]),
    "fifo": lambda plain, key: (plain.since[key], -len(key)),
}


@pytest.mark.parametrize("name", RULES)
@given(uses=USES, capacity=st.integers(0, 12))
def test_the_leaf_of_the_lowest_rank_goes(name: str, uses: list[Chain], capacity: int) -> None:
    cache, plain = ChainCache(capacity, POLICIES[name]()), Plain(capacity, RULES[name])
    for keys in uses:
        assert cache.match(keys) == plain.match(keys)
        assert cache.use(keys) == plain.use(keys)


@pytest.mark.parametrize("name", [*POLICIES, "belady"])
@given(uses=USES, capacity=st.one_of(st.none(), st.integers(0, 12)))
def test_no_block_is_kept_without_those_before_it_and_none_beyond_the_capacity(
    name: str, uses: list[Chain], capacity: int | None
) -> None:
    cache = ChainCache(capacity, Belady(uses) if name == "belady" else POLICIES[name]())
    kept: set[Hashable] = set()
    for keys in uses:
        gone = cache.use(keys)
        kept = (kept | set(keys)) - set(gone)
        assert len(set(gone)) == len(gone)
        assert len(cache) == len(kept) <= (len(kept) if capacity is None else capacity)
        assert all(key in cache and (len(str(key)) == 1 or str(key)[:-1] in cache) for key in kept)


@pytest.mark.parametrize("name", [*POLICIES, "belady"])
@given(uses=USES)
def test_what_goes_goes_tail_first(name: str, uses: list[Chain]) -> None:
    cache = ChainCache(3, Belady(uses) if name == "belady" else POLICIES[name]())
    for keys in uses:
        gone = [str(key) for key in cache.use(keys)]
        assert not any(later.startswith(earlier) for earlier, later in itertools.combinations(gone, 2))


def hits(cache: ChainCache, uses: Sequence[Chain]) -> int:
    """Blocks found by all uses."""
    found = 0
    for keys in uses:
        found += cache.match(keys)
        cache.use(keys)
    return found


def best(uses: Sequence[Chain], capacity: int) -> int:
    """The most blocks that any choice of what to keep could find, by trying all of them."""
    found: dict[frozenset[str], int] = {frozenset(): 0}
    for keys in uses:
        after: dict[frozenset[str], int] = {}
        for kept, count in found.items():
            count += sum(1 for _ in itertools.takewhile(kept.__contains__, keys))
            every = sorted(kept | set(keys))
            for size in range(min(capacity, len(every)) + 1):
                for choice in itertools.combinations(every, size):
                    after[frozenset(choice)] = max(after.get(frozenset(choice), 0), count)
        found = after
    return max(found.values())


SHORT = st.lists(st.text("ab", min_size=1, max_size=2), min_size=1, max_size=6)


@given(paths=SHORT, capacity=st.integers(1, 3))
def test_belady_finds_as_much_as_the_best_of_all_choices(paths: list[str], capacity: int) -> None:
    uses = [chain(path) for path in paths]
    assert hits(ChainCache(capacity, Belady(uses)), uses) == best(uses, capacity)


@given(uses=USES, capacity=st.integers(0, 12))
def test_no_policy_finds_more_than_belady(uses: list[Chain], capacity: int) -> None:
    limit = hits(ChainCache(capacity, Belady(uses)), uses)
    assert all(hits(ChainCache(capacity, policy()), uses) <= limit for policy in POLICIES.values())


@given(uses=USES)
def test_more_capacity_never_loses_a_hit_under_lru(uses: list[Chain]) -> None:
    found = [hits(ChainCache(capacity, Lru()), uses) for capacity in range(10)]
    assert found == sorted(found)


def scan(policy: type[Eviction]) -> bool:
    """Whether a block that is asked for again and again outlives a run of prompts that nobody asks for again."""
    cache = ChainCache(50, policy())
    for number in range(60):
        cache.use((f"once {number}",))
        if number % 3 == 0:
            cache.use(("hot",))
    for number in range(500):
        cache.use((f"scan {number}",))
    return "hot" in cache


def test_a_scan_drives_a_hot_block_out_of_lru_but_not_out_of_s3_fifo() -> None:
    assert not scan(Lru)
    assert scan(S3Fifo)
    assert scan(Lfu)


def test_a_block_that_returns_soon_comes_into_the_main_queue_at_once() -> None:
    cache = ChainCache(10, S3Fifo())
    for number in range(11):
        cache.use((number,))
    assert 0 not in cache
    cache.use((0,))
    for number in range(100, 110):  # new blocks push each other out of the small queue
        cache.use((number,))
    assert 0 in cache


def test_a_parent_used_without_its_child_outlives_it_in_s3_fifo() -> None:
    cache = ChainCache(2, S3Fifo())
    cache.use(("p", "c"))
    cache.use(("p",))
    assert cache.use(("x",)) == ["c"]
    assert "p" in cache


@pytest.mark.parametrize("kind", [Lru, Lfu])
@pytest.mark.parametrize("capacity", [8, None])
def test_what_a_policy_notes_is_bounded_by_what_is_kept(kind: type[Lru | Lfu], capacity: int | None) -> None:
    policy = kind()
    cache = ChainCache(capacity, policy)
    for number in range(10_000):
        cache.use((number % 8,))
    assert len(policy._leaves if isinstance(policy, Lru) else policy._heap) < 200
    assert len(cache) == 8


def test_a_negative_capacity_is_refused() -> None:
    with pytest.raises(ValueError, match="a cache of -1 blocks: give 0 or more"):
        ChainCache(-1)


def test_a_kept_block_takes_no_dictionary() -> None:
    assert not hasattr(Kept("k", None, 0, 1), "__dict__")


@pytest.mark.parametrize(
    ("uses", "key"),
    [(["cac"], "c"), (["ac", "dbc"], "c"), (["b", "d", "bad"], "d"), (["ac", "dc"], "c"), (["ac", "c"], "c")],
)
@pytest.mark.parametrize("name", POLICIES)
def test_a_key_that_stands_elsewhere_than_before_is_refused(name: str, uses: list[str], key: str) -> None:
    cache = ChainCache(10, POLICIES[name]())
    *proper, broken = uses
    for each in proper:
        cache.use(each)
    with pytest.raises(ValueError, match=f"key '{key}' came behind another key before"):
        cache.use(broken)
    cache.capacity = 0
    cache.use(())
    assert len(cache) == 0  # what was used of it is a chain, and goes like one
