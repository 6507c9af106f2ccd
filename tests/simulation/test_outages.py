"""Instances that drain, go down or are full: nothing is placed there, and everybody who was there still ends."""

from __future__ import annotations

from collections import Counter
from collections.abc import Hashable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from mooncake_edu.conductor import ClusterView, Conductor, Placement, Query
from mooncake_edu.config import Config, Outage, Policies
from mooncake_edu.errors import ConfigError
from mooncake_edu.events import FINISH_CODES, EventLog, Kind, Refusal
from mooncake_edu.model.costs import PRESETS
from mooncake_edu.request import FinishReason
from mooncake_edu.simulation import Result, simulate
from mooncake_edu.simulation.agenda import Agenda, Rank
from mooncake_edu.simulation.cluster import Cluster, Watch
from mooncake_edu.simulation.job import Job
from mooncake_edu.simulation.network import Network
from mooncake_edu.simulation.parts import conductor_of
from mooncake_edu.simulation.result import Columns, Stage
from mooncake_edu.traces.trace import Row, Trace
from tests.simulation.clusters import COUPLED, SEPARATE, config, linear, workload

ONE = SEPARATE.replace("count = 2", "count = 1")
PROMPT, OUTPUT = 10_000, 100
ALONE = Trace.of([Row(5.0, PROMPT, OUTPUT, range(20))])
COSTS = PRESETS["A800x8"]
LENGTH, REFUSED = FINISH_CODES[FinishReason.LENGTH], FINISH_CODES[FinishReason.REFUSED]
KINDS: list[dict[str, Any]] = [
    {"placement": "kvcache-centric"},
    {"placement": "kvcache-centric", "decode": "hand-over", "replication": "ahead"},
    {"placement": "kvcache-centric", "decode": "hand-over", "replication": "none", "simulation": "layerwise = false"},
    {"placement": "cache-aware", "instances": COUPLED},
    {"placement": "round-robin", "instances": COUPLED, "simulation": 'coupled = "chunked"', "budget": 2048},
]


def out(instance: int, start: float, stop: float, kind: str = "down") -> Outage:
    """An instance that is missing."""
    return Outage.model_validate({"instance": instance, "start": start, "stop": stop, "kind": kind})


def cluster(*outages: Outage, decode: str = "reserved", replication: str = "fetched", **other: Any) -> Config:
    """A small cluster whose instances are missing now and then."""
    made = config(**other)
    policies = made.policies.model_dump() | {"decode": decode, "replication": replication}
    return made.model_copy(update={
        "policies": Policies.model_validate(policies),
        "simulation": made.simulation.model_copy(update={"outages": outages}),
    })  # fmt: skip


def ends(result: Result, trace: Trace) -> None:
    """Every request has all its tokens, or was refused for a reason."""
    done, refused = result.table.reason == LENGTH, result.table.reason == REFUSED
    assert (done | refused).all()
    assert (result.refusal[refused] >= 0).all() and (result.refusal[done] == -1).all()
    assert (result.table.output[done] == np.maximum(trace.output_length[done], 1)).all()
    assert (result.table.ttft[done] > 0).all() and (result.table.e2e[done] >= result.table.ttft[done]).all()


@st.composite
def missing(draw: st.DrawFn) -> list[Outage]:
    """Outages of four instances, of each one after the other."""
    found = []
    for instance in range(4):
        times = sorted(draw(st.lists(st.integers(0, 120), max_size=4, unique=True)))
        for start, stop in zip(times[::2], times[1::2], strict=False):
            found.append(out(instance, start, stop, draw(st.sampled_from(["draining", "down"]))))
    return found


class Watching(Conductor):
    """A Conductor that looks at where it is shown that nothing can be placed, and at where the truth is the same."""

    def __init__(self, conductor: Conductor, outages: Sequence[Outage]) -> None:
        super().__init__(conductor.policy, conductor.ledger, conductor.spread)
        self._outages, self.placed = outages, 0

    def place(self, query: Query, view: ClusterView) -> Placement:
        """As any other, and never on an instance that is seen as not usable."""
        made = super().place(query, view)
        for pool, number in ((view.prefill, made.prefill), (view.decode, made.decode)):
            assert pool.usable[list(pool.number).index(number)]
        return made

    def commit(self, name: Hashable, query: Query, placement: Placement, reserve: bool = True) -> None:
        """As any other, and never on one that is missing, whatever is seen."""
        super().commit(name, query, placement, reserve)
        self.placed += 1
        numbers = {placement.prefill, placement.decode} if reserve else {placement.prefill}
        assert not any(each.instance in numbers and each.start <= query.arrival < each.stop for each in self._outages)


