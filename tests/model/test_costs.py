"""Cost models follow the paper's formulas, meet its published times, and refuse files that make no sense."""

from __future__ import annotations

from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from mooncake_edu.config import Hardware
from mooncake_edu.errors import ConfigError
from mooncake_edu.model.costs import (
    DECODE_POINTS,
    HARDWARE,
    NODE_RATE,
    PAPER_MODEL,
    PREFILL_POINTS,
    PRESETS,
    CostModel,
    fit_relative,
    published_shares,
    reuse_bandwidth,
)

A800 = PRESETS["A800x8"]
EVERY = pytest.mark.parametrize("costs", PRESETS.values(), ids=PRESETS)
PROMPT = st.integers(1, 200_000)


@pytest.mark.parametrize(("tokens", "seconds"), PREFILL_POINTS.items())
def test_a_prefill_takes_the_published_time(tokens: int, seconds: float) -> None:
    assert A800.prefill(tokens) == pytest.approx(seconds, rel=0.05)


@pytest.mark.parametrize(("load", "seconds"), DECODE_POINTS.items())
def test_a_decode_step_takes_the_published_time(load: tuple[int, int], seconds: float) -> None:
    assert A800.decode_step(*load) == pytest.approx(seconds, rel=0.05)


@pytest.mark.parametrize(("tokens", "utilisation"), [(8192, 0.51), (131072, 0.88)])
def test_utilisation_as_the_paper_counts_it_rises_as_published(tokens: int, utilisation: float) -> None:
    used = PAPER_MODEL.flops(tokens) / A800.prefill(tokens) / HARDWARE["A800x8"].compute
    assert used == pytest.approx(utilisation, rel=0.02)


def test_no_part_gets_more_than_the_hardware_has() -> None:
    shares = published_shares()
    assert 0 < shares.products < 1 and 0 < shares.attention < 1 and 0 < shares.memory < 1 and shares.latency > 0


@pytest.mark.parametrize(("compute", "threshold"), [(8 * 312e12, 6e9), (8 * 989.5e12, 19e9)])
def test_reuse_pays_above_the_published_bandwidth(compute: float, threshold: float) -> None:
    assert reuse_bandwidth(8192, compute) == pytest.approx(threshold, rel=0.03)


def test_at_the_bandwidth_where_reuse_begins_to_pay_fetching_takes_as_long_as_computing() -> None:
    compute = HARDWARE["A800x8"].compute
    fetching = 30_000 * PAPER_MODEL.token_bytes / reuse_bandwidth(30_000, compute)
    assert fetching == pytest.approx(PAPER_MODEL.flops(30_000) / compute)


def test_a_token_takes_320_kibibytes_and_a_block_of_512_takes_160_mebibytes() -> None:
    assert A800.token_bytes == 320 * 1024
    assert A800.block_bytes(512) == 160 * 2**20


@pytest.mark.parametrize(("nominal", "rate"), [(100e9, 87e9), (400e9, 190e9)])
def test_40_gigabytes_move_at_the_published_rate(nominal: float, rate: float) -> None:
    assert 40e9 / A800.transfer(40e9, nominal) == pytest.approx(rate, rel=0.05)


@EVERY
@given(prompt=PROMPT, share=st.floats(0, 1), more=st.integers(1, 10_000))
def test_a_prefill_rises_with_the_prompt_and_falls_with_the_prefix(
    costs: CostModel, prompt: int, share: float, more: int
) -> None:
    prefix = int(prompt * share)
    assert costs.prefill(prompt + more, prefix) >= costs.prefill(prompt, prefix)
    assert costs.prefill(prompt, prefix) <= costs.prefill(prompt, 0)
    assert costs.prefill(prompt + more, prefix + more) <= costs.prefill(prompt + more, prefix)


@EVERY
@given(prompt=PROMPT, chunk=st.integers(1000, 20_000))
def test_chunks_add_up_to_the_whole_prompt(costs: CostModel, prompt: int, chunk: int) -> None:
    borders = [*range(0, prompt, chunk), prompt]
    parts = sum(costs.work(start, stop) for start, stop in pairwise(borders))
    assert parts == pytest.approx(costs.work(0, prompt), rel=1e-9)
    # the last chunk alone may be below the floor
    assert costs.prefill(prompt) <= costs.prefill(prompt, chunk=chunk) * (1 + 1e-9)
    assert costs.prefill(prompt, chunk=chunk) <= costs.prefill(prompt) + costs.floor + 1e-9


@given(prompt=PROMPT)
def test_a_prompt_that_is_all_reused_computes_its_last_token(prompt: int) -> None:
    assert A800.prefill(prompt, prompt) == A800.prefill(prompt, prompt - 1) >= A800.floor


