"""Who is computed in the next step, as decisions alone: a pool of numbers, no model and no pages."""

from __future__ import annotations

import itertools

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from mooncake_edu.config import EngineConfig
from mooncake_edu.engine.scheduler import Plan, Scheduler
from mooncake_edu.engine.sequence import Sequence
from mooncake_edu.engine.text import TextStream
from mooncake_edu.errors import BusyError
from mooncake_edu.kvcache import BlockPool, BlockTable
from mooncake_edu.model.tokenizer import ByteTokenizer
from mooncake_edu.prefix import KeyChain, PrefixCache
from mooncake_edu.request import Phase, Request, SamplingParams

HEAD = [int(token) for token in np.random.default_rng(17).integers(0, 250, 60)]
LARGEST = 40
"""Tokens of the largest request below."""


class Desk:
    """A scheduler whose plans are carried out in no time: the token made is always 1."""

    def __init__(self, blocks: int, sharing: bool = True, **config: int) -> None:
        self.config = EngineConfig(blocks=blocks, prefix_sharing=sharing, **config)
        self.pool = BlockPool(blocks)
        self.cache = PrefixCache(self.pool) if sharing else None
        self.scheduler = Scheduler(self.pool, self.cache, self.config)
        self.now = 0.0
        self.done: list[Sequence] = []

    def ask(self, name: str, prompt: list[int], max_tokens: int) -> Sequence:
        request = Request(name, prompt, SamplingParams(max_tokens=max_tokens, ignore_eos=True))
        chain = KeyChain(b"", self.config.block_size)
        sequence = Sequence(request, chain, TextStream(ByteTokenizer()), self.now)
        self.scheduler.add(sequence)
        return sequence

    def plan(self) -> Plan:
        self.now += 1.0
        return self.scheduler.plan(self.now)

    def carry_out(self, plan: Plan) -> None:
        for work in plan.work:
            sequence = work.sequence
            if self.cache and sequence.table:
                sequence.published = self.cache.publish(
                    sequence.table, sequence.chain, sequence.tokens, sequence.published
                )
            if work.completes:
                _, reason = sequence.append(1, frozenset())
                if sequence.phase is not Phase.DECODE:
                    sequence.enter(Phase.DECODE, self.now)
                if reason is not None:
                    self.scheduler.remove(sequence)
                    self.done.append(sequence)

    def step(self) -> Plan:
        plan = self.plan()
        self.carry_out(plan)
        return plan


asks = st.tuples(st.integers(0, 28), st.integers(0, 3), st.integers(1, 11))


