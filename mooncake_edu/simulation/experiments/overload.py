"""More requests than can be served: policies of admission against each other; table 3 of the paper, and beyond."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from functools import partial
from itertools import pairwise
from typing import Literal, NamedTuple

import numpy as np
from pydantic import Field

from mooncake_edu.config import AdmissionName, AdmissionSection, Config, Memory, Policies, Section
from mooncake_edu.errors import ConfigError
from mooncake_edu.pictures.admission import goodput
from mooncake_edu.quantities import Slo
from mooncake_edu.simulation.cluster import simulate
from mooncake_edu.simulation.experiments import Experiment, Outcome, Progress, Row
from mooncake_edu.simulation.experiments.serving import Count, Seconds, divided
from mooncake_edu.simulation.result import Result, Stage
from mooncake_edu.traces.profiles import load_any
from mooncake_edu.traces.trace import Trace

PAPER = {"decode-refuses": 4183, "early": 3771, "early-predicted": 3589}
"""Requests refused by 8 + 8 instances at twice the speed; arXiv 2407.00079, table 3."""

PAPER_REQUESTS = 23_000
"""Requests of that trace, as the paper rounds them."""

WHY = (
    "A place to decode is lost only while nobody takes it, and a prefill costs nothing while its instance would rest. "
    "So where places to decode are what is scarce, the baseline serves most: it always has somebody at hand for one "
    "that gets free. Refusing early saves prefills, and with them TTFT. It serves more where places are reserved on "
    "arrival, which those who are refused late keep from others; and where pages or the TBT limit bind, since it turns "
    "long prompts away first and keeps batches smaller."
)
"""What the figures come to."""

LONG, SHORT = 16_384, 2_048
"""Prompts of at least, and of at most so many tokens are kept in mixes of one kind."""


class Variant(Section):
    """A policy of admission and how it is used."""

    name: str = Field(min_length=1)
    policy: AdmissionName
    factor: float = Field(default=1.0, ge=0.01, le=100)
    second_look: bool = False

    def config(self, base: Config) -> Config:
        """The base under this policy."""
        changes = {"factor": self.factor, "second_look": self.second_look}
        return base.model_copy(update={
            "policies": Policies(**base.policies.model_dump() | {"admission": self.policy}),
            "admission": AdmissionSection(**base.admission.model_dump() | changes),
        })  # fmt: skip


class Case(Section):
    """A load and a cluster: a trace by its name or file, `speed` times as fast, on so many instances.

    `slots` are the places of a decode instance and `memory` its pages; `tbt` is the objective in seconds. Of the
    trace, all requests come, or the `long` or `short` ones, or those of each minute within its first ten seconds
    (`bursts`). Where a `decode` instance is `reserved`, it is chosen when a request comes, else at hand-over.
    """

    name: str = Field(min_length=1)
    trace: str = Field(min_length=1)
    speed: float = Field(default=1.0, gt=0, le=1000)
    mix: Literal["all", "long", "short", "bursts"] = "all"
    prefill: Count = 8
    decode: Count = 8
    slots: int = Field(default=128, ge=1, le=4096)
    memory: Memory | None = None
    tbt: Seconds = 0.1
    stay: Seconds = 10.0
    reserved: bool = False

    def config(self, base: Config) -> Config:
        """The base with this cluster."""
        sizes = {"max_batch": self.slots} | ({} if self.memory is None else {"memory": self.memory})
        policies = {"decode": "reserved" if self.reserved else "hand-over"}
        return base.model_copy(update={
            "instances": divided(base, self.prefill, self.decode),
            "engine": base.engine.model_copy(update=sizes),
            "slo": base.slo.model_copy(update={"tbt": Slo(self.tbt)}),
            "policies": Policies(**base.policies.model_dump() | policies),
            "admission": base.admission.model_copy(update={"stay": self.stay}),
        })  # fmt: skip

    def read(self, slices: int, most: int) -> list[Trace]:
        """The slices, at most so many requests of each, which are served by an empty cluster.

        Raises ConfigError where there are fewer requests than slices.
        """
        whole = mixed(load_any(self.trace), self.mix)
        if len(whole) < slices:
            raise ConfigError(
                f"slices {slices} are more than the {len(whole)} requests of case {self.name!r}: use fewer"
            )
        borders = np.linspace(0, len(whole), slices + 1).astype(int).tolist()
        return [whole.slice(start, min(stop, start + most)).faster(self.speed) for start, stop in pairwise(borders)]


def mixed(trace: Trace, mix: str) -> Trace:
    """The requests of a kind, at the times at which they came; or all, pressed together in the begin of each minute."""
    if mix == "bursts":
        minute = np.floor(trace.arrival / 60) * 60
        return replace(trace, arrival=minute + (trace.arrival - minute) / 6)
    if mix == "all":
        return trace
    rows = [row for row in trace.rows() if (row.input_length >= LONG if mix == "long" else row.input_length <= SHORT)]
    return Trace.of(rows, trace.block_size, trace.name)


class Settings(Section):
    """Every case is served under every variant, in `slices` parts, with so many `seeds`; `placement` is their policy.

    Of each part at most `requests` are served. `noise` is the sigma of the estimates of prefills, by which seeds
    differ.
    """

    cluster: str = Field(default="cluster", min_length=1)
    placement: str = "kvcache-centric"
    title: str = Field(min_length=1)
    slices: int = Field(default=5, ge=1, le=1000)
    seeds: int = Field(default=3, ge=1, le=1000)
    requests: int = Field(default=1200, ge=10, le=10**7)
    noise: float = Field(default=0.1, ge=0, le=3)
    cases: tuple[Case, ...] = Field(min_length=1, strict=False)
    variants: tuple[Variant, ...] = Field(min_length=1, strict=False)

    def check(self) -> None:
        """Results are told apart by the names of cases and variants."""
        for key, named in (("cases", self.cases), ("variants", self.variants)):
            names = [each.name for each in named]
            for number, name in enumerate(names):
                if name in names[:number]:
                    raise ValueError(f"{key}[{number}].name {name!r} is taken: give another")

    def by_policy(self, *policies: str) -> dict[str, str]:
        """The first variant of each policy; raises ConfigError if one of these is missing."""
        names: dict[str, str] = {variant.policy: variant.name for variant in reversed(self.variants)}
        for policy in policies:
            if policy not in names:
                raise ConfigError(f"variants: none has policy {policy!r}, with which others are compared: add one")
        return names

    def config(self, case: Case, variant: Variant, seed: int) -> Config:
        """The cluster of one run."""
        base = Config.named(self.cluster)
        base = base.model_copy(update={
            "policies": Policies(**base.policies.model_dump() | {"placement": self.placement}),
            "simulation": base.simulation.model_copy(update={"seed": seed, "estimate_noise": self.noise}),
        })  # fmt: skip
        return variant.config(case.config(base))


class Measure(NamedTuple):
    """Something that is read off a run."""

    label: str
    unit: str
    read: Callable[[Result], float]


def _share(stage: Stage, result: Result) -> float:
    return result.refused(stage) / max(len(result.table), 1)


def _delay(result: Result) -> float:
    """Mean wait before the prefill over mean time of decoding; not a number where nobody decoded."""
    served = ~np.isnan(result.table.ttft)
    decoding = (result.table.e2e - result.table.ttft)[served].sum()
    return float((result.started - result.table.arrival)[served].sum() / decoding) if decoding else float("nan")


MEASURES = {
    "refused": Measure("refused", "of requests", lambda result: result.refused() / max(len(result.table), 1)),
    "arrival": Measure("refused on arrival", "of requests", partial(_share, Stage.ARRIVAL)),
    "turn": Measure("refused before the prefill", "of requests", partial(_share, Stage.TURN)),
    "decode": Measure("refused after the prefill", "of requests", partial(_share, Stage.DECODE)),
    "wasted": Measure("prefill wasted", "s a request", lambda result: result.wasted / max(len(result.table), 1)),
    "ttft": Measure("TTFT missed", "of requests", lambda result: result.late("ttft") / max(len(result.table), 1)),
    "tbt": Measure("TBT missed", "of requests", lambda result: result.late("tbt") / max(len(result.table), 1)),
    "met": Measure("within both objectives", "of requests", lambda result: float(result.met.mean())),
    "goodput": Measure("goodput", "requests/s", lambda result: result.goodput),
    "delay": Measure("wait before the prefill over decoding", "x", _delay),
}  # fmt: skip
"""What is read off each run."""

Values = dict[str, list[float]]
"""By measure, one value for each slice and seed."""

Found = dict[str, dict[str, Values]]
"""By case and variant."""


def serve(settings: Settings, progress: Progress) -> Found:
    """Serve everything."""
    found: Found = {}
    runs = list(_runs(settings))
    for done, (case, trace, seed) in enumerate(runs):
        progress(case.name, done, len(runs))
        for variant in settings.variants:
            result = simulate(settings.config(case, variant, seed), trace)
            values = found.setdefault(case.name, {}).setdefault(variant.name, {name: [] for name in MEASURES})
            for name, measure in MEASURES.items():
                values[name].append(measure.read(result))
    return found


def _runs(settings: Settings) -> Iterator[tuple[Case, Trace, int]]:
    for case in settings.cases:
        for trace in case.read(settings.slices, settings.requests):
            for seed in range(settings.seeds):
                yield case, trace, seed


def table(found: Found, papers: Mapping[str, float]) -> list[Row]:
    """A row for each case, variant and measure that is known; `papers` are shares of requests refused, by variant."""
    known = {
        (case, variant, name): [value for value in values[name] if not np.isnan(value)]
        for case, variants in found.items()
        for variant, values in variants.items()
        for name in MEASURES
    }
    return [
        Row(what=f"{case}, {variant}: {MEASURES[name].label}", unit=MEASURES[name].unit, ours=float(np.mean(values)),
            low=min(values), high=max(values), paper=papers.get(variant) if name == "refused" else None)
        for (case, variant, name), values in known.items() if values
    ]  # fmt: skip


def less(variants: Mapping[str, Values], fewer: str, more: str, measure: str) -> float:
    """In which share of slices and seeds one variant has less of something than another."""
    pairs = zip(variants[fewer][measure], variants[more][measure], strict=True)
    return float(np.mean([one < other for one, other in pairs]))


def table3(settings: Settings, progress: Progress) -> Outcome:
    """Serve everything under the paper's three policies, at least, and compare where they refuse."""
    names = settings.by_policy("decode-refuses", "early")
    found = serve(settings, progress)
    papers = {names[policy]: refused / PAPER_REQUESTS for policy, refused in PAPER.items() if policy in names}
    rows = table(found, papers)
    baseline, early, *others = (names[policy] for policy in (*PAPER, "survival") if policy in names)
    for case, variants in found.items():
        for fewer, more in ((early, baseline), *((other, early) for other in others)):
            for measure in ("decode", "wasted"):
                rows.append(Row(what=f"{case}: less {MEASURES[measure].label} under {fewer} than {more}",
                                unit="of cases", ours=less(variants, fewer, more, measure)))  # fmt: skip
    return Outcome(rows, [goodput(shares(found), settings.title)], [
        f"The paper's refusals are of about {PAPER_REQUESTS:,} requests, shown as shares. It does not say how many "
        "requests a decode instance takes or its TBT limit: with 100 ms, decoding never binds on this cluster, so the "
        "places of a decode instance are chosen, and named, such that the baseline refuses between 10 and 25 %.",
        WHY,
        f"Slices are the first {settings.requests:,} requests of equal parts of the trace, each on an empty cluster; "
        f"seeds differ in estimates of prefills that are off by a log-normal factor of sigma {settings.noise:g}.",
    ])  # fmt: skip


