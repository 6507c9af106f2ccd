"""Who is served."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from mooncake_edu.admission import ADMISSIONS, Admission, Admit, Load, Refuse
from mooncake_edu.conductor import Placement
from mooncake_edu.events import EventLog, Kind, Refusal
from mooncake_edu.simulation import simulate
from tests.simulation.clusters import config, workload

times = st.floats(0, 1e6)


@given(times, times, st.builds(Load, times, times))
def test_accepting_all_admits_whatever_the_load(ttft: float, tbt: float, load: Load) -> None:
    placement = Placement(0, 1, 0, ttft, ttft, tbt)
    assert isinstance(ADMISSIONS["all"]().decide(placement, load), Admit)


class Half(Admission):
    """Refuses what would take longer than half of the objective."""

    def decide(self, placement: Placement, load: Load) -> Admit | Refuse:
        """By the prefill pool's load."""
        return Admit() if load.prefill <= 0.5 else Refuse(Refusal.TTFT, 1.0)


def test_whom_a_policy_refuses_costs_nothing_and_is_told_with_the_reason() -> None:
    trace, log = workload(300, 12.0, 5), EventLog(500_000)
    ADMISSIONS["half"] = Half
    try:
        chosen = config(slo="ttft = 4.0")
        policies = chosen.policies.model_copy(update={"admission": "half"})
        result = simulate(chosen.model_copy(update={"policies": policies}), trace, log)
    finally:
        del ADMISSIONS["half"]
    refused = log.select(Kind.REFUSED)
    assert 0 < len(refused) < 300
    assert set(refused.field(Kind.REFUSED, "reason").tolist()) == {Refusal.TTFT}
    assert len(log.select(Kind.FINISHED)) == 300 - len(refused)
    assert result.met.sum() <= 300 - len(refused)
