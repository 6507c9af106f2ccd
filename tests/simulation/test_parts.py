"""Each part of the simulated cluster by itself: the order of events, runs of steps, chunks, transfers and pages."""

from __future__ import annotations

import random

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from mooncake_edu.model.costs import PRESETS
from mooncake_edu.simulation.agenda import Agenda, Rank
from mooncake_edu.simulation.batch import Batch
from mooncake_edu.simulation.caches import NodeCache, PagedCache, Tier
from mooncake_edu.simulation.job import Job
from mooncake_edu.simulation.network import Flow, Link, Network, max_min
from mooncake_edu.simulation.prefill import Work, by_layer, in_turn
from mooncake_edu.simulation.reference import layer_after_layer

COSTS = PRESETS["A800x8"]
seconds = st.floats(0, 10, allow_subnormal=False)


@given(st.lists(st.tuples(st.integers(0, 3), st.sampled_from(Rank), st.integers(0, 5)), unique=True), st.randoms())
def test_events_of_one_time_happen_by_rank_and_number_whatever_order_they_were_put_in(
    events: list[tuple[int, Rank, int]], shuffle: random.Random
) -> None:
    agenda, seen = Agenda(), []
    for time, rank, number in shuffle.sample(events, len(events)):
        agenda.put(time, rank, number, lambda now, rank=rank, number=number: seen.append((now, rank, number)))
    agenda.run()
    assert seen == sorted(events)


def test_the_agenda_stops_before_an_arrival_but_after_what_ranks_before_it() -> None:
    agenda, seen = Agenda(), []
    for rank in Rank:
        agenda.put(1.0, rank, 0, lambda _, rank=rank: seen.append(rank))
    agenda.run(1.0, Rank.ARRIVED)
    assert seen == [rank for rank in Rank if rank < Rank.ARRIVED]


def batch_of(contexts: list[int], left: int) -> Batch:
    """A batch of requests with so many tokens each."""
    batch = Batch(COSTS)
    for number, tokens in enumerate(contexts):
        job = Job(number, number, 0.0, tokens, left + 1, [])
        job.made, job.stored = 1, tokens
        batch.join(job)
    return batch


contexts = st.lists(st.integers(1, 130_000), min_size=1, max_size=40)


@given(contexts, st.integers(1, 300))
def test_a_run_takes_what_its_steps_take_one_by_one(tokens: list[int], steps: int) -> None:
    batch, size = batch_of(tokens, steps), len(tokens)
    each = [COSTS.decode_step(size, sum(tokens) + step * size) for step in range(1, steps + 1)]
    assert batch.elapsed(steps) == pytest.approx(sum(each), rel=1e-12)
    np.testing.assert_allclose(batch.advance(2.0, steps), 2.0 + np.cumsum(each), rtol=1e-12)
    assert batch.context == sum(tokens) + steps * size
    assert [job.number for job in batch.finished()] == list(range(size))


@given(contexts, st.floats(0, 20), st.floats(0, 5))
def test_a_run_is_cut_at_the_first_step_that_ends_at_a_time_or_after(
    tokens: list[int], start: float, delay: float
) -> None:
    batch, time = batch_of(tokens, 10**6), start + delay
    steps = batch.steps_until(start, time)
    assert start + batch.elapsed(steps) >= time
    assert steps == 1 or start + batch.elapsed(steps - 1) < time


def test_times_of_steps_that_nobody_needs_are_forgotten() -> None:
    batch = batch_of([100], 10**7)
    for _ in range(100):
        batch.advance(0.0, 1000)
        job = batch.members[0]
        batch.remove(job)
        job.times.clear()
        batch.join(job)
    assert len(batch._ends) < 2**16


@given(st.floats(0, 100), st.floats(0, 3), st.builds(Work, seconds, seconds, seconds), st.integers(1, 100))
def test_overlapping_layers_in_closed_form_is_going_through_them_one_by_one(
    start: float, before: float, work: Work, layers: int
) -> None:
    stored = max(start - before, 0.0)
    np.testing.assert_allclose(
        by_layer(start, stored, work, layers), layer_after_layer(start, stored, work, layers), rtol=1e-9, atol=1e-9
    )


@given(st.builds(Work, seconds, seconds, seconds), st.integers(1, 100))
def test_overlapped_layers_take_at_most_the_sum_of_the_parts_and_at_least_the_longest(work: Work, layers: int) -> None:
    stored = by_layer(0.0, 0.0, work, layers).stored
    assert max(work) - 1e-9 <= stored <= in_turn(0.0, 0.0, work, layers).stored + 1e-9


