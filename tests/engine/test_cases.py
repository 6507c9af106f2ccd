"""Faults that serving systems have had, each named by the threads where it was seen, as rules of this engine."""

from __future__ import annotations

import dataclasses
import math
from typing import Any

import numpy as np
import pytest

from mooncake_edu.engine import Engine
from mooncake_edu.errors import RequestError
from mooncake_edu.events import Kind
from mooncake_edu.model import Model, random_model
from mooncake_edu.prefix import Key
from mooncake_edu.request import FinishReason, Request, SamplingParams
from tests.engine.plain import (
    SMALL,
    counts,
    drain,
    plain,
    reasons_of,
    served,
    small_engine,
    small_model,
    tokens_of,
)

TEXT = [int(token) for token in np.random.default_rng(3).integers(0, 250, 200)]
FOUR = SamplingParams(max_tokens=4, ignore_eos=True)
ONE = SamplingParams(max_tokens=1)


def cached_of(engine: Engine) -> list[int]:
    """Prompt tokens of every request, in order of arrival, that were found in the cache."""
    return [int(tokens) for tokens in engine.log.requests().cached]


@pytest.mark.parametrize("block_size", [1, 2, 3, 8, 16])
def test_a_prompt_that_is_cached_whole_still_has_a_token_to_compute(block_size: int) -> None:
    """A1: vllm 11186, vllm 17999, nano-vllm 144, nano-vllm 199."""
    engine = small_engine(block_size=block_size, blocks=-(-400 // block_size))
    lengths = [*range(max(1, block_size - 1), block_size + 2), 2 * block_size, 5 * block_size]
    for length in dict.fromkeys(lengths):
        prompt = [length, *TEXT[: length - 1]]  # a family of its own for each length
        for name in ("cold", "warm"):
            request = Request(f"{name}-{length}", prompt, FOUR)
            assert served(engine, [request])[request.id] == plain(prompt, FOUR)
        assert cached_of(engine)[-2:] == [0, (length - 1) // block_size * block_size]


@pytest.mark.parametrize("block_size", [1, 4, 16])
def test_a_hit_that_is_no_multiple_of_the_block_size_is_cut_down_to_whole_blocks_and_used(block_size: int) -> None:
    """A2: vllm 43494; A3: vllm 40684 (17 tokens in blocks of 16 hit none, since the rounding was done twice)."""
    for before in range(1, 36):
        lengths = [n for n in (before, before + 1, before + 5, 17, 33) if n >= before]
        for length in lengths:
            engine = small_engine(block_size=block_size, blocks=-(-80 // block_size), token_budget=64)
            asked = [Request("before", TEXT[:before], ONE), Request("after", TEXT[:length], ONE)]
            for request in asked:
                served(engine, [request])
            assert cached_of(engine) == [0, min(before, length - 1) // block_size * block_size]


@pytest.mark.parametrize(
    ("first", "second"),
    [
        ({"adapter": "a", "adapter_version": "1"}, {}),
        ({"adapter": "a", "adapter_version": "1"}, {"adapter": "b", "adapter_version": "1"}),
        ({"adapter": "a", "adapter_version": "1"}, {"adapter": "a", "adapter_version": "2"}),
        ({"adapter": "x"}, {"salt": "x"}),
        ({"adapter": "ab", "adapter_version": "c"}, {"adapter": "a", "adapter_version": "bc"}),
        ({"salt": "one"}, {"salt": "two"}),
    ],
)
def test_requests_of_different_adapters_versions_or_salts_share_nothing(
    first: dict[str, str], second: dict[str, str]
) -> None:
    """A4: vllm 3264, vllm 30931, vllm 42125; A5: vllm 44701."""
    engine = small_engine()
    for number, namespace in enumerate((first, second, first, second)):
        served(engine, [Request(str(number), TEXT[:17], FOUR, **namespace)])  # type: ignore[arg-type]
    assert cached_of(engine) == [0, 0, 16, 16]


def keys_of(model: Model, block_size: int = 4, **namespace: Any) -> list[Key]:
    """The block keys that an engine gives one and the same prompt."""
    engine = small_engine(model=model, block_size=block_size)
    engine.submit(Request("a", TEXT[:16], FOUR, **namespace))
    return engine.scheduler.waiting[0].chain.cover(np.array(TEXT[:16], dtype="<u4"))


def test_blocks_of_another_model_revision_dtype_or_block_size_never_match() -> None:
    """A6: lmdeploy 4930."""
    model = small_model()
    variants = [
        keys_of(model),
        keys_of(dataclasses.replace(model, name="other")),
        keys_of(dataclasses.replace(model, revision="random-1")),
        keys_of(random_model(SMALL)),  # float32, the same name and revision
        keys_of(random_model(SMALL, dtype="bfloat16")),
        keys_of(model, block_size=2),
        keys_of(model, adapter="a"),
        keys_of(model, salt="a"),
    ]
    every = [key for keys in variants for key in keys]
    assert len(set(every)) == len(every)
    assert keys_of(model) == variants[0]


def test_a_prefix_that_is_evicted_while_its_request_waits_is_computed_anew() -> None:
    """A11: vllm 17305 (the cached length was looked up once, and trusted later)."""
    engine = small_engine(block_size=4, blocks=12, max_batch=1)
    served(engine, [Request("first", TEXT[:17], FOUR)])
    sizes = SamplingParams(max_tokens=8, ignore_eos=True)
    asked = [Request("filler", TEXT[50:90], sizes), Request("again", TEXT[:17], FOUR)]
    for request in asked:
        engine.submit(request)
    assert engine.cache is not None
    waiting = engine.scheduler.waiting[1]
    assert len(engine.cache.match(waiting.chain, waiting.tokens)) == 4
    made = tokens_of(drain(engine))
    assert made == {"filler": plain(TEXT[50:90], sizes), "again": plain(TEXT[:17], FOUR)}
    assert cached_of(engine)[-1] < 16


def test_a_hit_that_is_scheduled_is_pinned_against_everybody_else() -> None:
    """A11: vllm 17305."""
    engine = small_engine(block_size=4, blocks=16, token_budget=8, max_batch=3)
    served(engine, [Request("first", TEXT[:17], ONE)])
    sizes = SamplingParams(max_tokens=20, ignore_eos=True)
    asked = [Request("again", TEXT[:17], sizes), Request("b", TEXT[60:70], sizes), Request("c", TEXT[80:90], sizes)]
    assert served(engine, asked) == {request.id: plain(request.prompt, sizes) for request in asked}


def test_a_preempted_request_that_comes_back_through_a_prefix_hit_goes_on_as_if_nothing_had_been() -> None:
    """A12: nano-vllm 211, nano-vllm 233 (it overran its block table)."""
    engine = small_engine(block_size=2, blocks=14, max_batch=2)
    sizes = SamplingParams(max_tokens=16, ignore_eos=True)
    asked = [Request("old", TEXT[:7], sizes), Request("young", TEXT[20:27], sizes)]
    assert served(engine, asked) == {request.id: plain(request.prompt, sizes) for request in asked}
    lost = engine.log.select(Kind.PREEMPTED, request="young")
    restarts = engine.log.select(Kind.CHUNK, request="young").field(Kind.CHUNK, "cached")
    assert len(lost) >= 1 and int(restarts.max()) > 0
    assert len(engine.log.select(Kind.PREEMPTED, request="old")) == 0


@pytest.mark.parametrize(("length", "fits"), [(7 * 4, True), (8 * 4, True), (8 * 4 + 1, False), (9 * 4, False)])
def test_a_request_larger_than_the_whole_cache_is_refused_at_once_and_a_small_one_behind_it_finishes(
    length: int, fits: bool
) -> None:
    """A13: vllm 39734, vllm 35541 (it blocked the queue for ever)."""
    engine = small_engine(block_size=4, blocks=8)
    large = Request("large", TEXT[: length - 3], FOUR)  # the last of its tokens is not stored
    if fits:
        engine.submit(large)
    else:
        with pytest.raises(RequestError, match=r"large: .* need 9 blocks of 4 tokens, the KVCache has 8: shorten"):
            engine.submit(large)
    small = Request("small", TEXT[100:103], FOUR)
    made = served(engine, [small])
    assert made["small"] == plain(small.prompt, FOUR)
    assert made.get("large") == (plain(large.prompt, FOUR) if fits else None)
    assert counts(engine)[1] == 0


def test_a_fork_that_could_never_fit_is_refused_at_once() -> None:
    """A13: vllm 39734, vllm 35541, for a request that comes into the batch by another way."""
    engine = small_engine(block_size=4, blocks=8)
    engine.submit(Request("first", TEXT[:20], SamplingParams(max_tokens=10, ignore_eos=True)))
    while not engine.scheduler.running or engine.scheduler.running[0].made < 2:
        engine.step()
    with pytest.raises(RequestError, match=r"twin: 22 prompt tokens and max_tokens 12 need 9 blocks .* has 8"):
        engine.fork("first", "twin", SamplingParams(max_tokens=12))
    assert tokens_of(drain(engine)).keys() == {"first"} and counts(engine)[1] == 0


@pytest.mark.parametrize("blocks", [10, 11, 14, 19])
def test_two_requests_that_together_exceed_the_cache_never_stop_each_other(blocks: int) -> None:
    """A14: inference-sim 297, vllm-ascend 16315 (they preempted each other for ever)."""
    engine = small_engine(block_size=2, blocks=blocks, max_batch=2)
    sizes = SamplingParams(max_tokens=12, ignore_eos=True)
    asked = [Request("old", TEXT[:9], sizes), Request("young", TEXT[20:29], sizes)]
    for request in asked:
        engine.submit(request)
    steps: list[dict[str, list[int]]] = []
    while not engine.idle:
        rows = len(engine.log.select(Kind.CHUNK))
        outputs = engine.step()
        assert outputs or len(engine.log.select(Kind.CHUNK)) > rows, f"step {len(steps)} moved nobody on"
        steps.append(tokens_of(outputs))
    assert all("old" in made for made in steps[:12])  # a token in every step, as if it were alone
    every = [sum((made.get(name, []) for made in steps), []) for name in ("old", "young")]
    assert every == [plain(request.prompt, sizes) for request in asked]


def test_an_empty_prompt_is_refused_and_the_batch_lives() -> None:
    """A15: sglang 2011, vllm 30320 (it crashed the batch)."""
    engine = small_engine()
    neighbour = Request("neighbour", TEXT[:5], FOUR)
    engine.submit(neighbour)
    outputs = engine.step()
    with pytest.raises(RequestError, match="request empty: the prompt is empty: give at least one token"):
        engine.submit(Request("empty", [], FOUR))
    assert tokens_of(outputs + drain(engine)) == {"neighbour": plain(neighbour.prompt, FOUR)}


def test_max_tokens_0_is_refused_and_1_gives_exactly_one_token() -> None:
    """A15: sglang 2011, vllm 30320."""
    with pytest.raises(RequestError, match="max_tokens 0 is not a whole number from 1"):
        SamplingParams(max_tokens=0)
    engine = small_engine()
    engine.submit(Request("one", TEXT[:5], ONE))
    outputs = drain(engine)
    assert tokens_of(outputs) == {"one": plain(TEXT[:5], ONE)} and len(outputs[0].tokens) == 1
    assert reasons_of(outputs) == {"one": [FinishReason.LENGTH]}


def test_a_recompute_after_preemption_is_no_hit() -> None:
    """D6: vllm 25780, sglang 25290."""
    engine = small_engine(block_size=2, blocks=14, max_batch=2)
    sizes = SamplingParams(max_tokens=16, ignore_eos=True)
    asked = [Request("old", TEXT[:7], sizes), Request("young", TEXT[20:27], sizes)]
    served(engine, asked)
    assert len(engine.log.select(Kind.PREEMPTED)) > 0
    table = engine.log.requests()
    assert cached_of(engine) == [0, 0] and table.hit_ratio() == 0.0
    served(engine, [Request("again", TEXT[:7], sizes)])
    table = engine.log.requests()
    assert (table.cached <= table.prompt).all() and cached_of(engine)[2] == 6


def test_a_single_token_has_no_time_between_tokens_and_counts_as_met() -> None:
    """D8: llmperf 55 (one or zero output tokens divided by zero)."""
    engine = small_engine()
    served(engine, [Request("one", TEXT[:5], ONE), Request("two", TEXT[:9], SamplingParams(max_tokens=2))])
    engine.submit(Request("none", TEXT[:9], FOUR))
    engine.cancel("none")
    drain(engine)
    table = engine.log.requests()
    assert math.isnan(table.tbt[0]) and table.tbt[1] > 0 and math.isnan(table.ttft[2])
    assert table.known("tbt").tolist() == [table.tbt[1]] and not math.isnan(table.mean("tbt"))
    assert table.goodput(ttft_slo=1e9, tbt_slo=1e9).met == 2
    assert table.goodput(ttft_slo=1e9, tbt_slo=0.0).met == 1
