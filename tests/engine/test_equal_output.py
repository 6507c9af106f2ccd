"""The tokens of a request depend on the request alone: neither chunks, blocks, neighbours nor caches change them."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from mooncake_edu.engine import Engine
from mooncake_edu.events import Kind
from mooncake_edu.request import Phase, Request, SamplingParams
from tests.engine.plain import SMALL, drain, plain, served, small_engine, tokens_of

COMMON = tuple(int(token) for token in np.random.default_rng(7).integers(0, 250, 120))
"""The text that many prompts begin with."""

quick = settings(max_examples=40, deadline=None, suppress_health_check=[HealthCheck.too_slow])


@st.composite
def prompts(draw: st.DrawFn) -> tuple[int, ...]:
    """Prompts that share beginnings of all lengths, but for some that share nothing."""
    tail = tuple(draw(st.lists(st.integers(0, SMALL.vocab - 1), min_size=1, max_size=12)))
    return COMMON[: draw(st.integers(0, 40))] + tail


samplings = st.builds(
    SamplingParams,
    max_tokens=st.integers(1, 12),
    temperature=st.sampled_from((0.0, 0.0, 0.7, 1.5)),
    top_k=st.sampled_from((0, 5)),
    top_p=st.sampled_from((1.0, 0.8)),
    seed=st.integers(0, 3),
    ignore_eos=st.booleans(),
)
batches = st.lists(st.tuples(prompts(), samplings), min_size=1, max_size=7)


@st.composite
def engines(draw: st.DrawFn) -> Engine:
    """Engines of any block size, budget and batch, whose pools are often too small for all requests at once."""
    block_size = draw(st.one_of(st.integers(1, 8), st.sampled_from((16, 31, 64, 512))))
    fits_one = -(-(52 + 12) // block_size)
    max_batch = draw(st.integers(1, 5))
    return small_engine(
        block_size=block_size,
        blocks=fits_one + draw(st.integers(0, 2 * fits_one)),
        max_batch=max_batch,
        token_budget=draw(st.integers(max_batch, 70)),
        prefix_sharing=draw(st.sampled_from((True, True, False))),
        compare_tokens=draw(st.booleans()),
    )


def requests(batch: list[tuple[tuple[int, ...], SamplingParams]], name: str = "r") -> list[Request]:
    return [Request(f"{name}{n}", prompt, sampling) for n, (prompt, sampling) in enumerate(batch)]


def expected(asked: list[Request]) -> dict[str, list[int]]:
    return {request.id: plain(request.prompt, request.sampling) for request in asked}


@quick
@given(engines(), batches)
def test_no_chunk_block_pool_or_batch_changes_a_token(
    engine: Engine, batch: list[tuple[tuple[int, ...], SamplingParams]]
) -> None:
    asked = requests(batch)
    assert served(engine, asked) == expected(asked)


@quick
@given(engines(), batches, st.randoms(use_true_random=False))
def test_no_order_of_arrival_and_no_earlier_request_changes_a_token(engine, batch, random) -> None:  # type: ignore[no-untyped-def]
    asked = requests(batch)
    assert served(engine, asked) == expected(asked)
    again = requests(batch, "again")
    random.shuffle(again)
    assert served(engine, again) == expected(again)


@quick
@given(engines(), batches, st.lists(st.integers(0, 4), min_size=7, max_size=7))
def test_no_moment_of_arrival_changes_a_token(engine, batch, pauses) -> None:  # type: ignore[no-untyped-def]
    asked, outputs = requests(batch), []
    for request, pause in zip(asked, pauses, strict=False):
        engine.submit(request)
        for _ in range(pause):
            outputs += engine.step()
    assert tokens_of(outputs + drain(engine)) == expected(asked)


@quick
@given(engines(), prompts(), samplings, st.lists(st.tuples(st.integers(0, 6), samplings), min_size=1, max_size=4))
def test_a_fork_continues_as_its_own_prompt_would_and_its_origin_as_if_alone(engine, prompt, sampling, forks) -> None:  # type: ignore[no-untyped-def]
    first = Request("first", prompt, SamplingParams(max_tokens=12, ignore_eos=True, temperature=sampling.temperature))
    engine.submit(first)
    asked, outputs = [first], []
    for number, (steps, wanted) in enumerate(forks):
        for _ in range(steps):
            outputs += engine.step()
        sequence = engine._sequences.get("first")
        may_fork = sequence is not None and sequence.phase is Phase.DECODE
        if may_fork and len(engine.scheduler.running) < engine.config.max_batch:
            asked.append(engine.fork("first", f"fork{number}", wanted))
    assert tokens_of(outputs + drain(engine)) == expected(asked)


@pytest.mark.parametrize("block_size", [1, 2, 3, 16, 512])
def test_every_block_size_from_1_to_512_gives_the_same_tokens(block_size: int) -> None:
    asked = [Request(str(n), COMMON[: 60 + n], SamplingParams(max_tokens=9, ignore_eos=True)) for n in range(4)]
    engine = small_engine(block_size=block_size, blocks=4 * -(-80 // block_size))
    assert served(engine, asked) == expected(asked)


@pytest.mark.parametrize("token_budget", [1, 2, 3, 7, 16, 64, 500])
def test_every_chunk_size_gives_the_same_tokens(token_budget: int) -> None:
    engine = small_engine(max_batch=1, token_budget=token_budget)
    asked = [Request(str(n), COMMON[n : n + 50], SamplingParams(max_tokens=4, ignore_eos=True)) for n in range(3)]
    assert served(engine, asked) == expected(asked)


@pytest.mark.parametrize("compare_tokens", [True, False])
@pytest.mark.parametrize("length", [3, 4, 5, 8, 12, 40])
def test_a_prompt_served_again_from_the_cache_gives_the_same_tokens(length: int, compare_tokens: bool) -> None:
    engine = small_engine(block_size=4, compare_tokens=compare_tokens)
    sampling = SamplingParams(max_tokens=6, ignore_eos=True)
    for name in ("cold", "warm"):
        asked = [Request(name, COMMON[:length], sampling)]
        assert served(engine, asked) == expected(asked)
    cached = [int(n) for n in engine.log.requests().cached]
    assert cached == [0, (length - 1) // 4 * 4]


def test_tokens_made_are_reused_by_the_next_turn_of_a_conversation() -> None:
    engine, sampling = small_engine(), SamplingParams(max_tokens=9, ignore_eos=True)
    made = served(engine, [Request("turn", COMMON[:10], sampling)])["turn"]
    following = Request("next", [*COMMON[:10], *made, 5], sampling)
    assert served(engine, [following]) == expected([following])
    assert int(engine.log.requests().cached[1]) == 16  # of 20 tokens the last has only been chosen: no full fifth block


def test_requests_with_one_long_prefix_at_once_compute_it_once() -> None:
    engine = small_engine(block_size=4, blocks=200, token_budget=16, max_batch=8)
    asked = [Request(str(n), [*COMMON[:60], n], SamplingParams(max_tokens=5, ignore_eos=True)) for n in range(8)]
    assert served(engine, asked) == expected(asked)
    chunks = engine.log.select(Kind.CHUNK)
    assert int(chunks.field(Kind.CHUNK, "tokens").sum()) == 61 + 7 * 1
    assert len(engine.log.select(Kind.WAIT)) == 7
    assert [int(n) for n in engine.log.requests().cached] == [0] + [60] * 7


def test_without_prefix_sharing_nobody_waits_and_nothing_stays_cached() -> None:
    engine = small_engine(prefix_sharing=False, blocks=200, max_batch=8)
    asked = [Request(str(n), [*COMMON[:20], n], SamplingParams(max_tokens=5)) for n in range(4)]
    assert served(engine, asked) == expected(asked)
    assert len(engine.log.select(Kind.WAIT)) == 0 and engine.stats()["free"] == engine.pool.total


def test_whoever_waits_for_a_prefix_goes_on_when_its_maker_is_cancelled() -> None:
    engine = small_engine(block_size=4, token_budget=8)
    asked = [Request(str(n), [*COMMON[:40], n], SamplingParams(max_tokens=3)) for n in range(3)]
    for request in asked:
        engine.submit(request)
    outputs = engine.step() + engine.step()
    assert engine.cancel("0")
    made = tokens_of(outputs + drain(engine))
    assert {name: made[name] for name in ("1", "2")} == expected(asked[1:])


def test_generate_answers_in_the_order_of_its_prompts() -> None:
    sampling = SamplingParams(max_tokens=4, ignore_eos=True)
    many = [list(COMMON[n : n + 3 + 5 * (n % 3)]) for n in range(9)]
    assert small_engine(max_queue=2).generate(many, sampling) == [plain(prompt, sampling) for prompt in many]
