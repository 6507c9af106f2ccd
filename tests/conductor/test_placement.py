"""Where requests go: usable instances only, by what each policy looks at, and equally for equal inputs."""

from __future__ import annotations

import dataclasses
import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mooncake_edu.conductor import POLICIES, ClusterView, LoadBalance, PlacementError, Policy, Pool, Query, RoundRobin
from mooncake_edu.model.costs import PRESETS

COSTS = PRESETS["A800x8"]
QUERY = Query(4096, [b"a", b"b"], 0.0)


@st.composite
def pools(draw: st.DrawFn, first: int = 0) -> Pool:
    """Instances in any state, at least one of them usable."""
    size = draw(st.integers(1, 6))
    usable = draw(st.lists(st.booleans(), min_size=size, max_size=size).filter(any))
    column = st.lists(st.integers(0, 3), min_size=size, max_size=size)
    cached = [512 * blocks for blocks in draw(column)]
    return Pool(range(first, first + size), [1] * size, draw(column), cached, draw(column), draw(column), usable)


views = st.builds(ClusterView, pools(), pools(first=100))


@pytest.mark.parametrize("name", POLICIES)
@given(view=views, seed=st.integers(0, 100))
def test_only_usable_instances_are_chosen(name: str, view: ClusterView, seed: int) -> None:
    policy = POLICIES[name](COSTS, seed)
    for _ in range(5):
        placement = policy.place(QUERY, view)
        assert view.prefill.usable[placement.prefill]
        assert view.decode.usable[placement.decode - 100]


@pytest.mark.parametrize("name", POLICIES)
@given(view=views, seed=st.integers(0, 100))
def test_equal_inputs_give_equal_placements(name: str, view: ClusterView, seed: int) -> None:
    first, second = (POLICIES[name](COSTS, seed) for _ in range(2))
    assert [first.place(QUERY, view) for _ in range(5)] == [second.place(QUERY, view) for _ in range(5)]


@given(views)
def test_load_balancing_takes_the_shortest_queue_and_the_fewest_requests(view: ClusterView) -> None:
    placement = LoadBalance(COSTS).place(QUERY, view)
    usable = [place for place, up in enumerate(view.prefill.usable) if up]
    assert view.prefill.queue[placement.prefill] == min(view.prefill.queue[place] for place in usable)
    decode = [(view.decode.requests[p], view.decode.context[p]) for p, up in enumerate(view.decode.usable) if up]
    chosen = placement.decode - 100
    assert (view.decode.requests[chosen], view.decode.context[chosen]) == min(decode)


@pytest.mark.parametrize("name", POLICIES)
@given(view=views)
def test_a_forecast_counts_the_queue_what_is_reused_and_the_batch(name: str, view: ClusterView) -> None:
    place = POLICIES[name](COSTS).place(QUERY, view)
    own, second = view.prefill.cached[place.prefill], place.decode - 100
    assert place.cached == own + place.fetched
    assert place.fetched == 0 or (name == "kvcache-centric" and view.prefill.cached[place.source] == place.cached)
    fetching = COSTS.fetch(place.fetched)
    assert place.ttft == view.prefill.queue[place.prefill] + fetching + COSTS.prefill(4096, place.cached)
    batch, context = view.decode.requests[second] + 1, view.decode.context[second] + 4096
    assert place.tbt == COSTS.decode_step(batch, context)


@pytest.mark.parametrize("name", POLICIES)
def test_coupled_instances_decode_what_they_prefill(name: str) -> None:
    pool = Pool(range(4), [1] * 4, [0.0] * 4, [0] * 4, [0] * 4, [0] * 4, [True] * 4)
    policy = POLICIES[name](COSTS)
    assert all((place := policy.place(QUERY, ClusterView(pool, pool))).prefill == place.decode for _ in range(8))


def test_round_robin_visits_all_in_turn_and_passes_over_those_that_are_down() -> None:
    pool = Pool(range(4), [1] * 4, [0.0] * 4, [0] * 4, [0] * 4, [0] * 4, [True, False, True, True])
    policy = RoundRobin(COSTS)
    assert [policy.place(QUERY, ClusterView(pool, pool)).prefill for _ in range(5)] == [0, 2, 3, 0, 2]


@pytest.mark.parametrize("policy", [POLICIES["random"], POLICIES["load-balancing"]])
def test_instances_alike_are_chosen_equally_often(policy: type[Policy]) -> None:
    pool = Pool(range(4), [1] * 4, [0.0] * 4, [0] * 4, [0] * 4, [0] * 4, [True] * 4)
    chooser = policy(COSTS, 7)
    counts = [0] * 4
    for _ in range(4000):
        counts[chooser.place(QUERY, ClusterView(pool, pool)).prefill] += 1
    assert max(abs(count - 1000) for count in counts) < 150  # more than five times the deviation


def test_without_a_usable_instance_the_refusal_says_so() -> None:
    pool = Pool([3], [1], [0.0], [0], [0], [0], [False])
    with pytest.raises(PlacementError, match="none of the 1 instances is usable"):
        LoadBalance(COSTS).place(QUERY, ClusterView(pool, pool))


def test_a_policy_cannot_see_how_long_an_answer_becomes() -> None:
    assert {field.name for field in dataclasses.fields(Query)} == {
        "prompt", "keys", "arrival", "priority", "block_size",
    }  # fmt: skip


def test_ties_use_the_policy_s_own_random_numbers() -> None:
    pool = Pool(range(4), [1] * 4, [0.0] * 4, [0] * 4, [0] * 4, [0] * 4, [True] * 4)
    policy = LoadBalance(COSTS, 3)
    random.seed(1)
    first = [policy.place(QUERY, ClusterView(pool, pool)).prefill for _ in range(10)]
    random.seed(2)
    again = LoadBalance(COSTS, 3)
    assert first == [again.place(QUERY, ClusterView(pool, pool)).prefill for _ in range(10)]
