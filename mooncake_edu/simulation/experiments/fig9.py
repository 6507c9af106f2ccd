"""Figure 9 of the first paper: under early rejection the loads of both pools swing against each other; prediction."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from pydantic import Field

from mooncake_edu.config import AdmissionName, AdmissionSection, Config, Policies, Section
from mooncake_edu.errors import ConfigError
from mooncake_edu.events import EventLog
from mooncake_edu.pictures.admission import swings
from mooncake_edu.simulation.cluster import simulate
from mooncake_edu.simulation.experiments import Experiment, Outcome, Progress, Row
from mooncake_edu.simulation.experiments.capacity import Data
from mooncake_edu.simulation.experiments.serving import Count, Seconds, divided
from mooncake_edu.simulation.gate import admission_of
from mooncake_edu.simulation.loads import Loads, lagged, loads, period
from mooncake_edu.simulation.parts import costs_of
from mooncake_edu.simulation.result import Result
from mooncake_edu.traces.trace import Trace

EVENTS = 5_000_000


class Case(Section):
    """Requests alike, `rate` a second at random times, for so many instances; `slots` are a decode instance's places.

    Before any decode has ended, it is taken to last `stay` seconds.
    """

    data: Data
    rate: float = Field(gt=0, le=1e6)
    prefill: Count
    decode: Count
    slots: int = Field(ge=1, le=4096)
    stay: Seconds = 10.0

    def config(self, base: Config, policy: str) -> Config:
        """The base with this cluster: no prefixes to reuse, decode instances chosen at hand-over, no last check."""
        changes = {"last_check": False, "stay": self.stay}
        policies = {"placement": "load-balancing", "decode": "hand-over", "admission": policy}
        return base.model_copy(update={
            "instances": divided(base, self.prefill, self.decode),
            "engine": base.engine.model_copy(update={"max_batch": self.slots}),
            "policies": Policies(**base.policies.model_dump() | policies),
            "admission": AdmissionSection(**base.admission.model_dump() | changes),
            "tiers": base.tiers.model_copy(update={"dram": 0}),
        })  # fmt: skip


class Settings(Section):
    """Every case is served under every policy, `requests` of them, with each of so many seeds.

    The share `settle` of a run is left out at its begin. Correlations are looked for up to `lag` prefill times.
    """

    cluster: str = Field(default="cluster", min_length=1)
    requests: int = Field(default=1000, ge=100, le=10**6)
    seeds: int = Field(default=5, ge=1, le=100)
    settle: float = Field(default=0.15, ge=0, le=0.9)
    lag: float = Field(default=4.0, ge=0, le=100)
    policies: tuple[AdmissionName, ...] = Field(default=("early", "early-predicted"), min_length=1, strict=False)
    cases: tuple[Case, ...] = Field(min_length=1, strict=False)


class Run(NamedTuple):
    """A run with its loads at equal steps of time, and the seconds of a prefill and of a decode alone."""

    result: Result
    seen: Loads
    prefill: float
    stay: float


def run_of(config: Config, trace: Trace, settle: float) -> Run:
    """Serve requests that are all alike, and sample the loads twenty times in the prefill of one."""
    costs, log = costs_of(config), EventLog(EVENTS)
    prompt, slo = int(trace.input_length[0]), config.slo
    prefill, places = costs.prefill(prompt), config.engine.max_batch
    stay = float(trace.output_length[0]) * costs.decode_step(places, places * prompt)
    result = simulate(config, trace, log)
    first, last = float(trace.arrival[0]), float(trace.arrival[-1])
    times = np.arange(first + settle * (last - first), last, prefill / 20)
    room = admission_of(config, costs).room
    return Run(result, loads(log, room, slo.ttft.value, slo.tbt.value, times), prefill, stay)


MEASURES = {
    "prefill load, standard deviation": "%", "decode load, mean": "%", "decode load, standard deviation": "%",
    "correlation of the loads, lagged": "",
    "lag of the decode load": "x prefill time", "period": "s", "period over prefill time": "x",
    "within both objectives": "% of requests",
}  # fmt: skip


def measures(run: Run, most: float) -> list[float]:
    """What is read off a run, in the order of MEASURES."""
    lag, correlation = lagged(run.seen.prefill, run.seen.decode, round(20 * most))
    swing = period(run.seen.decode) / 20
    loads = (run.seen.prefill.std(), run.seen.decode.mean(), run.seen.decode.std())
    return [*(100 * float(each) for each in loads), correlation, lag / 20,
            swing * run.prefill, swing, 100 * float(run.result.met.mean())]  # fmt: skip


def run(settings: Settings, progress: Progress) -> Outcome:
    """Serve everything, and compare how the loads swing."""
    base, rows, figures = Config.named(settings.cluster), list[Row](), []
    total, done = len(settings.cases) * len(settings.policies) * settings.seeds, 0
    for case in settings.cases:
        first: dict[str, Run] = {}
        spreads: dict[str, list[float]] = {}
        for policy in settings.policies:
            found = []
            for seed in range(settings.seeds):
                progress(f"{case.data.name}: {policy}", done, total)
                trace = case.data.trace(settings.requests, seed).faster(case.rate)
                each = run_of(case.config(base, policy), trace, settings.settle)
                if len(each.seen.times) < 20 * settings.lag + 2:
                    raise ConfigError(
                        f"requests {settings.requests} of {case.data.name} come within {len(each.seen.times) / 20:g} "
                        f"prefill times, too few for a lag of {settings.lag:g}: give more, or a lower rate"
                    )
                first.setdefault(policy, each)
                found.append(measures(each, settings.lag))
                done += 1
            rows += _rows(f"{case.data.name}, {policy}", found)
            spreads[policy] = [values[2] for values in found]
        rows += _reductions(case.data.name, spreads)
        figures.append(swings({policy: each.seen for policy, each in first.items()},
                              {policy: each.result for policy, each in first.items()}))  # fmt: skip
    return Outcome(rows, figures, [
        "The last check at the decode instance is off, so that the loads show what admission does. The prefill load is "
        "the work of an instance's queue over the TTFT objective; the decode load counts who waits there, too.",
        "Prediction begins with about the right stay of a decode, and learns it from those that end. With three times "
        "that it flattens less, and with a third of it hardly: those who are taken to be gone are not.",
        "The paper's figure shows loads between about 3 % and 95 % and a period of one to three minutes, read off.",
        "The paper finds it worse with fewer prefill instances. Queues are longer then, and so is the period; but here "
        "they are so few that they bring less to the decode instances at a time, and these swing less.",
    ])  # fmt: skip


def _rows(what: str, found: list[list[float]]) -> list[Row]:
    rows = []
    for (name, unit), values in zip(MEASURES.items(), zip(*found, strict=True), strict=True):
        known = [value for value in values if not np.isnan(value)]
        if known:
            rows.append(Row(what=f"{what}: {name}", unit=unit or "-", ours=float(np.mean(known)), low=min(known),
                            high=max(known)))  # fmt: skip
    return rows


def _reductions(case: str, spreads: dict[str, list[float]]) -> list[Row]:
    """How much less the decode load swings than under the first policy."""
    base, *others = spreads
    rows = []
    for other in others:
        ratios = [one / two for one, two in zip(spreads[other], spreads[base], strict=True) if two]
        if not ratios:  # nothing swings where nobody decodes
            continue
        rows.append(Row(what=f"{case}: standard deviation of the decode load, {other} over {base}", unit="x",
                        ours=float(np.mean(ratios)), low=min(ratios), high=max(ratios)))  # fmt: skip
    return rows


FIG9 = Experiment(Settings, run)
