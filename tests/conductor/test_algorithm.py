"""Algorithm 1 with the conventions that the paper leaves open, and what sets the two cache-aware policies apart."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mooncake_edu.conductor import CacheAware, ClusterView, KvcacheCentric, Pool, Query
from mooncake_edu.model.costs import PRESETS

COSTS = PRESETS["A800x8"]
PROMPT = 16 * 512
QUERY = Query(PROMPT, [bytes([number]) for number in range(16)], 0.0)
DECODE = Pool([9], [1], [0.0], [0], [0], [0], [True])


def pool(cached: list[int], queue: list[float] | None = None, **columns: list[float]) -> Pool:
    """Instances that hold so many blocks of the prompt."""
    size = len(cached)
    made = Pool(range(size), [1] * size, queue or [0.0] * size, [512 * blocks for blocks in cached], [0] * size,
                [0] * size, [True] * size)  # fmt: skip
    return replace(made, **columns)


def only(place: int, cached: list[int], threshold: float = 2.0) -> tuple[int, int | None]:
    """What a placement at that instance fetches and from where, all others being unusable."""
    usable = [each == place for each in range(len(cached))]
    placement = KvcacheCentric(COSTS, 0, threshold).place(QUERY, ClusterView(pool(cached, usable=usable), DECODE))
    assert placement.prefill == place
    assert placement.cached == 512 * cached[place] + placement.fetched
    return placement.fetched // 512, placement.source


def test_at_the_threshold_an_instance_uses_what_it_has_and_above_it_fetches_the_rest() -> None:
    assert only(0, [4, 8]) == (0, None)  # 8 / 4 = 2
    assert only(0, [4, 9]) == (5, 1)
    assert only(0, [4, 9], threshold=2.25) == (0, None)
    assert only(0, [8, 9], threshold=1.0) == (1, 1)


def test_without_a_prefix_of_its_own_an_instance_fetches_whatever_there_is() -> None:
    assert only(0, [0, 1], threshold=1000.0) == (1, 1)


def test_where_nobody_holds_anything_nothing_is_fetched() -> None:
    assert only(0, [0, 0]) == (0, None)


@given(st.lists(st.integers(0, 16), min_size=1, max_size=8), st.floats(1, 10))
def test_the_instance_with_the_longest_prefix_never_fetches(cached: list[int], threshold: float) -> None:
    assert only(cached.index(max(cached)), cached, threshold) == (0, None)


def test_of_holders_alike_the_one_with_the_least_to_send_gives() -> None:
    view = pool([0, 8, 8], usable=[True, False, False], sending=[0.0, 0.5, 0.1])
    placement = KvcacheCentric(COSTS).place(QUERY, ClusterView(view, DECODE))
    assert placement.source == 2
    assert placement.transfer == 0.1 + COSTS.fetch(8 * 512)  # behind what it sends already


pools = st.integers(1, 8).flatmap(
    lambda size: st.builds(
        pool,
        st.lists(st.integers(0, 16), min_size=size, max_size=size),
        st.lists(st.floats(0, 20), min_size=size, max_size=size),
    )
)


@given(pools)
def test_cache_aware_takes_the_first_token_that_comes_soonest(prefill: Pool) -> None:
    placement = CacheAware(COSTS).place(QUERY, ClusterView(prefill, DECODE))
    ttft = [queue + COSTS.prefill(PROMPT, own) for queue, own in zip(prefill.queue, prefill.cached, strict=True)]
    assert placement.ttft == min(ttft) == ttft[placement.prefill]


@given(pools, st.floats(1, 10))
def test_kvcache_centric_takes_the_least_of_queue_transfer_and_prefill(prefill: Pool, threshold: float) -> None:
    placement = KvcacheCentric(COSTS, 0, threshold).place(QUERY, ClusterView(prefill, DECODE))
    best, ttft = max(prefill.cached), []
    for queue, own in zip(prefill.queue, prefill.cached, strict=True):
        fetch = best > 0 if own == 0 else best / own > threshold
        ttft.append(queue + (COSTS.fetch(best - own) + COSTS.prefill(PROMPT, best) if fetch else
                             COSTS.prefill(PROMPT, own)))  # fmt: skip
    assert placement.ttft == pytest.approx(min(ttft), rel=1e-12)
    assert ttft[placement.prefill] == pytest.approx(min(ttft), rel=1e-12)


@pytest.mark.parametrize("policy", [CacheAware, KvcacheCentric])
@given(holder=st.integers(0, 7), blocks=st.integers(1, 16), seed=st.integers(0, 100))
def test_a_lone_request_goes_where_its_prefix_is(
    policy: type[CacheAware], holder: int, blocks: int, seed: int
) -> None:
    prefill = pool([blocks if place == holder else 0 for place in range(8)])
    assert policy(COSTS, seed).place(QUERY, ClusterView(prefill, DECODE)).prefill == holder


def test_a_busy_holder_gives_its_prefix_to_an_idle_instance() -> None:
    view = ClusterView(pool([12, 0], [5.0, 0.0]), DECODE)
    assert CacheAware(COSTS).place(QUERY, view)[:3] == (1, 9, 0)
    fetched = KvcacheCentric(COSTS).place(QUERY, view)
    assert fetched[:3] == (1, 9, 12 * 512)
    assert fetched.source == 0


def test_the_decode_instance_is_the_one_with_the_shortest_steps() -> None:
    decode = Pool([5, 6], [1, 1], [0.0] * 2, [0] * 2, [1, 3], [200_000, 3_000], [True, True])
    assert CacheAware(COSTS).place(QUERY, ClusterView(pool([0]), decode)).decode == 6


def test_keys_may_be_anything_and_costs_are_whatever_is_handed_in() -> None:
    """An embedding pipeline: documents of chunks, each chunk a second to embed, and a tenth of one to fetch."""

    class Embedding:
        def prefill(self, prompt: int, prefix: int = 0) -> float:
            return float(prompt - prefix)

        def decode_step(self, batch: int, context: int) -> float:
            return 0.0

        def fetch(self, tokens: int) -> float:
            return tokens / 10

    stages = Pool([0, 1], [1, 1], [0.0, 6.0], [0, 8], [0, 0], [0, 0], [True, True])
    query = Query(10, [("paper", chunk) for chunk in range(10)], 0.0, block_size=1)
    placement = KvcacheCentric(Embedding()).place(query, ClusterView(stages, stages))
    assert (placement.prefill, placement.source, placement.ttft) == (0, 1, 0.8 + 2)
