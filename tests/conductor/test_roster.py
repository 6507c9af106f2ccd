"""Which instances may be chosen: none that is down, draining or full, and none that failed until a probe succeeds."""

from __future__ import annotations

import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mooncake_edu.conductor import POLICIES, ClusterView, Conductor, PlacementError, Pool, Query, Roster
from mooncake_edu.model.costs import PRESETS

COSTS = PRESETS["A800x8"]
SIZE = 5


def view(roster: Roster, rng: random.Random) -> ClusterView:
    """Prefill instances 0 to 4 and decode instances 5 to 9 in a random state, as the roster has them."""
    pools = []
    for first in (0, SIZE):
        numbers = range(first, first + SIZE)
        pools.append(Pool(
            numbers, [1] * SIZE, [rng.uniform(0, 9) for _ in numbers],
            [512 * rng.randrange(9) if roster.up(number) else 0 for number in numbers],
            [rng.randrange(9) for _ in numbers], [rng.randrange(9999) for _ in numbers],
            [roster.usable(number) for number in numbers], [rng.uniform(0, 1) for _ in numbers],
        ))  # fmt: skip
    return ClusterView(*pools, rng.choice([0.0, 1.0]))


@pytest.mark.parametrize("name", POLICIES)
@given(seed=st.integers(0, 2**32))
def test_no_instance_that_is_down_draining_or_full_is_ever_chosen(name: str, seed: int) -> None:
    rng, roster = random.Random(seed), Roster()
    conductor = Conductor(POLICIES[name](COSTS, seed))
    for number in range(60):
        each = rng.randrange(2 * SIZE)
        rng.choice([
            lambda each=each: roster.failed(each), lambda each=each: roster.succeeded(each),
            lambda each=each: roster.probed(each, rng.random() < 0.5), lambda each=each: roster.draining.add(each),
            lambda each=each: roster.draining.discard(each), lambda each=each: roster.full.add(each),
            lambda each=each: roster.full.discard(each),
        ])()  # fmt: skip
        usable = [number for number in range(2 * SIZE) if roster.usable(number)]
        query, now = Query(4096, [b"%d" % block for block in range(8)], float(number)), view(roster, rng)
        if min(usable, default=9) >= SIZE or max(usable, default=0) < SIZE:
            with pytest.raises(PlacementError, match="none of the 5 instances is usable"):
                conductor.place(query, now)
            continue
        placement = conductor.place(query, now)
        assert {placement.prefill, placement.decode} <= set(usable)
        assert placement.source is None or roster.up(placement.source)
        conductor.commit(number, query, placement)


@given(st.integers(1, 10), st.integers(0, 2**32))
def test_a_failing_instance_gets_so_many_requests_and_then_none_until_a_probe_succeeds(errors: int, seed: int) -> None:
    rng, roster, failures = random.Random(seed), Roster(errors), 0
    policy = POLICIES["random"](COSTS, seed)
    for _ in range(200):
        choice = policy.place(Query(8192, [b"a"], 0.0), view(roster, rng)).prefill
        if choice == 3:
            roster.failed(3)
            failures += 1
        else:
            roster.succeeded(choice)
        if rng.random() < 0.1:
            roster.probed(3, False)
            assert not roster.usable(3)
    assert failures <= errors
    roster.probed(3, True)
    assert roster.usable(3)


def test_a_success_that_began_before_the_failures_brings_nothing_back() -> None:
    roster = Roster(errors=2)
    roster.failed(0)
    roster.failed(0)
    roster.succeeded(0)
    assert not roster.usable(0)


def test_failures_count_only_in_a_row() -> None:
    roster = Roster(errors=2)
    for _ in range(5):
        roster.failed(0)
        assert roster.usable(0)
        roster.succeeded(0)


def test_a_draining_instance_still_gives_what_it_holds() -> None:
    roster = Roster()
    roster.draining.add(0)
    assert roster.up(0) and not roster.usable(0)
    pool = Pool([0, 1], [1, 1], [0.0, 0.0], [8192, 0], [0, 0], [0, 0], [roster.usable(0), True], [0.0, 0.0])
    decode = Pool([2], [1], [0.0], [0], [0], [0], [True])
    query = Query(16_384, [bytes([number]) for number in range(32)], 0.0)
    placement = POLICIES["kvcache-centric"](COSTS).place(query, ClusterView(pool, decode))
    assert (placement.prefill, placement.source) == (1, 0)
