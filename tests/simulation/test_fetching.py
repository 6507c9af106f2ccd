"""Prefixes that move between instances: what is fetched is reused, counted, kept as configured, and waited for."""

from __future__ import annotations

import dataclasses
from typing import Any

import numpy as np
import pytest

from mooncake_edu.config import Config
from mooncake_edu.model.costs import PRESETS
from mooncake_edu.simulation import Result, simulate
from mooncake_edu.traces.trace import Row, Trace
from tests.simulation.clusters import SEPARATE, config, workload

COSTS = PRESETS["A800x8"]
BLOCKS = 40
SHARED = range(BLOCKS)
FOUR = SEPARATE.replace("count = 2", "count = 4", 1)


def policies(base: Config, **changes: Any) -> Config:
    """A configuration with other policies."""
    return base.model_copy(update={"policies": base.policies.model_copy(update=changes)})


CENTRIC = config(FOUR, placement="kvcache-centric")


def asked(*starts: float, question: int = 20) -> Trace:
    """The same document with a question of so many blocks each, asked at these times."""
    return Trace.of([
        Row(start, 512 * (BLOCKS + question), 5, [*SHARED, *range(1000 * number, 1000 * number + question)])
        for number, start in enumerate(starts, 1)
    ])  # fmt: skip


def other(start: float, first: int, blocks: int) -> Row:
    """A prompt that shares nothing."""
    return Row(start, 512 * blocks, 5, range(first, first + blocks))


def test_what_a_busy_instance_holds_is_fetched_by_an_idle_one_and_reused_there() -> None:
    trace = asked(0.0, 60.0, 60.0)
    result = simulate(CENTRIC, trace)
    assert result.prefill[1] == result.prefill[0] != result.prefill[2]
    assert result.table.loaded.tolist() == [0, BLOCKS * 512, BLOCKS * 512]
    size = BLOCKS * 512 * COSTS.token_bytes
    assert result.sent == {int(result.prefill[0]): size}
    late = result.table.ttft[2] - result.table.ttft[1]
    # What the holder computes meanwhile leaves it too, as fast as it is computed.
    streaming = (BLOCKS + 20) * 512 * COSTS.token_bytes / result.table.ttft[1]
    assert COSTS.transfer(size) <= late <= size / (COSTS.network_rate() - streaming) * 1.01


def test_who_fetches_keeps_a_replica_unless_told_otherwise() -> None:
    trace = asked(0.0, 60.0, 60.0, 120.0, 120.0)
    kept, single = (simulate(policies(CENTRIC, replication=mode), trace) for mode in ("fetched", "none"))
    size = BLOCKS * 512 * COSTS.token_bytes
    assert sum(kept.sent.values()) == size
    assert sum(single.sent.values()) == 2 * size
    np.testing.assert_array_equal(kept.table.loaded, single.table.loaded)
    assert set(single.sent) == {int(single.prefill[0])}


def test_two_that_want_the_same_prefix_at_one_instance_share_its_transfer() -> None:
    rows = [Row(0.0, 512 * 41, 5, [*SHARED, 999]), other(59.9, 5000, 100), other(59.9, 7000, 90), other(59.9, 9000, 80)]
    rows += [Row(60.0, 512 * 41, 5, [*SHARED, 1000 + number]) for number in range(8)]
    result = simulate(CENTRIC, Trace.of(rows))
    size = BLOCKS * 512 * COSTS.token_bytes
    fetching = {int(each) for each in result.prefill[4:]} - {int(result.prefill[0])}
    assert sum(result.sent.values()) == len(fetching) * size
    assert (result.table.loaded[4:] == BLOCKS * 512).all()


