"""What was placed and no view shows yet counts until it is confirmed: load is conserved, and a burst is spread."""

from __future__ import annotations

import random
from collections import Counter
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mooncake_edu.conductor import POLICIES, ClusterView, Conductor, Ledger, Pending, Pool, Query
from mooncake_edu.model.costs import PRESETS

COSTS = PRESETS["A800x8"]
SIZE = 6


def view(age: float = 0.0, prefill: int = SIZE, decode: int = SIZE) -> ClusterView:
    """Idle instances, the decode ones numbered from 100."""
    pools = [
        Pool(range(first, first + size), [1] * size, [0.0] * size, [0] * size, [0] * size, [0] * size, [True] * size,
             [0.0] * size)
        for first, size in ((0, prefill), (100, decode))
    ]  # fmt: skip
    return ClusterView(*pools, age)


def test_load_and_ledger_are_conserved_over_ten_thousand_random_events() -> None:
    """Whatever they are told, view and ledger together show what was placed and has not ended, and nothing else."""
    rng, ledger = random.Random(1), Ledger(patience=1e9)
    truth: dict[int, Pending] = {}
    confirmed: set[int] = set()
    for number in range(10_000):
        kind = rng.random()
        if kind < 0.5 or not truth:
            work = rng.randrange(1, 1000) / 64  # sums of these are exact
            truth[number] = Pending(float(number), rng.randrange(SIZE), work, 100 + rng.randrange(SIZE),
                                    rng.randrange(1, 9000), rng.randrange(SIZE), work / 8)  # fmt: skip
            ledger.note(number, truth[number])
        elif kind < 0.75:
            name = rng.choice([*truth])
            ledger.confirm(name)
            ledger.confirm(name)  # told twice
            confirmed.add(name)
        else:
            name = rng.choice([*truth])
            ledger.confirm(name)
            truth.pop(name)
            confirmed.discard(name)
        assert len(ledger) == len(truth) - len(confirmed)
        if number % 100 == 0:
            shown = ledger.shown(seen(truth, confirmed), float(number))
            assert columns(shown) == columns(seen(truth, set(truth)))
    for name in [*truth]:
        ledger.confirm(name)
    assert len(ledger) == 0


def seen(truth: dict[int, Pending], names: set[int]) -> ClusterView:
    """A view that shows these placements."""
    made = view()
    for name in names:
        each = truth[name]
        made.prefill.queue[each.prefill] += each.work  # type: ignore[index]
        made.prefill.sending[each.source] += each.sending  # type: ignore[index]
        made.decode.requests[each.decode - 100] += 1  # type: ignore[index]
        made.decode.context[each.decode - 100] += each.tokens  # type: ignore[index]
    return made


def columns(made: ClusterView) -> list[list[float]]:
    """What is counted."""
    fill, decode = made.prefill, made.decode
    return [list(each) for each in (fill.queue, fill.sending, decode.requests, decode.context)]


@pytest.mark.parametrize("name", ["load-balancing", "cache-aware", "kvcache-centric"])
def test_a_burst_under_an_old_view_is_spread_evenly(name: str) -> None:
    conductor, old = Conductor(POLICIES[name](COSTS)), view(age=1.0)
    placed = []
    for number in range(4 * SIZE):
        query = Query(8192, [(number, block) for block in range(16)], 0.0)
        placed.append(conductor.place(query, old))
        conductor.commit(number, query, placed[-1])
    assert set(Counter(each.prefill for each in placed).values()) == {4}
    assert set(Counter(each.decode for each in placed).values()) == {4}


def test_without_the_ledger_the_same_burst_is_not() -> None:
    policy = POLICIES["load-balancing"](COSTS)
    placed = [policy.place(Query(8192, [], 0.0), view(age=1.0)).prefill for _ in range(4 * SIZE)]
    assert max(Counter(placed).values()) > 4


@given(st.integers(0, 20), st.floats(0.1, 10))
def test_an_old_view_is_brought_forward_by_its_age(seed: int, age: float) -> None:
    rng, old = random.Random(seed), view(age)
    old.prefill.queue = [rng.uniform(0, 20) for _ in range(SIZE)]
    shown = Ledger().shown(old, 0.0)
    assert list(shown.prefill.queue) == [max(each - age, 0.0) for each in old.prefill.queue]


def test_a_placement_whose_confirmation_was_lost_counts_for_a_while_only() -> None:
    ledger = Ledger(patience=10.0)
    ledger.note("lost", Pending(5.0, 2, 3.0, 101, 1000))
    assert ledger.shown(view(), 14.9).prefill.queue[2] == 3.0
    assert ledger.shown(view(), 15.0).prefill.queue[2] == 0.0
    assert len(ledger) == 0


def test_a_confirmation_of_what_was_never_placed_changes_nothing() -> None:
    ledger = Ledger()
    ledger.confirm("nobody")
    assert ledger.shown(view(), 0.0) == view()


def test_a_place_is_held_from_arrival_or_only_from_the_hand_over_on() -> None:
    query = Query(512, [b"a"], 0.0)
    for reserve in (True, False):
        conductor = Conductor(POLICIES["kvcache-centric"](COSTS))
        conductor.commit(1, query, conductor.place(query, view()), reserve)
        held = conductor.ledger.shown(view(), 0.0).decode
        assert sum(held.requests) == int(reserve)
        if not reserve:
            number = conductor.hand_over(("decode", 1), query, view(), 2.0)
            assert conductor.ledger.shown(view(), 2.0).decode.requests[number - 100] == 1


def test_the_hand_over_takes_the_instance_that_is_best_then() -> None:
    query, conductor, now = Query(512, [b"a"], 0.0), Conductor(POLICIES["kvcache-centric"](COSTS)), view(decode=2)
    now.decode = replace(now.decode, requests=[5, 4], context=[50_000, 40_000])
    assert conductor.hand_over("one", query, now, 1.0) == 101


def test_a_fetch_that_no_view_shows_yet_counts_at_its_source() -> None:
    conductor, now = Conductor(POLICIES["kvcache-centric"](COSTS)), view(age=1.0)
    now.prefill = replace(now.prefill, cached=[4096] + [0] * (SIZE - 1), queue=[9.0] + [0.0] * (SIZE - 1))
    query = Query(8192, [bytes([n]) for n in range(16)], 0.0)
    first = conductor.place(query, now)
    conductor.commit(1, query, first)
    second = conductor.place(query, now)
    assert (first.source, second.source) == (0, 0)
    assert second.transfer == pytest.approx(2 * first.transfer)


def test_a_ledger_that_is_handed_in_is_the_one_that_counts_though_it_is_empty() -> None:
    ledger = Ledger(patience=7.0)
    conductor = Conductor(POLICIES["random"](COSTS), ledger)
    query = Query(1000, (), 0.0)
    conductor.commit("one", query, conductor.place(query, view()))
    assert conductor.ledger is ledger and len(ledger) == 1
