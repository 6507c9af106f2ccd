"""Placement policies side by side: how slices are cut, when the order holds, which point is nearest to the paper's."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from mooncake_edu.config import Config
from mooncake_edu.errors import ConfigError
from mooncake_edu.simulation import simulate
from mooncake_edu.simulation.experiments import find, settings_of
from mooncake_edu.simulation.experiments.placement import PAPER, Replay, Sight, Where, holds, nearest
from mooncake_edu.traces.trace import read, write
from tests.simulation.clusters import real, workload

NAMES = ["random", "load-balancing", "cache-aware", "kvcache-centric"]


def silent(what: str, done: int, total: int) -> None:
    """Tells nobody."""


@pytest.fixture
def file(tmp_path: Path) -> str:
    """A trace of 150 requests."""
    write(workload(150, 5.0, 1, tick=3.0), tmp_path / "trace.jsonl")
    return str(tmp_path / "trace.jsonl")


def small(name: str, file: str, **changes: Any) -> Any:
    """An experiment's settings with a small trace."""
    return settings_of(name).model_copy(update=changes)


def test_the_slices_of_a_replay_are_the_whole_trace(file: str) -> None:
    parts = Replay(trace=file, speeds=(1.0,), slices=4).read()
    assert len(parts) == 4
    np.testing.assert_array_equal(np.concatenate([part.arrival for part in parts]), read(file).arrival)


def test_every_mean_is_that_of_a_run_of_its_own(file: str) -> None:
    replay = Replay(trace=file, speeds=(2.0,), slices=2)
    settings = small("order", file, replays=(replay,), sights=(Sight(age=1.0, noise=0.2),), seeds=2)
    outcome = find("order").run(settings, silent)
    means = []
    for part in replay.read():
        for seed in range(2):
            config = settings.config(settings.dram[0], settings.sights[0], "cache-aware", seed)
            assert (config.simulation.view_age, config.simulation.estimate_noise) == (1.0, 0.2)
            means.append(simulate(config, part.faster(2.0)).table.mean("ttft"))
    row = next(row for row in outcome.rows if row.what.endswith("mean TTFT, cache-aware"))
    assert (row.ours, row.low, row.high) == (pytest.approx(np.mean(means)), min(means), max(means))


def test_the_order_holds_where_each_policy_is_better_than_the_one_before_it() -> None:
    assert holds({"random": [4.0, 4.0, 4.0], "cache-aware": [3.0, 4.0, 5.0], "best": [1.0, 1.0, 1.0]}) == [
        True, False, False,
    ]  # fmt: skip


def test_a_case_in_which_the_order_does_not_hold_is_told(file: str) -> None:
    settings = small("order", file, replays=(Replay(trace=file, speeds=(1.0,)),), sights=(Sight(),), seeds=1,
                     policies=("kvcache-centric", "random"))  # fmt: skip
    outcome = find("order").run(settings, silent)
    assert outcome.rows[-1].ours == 0.0
    assert any("the order does not hold in 1 cases" in remark for remark in outcome.remarks)


def test_the_nearest_point_is_the_one_with_the_smallest_largest_factor() -> None:
    far, near = (Where("t", speed, 10**12, Sight()) for speed in (1.0, 2.0))
    found = {far: {name: [value * 9] for name, value in PAPER.items()}, near: {n: [v * 2] for n, v in PAPER.items()}}
    found[near]["random"] = [PAPER["random"] / 3]
    rows = nearest(found)
    assert rows[0].what.startswith("nearest, t x 2, 1 TB")
    assert rows[-1].ours == pytest.approx(3.0)


@pytest.mark.parametrize("speed", [1.0, 1.75])
def test_on_the_conversation_trace_each_policy_beats_the_one_before_it(speed: float) -> None:
    trace, base = real("conversation_trace", 700).faster(speed), Config.size("cluster")
    means = [
        simulate(base.model_copy(update={"policies": base.policies.model_copy(update={"placement": name})}), trace)
        .table.mean("ttft") for name in NAMES
    ]  # fmt: skip
    assert means == sorted(means, reverse=True) and len(set(means)) == 4


@pytest.mark.parametrize("name", ["fast5", "fast10", "fast13", "fast15"])
def test_a_sweep_gives_every_measure_of_every_variant(name: str, file: str) -> None:
    settings = settings_of(name)
    loads = tuple(each.model_copy(update={"trace": file}) for each in settings.loads[:1])
    outcome = find(name).run(settings.model_copy(update={"loads": loads}), silent)
    assert len(outcome.rows) == len(settings.variants) * len(settings.measures)
    assert {row.what.split(": ")[0].split(", ", 1)[1] for row in outcome.rows} == {v.name for v in settings.variants}
    assert len(outcome.figures) == 1


def test_variants_differ_in_what_they_name_only() -> None:
    base = Config.size("cluster")
    for variant in settings_of("fast15").variants:
        made = variant.config(base)
        assert [group.count for group in made.instances] == [variant.prefill, variant.decode]
        assert made.tiers == base.tiers and made.hardware == base.hardware
    slow = settings_of("fast13").variants[0].config(base)
    assert slow.hardware is not None and slow.hardware.network == 50e9 / 8


def test_a_policy_that_does_not_exist_is_refused_by_its_name(tmp_path: Path, file: str) -> None:
    settings = small("fig8", file, policies=("nearest",), replays=(Replay(trace=file, speeds=(1.0,)),))
    with pytest.raises(ConfigError, match="policies.placement 'nearest' is not simulated"):
        find("fig8").run(settings, silent)


def test_a_measure_that_does_not_exist_is_refused(tmp_path: Path) -> None:
    place = tmp_path / "own.toml"
    place.write_text('title = "t"\nmeasures = ["speed"]\nloads = [{ trace = "x" }]\nvariants = [{ name = "a" }]\n')
    with pytest.raises(ConfigError, match="measures 'speed' is not known: use ttft, "):
        settings_of("fast5", place)
