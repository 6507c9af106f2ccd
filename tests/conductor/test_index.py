"""The index of who holds which block, fed by changes that are doubled, lost, late, out of order or from a restart."""

from __future__ import annotations

import random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from mooncake_edu.conductor import Change, Index

KEYS = [bytes([number]) for number in range(12)]


class Instance:
    """An instance that tells of every change it makes to what it holds."""

    def __init__(self, number: int) -> None:
        self.number, self.epoch, self.sequence = number, 0, 0
        self.holds: set[bytes] = set()

    def change(self, rng: random.Random) -> Change:
        """Store some blocks, drop some."""
        stored = rng.sample(KEYS, rng.randrange(3))
        removed = [key for key in self.holds if rng.random() < 0.3]
        self.holds = (self.holds | set(stored)) - set(removed)
        self.sequence += 1
        return Change(self.epoch, self.sequence, stored, removed)

    def restart(self) -> None:
        """Begin again with nothing, counting from the start."""
        self.epoch, self.sequence, self.holds = self.epoch + 1, 0, set()


def truth(instances: list[Instance]) -> dict[bytes, list[int]]:
    """Who really holds what."""
    return {key: [each.number for each in instances if key in each.holds] for key in KEYS}


@settings(max_examples=200)
@given(st.integers(0, 2**32), st.floats(0, 0.4), st.floats(0, 0.4), st.floats(0, 0.1))
def test_after_resynchronising_the_index_is_the_truth(seed: int, lost: float, twice: float, restarts: float) -> None:
    rng, index = random.Random(seed), Index()
    instances = [Instance(number) for number in range(3)]
    mail: list[tuple[int, Change]] = []
    for _ in range(60):
        each = rng.choice(instances)
        if rng.random() < restarts:
            each.restart()
        change = each.change(rng)
        if rng.random() >= lost:
            mail += [(each.number, change)] * (2 if rng.random() < twice else 1)
        while mail and rng.random() < 0.5:
            number, told = mail.pop(rng.randrange(len(mail)))  # in any order
            index.take(number, told)
    rng.shuffle(mail)
    for place, (number, told) in enumerate(mail):
        if place == len(mail) // 2:
            for each in instances:
                assert index.resynchronise(each.number, each.epoch, each.sequence, each.holds)
        assert index.take(number, told) or place < len(mail) // 2
    for each in instances:
        index.resynchronise(each.number, each.epoch, each.sequence, each.holds)
    held = truth(instances)
    assert {key: index.holders(key) for key in KEYS} == held
    assert len(index) == sum(map(bool, held.values()))


@settings(max_examples=100)
@given(st.integers(0, 2**32))
def test_changes_that_all_come_in_any_order_and_any_number_of_times_need_no_resynchronising(seed: int) -> None:
    rng, index, instance = random.Random(seed), Index(), Instance(4)
    changes = [instance.change(rng) for _ in range(20)]
    mail = changes + rng.sample(changes, 10)
    rng.shuffle(mail)
    whole = [index.take(4, change) for change in mail]
    assert whole[-1]
    assert {key for key in KEYS if index.holders(key)} == instance.holds


def test_a_restart_that_counts_from_the_start_again_leaves_no_stale_block() -> None:
    index = Index()
    index.take(0, Change(0, 1, [b"a", b"b"]))
    index.take(0, Change(0, 2, [b"c"]))
    index.take(0, Change(1, 1, [b"d"]))
    assert index.lengths([b"a"]) == {}
    assert index.holders(b"d") == [0]
    assert index.take(0, Change(0, 3, [b"a"]))  # late, from before
    assert index.holders(b"a") == []


def test_a_lost_change_is_noticed_and_what_comes_after_waits() -> None:
    index = Index()
    assert index.take(0, Change(0, 1, [b"a"]))
    assert not index.take(0, Change(0, 3, [], [b"b"]))
    assert index.take(0, Change(0, 2, [b"b", b"c"]))
    assert (index.holders(b"b"), index.holders(b"c")) == ([], [0])


def test_an_older_state_than_is_known_changes_nothing() -> None:
    index = Index()
    index.take(0, Change(0, 1, [b"a"]))
    index.take(0, Change(0, 2, [b"b"]))
    index.resynchronise(0, 0, 1, [b"a"])
    assert index.holders(b"b") == [0]


def test_what_waits_is_bounded_and_a_resynchronisation_mends_it() -> None:
    index = Index(most=10)
    for sequence in range(2, 1000):
        assert not index.take(0, Change(0, sequence, [b"%d" % sequence]))
        assert len(index._streams[0].early) <= 10
    assert index.resynchronise(0, 0, 999, [b"x"])
    assert len(index) == 1


prefixes = st.lists(st.integers(0, 8), min_size=0, max_size=40)


@given(prefixes, st.integers(0, 10))
def test_lengths_are_those_of_a_walk_along_the_prefix(held: list[int], asked: int) -> None:
    index, keys = Index(), [b"%d" % number for number in range(10)]
    for number, length in enumerate(held):
        index.take(number, Change(0, 1, keys[:length]))
    expected = {number: min(length, asked) for number, length in enumerate(held) if min(length, asked)}
    assert index.lengths(keys[:asked]) == expected


def test_a_prefix_with_a_hole_ends_there() -> None:
    index = Index()
    index.take(0, Change(0, 1, [b"a", b"c"]))
    index.take(1, Change(0, 1, [b"b", b"c"]))
    assert index.lengths([b"a", b"b", b"c"]) == {0: 1}


@pytest.mark.parametrize("count", [1, 70, 1000])
def test_any_number_of_instances_can_hold_a_block(count: int) -> None:
    index = Index()
    for number in range(count):
        index.take(number, Change(0, 1, [b"a"]))
    assert index.holders(b"a") == list(range(count))
    assert index.lengths([b"a", b"b"]) == dict.fromkeys(range(count), 1)