flows = st.lists(
    st.tuples(st.integers(0, 3), st.integers(4, 7), st.one_of(st.just(float("inf")), st.floats(0.1, 20))),
    min_size=1, max_size=12,
)  # fmt: skip


@given(flows)
def test_shares_are_max_min_fair(asked: list[tuple[int, int, float]]) -> None:
    bandwidth = {instance: 10.0 + instance for instance in range(8)}
    made = [
        Flow(number, (Link(source, True), Link(target, False)), 1.0, limit, 0.0, lambda _: None)
        for number, (source, target, limit) in enumerate(asked)
    ]
    rates = max_min(made, bandwidth)
    on: dict[Link, list[float]] = {}
    for flow in made:
        for link in flow.links:
            on.setdefault(link, []).append(rates[flow.number])
    assert all(sum(there) <= bandwidth[link.instance] * (1 + 1e-9) for link, there in on.items())
    for flow in made:
        rate = rates[flow.number]
        full = [link for link in flow.links if sum(on[link]) >= bandwidth[link.instance] * (1 - 1e-9)]
        bottleneck = any(rate >= max(on[link]) * (1 - 1e-9) for link in full)
        assert rate == flow.limit or bottleneck


@given(flows, st.integers(0, 2**32))
def test_every_transfer_arrives_and_takes_at_least_what_it_would_alone(
    asked: list[tuple[int, int, float]], seed: int
) -> None:
    agenda, done = Agenda(), {}
    network = Network(agenda, dict.fromkeys(range(8), 10.0))
    rng = random.Random(seed)
    begun, sizes = [], [rng.uniform(0.1, 100) for _ in asked]
    for number, (source, target, limit) in enumerate(asked):
        begun.append(rng.uniform(0, 5))

        def send(now: float, n: int = number, s: int = source, t: int = target, most: float = limit) -> None:
            network.send(now, n, s, t, sizes[n], lambda time: done.setdefault(n, time), most)

        agenda.put(begun[-1], Rank.ARRIVED, number, send)
    agenda.run()
    assert len(done) == len(asked)
    for number, (_, _, limit) in enumerate(asked):
        assert done[number] - begun[number] >= sizes[number] / min(10.0, limit) * (1 - 1e-9)
    assert max(done.values()) - min(begun) <= sum(
        size / min(10.0, limit) for size, (_, _, limit) in zip(sizes, asked, strict=True)
    ) + 5  # one after the other, and the last began 5 s after the first at most  # fmt: skip


def test_two_transfers_to_one_instance_share_what_it_receives() -> None:
    agenda, done = Agenda(), []
    network = Network(agenda, dict.fromkeys(range(3), 10.0))
    network.send(0.0, 0, 0, 2, 100.0, done.append)
    network.send(0.0, 1, 1, 2, 50.0, done.append)
    agenda.run()
    assert done == [10.0, 15.0]  # 5 bytes/s each until the short one has arrived


def test_a_tier_gives_what_no_faster_one_holds() -> None:
    told: list[tuple[list[int], list[int]]] = []
    cache = NodeCache([Tier("dram", 2, 1.0), Tier("ssd", 5, 1.0)], "lru", lambda new, gone: told.append((new, gone)))
    cache.store([1, 2, 3, 4])
    assert cache.match([1, 2, 3, 4, 5]) == {"dram": 2, "ssd": 2}
    cache.store([1, 2, 9, 10])
    assert told[-1] == ([9, 10], [4])


@given(st.lists(st.integers(0, 4), min_size=1, max_size=60), st.integers(0, 12), st.randoms())
def test_pages_in_use_are_never_dropped_and_those_kept_hold_whole_prefixes(
    chains: list[int], room: int, shuffle: random.Random
) -> None:
    held: set[int] = set()

    def told(new: list[int], gone: list[int]) -> None:
        assert not held & set(new)
        held.update(new)
        held.difference_update(gone)

    cache, using = PagedCache(True, told), []
    for chain in chains:
        ids = [100 * chain + place if place else 0 for place in range(chain + 2)]
        cache.pin(ids)
        using.append(ids)
        if len(using) > 3:
            cache.unpin(using.pop(shuffle.randrange(len(using))))
        cache.shrink(room)
        assert cache.kept <= room
        assert all(cache.match(each) == len(each) for each in using)
        assert len(held) == cache.kept + cache.used
        for first in range(5):
            whole = [100 * first + place if place else 0 for place in range(first + 2)]
            assert all(id_ not in held for id_ in whole[cache.match(whole) :])
