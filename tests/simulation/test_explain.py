"""Decisions of a run can be replayed to the last bit, explained, compared with those of others, and see no future."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from mooncake_edu.conductor import POLICIES
from mooncake_edu.model.costs import PRESETS
from mooncake_edu.simulation import simulate
from mooncake_edu.simulation.explain import Journal, ReplayError, Shadows, explain, regrets, replay
from mooncake_edu.simulation.parts import conductor_of
from mooncake_edu.traces.trace import Trace
from tests.simulation.clusters import SEPARATE, config, real, workload

COSTS = PRESETS["A800x8"]
FOUR = SEPARATE.replace("count = 2", "count = 4")
NOISY = "view_age = 1\nestimate_noise = 0.2\nseed = 5"
POLICY_NAMES = list(POLICIES)


def recorded(placement: str, trace: Trace, simulation: str = NOISY, **policies: str) -> tuple[Journal, object]:
    """A run's journal and configuration."""
    made = config(FOUR, placement=placement, simulation=simulation)
    made = made.model_copy(update={"policies": made.policies.model_copy(update=policies)})
    journal = Journal()
    simulate(made, trace, journal=journal)
    return journal, made


@pytest.mark.parametrize("name", POLICY_NAMES)
@pytest.mark.parametrize("decode", ["reserved", "hand-over"])
def test_the_decisions_of_a_run_replay_to_the_last_bit(name: str, decode: str) -> None:
    journal, made = recorded(name, real("conversation_trace", 300), decode=decode, replication="ahead")
    assert len(journal.placed) == 300
    assert replay(journal, conductor_of(made)) == len(journal.calls) >= 900  # type: ignore[arg-type]


def test_a_conductor_that_is_handed_in_decides_in_place_of_the_configuration_s() -> None:
    trace, made = workload(60, 6.0, 1), config(FOUR, placement="random")
    other = made.model_copy(update={"policies": made.policies.model_copy(update={"placement": "cache-aware"})})
    handed = simulate(made, trace, conductor=conductor_of(other))
    assert list(handed.prefill) == list(simulate(other, trace).prefill) != list(simulate(made, trace).prefill)


def test_another_seed_does_not_replay() -> None:
    journal, made = recorded("random", workload(100, 6.0, 1))
    other = made.model_copy(update={"simulation": made.simulation.model_copy(update={"seed": 6})})  # type: ignore[attr-defined]
    with pytest.raises(ReplayError, match="instead of .* give the policy, seed and costs"):
        replay(journal, conductor_of(other))


@pytest.mark.parametrize("name", POLICY_NAMES)
@pytest.mark.parametrize("decode", ["reserved", "hand-over"])
def test_future_output_lengths_change_no_earlier_decision(name: str, decode: str) -> None:
    """Only those differ that are made after the first changed request has begun to decode."""
    trace, cut = workload(200, 6.0, 3, tick=3.0), 120
    longer = trace.output_length.copy()
    longer[cut:] = longer[cut:] * 7 + 300
    changed = replace(trace, output_length=longer)
    first, second = (recorded(name, each, decode=decode)[0] for each in (trace, changed))
    before = [[repr(call.answer) for call in journal.placed[: cut + 1]] for journal in (first, second)]
    assert before[0] == before[1]
    views = [[repr(view) for view in journal.shown[: cut + 1]] for journal in (first, second)]
    assert views[0] == views[1]


def test_a_recorded_run_is_the_run() -> None:
    trace = workload(150, 6.0, 2, tick=3.0)
    made = config(FOUR, placement="kvcache-centric", simulation=NOISY)
    plain, kept = simulate(made, trace), simulate(made, trace, journal=Journal())
    np.testing.assert_array_equal(plain.table.ttft, kept.table.ttft)


def test_an_explanation_shows_every_instance_and_the_one_that_was_best() -> None:
    trace = workload(150, 6.0, 2, tick=3.0)
    journal, _ = recorded("kvcache-centric", trace, simulation="")
    for number in range(0, 150, 10):
        told = explain(journal, number, COSTS)
        assert [each.instance for each in told.candidates] == [0, 1, 2, 3]
        chosen = told.candidates[told.placement.prefill]
        assert chosen.ttft == pytest.approx(min(each.ttft for each in told.candidates), rel=1e-12)
        assert chosen.ttft == pytest.approx(told.placement.ttft, rel=1e-12)
        assert (chosen.fetched, chosen.source) == (told.placement.fetched, told.placement.source)
        assert all(each.fetched == 0 for each in told.local)


def test_regret_is_never_negative_and_none_is_had_by_who_takes_the_best_of_both() -> None:
    journal, _ = recorded("cache-aware", workload(150, 6.0, 2, tick=3.0), simulation="")
    for number in range(150):
        told = explain(journal, number, COSTS)
        assert set(told.choices) == set(POLICIES)
        assert all(each.regret >= 0 for each in told.choices.values())
        best = min(each.ttft for each in [*told.candidates, *told.local])
        assert min(told.choices["cache-aware"].ttft, told.choices["kvcache-centric"].ttft) == pytest.approx(best)


def test_over_a_run_random_regrets_more_than_load_balancing_and_that_more_than_kvcache_centric() -> None:
    journal, _ = recorded("kvcache-centric", workload(400, 6.0, 2, tick=3.0), simulation="")
    regret = regrets(journal, Shadows(COSTS))
    assert regret["random"] > regret["load-balancing"] > regret["kvcache-centric"]


def test_a_request_that_was_not_placed_cannot_be_explained() -> None:
    journal, _ = recorded("random", workload(10, 6.0, 2))
    with pytest.raises(ReplayError, match="request 10 was not placed: use a number from 0 to 9"):
        explain(journal, 10, COSTS)
