"""Separate against coupled instances: shares are counted as the paper counts them, and each baseline is told apart."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from mooncake_edu.config import Config
from mooncake_edu.errors import ConfigError
from mooncake_edu.simulation.experiments import fast1, fig13, find, settings_of
from mooncake_edu.simulation.experiments.serving import (
    Load,
    Run,
    Settings,
    System,
    best,
    serve,
)
from mooncake_edu.traces.trace import Row, Trace, write

SYSTEMS = (
    System(name="separate", prefill=2, decode=1),
    System(name="first", coupled=3),
    System(name="small chunks", coupled=3, chunk=512),
)


def silent(what: str, done: int, of: int) -> None:
    """No progress is shown."""


@pytest.fixture(scope="module")
def trace(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Long prompts that come while others decode."""
    random = np.random.default_rng(0)
    rows, block = [], 0
    for number in range(60):
        length = int(random.integers(2_000, 40_000))
        blocks = -(-length // 512)
        rows.append(Row(1.5 * number, length, int(random.integers(1, 300)), range(block, block + blocks)))
        block += blocks
    path = tmp_path_factory.mktemp("traces") / "long.jsonl"
    write(Trace.of(rows), path)
    return path


@pytest.fixture(scope="module")
def settings(trace: Path) -> Settings:
    return Settings(ttft=30.0, tbts=(0.1, 0.3), loads=(Load(trace=str(trace)), Load(trace=str(trace), speed=1.5)),
                    systems=SYSTEMS)  # fmt: skip


@pytest.fixture(scope="module")
def runs(settings: Settings) -> list[Run]:
    return serve(settings, silent)


def test_every_load_is_served_by_every_system(settings: Settings, runs: list[Run]) -> None:
    assert [(run.load, run.system) for run in runs] == [(load, s) for load in settings.loads for s in SYSTEMS]
    assert all(len(run.table) == 60 for run in runs)


def test_a_share_counts_who_is_within_both_objectives_and_a_single_token_has_no_tbt(runs: list[Run]) -> None:
    for run in runs:
        table = run.table
        tbt = np.where(table.output == 1, 0.0, table.tbt)
        assert run.share(2.0, 0.1) == np.mean((table.ttft <= 2.0) & (tbt <= 0.1))
        assert run.share_in("tbt", 0.1) == np.mean(tbt <= 0.1)
        assert run.share(2.0, 0.1) <= min(run.share_in("ttft", 2.0), run.share_in("tbt", 0.1))


def test_separate_instances_keep_the_tbt_that_prefill_first_breaks_and_small_chunks_shorten_its_stalls(
    runs: list[Run],
) -> None:
    for ours, first, chunks in (runs[:3], runs[3:]):
        assert ours.share_in("tbt", 0.1) == 1.0
        assert first.share_in("tbt", 0.1) < chunks.share_in("tbt", 0.1)
        assert np.nanmax(chunks.table.tbt) < np.nanmax(first.table.tbt)


def test_baselines_are_told_apart() -> None:
    assert [system.kind for system in SYSTEMS] == ["separate", "prefill first", "chunked"]


def test_the_best_of_no_runs_serves_nobody(runs: list[Run]) -> None:
    assert best(runs, "separate", 30.0, 0.3) == max(runs[0].share(30.0, 0.3), runs[3].share(30.0, 0.3))
    assert best([], "separate", 30.0, 0.3) == 0.0


def test_coupled_instances_take_turns_and_all_requests_are_admitted() -> None:
    base = Config.size("cluster")
    ours, first, chunks = (system.config(base, "load-balancing") for system in SYSTEMS)
    assert ours.policies.placement == "load-balancing"
    assert {config.policies.placement for config in (first, chunks)} == {"round-robin"}
    assert {config.policies.admission for config in (ours, first, chunks)} == {"all"}
    assert (first.simulation.coupled, chunks.simulation.coupled) == ("prefill-first", "chunked")
    assert chunks.engine.token_budget == 512
    assert first.engine == ours.engine == base.engine  # the same pages and places for everybody
    assert [(group.role, group.count) for group in ours.instances] == [("prefill", 2), ("decode", 1)]


@pytest.mark.parametrize(
    ("wrong", "told"),
    [
        ({}, "coupled 0 beside prefill 0 and decode 0"),
        ({"prefill": 1}, "prefill 1 and decode 0"),
        ({"coupled": 1, "prefill": 1, "decode": 1}, "coupled 1 beside prefill 1"),
        ({"prefill": 1, "decode": 1, "chunk": 8}, "chunk 8 is for coupled"),
    ],
)
def test_a_system_that_is_no_cluster_is_refused(wrong: dict[str, int], told: str) -> None:
    with pytest.raises(ConfigError, match=told):
        System(name="odd", **wrong)  # type: ignore[arg-type]  # numbers alone


def test_fast1_puts_the_papers_shares_beside_ours_and_tells_gains_over_each_baseline(settings: Settings) -> None:
    outcome = fast1.run(settings, silent)
    shares = {row.what: row for row in outcome.rows if row.unit == "of requests"}
    assert len(shares) == 2 * 3 * 2
    assert shares["long x 1, separate: TTFT 30 s, TBT 100 ms"].paper == 0.95
    assert shares["long x 1.5, first: TTFT 30 s, TBT 300 ms"].paper == 0.63
    assert shares["long x 1, small chunks: TTFT 30 s, TBT 100 ms"].paper is None
    for baseline, other in (("prefill first", "first"), ("chunked", "small chunks")):
        what = f"long x 1: more than coupled, {baseline}, at TBT 100 ms"
        gain = next(row for row in outcome.rows if row.what == what)
        theirs, ours = (shares[f"long x 1, {name}: TTFT 30 s, TBT 100 ms"].ours for name in (other, "separate"))
        assert gain.ours == pytest.approx(100 * (ours / theirs - 1))
        assert gain.paper == (498.0 if baseline == "prefill first" else None)
    assert len(outcome.figures) == 1 and any("stronger baseline" in remark for remark in outcome.remarks)


def test_fig13_tells_ttft_and_tbt_of_every_system(settings: Settings) -> None:
    outcome = fig13.run(settings, silent)
    rows = {row.what: row for row in outcome.rows}
    assert rows["long x 1, first: TBT at most 0.1 s"].paper == 0.57
    assert rows["long x 1, separate: TBT at most 0.1 s"].paper == 1.0
    assert rows["long x 1, small chunks: TBT at most 0.1 s"].paper is None
    assert rows["long x 1: more than coupled, prefill first, at TBT 100 ms"].paper == 75.0
    assert len(outcome.figures) == 2


@pytest.mark.parametrize("name", ["fast1", "fig13"])
def test_the_configuration_in_the_package_holds_both_baselines_on_as_many_nodes(name: str) -> None:
    settings = settings_of(name)
    nodes = {s.coupled or s.prefill + s.decode for s in settings.systems}
    assert nodes == {16 if name == "fast1" else 20}
    assert [s.chunk for s in settings.systems if s.kind == "chunked"] == [512, 2048]
    assert "prefill first" in [s.kind for s in settings.systems] and settings.ttft == 30.0 and settings.tbts[0] == 0.1
    assert find(name).settings is Settings
