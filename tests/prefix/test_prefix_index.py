"""One index over many holders answers like a plain dictionary, and remembers nothing that nobody holds."""

from __future__ import annotations

import pytest
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from mooncake_edu.prefix import PrefixIndex, block_keys

ROOT = b"root"
PATHS = st.lists(st.integers(0, 1), min_size=1, max_size=5).map(tuple)
HOLDERS = st.integers(0, 4)

Path = tuple[int, ...]


def keys_of(path: Path) -> list[bytes]:
    return block_keys(path, 1, ROOT)


def parent_of(path: Path) -> bytes:
    return keys_of(path)[-2] if len(path) > 1 else ROOT


class IndexMachine(RuleBasedStateMachine):
    """Holders gain, move and lose blocks of a tree of prefixes in any order, gaps in the middle included."""

    def __init__(self) -> None:
        super().__init__()
        self.index = PrefixIndex()
        self.places: dict[Path, dict[int, int]] = {}

    @rule(path=PATHS, holder=HOLDERS, place=st.integers(0, 99))
    def add(self, path: Path, holder: int, place: int) -> None:
        entry = self.index.add(keys_of(path)[-1], holder, place, parent_of(path), bytes(path[-1:]))
        assert entry is self.index.get(keys_of(path)[-1])
        self.places.setdefault(path, {})[holder] = place

    @rule(path=PATHS, holder=HOLDERS, place=st.integers(0, 99))
    def add_all(self, path: Path, holder: int, place: int) -> None:
        for end in range(1, len(path) + 1):
            self.add(path[:end], holder, place)

    @rule(path=PATHS, holder=HOLDERS)
    def remove(self, path: Path, holder: int) -> None:
        self.index.remove(keys_of(path)[-1], holder)
        self.places.get(path, {}).pop(holder, None)
        if not self.places.get(path, {0: 0}):
            del self.places[path]

    @precondition(lambda self: self.places)
    @rule(data=st.data(), holder=HOLDERS, wrong=st.sampled_from(["parent", "tokens"]))
    def collide(self, data: st.DataObject, holder: int, wrong: str) -> None:
        """A key that stands for one block is not taken for another."""
        path = data.draw(st.sampled_from(sorted(self.places)))
        parent, tokens = parent_of(path), bytes(path[-1:])
        parent, tokens = (b"other", tokens) if wrong == "parent" else (parent, b"other")
        with pytest.raises(ValueError, match="stands for another block"):
            self.index.add(keys_of(path)[-1], holder, 0, parent, tokens)

    @rule(holder=HOLDERS)
    def lose(self, holder: int) -> None:
        """A holder goes away with all it has."""
        for path in list(self.places):
            self.remove(path, holder)

    @rule(path=PATHS)
    def count(self, path: Path) -> None:
        lengths = {}
        for holder in range(5):
            held = [holder in self.places.get(path[:end], {}) for end in range(1, len(path) + 1)]
            if held[0]:
                lengths[holder] = held.index(False) if False in held else len(held)
        assert self.index.lengths(keys_of(path)) == lengths

    @invariant()
    def every_block_is_where_its_holders_put_it_and_nothing_else_is_remembered(self) -> None:
        assert len(self.index) == len(self.places)
        for path, holders in self.places.items():
            entry = self.index.get(keys_of(path)[-1])
            assert entry is not None and entry.holders == holders


TestIndex = IndexMachine.TestCase
TestIndex.settings = settings(
    max_examples=100, stateful_step_count=40, deadline=None, suppress_health_check=[HealthCheck.too_slow]
)


def test_an_unknown_prefix_and_an_empty_one_are_held_by_nobody() -> None:
    index = PrefixIndex()
    index.add(keys_of((1,))[0], 0, 0)
    assert index.lengths([]) == index.lengths(keys_of((0, 1))) == {}
    assert index.get(b"unknown") is None


def test_lengths_asks_for_no_key_behind_the_first_that_nobody_holds() -> None:
    """Keys can be made as they are asked for: a prompt with no hit costs one key, not all of them."""
    index = PrefixIndex()
    index.add(b"a", 1, 0)
    index.add(b"c", 1, 0)
    keys = iter([b"a", b"b", b"c", b"d"])
    assert index.lengths(keys) == {1: 1}
    assert list(keys) == [b"c", b"d"]