def shares(found: Found) -> dict[str, dict[str, list[float]]]:
    """The share of requests within both objectives, by case and variant."""
    return {case: {name: values["met"] for name, values in variants.items()} for case, variants in found.items()}


def compared(settings: Settings, progress: Progress) -> Outcome:
    """Serve everything, and say which variant is best where, and how far each falls below early rejection."""
    early = settings.by_policy("early")["early"]
    found = serve(settings, progress)
    rows = table(found, {})
    wins = dict.fromkeys((variant.name for variant in settings.variants), 0)
    worst = dict.fromkeys(wins, float("inf"))
    for variants in found.values():
        means = {name: float(np.mean(values["met"])) for name, values in variants.items()}
        for name, mean in means.items():
            wins[name] += mean >= max(means.values()) - 1e-12
            worst[name] = min(worst[name], mean / max(means[early], 1e-9))
    for name, won in wins.items():
        rows.append(Row(what=f"{name}: best, or as good", unit="of cases", ours=won / len(found)))
        rows.append(Row(what=f"{name}: within both objectives over {early}, at least", unit="x", ours=worst[name]))
    return Outcome(rows, [goodput(shares(found), settings.title)], [
        f"Long prompts have at least {LONG:,} tokens, short ones at most {SHORT:,}; bursts are the requests of each "
        f"minute in a sixth of it. Slices are the first {settings.requests:,} requests of equal parts of a trace.",
        WHY,
    ])  # fmt: skip


TABLE3 = Experiment(Settings, table3)
OVERLOAD = Experiment(Settings, compared)
