"""What one request, or a few, must cost in every kind of cluster."""

from __future__ import annotations

import gc
import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from mooncake_edu.errors import ConfigError
from mooncake_edu.events import FINISH_CODES, EventLog, Kind, Refusal
from mooncake_edu.model.costs import PRESETS
from mooncake_edu.request import FinishReason
from mooncake_edu.simulation import simulate
from mooncake_edu.simulation.job import Job
from mooncake_edu.traces.trace import Row, Trace
from tests.simulation.clusters import COUPLED, SEPARATE, config, linear, workload

COSTS = PRESETS["A800x8"]
PROMPT, OUTPUT = 10_000, 100
ALONE = Trace.of([Row(5.0, PROMPT, OUTPUT, range(20))])
CHUNKED = 'coupled = "chunked"'
ONE = SEPARATE.replace("count = 2", "count = 1")


@pytest.mark.parametrize("coupled", ["", CHUNKED])
def test_a_lone_request_costs_the_same_in_coupled_and_separate_clusters(coupled: str) -> None:
    separate = simulate(config(), ALONE).table
    other = simulate(config(COUPLED, simulation=coupled), ALONE).table
    assert other.ttft[0] == pytest.approx(separate.ttft[0], abs=1e-9)
    chunks = COSTS.step([(0, 8192)]) + COSTS.step([(8192, PROMPT)])
    whole = chunks if coupled else COSTS.prefill(PROMPT)
    assert other.ttft[0] == pytest.approx(whole, abs=1e-9)
    # Only the last layer of the last chunk moves while nothing else is done.
    last = (PROMPT - 8192) * COSTS.token_bytes / 80 / COSTS.network_rate()
    assert separate.e2e[0] - other.e2e[0] == pytest.approx(last, abs=1e-9)
    decoding = sum(COSTS.decode_step(1, PROMPT + step) for step in range(1, OUTPUT))
    assert other.e2e[0] - other.ttft[0] == pytest.approx(decoding, abs=1e-9)


def test_the_tbt_of_a_lone_request_is_the_mean_of_its_slowest_tenth() -> None:
    steps = sorted(COSTS.decode_step(1, PROMPT + step) for step in range(1, OUTPUT))
    result = simulate(config(COUPLED), ALONE)
    assert result.table.tbt[0] == pytest.approx(np.mean(steps[-10:]), rel=1e-9)


@pytest.mark.parametrize("kind", [{}, {"instances": COUPLED}, {"instances": COUPLED, "simulation": CHUNKED}])
def test_a_one_token_answer_has_no_tbt_and_meets_it(kind: dict[str, Any]) -> None:
    result = simulate(config(**kind), Trace.of([Row(0.0, 1000, 1, [1, 2]), Row(1.0, 1000, 0, [3, 4])]))
    assert np.isnan(result.table.tbt).all()
    assert result.met.all()
    np.testing.assert_array_equal(result.table.e2e, result.table.ttft)


@pytest.mark.parametrize("kind", [{}, {"instances": COUPLED}, {"instances": COUPLED, "simulation": CHUNKED}])
def test_a_prompt_is_reused_once_its_prefill_has_ended_and_its_last_token_is_computed(kind: dict[str, Any]) -> None:
    rows = [Row(0.0, 1024, 5, [1, 2]), Row(0.0, 1024, 5, [1, 2]), Row(60.0, 1024, 5, [1, 2]), Row(60.1, 900, 5, [1, 9])]
    one = kind | {"instances": kind.get("instances", SEPARATE).replace("count = 2", "count = 1").replace("4", "1")}
    table = simulate(config(**one), Trace.of(rows)).table
    reused = (table.cached + table.loaded).tolist()
    assert reused == [0, 1023 if not kind else 0, 1023, 512]  # side by side in one batch, both compute it


def test_split_and_coupled_clusters_report_the_same_hits() -> None:
    trace = workload(60, 0.05, 1)
    one = simulate(config(ONE, dram="1 TB"), trace).table
    other = simulate(config(COUPLED.replace("4", "1"), memory="4 TiB"), trace).table
    np.testing.assert_array_equal(one.cached + one.loaded, other.cached + other.loaded)
    assert (one.loaded > 0).any()
    assert (one.cached + one.loaded < one.prompt).all()


def test_a_recompute_is_no_hit() -> None:
    trace = workload(150, 6.0, 1, longest=3000)
    log = EventLog(500_000)
    result = simulate(config(COUPLED, memory="3 GiB"), trace, log)
    assert len(log.select(Kind.PREEMPTED))
    started = {}
    chunks = log.select(Kind.CHUNK)
    for request, cached in zip(chunks.request.tolist(), chunks.field(Kind.CHUNK, "cached").tolist(), strict=True):
        started.setdefault(request, cached)
    assert result.hits["pages"] == sum(started.values())


def test_nothing_shared_is_nothing_reused() -> None:
    text = config().model_copy(update={"engine": config().engine.model_copy(update={"prefix_sharing": False})})
    result = simulate(text, workload(50, 1.0, 2))
    assert not result.table.loaded.any()