ages, queues = st.sampled_from([0.0, 1.0]), st.sampled_from([2, 1024])


@given(missing(), st.sampled_from(KINDS), ages, queues, st.integers(0, 1000))
@settings(max_examples=60, deadline=None)
def test_every_request_ends_whatever_instances_are_missing_and_none_is_placed_on_one_that_is(
    outages: list[Outage], kind: dict[str, Any], age: float, queue: int, seed: int
) -> None:
    other = kind | {"simulation": kind.get("simulation", "") + f"\nview_age = {age}"}
    made, trace, log = cluster(*outages, **other), workload(80, 1.0, seed), EventLog(500_000)
    made = made.model_copy(update={"engine": made.engine.model_copy(update={"max_queue": queue})})
    watching = Watching(conductor_of(made), outages)
    result = simulate(made, trace, log, conductor=watching)
    ends(result, trace)
    assert watching.placed >= len(trace) - result.refused()
    np.testing.assert_array_equal(simulate(made, trace).table.e2e, result.table.e2e)
    told, done, moving = log.requests(), result.table.reason == LENGTH, log.select(Kind.STREAM)
    for column in ("ttft", "tbt", "e2e"):
        np.testing.assert_allclose(getattr(told, column)[done], getattr(result.table, column)[done])
    if made.policies.decode == "hand-over":
        for each in outages:
            begun = (moving.start >= each.start) & (moving.start < each.stop)
            assert not (begun & (moving.instance == each.instance)).any()


def served(made: Config, trace: Trace, watch: Watch | None = None) -> Cluster:
    """A cluster that has served a trace, when everything that was reported is seen."""
    ran = Cluster(made, trace.block_size, Columns(len(trace)), watch=watch)
    for row in range(len(trace)):
        tokens = float(trace.arrival[row]), int(trace.input_length[row]), int(trace.output_length[row])
        job = Job(row, row, *tokens, trace.ids_of(row).tolist())
        ran.agenda.run(job.arrival, Rank.ARRIVED)
        ran.arrive(job)
    ran.agenda.run()
    ran.sight.look(1e9, Query(1, [], 0.0))
    return ran


@given(missing(), st.sampled_from(KINDS), ages, queues, st.integers(0, 1000))
@settings(max_examples=30, deadline=None)
def test_when_all_have_ended_the_view_is_empty_and_the_index_is_the_truth(
    outages: list[Outage], kind: dict[str, Any], age: float, queue: int, seed: int
) -> None:
    made = cluster(*outages, **kind | {"simulation": kind.get("simulation", "") + f"\nview_age = {age}"})
    made = made.model_copy(update={"engine": made.engine.model_copy(update={"max_queue": queue})})
    trace, held = workload(60, 1.5, seed, tick=3.0), {number: set[int]() for number in range(4)}

    def watch(now: float, number: int, new: Sequence[int], gone: Sequence[int]) -> None:
        held[number] = (held[number] | set(new)) - set(gone)

    ran = served(made, trace, watch)
    for side in (ran.sight.prefill, ran.sight.decode):
        for column in (side.prompts, side.requests, side.context, side.decoding, side.tokens, side.fetches):
            assert not any(column)
        assert all(side.usable)
    for id_ in set(trace.ids.tolist()):
        seen = ran.sight.look(1e9, Query(512, [id_], 0.0)).prefill
        first = [bool(cached) for cached in seen.cached]
        assert first == [id_ in held[number] for number in seen.number]


@pytest.mark.parametrize("kind", KINDS)
def test_step_by_step_and_in_closed_form_outages_are_the_same(kind: dict[str, Any]) -> None:
    outages = out(0, 20.0, 40.0), out(2, 30.0, 45.0), out(3, 50.0, 60.0), out(1, 35.0, 38.0, "draining")
    made, trace = cluster(*outages, **kind), workload(60, 1.0, 7)
    fast, slow = (simulate(made, trace, reference=reference) for reference in (False, True))
    assert fast.lost == slow.lost and fast.lost["requests"] > 0
    for column in ("ttft", "tbt", "e2e"):
        np.testing.assert_allclose(getattr(fast.table, column), getattr(slow.table, column), rtol=1e-9)


