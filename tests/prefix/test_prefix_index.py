"""One index over many holders answers like a plain dictionary, and remembers nothing that nobody holds."""

from __future__ import annotations

import tracemalloc

from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

from mooncake_edu.prefix import PrefixIndex, block_keys

PATHS = st.lists(st.integers(0, 1), min_size=1, max_size=5).map(tuple)
HOLDERS = st.sampled_from([0, 1, 2, 63, 64, 1000])

Path = tuple[int, ...]


def keys_of(path: Path) -> list[bytes]:
    return block_keys(path, 1, b"root")


class IndexMachine(RuleBasedStateMachine):
    """Holders gain and lose blocks of a tree of prefixes in any order, gaps in the middle included."""

    def __init__(self) -> None:
        super().__init__()
        self.index = PrefixIndex()
        self.held: dict[Path, set[int]] = {}

    @rule(path=PATHS, holder=HOLDERS, start=st.integers(1, 5))
    def add(self, path: Path, holder: int, start: int) -> None:
        """Some blocks of a chain, from one on; those held already stay held."""
        self.index.add(holder, keys_of(path)[start - 1 :])
        for end in range(start, len(path) + 1):
            self.held.setdefault(path[:end], set()).add(holder)

    @rule(path=PATHS, holder=HOLDERS, start=st.integers(1, 5))
    def remove(self, path: Path, holder: int, start: int) -> None:
        """Some blocks of a chain, held or not."""
        self.index.remove(holder, keys_of(path)[start - 1 :])
        for end in range(start, len(path) + 1):
            self.drop(path[:end], holder)

    def drop(self, path: Path, holder: int) -> None:
        holders = self.held.get(path, set())
        holders.discard(holder)
        if not holders:
            self.held.pop(path, None)

    @rule(holder=HOLDERS)
    def lose(self, holder: int) -> None:
        """A holder goes away with all it has."""
        self.index.forget(holder)
        for path in list(self.held):
            self.drop(path, holder)

    @rule(path=PATHS)
    def count(self, path: Path) -> None:
        lengths = {}
        for holder in set().union(*self.held.values()):
            has = [holder in self.held.get(path[:end], ()) for end in range(1, len(path) + 1)]
            if has[0]:
                lengths[holder] = has.index(False) if False in has else len(has)
        assert self.index.lengths(keys_of(path)) == lengths

    @invariant()
    def every_block_is_with_its_holders_and_nothing_else_is_remembered(self) -> None:
        assert len(self.index) == len(self.held)
        for path, holders in self.held.items():
            assert self.index.holders(keys_of(path)[-1]) == sorted(holders)


TestIndex = IndexMachine.TestCase
TestIndex.settings = settings(
    max_examples=100, stateful_step_count=40, deadline=None, suppress_health_check=[HealthCheck.too_slow]
)


def test_an_unknown_prefix_and_an_empty_one_are_held_by_nobody() -> None:
    index = PrefixIndex()
    index.add(0, keys_of((1,)))
    assert index.lengths([]) == index.lengths(keys_of((0, 1))) == {}
    assert index.holders(b"unknown") == []


def test_lengths_asks_for_no_key_behind_the_first_that_nobody_holds() -> None:
    """Keys can be made as they are asked for: a prompt with no hit costs one key, not all of them."""
    index = PrefixIndex()
    index.add(1, [b"a", b"c"])
    keys = iter([b"a", b"b", b"c", b"d"])
    assert index.lengths(keys) == {1: 1}
    assert list(keys) == [b"c", b"d"]


def test_memory_grows_with_blocks_and_not_with_holders_times_blocks() -> None:
    """A thousand instances, each with blocks of its own, and one block that all have."""

    def size(holders: int, blocks: int) -> int:
        index, before = PrefixIndex(), tracemalloc.get_traced_memory()[0]
        for number in range(blocks):
            index.add(number % holders, [number])
        for holder in range(holders):
            index.add(holder, [-1])
        return tracemalloc.get_traced_memory()[0] - before

    tracemalloc.start()
    try:
        few, many, twice = size(10, 20_000), size(1000, 20_000), size(1000, 40_000)
    finally:
        tracemalloc.stop()
    assert twice < 2.5 * many
    assert many < 3 * few  # a hundred times as many holders