@pytest.mark.parametrize("instances", [SEPARATE, COUPLED])
def test_a_request_that_could_never_fit_is_refused_at_once_and_the_others_are_served(instances: str) -> None:
    rows = [Row(0.0, 3000, 5, range(6)), Row(0.0, 200_000, 5, range(10, 401)), Row(1.0, 3000, 5, range(6))]
    log = EventLog()
    result = simulate(config(instances, memory="40 GiB"), Trace.of(rows), log)
    served, refused = FINISH_CODES[FinishReason.LENGTH], FINISH_CODES[FinishReason.REFUSED]
    assert result.table.reason.tolist() == [served, refused, served]
    assert log.select(Kind.REFUSED).field(Kind.REFUSED, "reason").tolist() == [Refusal.TOO_LARGE]
    assert not result.met[1]


@pytest.mark.parametrize("kind", [{}, {"instances": COUPLED}, {"instances": COUPLED, "simulation": CHUNKED}])
def test_places_and_pages_are_never_exceeded(kind: dict[str, Any]) -> None:
    log = EventLog(500_000)
    simulate(config(memory="3 GiB", batch=9, budget=512, **kind), workload(150, 6.0, 3, longest=3000), log)
    steps = log.select(Kind.STEP)
    assert 1 < steps.field(Kind.STEP, "decode").max() <= 9
    blocks = [steps.field(Kind.STEP, name) for name in ("used", "cached", "free")]
    decoding = steps.field(Kind.STEP, "decode") > 0
    assert all((column >= 0).all() for column in blocks)
    assert (sum(blocks)[decoding] == 19).all()  # of 160 MiB each  # type: ignore[index]


def test_sending_waits_for_the_slower_of_network_and_computation(tmp_path: Path) -> None:
    """A prompt of 1,000 tokens takes a second to compute; its last of 80 layers moves when all is computed."""
    for rate, expected in ((1e6, 1.0 + 1e-3 / 80), (500.0, 1 / 80 + 2.0)):
        costs = linear(tmp_path, per_token=1e-3, per_sequence=1e-9, network=rate)
        log = EventLog()
        simulate(config(ONE, costs=costs, dram="0 B"), Trace.of([Row(0.0, 1000, 2, [1, 2])]), log)
        assert log.select(Kind.STREAM).end[0] == pytest.approx(expected, rel=1e-9)


def test_a_pipeline_computes_a_prompt_in_its_chunks_times_over_the_stages_and_the_way_through(tmp_path: Path) -> None:
    group = ONE.replace("count = 1", "count = 1\npipeline_parallel = 4", 1)
    costs = linear(tmp_path, per_token=1e-3, per_sequence=1e-9)
    trace = Trace.of([Row(0.0, 8000, 1, range(16)), Row(0.0, 8000, 1, range(16, 32))])
    result = simulate(config(group, costs=costs, dram="0 B", budget=1000), trace)
    assert result.table.ttft.tolist() == pytest.approx([(8 + 3) * 0.25, (16 + 3) * 0.25])


def test_an_old_view_herds_what_a_fresh_one_spreads() -> None:
    trace = workload(300, 8.0, 4, tick=3.0)
    fresh, old = (simulate(config(simulation=f"view_age = {age}"), trace) for age in (0, 10))
    assert old.table.mean("ttft") > fresh.table.mean("ttft")


@pytest.mark.parametrize(
    ("chosen", "said"),
    [
        (config(COUPLED + SEPARATE), "instances: coupled ones beside others"),
        (config(SEPARATE + 'pipeline_parallel = 2'), r"instances\[1\]\.pipeline_parallel 2 .* use 1"),
        (config(memory="1 MiB"), "engine.memory 1048576 is below one block"),
        (config(dram="100 MB"), "tiers.dram 100000000 is below one block of 512 tokens, 167772160 bytes"),
        (config(costs="no such file"), "costs 'no such file' are not known: use one of"),
    ],
)  # fmt: skip
def test_what_cannot_be_simulated_is_refused_with_key_reason_and_remedy(chosen: Any, said: str) -> None:
    with pytest.raises(ConfigError, match=said):
        simulate(chosen, ALONE)


def test_a_trace_of_other_blocks_is_refused() -> None:
    with pytest.raises(ConfigError, match=r"engine\.block_size 512 .* use 16"):
        simulate(config(), Trace.of([Row(0.0, 16, 1, [1])], block_size=16))


def test_multiples_as_objectives_are_of_each_request_alone() -> None:
    slo = config(COUPLED, slo='ttft = "10x"\ntbt = "5x"')
    result = simulate(slo, ALONE)
    assert result.slos.ttft[0] == pytest.approx(10 * COSTS.prefill(PROMPT))  # type: ignore[index]
    assert result.met.all()
    assert math.isclose(result.goodput, 1 / result.duration)


@pytest.mark.parametrize("admission", ["all", "decode-refuses"])
@pytest.mark.parametrize("layerwise", ["true", "false"])
def test_a_request_is_freed_when_it_has_ended_or_was_refused(admission: Any, layerwise: str) -> None:
    """Without Python's search for cycles, of which none is part."""
    chosen = config(batch=2, simulation=f"layerwise = {layerwise}")
    chosen = chosen.model_copy(update={"policies": chosen.policies.model_copy(update={"admission": admission})})
    trace = workload(200, 20.0, 3)
    gc.collect()
    gc.disable()
    try:
        result = simulate(chosen, trace)
        assert not [each for each in gc.get_objects() if type(each) is Job]
    finally:
        gc.enable()
    assert (result.refused() > 0) == (admission != "all")