@pytest.mark.parametrize("kind", ["draining", "down"])
@pytest.mark.parametrize("age", [0.0, 3.0])
def test_nobody_who_comes_in_an_outage_is_served_there(kind: str, age: float) -> None:
    trace = workload(150, 2.0, 3)
    made = cluster(out(0, 20.0, 60.0, kind), out(3, 30.0, 50.0, kind), simulation=f"view_age = {age}")
    result = simulate(made, trace)
    ends(result, trace)
    arrival = result.table.arrival
    assert not (result.prefill[(arrival >= 20) & (arrival < 60)] == 0).any()
    assert not (result.decode[(arrival >= 30) & (arrival < 50)] == 3).any()
    assert (result.prefill[arrival >= 64] == 0).any() and (result.decode[arrival >= 54] == 3).any()


def test_an_instance_that_drains_ends_what_it_has_and_others_fetch_from_it() -> None:
    rows = [Row(0.0, PROMPT, OUTPUT, range(20)), Row(6.0, PROMPT, OUTPUT, range(20))]
    base = simulate(config(ONE), Trace.of(rows[:1])).table
    result = simulate(cluster(out(0, 0.5, 100.0, "draining"), placement="kvcache-centric"), Trace.of(rows))
    first = int(result.prefill[0])
    drained = simulate(cluster(out(first, 0.5, 100.0, "draining"), placement="kvcache-centric"), Trace.of(rows))
    assert drained.table.e2e[0] == pytest.approx(base.e2e[0]) and drained.lost == {"requests": 0, "tokens": 0}
    assert drained.prefill.tolist() == [first, 1 - first] and drained.sent[first] > 0


def test_what_an_instance_held_is_gone_when_it_comes_back() -> None:
    rows = [Row(0.0, PROMPT, OUTPUT, range(20)), Row(60.0, PROMPT, OUTPUT, range(20))]
    kept, lost = (simulate(cluster(*outages, instances=ONE), Trace.of(rows)) for outages in ((), (out(0, 30.0, 31.0),)))
    assert kept.table.loaded.tolist() == [0, PROMPT - 1] and lost.table.loaded.tolist() == [0, 0]


def test_a_prefill_that_is_lost_begins_anew_elsewhere_at_once() -> None:
    alone = simulate(config(), ALONE)
    half = 5.0 + float(alone.table.ttft[0]) / 2
    result = simulate(cluster(out(int(alone.prefill[0]), half, 500.0)), ALONE)
    assert result.prefill[0] == 1 - alone.prefill[0]
    assert result.table.ttft[0] == pytest.approx(1.5 * alone.table.ttft[0])
    assert result.busy["prefill"][int(alone.prefill[0])] * result.duration == pytest.approx(alone.table.ttft[0] / 2)
    assert result.lost == {"requests": 1, "tokens": 0}


@pytest.mark.parametrize("stages", [1, 4])
def test_an_instance_is_busy_only_while_its_stages_compute_however_often_it_goes(stages: int) -> None:
    instances = ONE.replace("count = 1", f"count = 1\npipeline_parallel = {stages}", 1)
    alone = simulate(config(instances, budget=2**20), ALONE)
    spent = float(alone.table.ttft[0]) / 10
    gone = [out(0, 5.0 + spent, 5.0 + 2 * spent), out(0, 5.0 + 3 * spent, 5.0 + 4 * spent)]
    later = Row(5.0 + 5 * spent, PROMPT, OUTPUT, range(20, 40))
    result = simulate(cluster(*gone, instances=instances, budget=2**20), Trace.of([*ALONE.rows(), later]))
    assert result.refusal.tolist() == [Refusal.DOWN, -1]
    whole = alone.busy["prefill"][0] * alone.duration
    assert result.busy["prefill"][0] * result.duration == pytest.approx(whole + spent / stages)


