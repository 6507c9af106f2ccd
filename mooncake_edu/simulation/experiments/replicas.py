"""How hot prefixes spread over the nodes, by the paper's rule and beyond it; figure 11 of the second paper."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import NamedTuple

import numpy as np
import plotly.graph_objects as go
from pydantic import Field

from mooncake_edu.config import Bandwidth, Config, Section
from mooncake_edu.pictures.figures import finish
from mooncake_edu.pictures.palette import SERIES
from mooncake_edu.simulation.cluster import simulate
from mooncake_edu.simulation.experiments import Experiment, Outcome, Progress, Row
from mooncake_edu.simulation.experiments.sweeps import Variant
from mooncake_edu.simulation.result import Result
from mooncake_edu.traces.profiles import load_any, make
from mooncake_edu.traces.trace import Trace

SAMPLES = 120
"""Times at which replicas are counted."""


class Documents(Section):
    """A trace by its name or file, `speed` times as fast; or, with `requests`, that many made like it, by the seed."""

    trace: str = Field(min_length=1)
    speed: float = Field(default=1.0, gt=0, le=1000)
    requests: int | None = Field(default=None, ge=1, le=10**6)
    network: Bandwidth | None = None

    def read(self, seed: int) -> Trace:
        """The trace."""
        if self.requests is not None:
            return make(self.trace, seed, self.requests).faster(self.speed)
        return load_any(self.trace).faster(self.speed)


class Settings(Section):
    """Every load is served by every variant, with every seed; replicas are counted of the `top` most used blocks."""

    cluster: str = Field(default="cluster", min_length=1)
    title: str = Field(min_length=1)
    seeds: int = Field(default=1, ge=1, le=100)
    top: int = Field(default=10, ge=1, le=10_000)
    loads: tuple[Documents, ...] = Field(min_length=1, strict=False)
    variants: tuple[Variant, ...] = Field(min_length=1, strict=False)


class Spreading(NamedTuple):
    """A run, and how many prefill instances held each of the top blocks at each of the times [samples, top]."""

    result: Result
    times: list[float]
    counts: list[list[int]]


def watched(config: Config, trace: Trace, top: int) -> Spreading:
    """Serve a trace, and count the replicas of its most used blocks at equal steps of time."""
    ids, uses = np.unique(trace.ids, return_counts=True)
    chosen = ids[np.argsort(-uses, kind="stable")[:top]].tolist()
    times = np.linspace(float(trace.arrival[0]), float(trace.arrival[-1]), SAMPLES).tolist()
    holders: dict[int, set[int]] = {id_: set() for id_ in chosen}
    counts: list[list[int]] = []

    def watch(now: float, number: int, new: Sequence[int], gone: Sequence[int]) -> None:
        while len(counts) < len(times) and times[len(counts)] <= now:
            counts.append([len(each) for each in holders.values()])
        for id_ in new:
            if id_ in holders:
                holders[id_].add(number)
        for id_ in gone:
            if id_ in holders:
                holders[id_].discard(number)

    result = simulate(config, trace, watch=watch)
    watch(float("inf"), 0, (), ())
    return Spreading(result, times, counts)


MEASURES: dict[str, tuple[str, Callable[[Spreading], float]]] = {
    "sent by the hottest node": ("GB", lambda each: max(each.result.sent.values(), default=0.0) / 1e9),
    "sent by all nodes": ("GB", lambda each: sum(each.result.sent.values()) / 1e9),
    "mean TTFT": ("s", lambda each: each.result.table.mean("ttft")),
    "TTFT, 90th percentile": ("s", lambda each: each.result.table.percentile("ttft", 90)),
    "replicas of a top block, mean over time": ("nodes", lambda each: float(np.mean(each.counts))),
    "replicas of a top block at the end": ("nodes", lambda each: float(np.mean(each.counts[-1]))),
}  # fmt: skip


def run(settings: Settings, progress: Progress) -> Outcome:
    """Serve everything, and read off egress, TTFT and replicas."""
    base = Config.named(settings.cluster)
    rows, figures, done = [], [], 0
    for each in settings.loads:
        spread: dict[str, list[Spreading]] = {variant.name: [] for variant in settings.variants}
        for seed in range(settings.seeds):
            trace = each.read(seed)
            for variant in settings.variants:
                progress(f"{trace.name}: {variant.name}", done, len(settings.loads) * settings.seeds * len(spread))
                config = variant.model_copy(update={"network": each.network or variant.network}).config(base)
                config = config.model_copy(update={"simulation": config.simulation.model_copy(update={"seed": seed})})
                spread[variant.name].append(watched(config, trace, settings.top))
                done += 1
        where = f"{trace.name} x {each.speed:g}"
        if each.network is not None:
            where += f", {each.network * 8 / 1e9:g} Gbit/s"
        for name, runs in spread.items():
            for what, (unit, value) in MEASURES.items():
                values = [value(single) for single in runs]
                rows.append(Row(what=f"{where}, {name}: {what}", unit=unit, ours=float(np.mean(values)),
                                low=min(values), high=max(values)))  # fmt: skip
        figures.append(figure(f"{settings.title}: {where}", settings.top, spread))
    return Outcome(rows, figures, [
        f"Replicas are counted of the {settings.top} blocks that a trace uses most, on prefill instances.",
        "Without replication, what is fetched is used once and not kept, and neither is what is computed behind it. A "
        "node that computes a prefix anew keeps it in every variant, which replicates too.",
    ])  # fmt: skip


def figure(title: str, top: int, spread: dict[str, list[Spreading]]) -> go.Figure:
    """Replicas over time of one of the `top` most used blocks, a line a name, each the mean of its runs."""
    drawn, said = go.Figure(), []
    dashes = ("solid", "dash", "dot", "dashdot", "longdash")
    for number, (name, runs) in enumerate(spread.items()):
        first = runs[0]
        mean = np.mean([np.mean(each.counts, axis=1) for each in runs], axis=0)
        drawn.add_scatter(
            x=[time - first.times[0] for time in first.times], y=mean, name=name, mode="lines",
            line={"color": SERIES[number % len(SERIES)].colour, "dash": dashes[number % len(dashes)], "width": 2.5},
        )  # fmt: skip
        said.append(f"{name} {mean[-1]:.2g} at the end")
    drawn.update_yaxes(title="prefill instances that hold it", rangemode="tozero")
    drawn.update_xaxes(title="time since the first request (s)", rangemode="tozero")
    drawn.update_layout(height=420)
    return finish(drawn, title, f"Replicas of one of the {top} most used blocks: {'; '.join(said)}.")


REPLICAS = Experiment(Settings, run)