@st.composite
def desks(draw: st.DrawFn) -> Desk:
    block_size, max_batch = draw(st.integers(1, 6)), draw(st.integers(1, 5))
    return Desk(
        -(-LARGEST // block_size) + draw(st.integers(0, 25)),
        draw(st.booleans()),
        block_size=block_size,
        max_batch=max_batch,
        token_budget=max_batch + draw(st.integers(0, 20)),
    )


@st.composite
def busy_desks(draw: st.DrawFn) -> Desk:
    """A scheduler with requests of its own, a few steps into its work."""
    desk, numbers = draw(desks()), itertools.count()
    for batch in draw(st.lists(st.lists(asks, max_size=4), min_size=1, max_size=4)):
        for length, last, max_tokens in batch:
            desk.ask(f"r{next(numbers)}", [*HEAD[:length], last], max_tokens)
        for _ in range(draw(st.integers(0, 4))):
            desk.step()
    return desk


rules = settings(max_examples=150, deadline=None)


@rules
@given(busy_desks())
def test_a_step_keeps_to_budget_batch_and_pool(desk: Desk) -> None:
    while desk.scheduler.waiting or desk.scheduler.running:
        plan = desk.plan()
        assert 1 <= sum(work.count for work in plan.work) <= desk.config.token_budget
        assert len(desk.scheduler.running) <= desk.config.max_batch
        assert desk.pool.free + desk.pool.used + desk.pool.cached == desk.pool.total
        for work in plan.work:
            assert work.count >= 1 and work.sequence.table is not None
            assert work.start + work.count == work.sequence.table.length <= work.sequence.length
            assert work.sequence.table.needs(0) == 0  # every token has its block
        assert len({work.sequence for work in plan.work}) == len(plan.work)
        desk.carry_out(plan)


@rules
@given(busy_desks())
def test_everybody_who_decodes_gets_a_token_in_every_step_unless_sent_back_for_an_older_one(desk: Desk) -> None:
    while desk.scheduler.waiting or desk.scheduler.running:
        decoding = [s for s in desk.scheduler.running if s.phase is Phase.DECODE]
        plan = desk.plan()
        sent_back = {left.sequence for left in plan.left if left.lost}
        assert {work.sequence for work in plan.work if work.decodes} == set(decoding) - sent_back
        kept = [place for place, s in enumerate(decoding) if s not in sent_back]
        assert kept == list(range(len(kept)))  # only the youngest give way
        desk.carry_out(plan)


@rules
@given(busy_desks())
def test_the_oldest_moves_on_in_every_step_and_so_everybody_finishes(desk: Desk) -> None:
    scheduler, steps = desk.scheduler, 0
    everybody = [*scheduler.running, *scheduler.waiting]
    most = sum(s.length + s.request.sampling.max_tokens for s in everybody)
    while scheduler.waiting or scheduler.running:
        oldest = scheduler.running[0] if scheduler.running else scheduler.waiting[0]
        plan = desk.step()
        assert plan.work[0].sequence is oldest
        steps += 1
    assert steps <= most and {*everybody} <= {*desk.done}


@rules
@given(busy_desks())
def test_nobody_overtakes_in_the_queue_but_past_those_whose_kvcache_is_under_way(desk: Desk) -> None:
    while desk.scheduler.waiting or desk.scheduler.running:
        queue = list(desk.scheduler.waiting)
        plan = desk.step()
        started = [s for s in queue if s.table is not None or s in desk.done]
        if started and not any(left.lost for left in plan.left):
            overtaken = queue[: queue.index(started[-1])]
            assert all(s in started or s.phase is Phase.LOADING for s in overtaken)


@rules
@given(busy_desks())
def test_nobody_starts_unless_the_blocks_for_its_whole_prompt_are_there_and_promised_to_nobody_else(desk: Desk) -> None:
    while desk.scheduler.waiting or desk.scheduler.running:
        waiting = set(desk.scheduler.waiting)
        plan = desk.plan()
        if waiting & set(desk.scheduler.running):
            prompts = [(s.table, s.length - s.computed) for s in desk.scheduler.running if s.table]
            assert sum(table.needs(rest) for table, rest in prompts) <= desk.pool.available
        desk.carry_out(plan)


@rules
@given(busy_desks())
def test_nobody_is_kept_from_a_free_place_by_kvcache_that_nobody_computes(desk: Desk) -> None:
    while desk.scheduler.waiting or desk.scheduler.running:
        plan = desk.plan()
        loading = [s for s in desk.scheduler.waiting if s.phase is Phase.LOADING]
        makers = [s for s in desk.scheduler.running if s.phase is Phase.PREFILL]
        spare = desk.config.token_budget - sum(work.count for work in plan.work)
        admits = spare > 0 and len(desk.scheduler.running) < desk.config.max_batch
        if admits and not any(left.lost for left in plan.left):
            assert not loading or makers
        desk.carry_out(plan)


@rules
@given(busy_desks(), st.integers(0, 3))
def test_a_step_that_failed_leaves_everybody_in_the_queue_in_order_of_age(desk: Desk, after: int) -> None:
    for _ in range(after):
        desk.step()
    plan = desk.plan()
    rest = [*desk.scheduler.waiting]
    running = [*desk.scheduler.running]
    computed = [work.sequence for work in plan.work]
    left = desk.scheduler.abandon(plan, desk.now)
    assert list(desk.scheduler.waiting) == computed + rest
    assert desk.scheduler.running == [s for s in running if s not in computed]
    assert {each.sequence for each in left} == {*computed} and all(s.computed == 0 for s in computed)
    while desk.scheduler.waiting or desk.scheduler.running:
        desk.step()
    assert desk.pool.used == 0


def test_a_long_prompt_is_computed_in_chunks_beside_those_who_decode() -> None:
    desk = Desk(100, block_size=4, token_budget=8, max_batch=4)
    quick, long = desk.ask("quick", HEAD[:2], 9), desk.ask("long", HEAD[20:50], 2)
    shares = [{w.sequence: w.count for w in desk.step().work} for _ in range(5)]
    assert shares == [{quick: 2, long: 6}, *[{quick: 1, long: 7}] * 3, {quick: 1, long: 3}]


def test_the_oldest_prompt_takes_the_budget_first() -> None:
    desk = Desk(100, sharing=False, block_size=4, token_budget=8, max_batch=4)
    first, second = desk.ask("first", HEAD[:12], 2), desk.ask("second", HEAD[:12], 2)
    shares = [{w.sequence: w.count for w in desk.step().work} for _ in range(3)]
    assert shares == [{first: 8}, {first: 4, second: 4}, {first: 1, second: 7}]


def test_requests_with_one_prefix_wait_for_the_first_and_then_start_together() -> None:
    desk = Desk(100, block_size=4, token_budget=16, max_batch=4)
    first, *others = (desk.ask(str(n), [*HEAD[:20], n], 9) for n in range(3))
    stranger = desk.ask("stranger", HEAD[30:33], 2)
    assert [w.sequence for w in desk.step().work] == [first]
    assert [w.sequence for w in desk.step().work] == [first, stranger]
    assert [s.phase for s in others] == [Phase.LOADING] * 2
    work = {w.sequence: w for w in desk.step().work}
    assert [(work[s].cached, work[s].count) for s in others] == [(20, 1)] * 2


def test_a_wait_ends_when_the_kvcache_has_come_even_if_nobody_can_start_then() -> None:
    desk = Desk(100, block_size=4, token_budget=32, max_batch=3)
    first, second = (desk.ask(str(n), [*HEAD[:16], n], 9) for n in range(2))
    long = desk.ask("long", HEAD[1:], 9)
    assert [(w.sequence, w.count) for w in desk.step().work] == [(first, 17), (long, 15)]
    assert (second.phase, second.since) == (Phase.LOADING, 1.0)
    plan = desk.step()
    assert [(w.sequence, w.count) for w in plan.work] == [(first, 1), (long, 31)]
    (left,) = plan.left
    assert (left.sequence, left.phase, left.since) == (second, Phase.LOADING, 1.0)
    assert (second.phase, second.since) == (Phase.QUEUED, 2.0)


def test_a_small_request_does_not_push_past_a_large_one_that_waits_for_blocks() -> None:
    desk = Desk(10, block_size=4, token_budget=64, max_batch=4)
    desk.ask("first", HEAD[:24], 3)
    large, small = desk.ask("large", HEAD[30:55], 3), desk.ask("small", HEAD[58:60], 3)
    desk.step()
    assert list(desk.scheduler.waiting) == [large, small]
    while not large.computed:
        assert not small.computed and small not in desk.done
        desk.step()
    assert small.computed  # both started in the same step, as soon as the first was done


def test_who_gives_way_comes_back_before_all_who_never_started() -> None:
    desk = Desk(10, sharing=False, block_size=2, token_budget=64, max_batch=2)
    old, young, waiting = (desk.ask(n, HEAD[p : p + 7], 10) for n, p in (("old", 0), ("young", 10), ("w", 20)))
    while young.phase is not Phase.QUEUED or not old.computed:
        desk.step()
    assert list(desk.scheduler.waiting) == [young, waiting]


def test_the_queue_is_bounded() -> None:
    desk = Desk(10, block_size=4, max_queue=2)
    desk.ask("a", HEAD[:4], 1)
    assert not desk.scheduler.full
    desk.ask("b", HEAD[:4], 1)
    assert desk.scheduler.full
    with pytest.raises(BusyError, match="request c: 2 requests wait already"):
        desk.ask("c", HEAD[:4], 1)


def test_a_fork_joins_the_batch_with_the_pages_of_its_origin() -> None:
    desk = Desk(10, block_size=4, token_budget=8, max_batch=2)
    first = desk.ask("first", HEAD[:6], 9)
    desk.step()
    table = first.table
    assert isinstance(table, BlockTable)
    request = Request("twin", first.tokens, SamplingParams(max_tokens=2, ignore_eos=True))
    twin = Sequence(request, KeyChain(b"", 4), TextStream(ByteTokenizer()), desk.now)
    desk.scheduler.join(twin, table, first.published, desk.now)
    assert [desk.pool.references(block) for block in table.blocks] == [2, 2]
    plan = desk.step()
    assert [(w.sequence, w.count, w.decodes) for w in plan.work] == [(first, 1, True), (twin, 1, False)]
    assert len(plan.copies) == 1  # the first to write into the shared last block copies it