def test_who_was_decoding_keeps_the_tokens_made_and_waits_for_its_kvcache_to_be_computed_again() -> None:
    log = EventLog(100_000)
    alone = simulate(config(dram="0 B"), ALONE)
    half = 5.0 + float(alone.table.e2e[0] + alone.table.ttft[0]) / 2
    result = simulate(cluster(out(int(alone.decode[0]), half, 500.0), dram="0 B"), ALONE, log)
    assert result.table.ttft[0] == alone.table.ttft[0] and result.table.output[0] == OUTPUT
    spans = log.select(Kind.DECODE)
    assert int(spans.field(Kind.DECODE, "tokens").sum()) == OUTPUT - 2  # the two prefills made a token each
    made = int(spans.field(Kind.DECODE, "tokens")[0]) + 1
    assert log.select(Kind.CHUNK).field(Kind.CHUNK, "tokens").sum() == 2 * PROMPT + made
    assert result.lost == {"requests": 1, "tokens": PROMPT + made - 1}
    again = COSTS.step([(0, 8192)]) + COSTS.step([(8192, PROMPT + made)])
    layer = (PROMPT + made - 8192) * COSTS.token_bytes / 80 / COSTS.network_rate()
    rest = sum(COSTS.decode_step(1, PROMPT + made + step) for step in range(1, OUTPUT - made))
    assert result.table.e2e[0] == pytest.approx(half - 5.0 + again + layer + rest)
    assert result.table.tbt[0] > again / 10  # the mean of its ten longest intervals
    told = log.requests()
    for column in ("ttft", "tbt", "e2e"):
        assert getattr(told, column)[0] == pytest.approx(getattr(result.table, column)[0])


def test_kvcache_on_its_way_to_an_instance_that_goes_is_sent_to_another() -> None:
    alone = simulate(config(), ALONE)
    half = 5.0 + float(alone.table.ttft[0]) / 2  # layers move while others are computed
    result = simulate(cluster(out(int(alone.decode[0]), half, 500.0)), ALONE)
    assert result.decode[0] != alone.decode[0] and result.prefill[0] == alone.prefill[0]
    assert result.table.e2e[0] == pytest.approx(alone.table.e2e[0]) and result.lost["requests"] == 0


@pytest.mark.parametrize("replication", ["fetched", "none"])
def test_a_fetch_from_an_instance_that_goes_ends_in_computing(replication: str, tmp_path: Path) -> None:
    half = [*range(60), *range(1000, 1060)]
    trace = Trace.of([Row(0.0, 61_440, 2, range(120)), Row(100.0, 61_440, 2, half), Row(101.0, 61_440, 2, range(120))])
    slow = {"placement": "kvcache-centric", "replication": replication,
            "costs": linear(tmp_path, per_token=1e-3, network=1e4)}  # fmt: skip
    whole = simulate(cluster(**slow), trace)
    first = int(whole.prefill[0])
    assert whole.prefill.tolist() == [first, first, 1 - first] and whole.table.loaded[2] == 61_439
    result = simulate(cluster(out(first, 103.0, 500.0), **slow), trace)
    ends(result, trace)
    assert result.prefill[2] == 1 - first and result.table.loaded[2] == 0
    assert result.table.ttft[2] == pytest.approx(2.0 + 61.44)
    side = served(cluster(out(first, 103.0, 500.0), **slow), trace).sight.prefill
    assert side.fetches == [0, 0] and side.sending == [0.0, 0.0]


def test_nothing_moves_to_an_instance_that_went_and_others_get_its_share() -> None:
    agenda, seen = Agenda(), []
    network = Network(agenda, dict.fromkeys(range(3), 10.0))
    for target in (1, 2):
        network.send(0.0, target, 0, target, 100.0, lambda now: seen.append(("came", now)),
                     lost=lambda now: seen.append(("lost", now)))  # fmt: skip
    agenda.put(10.0, Rank.CHANGED, 1, lambda now: network.drop(1, now))
    agenda.run()
    assert seen == [("lost", 10.0), ("came", 15.0)]


@pytest.mark.parametrize("role", [0, 2])
def test_where_all_instances_of_a_role_are_missing_requests_are_refused_with_that_reason(role: int) -> None:
    log, trace = EventLog(100_000), workload(60, 1.0, 5)
    outages = [out(number, 10.0, 30.0, "draining") for number in (role, role + 1)]
    result = simulate(cluster(*outages), trace, log)
    ends(result, trace)
    turned = (trace.arrival >= 10) & (trace.arrival < 30)
    assert (result.refusal[turned] == Refusal.DOWN).all() and (result.refusal[~turned] == -1).all()
    reasons = log.select(Kind.REFUSED).field(Kind.REFUSED, "reason").tolist()
    assert Counter(reasons) == {Refusal.DOWN: int(turned.sum())}


@pytest.mark.parametrize("layerwise", ["", "layerwise = false"])
def test_whoever_finds_no_decode_instance_after_its_prefill_is_refused_unless_it_has_all_its_tokens(
    layerwise: str,
) -> None:
    outages = [out(number, 5.001, 500.0, "draining") for number in (2, 3)]  # before the first layer is computed
    made, prompts = cluster(*outages, decode="hand-over", simulation=layerwise), range(20)
    results = [simulate(made, Trace.of([Row(5.0, PROMPT, output, prompts)])) for output in (1, OUTPUT)]
    assert [each.table.reason[0] for each in results] == [LENGTH, REFUSED]
    assert results[1].refusal[0] == Refusal.DOWN and results[1].stage[0] == Stage.DECODE


