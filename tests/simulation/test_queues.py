"""The simulator agrees with what queueing theory proves."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from mooncake_edu.events import EventLog, Kind
from mooncake_edu.simulation import Result, simulate
from mooncake_edu.traces.trace import Trace
from tests.simulation.clusters import COUPLED, SEPARATE, config, linear, plain, real, workload

ONE = SEPARATE.replace("count = 2", "count = 1")
BUSY = 0.5
MEAN = 512  # tokens, each of which takes a millisecond
TOKEN = 1e-3


def queue(prompts: np.ndarray, folder: Path, instances: str, seed: int) -> Result:
    """Poisson arrivals at one instance that is busy half of the time, each wanting a single token."""
    rng = np.random.default_rng(seed)
    arrivals = np.cumsum(rng.exponential(MEAN * TOKEN / BUSY, len(prompts)))
    trace = plain(arrivals, prompts, np.ones(len(prompts), np.int64))
    costs = linear(folder, per_token=TOKEN)
    return simulate(config(instances, costs=costs, dram="0 B", budget=2**20, batch=1), trace)


def waits(result: Result) -> float:
    """Mean seconds between arrival and the begin of the prefill."""
    return float((result.started - result.table.arrival).mean())


@pytest.mark.slow
@pytest.mark.parametrize("instances", [ONE, COUPLED.replace("4", "1")], ids=["separate", "coupled"])
def test_waiting_with_equal_prompts_is_that_of_m_d_1(instances: str, tmp_path: Path) -> None:
    result = queue(np.full(50_000, MEAN), tmp_path, instances, 1)
    assert waits(result) == pytest.approx(BUSY * MEAN * TOKEN / (2 * (1 - BUSY)), rel=0.03)


@pytest.mark.slow
def test_waiting_with_exponential_prompts_is_that_of_m_m_1(tmp_path: Path) -> None:
    prompts = np.random.default_rng(2).exponential(MEAN, 100_000)
    result = queue(np.maximum(prompts.round().astype(np.int64), 1), tmp_path, ONE, 3)
    assert waits(result) == pytest.approx(BUSY * MEAN * TOKEN / (1 - BUSY), rel=0.03)


@pytest.mark.parametrize("simulation", ["", "layerwise = false"])
def test_little_s_law_holds_where_requests_decode(simulation: str) -> None:
    """Requests in the batch, counted by the steps, are their rate times how long each decodes, told by its spans."""
    log = EventLog(1_000_000)
    result = simulate(config(simulation=simulation), workload(800, 1.5, 4), log)
    steps, spans = log.select(Kind.STEP), log.select(Kind.DECODE)
    inside = float(((steps.end - steps.start) * steps.field(Kind.STEP, "decode")).sum()) / result.duration
    rate = len(spans) / result.duration
    assert inside == pytest.approx(rate * float((spans.end - spans.start).mean()), rel=0.01)


def test_little_s_law_holds_for_the_whole_cluster() -> None:
    """Arrivals and ends, counted at random times, against the rate times the mean stay."""
    trace = workload(2000, 1.5, 5)
    table = simulate(config(), trace).table
    times = np.random.default_rng(6).uniform(table.arrival[0], (table.arrival + table.e2e).max(), 20_000)
    arrived = np.searchsorted(np.sort(table.arrival), times)
    ended = np.searchsorted(np.sort(table.arrival + table.e2e), times)
    rate = len(table) / ((table.arrival + table.e2e).max() - table.arrival[0])
    assert float((arrived - ended).mean()) == pytest.approx(rate * table.mean("e2e"), rel=0.01)


def test_all_work_is_done_once_and_no_instance_rests_while_somebody_waits(tmp_path: Path) -> None:
    trace = workload(400, 3.0, 7)
    result = simulate(config(ONE, costs=linear(tmp_path, per_token=1e-3), dram="0 B"), trace)
    work = trace.input_length * 1e-3
    assert result.busy["prefill"][0] * result.duration == pytest.approx(float(work.sum()), rel=1e-9)
    free = 0.0
    for arrival, needed, started in zip(trace.arrival, work, result.started, strict=True):
        assert started == pytest.approx(max(arrival, free), rel=1e-9)
        free = started + needed


@pytest.mark.parametrize("kind", ["separate", "coupled", "chunked"])
def test_every_token_is_made_and_every_prompt_token_computed_or_reused(kind: str) -> None:
    trace, log = real("conversation_trace"), EventLog(2_000_000)
    instances = SEPARATE if kind == "separate" else COUPLED
    simulation = 'coupled = "chunked"' if kind == "chunked" else ""
    result = simulate(config(instances, simulation=simulation, budget=2048, memory="4 TiB"), trace, log)
    assert (result.table.output == trace.output_length).all()
    chunks, spans = log.select(Kind.CHUNK), log.select(Kind.DECODE)
    computed = int(chunks.field(Kind.CHUNK, "tokens").sum())
    assert computed + sum(result.hits.values()) == int(trace.input_length.sum())
    assert int(spans.field(Kind.DECODE, "tokens").sum()) == int((trace.output_length - 1).sum())


def test_a_transfer_carries_all_kvcache_of_a_prompt() -> None:
    trace = workload(100, 1.0, 8)
    result = simulate(config(), trace)
    assert result.moved["stream"] == int(trace.input_length.sum()) * 327_680
    assert result.moved["load dram"] == result.hits["dram"] * 327_680


def shuffled(trace: Trace, seed: int) -> tuple[Trace, np.ndarray]:
    """The rows in another order within each time, and where each of them stood."""
    rows = np.lexsort((np.random.default_rng(seed).permutation(len(trace)), trace.arrival))
    ids = [trace.ids_of(int(row)) for row in rows]
    offsets = np.concatenate(([0], np.cumsum([len(each) for each in ids])))
    columns = trace.arrival[rows], trace.input_length[rows], trace.output_length[rows]
    return Trace(*columns, np.concatenate(ids), offsets, trace.block_size, trace.name), rows


@pytest.mark.parametrize("instances", [SEPARATE, COUPLED], ids=["separate", "coupled"])
def test_shuffling_rows_within_a_tick_changes_nothing_but_by_the_order_that_is_given(instances: str) -> None:
    trace = workload(300, 3.0, 9, tick=3.0)
    other, rows = shuffled(trace, 10)
    assert (rows != np.arange(len(trace))).any()
    first = simulate(config(instances), trace)
    second = simulate(config(instances), other, order=rows.tolist())
    for column in ("ttft", "tbt", "e2e", "cached", "loaded"):
        np.testing.assert_array_equal(getattr(first.table, column)[rows], getattr(second.table, column))


@pytest.mark.parametrize("placement", ["random", "round-robin", "load-balancing"])
def test_equal_seeds_give_equal_event_logs_and_others_do_not(placement: str, tmp_path: Path) -> None:
    saved = []
    for seed in (1, 1, 2):
        log = EventLog(500_000)
        chosen = config(placement=placement, simulation=f"seed = {seed}\nestimate_noise = 0.2\nview_age = 1.0")
        simulate(chosen, workload(200, 3.0, 11), log)
        log.save(file := tmp_path / "log.npz")
        saved.append(file.read_bytes())
    assert saved[0] == saved[1]
    assert (saved[0] == saved[2]) == (placement == "round-robin")
