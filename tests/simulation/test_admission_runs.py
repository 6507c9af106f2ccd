"""Admission at work in the simulator: who is turned away where, what that wastes, and that the books balance."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from mooncake_edu.admission import ADMISSIONS, Admission, Admit, Asked, Forecast, Load, Refuse
from mooncake_edu.config import Config
from mooncake_edu.events import FINISH_CODES, EventLog, Kind, Refusal
from mooncake_edu.model.costs import PRESETS
from mooncake_edu.request import FinishReason
from mooncake_edu.simulation import simulate
from mooncake_edu.simulation.gate import admission_of
from mooncake_edu.simulation.result import Result, Stage
from mooncake_edu.simulation.summary import summary
from mooncake_edu.traces.trace import Trace
from tests.simulation.clusters import COUPLED, SEPARATE, config, linear, plain, workload

NAMES = list(ADMISSIONS)
JUDGES = NAMES[1:]


def cluster(
    name: str, instances: str = SEPARATE, *, decode: str = "hand-over", batch: int = 3, **admission: Any
) -> Config:
    """A small cluster with few places to decode, under a policy of admission."""
    made = config(instances, batch=batch)
    policies = made.policies.model_copy(update={"admission": name, "decode": decode})
    return made.model_copy(update={
        "policies": policies, "admission": made.admission.model_copy(update=admission),
    })  # fmt: skip


BUSY = workload(400, 4.0, 5)


class Half(Admission):
    """Refuses whose first token would take more than half of what it may."""

    def foresee(self, asked: Asked, forecast: Forecast, load: Load, now: float) -> Load:
        """The prefill counts twice."""
        return load._replace(prefill=2 * load.prefill, decode=0.0)


def test_whom_a_policy_of_ones_own_refuses_costs_nothing_and_is_told_with_the_reason() -> None:
    trace, log, made = workload(300, 12.0, 5), EventLog(500_000), config(slo="ttft = 4.0")
    result = simulate(made, trace, log, admission=Half(admission_of(made, PRESETS["A800x8"]).room))
    refused = log.select(Kind.REFUSED)
    assert 0 < len(refused) < 300
    assert set(refused.field(Kind.REFUSED, "reason").tolist()) == {Refusal.TTFT}
    assert len(log.select(Kind.FINISHED)) == 300 - len(refused)
    assert (result.table.ttft[result.stage < 0] <= 2.0 + 1e-9).all()
    assert result.worked[result.stage >= 0].sum() == 0


@pytest.mark.parametrize("name", JUDGES)
@pytest.mark.parametrize("decode", ["reserved", "hand-over"])
def test_every_request_ends_or_is_refused_at_one_stage_for_one_reason(name: str, decode: str) -> None:
    log = EventLog(1_000_000)
    result = simulate(cluster(name, decode=decode), BUSY, log)
    ended = result.table.reason == FINISH_CODES[FinishReason.LENGTH]
    assert (ended == (result.stage < 0)).all() and (ended == (result.refusal < 0)).all()
    assert sum(result.refused(stage) for stage in Stage) == result.refused() == (~ended).sum() > 0
    assert len(log.select(Kind.REFUSED)) == result.refused()
    assert not result.met[~ended].any()
    computed = np.unique(log.select(Kind.CHUNK).request).size
    assert computed == ended.sum() + result.refused(Stage.DECODE)


@pytest.mark.parametrize("decode", ["reserved", "hand-over"])
def test_wasted_is_the_prefill_time_of_those_whom_the_decode_instance_refused(decode: str) -> None:
    log = EventLog(1_000_000)
    made = cluster("decode-refuses", decode=decode).model_copy(update={
        "tiers": config(dram="0 B").tiers, "simulation": config(simulation="layerwise = false").simulation,
    })  # fmt: skip
    result = simulate(made, BUSY, log)
    late = result.stage == Stage.DECODE
    costs = PRESETS["A800x8"]
    stored = BUSY.input_length * costs.token_bytes / costs.host  # which a prefill waits for
    alone = np.array([costs.prefill(prompt, chunk=8192) for prompt in BUSY.input_length.tolist()]) + stored
    assert late.sum() > 20
    assert result.wasted == pytest.approx(float(alone[late].sum()), rel=1e-9)


def test_with_the_last_check_no_batch_has_more_members_than_places_and_nobody_waits_for_one() -> None:
    log = EventLog(1_000_000)
    simulate(cluster("decode-refuses"), BUSY, log)
    steps = log.select(Kind.STEP)
    assert steps.field(Kind.STEP, "decode").max() == 3
    queued = log.select(Kind.QUEUED)
    queued = queued.where(queued.instance >= 2)
    assert (queued.end - queued.start).max() <= (steps.end - steps.start).max()


@pytest.mark.parametrize("name", JUDGES)
def test_without_the_last_check_nobody_is_refused_after_the_prefill(name: str) -> None:
    result = simulate(cluster(name, last_check=False), BUSY)
    assert result.refused(Stage.DECODE) == 0 and result.wasted == 0


def test_who_would_make_a_batch_too_slow_is_refused_for_its_tbt(tmp_path: Path) -> None:
    """A step takes 10 ms for each member, and may take 25."""
    costs = linear(tmp_path, per_token=1e-6, per_sequence=0.01)
    made = cluster("decode-refuses", SEPARATE.replace("count = 2", "count = 1"), batch=100)
    made = made.model_copy(update={
        "simulation": made.simulation.model_copy(update={"costs": costs}),
        "slo": config(slo="tbt = 0.025").slo,
    })  # fmt: skip
    result = simulate(made, plain(np.zeros(6), np.full(6, 100), np.full(6, 50)))
    assert result.refused(Stage.DECODE) == 4
    assert set(result.refusal[result.stage >= 0].tolist()) == {Refusal.TBT}
    assert result.late("tbt") == 0


def test_whoever_is_accepted_by_accept_all_is_never_refused() -> None:
    result = simulate(cluster("all"), BUSY)
    assert result.refused() == 0 and (result.table.output == BUSY.output_length).all()


@pytest.mark.parametrize("name", JUDGES)
def test_a_second_look_refuses_before_the_prefill_what_would_be_wasted_after_it(name: str) -> None:
    once, twice = (simulate(cluster(name, second_look=look), BUSY) for look in (False, True))
    assert once.refused(Stage.TURN) == 0
    assert twice.worked[twice.stage == Stage.TURN].sum() == 0
    if name.startswith("early") and "lengths" not in name:  # a bet is cheaper with less to compute, so more are made
        assert twice.refused(Stage.DECODE) <= once.refused(Stage.DECODE)


class Recorded(Admission):
    """Keeps what a policy was asked and told."""

    def __init__(self, policy: Admission) -> None:
        super().__init__(policy.room)
        self.policy, self.calls, self.answers = policy, list[tuple[str, tuple[Any, ...]]](), list[str]()

    def decide(self, asked: Asked, forecast: Forecast, load: Load, now: float) -> Admit | Refuse:
        """As the policy."""
        decision = self.policy.decide(asked, forecast, load, now)
        self.calls.append(("decide", (asked, forecast, load, now)))
        self.answers.append(repr(decision))
        return decision

    def foresee(self, asked: Asked, forecast: Forecast, load: Load, now: float) -> Load:
        """Never asked."""
        raise AssertionError

    def placed(self, name: Any, asked: Asked, forecast: Forecast, now: float) -> None:
        """Passed on."""
        self.calls.append(("placed", (name, asked, forecast, now)))
        self.policy.placed(name, asked, forecast, now)

    def began(self, name: Any, now: float) -> None:
        """Passed on."""
        self.calls.append(("began", (name, now)))
        self.policy.began(name, now)

    def ended(self, name: Any, output: int, now: float) -> None:
        """Passed on."""
        self.calls.append(("ended", (name, output, now)))
        self.policy.ended(name, output, now)

    def dropped(self, name: Any, now: float) -> None:
        """Passed on."""
        self.calls.append(("dropped", (name, now)))
        self.policy.dropped(name, now)


def recorded(name: str, trace: Trace, **admission: Any) -> tuple[Recorded, Result]:
    """A run with its policy's calls."""
    made = cluster(name, **admission)
    policy = Recorded(admission_of(made, PRESETS["A800x8"]))
    return policy, simulate(made, trace, admission=policy)