@pytest.mark.parametrize("instances", [ONE, COUPLED.replace("4", "1")])
def test_an_instance_with_as_many_waiting_as_it_may_have_gets_no_more(instances: str) -> None:
    trace = Trace.of([Row(0.0, 5000, 5, range(10 * row, 10 * row + 10)) for row in range(8)])
    made = config(instances)
    made = made.model_copy(update={"engine": made.engine.model_copy(update={"max_queue": 3})})
    result = simulate(made, trace)
    ends(result, trace)
    begun = 1 if instances == ONE else 0  # a step of a coupled instance begins when all have come
    assert (result.refusal == Refusal.QUEUE_FULL).sum() == len(trace) - 3 - begun
    slowly = simulate(made, Trace.of([Row(60.0 * row, 5000, 5, range(10)) for row in range(8)]))
    assert not slowly.refused()


def test_a_decode_instance_with_a_full_batch_and_as_many_waiting_as_may_gets_no_more() -> None:
    trace = Trace.of([Row(2.0 * row, 5000, 1000, range(10 * row, 10 * row + 10)) for row in range(8)])
    made = config(ONE, batch=1)
    made = made.model_copy(update={"engine": made.engine.model_copy(update={"max_queue": 1})})
    result = simulate(made, trace)
    ends(result, trace)
    assert result.refusal.tolist() == [-1, -1, *[Refusal.QUEUE_FULL] * 6]


def test_without_outages_nothing_is_lost() -> None:
    assert simulate(config(), workload(50, 1.0, 1)).lost == {"requests": 0, "tokens": 0}


@pytest.mark.parametrize(("text", "said"), [
    ("instance = 4\nstart = 1.0\nstop = 2.0", "outages[0].instance 4 does not exist: use a number from 0 to 3"),
    ("instance = 0\nstart = 2.0\nstop = 2.0", "stop 2 is not after start 2: give a later time"),
    ("instance = 0\nstart = 2.0", "simulation.outages[0].stop is missing"),
])  # fmt: skip
def test_an_outage_that_cannot_be_is_refused_by_its_key(text: str, said: str) -> None:
    with pytest.raises(ConfigError) as error:
        config(simulation=f'[[simulation.outages]]\nkind = "down"\n{text}')
    assert said in str(error.value)


def test_an_instance_cannot_go_while_it_is_out() -> None:
    each = '[[simulation.outages]]\ninstance = 1\nkind = "{}"\nstart = {}\nstop = {}\n'.format
    with pytest.raises(ConfigError, match="instance 1 goes at 5 and is out until 6 already: let one end"):
        config(simulation=each("down", 1.0, 6.0) + each("draining", 5.0, 9.0))
    handed: Sequence[Outage] = config(simulation=each("draining", 1.0, 6.0) + each("down", 6.0, 9.0)).simulation.outages
    assert [outage.kind for outage in handed] == ["draining", "down"]


@pytest.mark.parametrize("decode", ["reserved", "hand-over"])
def test_whoever_is_sent_from_an_instance_that_went_to_a_full_one_waits_there(decode: str) -> None:
    rows = [Row(time, 1000, 2000, range(2 * row, 2 * row + 2)) for row, time in enumerate((0.0, 5.5, 11.0))]
    instances = ONE.replace('"decode"\ncount = 1', '"decode"\ncount = 2')
    for gone in (1, 2):  # one of them has a request, as an old view shows, and the other one is down, as it does not
        made = cluster(out(gone, 9.0, 500.0), decode=decode, instances=instances, batch=1, simulation="view_age = 5.0")
        result = simulate(made, Trace.of(rows))
        assert not result.refused() and result.decode.tolist()[2] == 3 - gone


def test_a_prefill_is_wasted_whose_request_cannot_be_placed_again() -> None:
    alone = simulate(config(ONE), ALONE)
    stop = ALONE.arrival[0] + float(alone.table.ttft[0]) + 0.1
    result = simulate(cluster(out(0, stop, 500.0), out(1, stop, 500.0), instances=ONE), ALONE)
    assert result.stage.tolist() == [Stage.TURN] and result.refusal.tolist() == [Refusal.DOWN]
    assert result.wasted == pytest.approx(float(result.worked[0])) and result.wasted > 0
