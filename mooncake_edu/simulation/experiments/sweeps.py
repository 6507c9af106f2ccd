"""Experiments of the second paper on 16 nodes, a setting varied: policies, caches, network, division of nodes."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import plotly.graph_objects as go
from plotly.subplots import make_subplots
from pydantic import Field

from mooncake_edu.config import Bandwidth, Config, Policies, Section, Size
from mooncake_edu.pictures.figures import bar_marker, finish
from mooncake_edu.pictures.palette import SERIES
from mooncake_edu.simulation.cluster import simulate
from mooncake_edu.simulation.experiments import Experiment, Outcome, Progress, Row
from mooncake_edu.simulation.experiments.serving import Count, Load, divided
from mooncake_edu.simulation.result import Result
from mooncake_edu.traces.profiles import load_any


class Variant(Section):
    """A cluster; what is not given is as in the experiment's `cluster`. `network` is a node's rate."""

    name: str = Field(min_length=1)
    prefill: Count | None = None
    decode: Count | None = None
    placement: str = "kvcache-centric"
    threshold: float | None = Field(default=None, ge=1, le=1000)
    decide: str = "reserved"
    replication: str = "fetched"
    network: Bandwidth | None = None
    dram: Size | None = None
    age: float = Field(default=0.0, ge=0, le=3600)

    def config(self, base: Config) -> Config:
        """The base with these changes; raises ConfigError for one that cannot work."""
        policies: dict[str, Any] = base.policies.model_dump() | {
            "placement": self.placement, "replication": self.replication, "decode": self.decide,
        }  # fmt: skip
        if self.threshold is not None:
            policies["kvcache_balancing_threshold"] = self.threshold
        changes: dict[str, Any] = {
            "instances": divided(base, self.prefill, self.decode),
            "policies": Policies(**policies),
            "simulation": base.simulation.model_copy(update={"view_age": self.age}),
        }  # fmt: skip
        if self.dram is not None:
            changes["tiers"] = base.tiers.model_copy(update={"dram": self.dram})
        if self.network is not None and base.hardware is not None:
            changes["hardware"] = base.hardware.model_copy(update={"network": self.network})
        return base.model_copy(update=changes)


class Measure(NamedTuple):
    """Something that is read off a run."""

    label: str
    unit: str
    read: Callable[[Result], float]


def _prefill_seconds(result: Result) -> float:
    return sum(result.busy["prefill"].values()) * result.duration / max(len(result.table), 1)


MEASURES = {
    "ttft": Measure("mean TTFT", "s", lambda result: result.table.mean("ttft")),
    "ttft90": Measure("TTFT, 90th percentile", "s", lambda result: result.table.percentile("ttft", 90)),
    "tbt90": Measure("TBT, 90th percentile", "ms", lambda result: 1e3 * result.table.percentile("tbt", 90)),
    "hits": Measure("prompt tokens reused", "of tokens",
                    lambda result: sum(result.hits.values()) / max(int(result.table.prompt.sum()), 1)),
    "prefill": Measure("prefill time a request", "s of a node", _prefill_seconds),
    "within": Measure("within both objectives", "of requests", lambda result: float(result.met.mean())),
    "sent": Measure("fetched from other nodes", "GB", lambda result: sum(result.sent.values()) / 1e9),
}  # fmt: skip
"""What can be read off a run, by the name that a configuration uses."""


class Settings(Section):
    """Every load is served by every variant of the `cluster`, and measured."""

    cluster: str = Field(default="cluster", min_length=1)
    title: str = Field(min_length=1)
    loads: tuple[Load, ...] = Field(min_length=1, strict=False)
    measures: tuple[str, ...] = Field(min_length=1, strict=False)
    variants: tuple[Variant, ...] = Field(min_length=1, strict=False)

    def check(self) -> None:
        """Measures are known."""
        for each in self.measures:
            if each not in MEASURES:
                raise ValueError(f"measures {each!r} is not known: use {', '.join(MEASURES)}")


Values = dict[str, float]


def run(settings: Settings, progress: Progress) -> Outcome:
    """Serve every load by every variant."""
    base = Config.named(settings.cluster)
    found: dict[str, dict[str, Values]] = {}
    for number, each in enumerate(settings.loads):
        trace = load_any(each.trace)
        where = f"{trace.name} x {each.speed:g}"
        for place, variant in enumerate(settings.variants):
            done = number * len(settings.variants) + place, len(settings.loads) * len(settings.variants)
            progress(f"{where}: {variant.name}", *done)
            result = simulate(variant.config(base), trace.faster(each.speed))
            values = {name: MEASURES[name].read(result) for name in settings.measures}
            found.setdefault(where, {})[variant.name] = values
    rows = [
        Row(what=f"{where}, {name}: {MEASURES[measure].label}", unit=MEASURES[measure].unit, ours=value)
        for where, variants in found.items() for name, values in variants.items() for measure, value in values.items()
    ]  # fmt: skip
    return Outcome(rows, [_figure(settings, found)], [
        "The paper's figures for this experiment are not at hand: what stands here comes from the cost model alone.",
        "Each cluster begins with empty caches, so that the first requests of a trace find nothing.",
    ])  # fmt: skip


def _figure(settings: Settings, found: dict[str, dict[str, Values]]) -> go.Figure:
    count = len(settings.measures)
    titles = [f"{MEASURES[name].label} ({MEASURES[name].unit})" for name in settings.measures]
    figure = make_subplots(rows=count, cols=1, shared_xaxes=True, subplot_titles=titles, vertical_spacing=0.12 / count)
    for row, measure in enumerate(settings.measures, 1):
        for number, (where, variants) in enumerate(found.items()):
            figure.add_bar(
                x=list(variants), y=[values[measure] for values in variants.values()], name=where,
                marker=bar_marker(SERIES[number % len(SERIES)]), legendgroup=where, showlegend=row == 1, row=row, col=1,
            )  # fmt: skip
    figure.update_layout(barmode="group", height=140 + 220 * count)
    figure.update_xaxes(type="category")
    figure.update_yaxes(rangemode="tozero")
    first = settings.measures[0]
    said = "; ".join(f"{where}, {name} {values[first]:.3g}" for where, variants in found.items()
                     for name, values in variants.items())  # fmt: skip
    return finish(figure, settings.title, f"{titles[0]}: {said}.")


SWEEP = Experiment(Settings, run)