@pytest.mark.parametrize("name", NAMES)
def test_the_decisions_of_a_run_replay_to_the_last_bit(name: str) -> None:
    policy, _ = recorded(name, BUSY, second_look=True)
    again, answers = admission_of(cluster(name), PRESETS["A800x8"]), []
    for method, arguments in policy.calls:
        answer = getattr(again, method)(*arguments)
        if method == "decide":
            answers.append(repr(answer))
    assert len(answers) >= 400 and answers == policy.answers


@pytest.mark.parametrize("name", NAMES)
def test_after_a_run_a_policy_remembers_nobody_and_was_told_of_each_request_once(name: str) -> None:
    policy, result = recorded(name, BUSY)
    assert (policy.policy.decoding, policy.policy.tokens, policy.policy.served) == (0, 0, {})
    told = [method for method, _ in policy.calls]
    assert told.count("placed") == 400 - result.refused(Stage.ARRIVAL)
    assert told.count("dropped") == result.refused(Stage.DECODE)
    assert told.count("ended") == 400 - result.refused()
    assert told.count("began") == ((result.stage < 0) & (BUSY.output_length > 1)).sum()


@pytest.mark.parametrize("name", NAMES)
def test_future_output_lengths_change_no_earlier_decision(name: str) -> None:
    cut = 250
    longer = BUSY.output_length.copy()
    longer[cut:] = longer[cut:] * 7 + 300
    answers = [recorded(name, trace)[0].answers[: cut + 1] for trace in (BUSY, replace(BUSY, output_length=longer))]
    assert answers[0] == answers[1]