@pytest.mark.parametrize(("prompt", "prefix", "chunk"), [(0, 0, None), (8, 9, None), (8, -1, None), (8, 0, 0)])
def test_a_prefill_of_impossible_numbers_is_refused(prompt: int, prefix: int, chunk: int | None) -> None:
    with pytest.raises(ValueError, match=f"prefix {prefix} of a prompt of {prompt} tokens"):
        A800.prefill(prompt, prefix, chunk)


@EVERY
@given(batch=st.integers(1, 512), contexts=st.tuples(*[st.integers(0, 10**7)] * 2))
def test_a_decode_step_is_affine_in_the_context_and_rises_with_the_batch(
    costs: CostModel, batch: int, contexts: tuple[int, int]
) -> None:
    low, high = sorted(contexts)
    middle = (costs.decode_step(batch, low) + costs.decode_step(batch, high)) / 2
    assert costs.decode_step(batch, (low + high) // 2) == pytest.approx(middle, rel=1e-6)
    assert costs.decode_step(batch + 1, low) > costs.decode_step(batch, low)


def test_a_chunk_hides_the_floor_and_costs_an_overhead_once_a_step() -> None:
    costs = A800.model_copy(update={"overhead": 0.5})
    halves = [(0, 4096), (0, 4096)]
    assert costs.step(halves) == pytest.approx(0.5 + 2 * costs.work(0, 4096))
    more = costs.step([(0, 1)], 1, 100) - costs.decode_step(1, 100)
    assert more == pytest.approx(0.5 + costs.work(0, 1) - costs.floor)
    assert costs.decode_step(1, 100) == A800.decode_step(1, 100)


@given(size=st.floats(1, 1e12), flows=st.integers(1, 64), bandwidth=st.floats(1e6, 1e13))
def test_transfers_share_the_network_and_none_beats_it(size: float, flows: int, bandwidth: float) -> None:
    alone = A800.transfer(size, bandwidth)
    assert A800.transfer(size, bandwidth, flows) == pytest.approx(flows * alone)
    assert size / alone <= min(bandwidth, NODE_RATE) * (1 + 1e-9)


def test_twice_the_hardware_halves_the_work() -> None:
    hardware = HARDWARE["A800x8"]
    doubled = Hardware(**hardware.model_dump() | {"compute": 2 * hardware.compute, "memory": 2 * hardware.memory})
    twice = CostModel.of("twice", PAPER_MODEL, doubled)
    assert twice.work(0, 10_000) == pytest.approx(A800.work(0, 10_000) / 2)
    assert twice.per_context == pytest.approx(A800.per_context / 2)
    assert A800.floor / 2 < twice.floor < A800.floor  # starting a step does not get faster


def test_a_cost_model_that_is_written_is_read_again_as_it_was(tmp_path: Path) -> None:
    named = A800.model_copy(update={"name": 'a "machine" \\ of ours, ü'})
    (tmp_path / "costs.toml").write_text(named.to_toml(), encoding="utf-8")
    assert CostModel.named(str(tmp_path / "costs.toml")) == named


@pytest.mark.parametrize("name", PRESETS)
def test_a_preset_goes_by_its_name(name: str) -> None:
    assert CostModel.named(name) is PRESETS[name]


@pytest.mark.parametrize(
    ("line", "told"),
    [
        ("per_token = -1.0", "per_token -1.0 is not allowed"),
        ("per_token = nan", "per_token nan is not allowed"),
        ("wire = 1.5", "wire 1.5 is not allowed"),
        ("token_bytes = 0", "token_bytes 0 is not allowed"),
        ("per_tokn = 1.0", "did you mean 'per_token'"),
        ('floor = "fast"', "floor 'fast' is not allowed"),
    ],
)
def test_a_file_with_a_value_that_cannot_work_is_refused_by_its_key(tmp_path: Path, line: str, told: str) -> None:
    key = line.partition(" ")[0]
    lines = [each for each in A800.to_toml().splitlines() if each.partition(" ")[0] != key]
    (tmp_path / "costs.toml").write_text("\n".join([*lines, line]), encoding="utf-8")
    with pytest.raises(ConfigError, match=told):
        CostModel.named(str(tmp_path / "costs.toml"))


def test_costs_that_are_neither_a_preset_nor_a_file_are_refused() -> None:
    with pytest.raises(ConfigError, match="'A900x8' are not known: use one of A800x8, H800x8, H100x8, or a file"):
        CostModel.named("A900x8")


@given(weights=st.tuples(st.floats(1e-3, 1e3), st.floats(1e-3, 1e3)), seed=st.integers(0, 100))
def test_a_fit_finds_the_weights_that_made_the_times(weights: tuple[float, float], seed: int) -> None:
    terms = np.random.default_rng(seed).uniform(0.5, 2.0, (6, 2))
    assert fit_relative(terms, terms @ np.array(weights)) == pytest.approx(weights, rel=1e-6)