def test_a_prefill_waits_for_its_prefix(tmp_path: Any) -> None:
    slow = COSTS.model_copy(update={"network": 1e9, "name": "slow network"})
    (tmp_path / "slow.toml").write_text(slow.to_toml())
    made = config(FOUR, placement="kvcache-centric", costs=str(tmp_path / "slow.toml"))
    trace = Trace.of([*asked(0.0).rows(), other(60.0, 5000, 250), Row(60.0, 512 * 41, 5, [*SHARED, 77])])
    held = simulate(made, trace)
    if held.prefill[2] == held.prefill[0]:
        assert not held.sent
    else:
        assert held.table.ttft[2] >= slow.transfer(BLOCKS * 512 * slow.token_bytes)


@pytest.mark.parametrize("seed", range(4))
@pytest.mark.parametrize("mode", ["none", "fetched", "ahead"])
def test_every_request_is_served_once_and_hits_never_exceed_its_prompt(mode: str, seed: int) -> None:
    trace = workload(250, 6.0, seed, tick=3.0)
    result = simulate(policies(CENTRIC, replication=mode), trace)
    assert not np.isnan(result.table.e2e).any()
    assert (result.table.loaded < result.table.prompt).all()
    assert sum(result.sent.values()) > 0


def test_bytes_sent_are_counted_where_they_leave() -> None:
    trace = workload(250, 6.0, 1, tick=3.0)
    result = simulate(CENTRIC, trace)
    assert set(result.sent) <= {0, 1, 2, 3}
    assert not simulate(policies(CENTRIC, placement="cache-aware"), trace).sent


def tables(first: Result, second: Result) -> None:
    """Two runs are the same to the last bit."""
    for field in dataclasses.fields(first.table):
        if field.name != "id":
            np.testing.assert_array_equal(getattr(first.table, field.name), getattr(second.table, field.name))


def test_equal_seeds_give_equal_runs_fetches_included() -> None:
    trace = workload(250, 6.0, 2, tick=3.0)
    made = config(FOUR, placement="kvcache-centric", simulation="view_age = 1\nestimate_noise = 0.2")
    first, second = simulate(made, trace), simulate(made, trace)
    tables(first, second)
    assert first.sent == second.sent


def test_reuse_is_never_less_than_with_local_caches_where_all_prompts_are_one_document() -> None:
    trace = asked(*np.linspace(0.0, 100.0, 60).tolist())
    fetched, local = (simulate(policies(CENTRIC, placement=name), trace) for name in ("kvcache-centric", "cache-aware"))
    assert fetched.table.loaded.sum() >= local.table.loaded.sum()


def test_a_block_that_nobody_uses_leaves_the_dram_for_the_disk_and_is_still_found_there() -> None:
    block = COSTS.block_bytes(512)
    made = config(FOUR, placement="cache-aware", dram=f"{block * 60} B", tiers=f'ssd = "{block * 500} B"')
    made = made.model_copy(update={"instances": tuple(
        group.model_copy(update={"count": 1}) for group in made.instances)})  # fmt: skip
    rows = [Row(0.0, 512 * 40, 5, range(40)), other(60.0, 5000, 55), Row(120.0, 512 * 41, 5, [*range(40), 999])]
    result = simulate(made, Trace.of(rows))
    assert result.hits["ssd"] > 0
    assert result.table.loaded[2] == 40 * 512


def test_a_place_chosen_at_hand_over_serves_everybody_too() -> None:
    trace = workload(250, 6.0, 3, tick=3.0)
    late = simulate(policies(CENTRIC, decode="hand-over"), trace)
    assert not np.isnan(late.table.e2e).any()
    assert set(late.decode.tolist()) == {4, 5}


def test_a_copy_made_ahead_of_demand_is_there_when_it_is_asked_for() -> None:
    starts = np.arange(0.0, 60.0, 0.5).tolist()
    slow = policies(config(FOUR, placement="kvcache-centric"), replication="ahead", kvcache_balancing_threshold=1.0)
    ahead, plain = (simulate(policies(slow, replication=mode), asked(*starts)) for mode in ("ahead", "fetched"))
    assert ahead.table.mean("ttft") <= plain.table.mean("ttft") * 1.02