@pytest.mark.parametrize("name", JUDGES)
def test_an_old_view_is_an_old_view_for_admission_too(name: str) -> None:
    made = cluster(name)
    old = made.model_copy(update={"simulation": made.simulation.model_copy(update={"view_age": 2.0})})
    result = simulate(old, BUSY)
    assert 0 < result.refused() < 400


@pytest.mark.parametrize("name", ["early", "decode-refuses"])
def test_of_two_classes_the_lower_is_shed_first_and_both_are_served(name: str) -> None:
    classes = [row % 2 for row in range(400)]
    result = simulate(cluster(name, keep=0.4), BUSY, priorities=classes)
    admitted = [float((result.stage[row::2] != Stage.ARRIVAL).mean()) for row in (0, 1)]
    assert admitted[1] > admitted[0] + 0.05 and admitted[0] > 0.05  # of a tenth that it has a claim to
    assert all((result.stage[row::2] < 0).any() for row in (0, 1))


def test_an_answer_of_one_token_needs_no_place_to_decode_and_is_goodput() -> None:
    trace = replace(BUSY, output_length=np.ones(400, np.int64))
    result = simulate(cluster("early", batch=1), trace)
    served = result.stage < 0
    assert result.refused(Stage.DECODE) == 0
    assert np.isnan(result.table.tbt[served]).all()
    assert (result.met == (served & (result.table.ttft <= 30.0))).all() and result.met.sum() > 300


@pytest.mark.parametrize("name", JUDGES)
def test_coupled_instances_are_asked_for_too(name: str) -> None:
    result = simulate(cluster(name, COUPLED.replace("4", "1")), BUSY)
    assert 0 < result.refused(Stage.ARRIVAL) < 400 and result.refused(Stage.DECODE) == 0


def test_a_summary_counts_refusals_and_what_they_wasted() -> None:
    result = simulate(cluster("decode-refuses"), BUSY)
    lines = dict(summary([result]))
    assert lines["requests refused"] == result.refused()
    reasons = {name: count for name, count in lines.items() if name.startswith("refused: ")}
    assert reasons and sum(reasons.values()) == result.refused()
    assert lines["refused after the prefill"] == result.refused(Stage.DECODE) > 0
    assert lines["prefill wasted (s)"] == result.wasted > 0
    assert "requests refused" not in {name for name, _ in summary([simulate(cluster("all"), BUSY)])}


@pytest.mark.parametrize("name", JUDGES)
def test_prompts_of_no_length_starve(name: str) -> None:
    """Of each fifth by length, at least a fifth as large a share is served as of the fifth that fares best."""
    result = simulate(cluster(name), BUSY)
    fifths = np.array_split(np.argsort(BUSY.input_length, kind="stable"), 5)
    served = [float((result.stage[rows] < 0).mean()) for rows in fifths]
    assert min(served) > max(served) / 5 > 0
