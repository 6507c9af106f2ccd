"""Figures 11 and 12 of the first paper: how many requests a second a cluster serves within its objectives."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Annotated, NamedTuple

import numpy as np
import plotly.graph_objects as go
from pydantic import Field

from mooncake_edu.config import Config, Section
from mooncake_edu.events import Reals
from mooncake_edu.outcome import RequestTable
from mooncake_edu.pictures.figures import bar_marker, finish
from mooncake_edu.pictures.palette import SERIES
from mooncake_edu.simulation.cluster import simulate, unloaded
from mooncake_edu.simulation.experiments import Experiment, Outcome, Progress, Row
from mooncake_edu.simulation.experiments.serving import System
from mooncake_edu.traces.generate import Lengths, Shared, Workload, generate
from mooncake_edu.traces.profiles import NOTHING
from mooncake_edu.traces.trace import Trace

CLOSE = 1.02
"""The rate is found to within this factor."""

RANGE = 2.0**-10, 2.0**10
"""Requests a second between which it is looked for."""

READINGS: dict[str, Callable[[RequestTable], Reals]] = {
    "longest tenth": lambda table: table.tbt,
    "mean": lambda table: (table.e2e - table.ttft) / np.where(table.output > 1, table.output - 1, np.nan),
}
"""What the TBT of a request can be: the mean of its longest tenth of intervals (FAST 5.1), or that of all."""

Tokens = Annotated[int, Field(ge=1, le=2**20)]


class Limited(System):
    """A cluster whose instances batch at most `batch` requests; without it, as many as the cluster's file says."""

    batch: int | None = Field(default=None, ge=1, le=4096)

    def config(self, base: Config, placement: str) -> Config:
        """The base with these instances."""
        made = super().config(base, placement)
        engine = made.engine if self.batch is None else made.engine.model_copy(update={"max_batch": self.batch})
        return made.model_copy(update={"engine": engine})


class Data(Section):
    """Requests of `prompt` tokens, of which the share `reuse` is one of `texts` documents, and of `output` tokens.

    The lengths are means of log-normal numbers whose logarithms have the sigma `spread`.
    """

    name: str = Field(min_length=1)
    prompt: Tokens
    output: Tokens
    reuse: float = Field(default=0.0, ge=0, le=1)
    texts: int = Field(default=1, ge=1, le=100_000)
    spread: float = Field(default=0.0, ge=0, le=2)

    def trace(self, requests: int, seed: int) -> Trace:
        """So many requests, one a second on average, at random times."""
        document, rest = self.prompt * self.reuse, self.prompt * (1 - self.reuse)
        documents = Shared(self.texts, Lengths(document, self.spread, 2**20), zipf=0.0) if self.reuse else NOTHING
        lengths = Lengths(rest, self.spread, 2**20), Lengths(1, 0), Lengths(self.output, self.spread, 2**20)
        return generate(Workload(1.0, 1, 1.0, NOTHING, documents, *lengths), requests, seed, self.name)


class Settings(Section):
    """Every data set is served by every system, at rates up to the largest that keeps the objectives.

    `ttft` and `tbt` are multiples of what a lone request takes, both at the 90th percentile.
    """

    cluster: str = Field(default="cluster", min_length=1)
    placement: str = "load-balancing"
    ttft: float = Field(default=10.0, gt=0, le=1e6)
    tbt: float = Field(default=5.0, gt=0, le=1e6)
    requests: int = Field(default=1000, ge=10, le=10**6)
    seed: int = Field(default=0, ge=0, le=2**63 - 1)
    data: tuple[Data, ...] = Field(min_length=1, strict=False)
    systems: tuple[Limited, ...] = Field(min_length=1, strict=False)


class Found(NamedTuple):
    """The largest rate of a system on a data set, in requests/s, and the 90th percentiles there, in seconds."""

    data: Data
    system: Limited
    reading: str
    rate: float
    ttft: float
    tbt: float


def run(paper: dict[str, float], remarks: list[str], settings: Settings, progress: Progress) -> Outcome:
    """Find all rates, and how much more than the best baseline the best separate system serves."""
    base = Config.named(settings.cluster)
    found: list[Found] = []
    for data in settings.data:
        trace = data.trace(settings.requests, settings.seed)
        alone = [float(np.percentile(column, 90)) for column in unloaded(base, trace)]
        for system in settings.systems:
            progress(f"{data.name}: {system.name}", len(found) // 2, len(settings.data) * len(settings.systems))
            config = system.config(base, settings.placement)
            limits = settings.ttft * alone[0], settings.tbt * alone[1]
            for name, read in READINGS.items():
                found.append(Found(data, system, name, *largest(config, trace, read, *limits)))
    rows = [row for each in found for row in _rows(each)]
    for data in settings.data:
        for reading in READINGS:
            rows += _gains([each for each in found if (each.data, each.reading) == (data, reading)], paper)
    return Outcome(rows, [_figure(settings, found)], remarks)


def largest(
    config: Config, trace: Trace, read: Callable[[RequestTable], Reals], ttft: float, tbt: float
) -> tuple[float, float, float]:
    """The largest rate at which the 90th percentiles are within these seconds, and they; a rate of 0 if none is."""

    def at(rate: float) -> tuple[float, float]:
        table = simulate(config, trace.faster(rate)).table
        return table.percentile("ttft", 90), float(np.nanpercentile(read(table), 90))

    low, high = RANGE
    best = (0.0, *at(low))
    if best[1] > ttft or best[2] > tbt:
        return best
    rate = 1.0
    while high / low > CLOSE:
        seen = at(rate)
        if seen[0] <= ttft and seen[1] <= tbt:
            low, best = rate, (rate, *seen)
        else:
            high = rate
        rate = low * 2 if high == RANGE[1] else high / 2 if low == RANGE[0] else (low * high) ** 0.5
    return best


def _rows(each: Found) -> list[Row]:
    name = f"{each.data.name}, {each.system.name}, TBT as {each.reading}"
    return [
        Row(what=name, unit="requests/s", ours=each.rate),
        Row(what=f"{name}: TTFT P90 there", unit="s", ours=each.ttft),
        Row(what=f"{name}: TBT P90 there", unit="s", ours=each.tbt),
    ]


def _gains(group: list[Found], paper: dict[str, float]) -> list[Row]:
    """Each separate system against the best baseline of the paper's kind, and against the best with chunks."""
    rows = []
    for kind, chunked in (("prefill first", False), ("chunked", True)):
        rates = [each.rate for each in group if each.system.coupled and (each.system.chunk is not None) == chunked]
        for each in group:
            if not each.system.coupled and max(rates, default=0.0):
                what = f"{each.data.name}: {each.system.name}, more than coupled, {kind}, TBT as {each.reading}"
                told = None if chunked else paper.get(f"{each.data.name}, {each.system.name}")
                rows.append(Row(what=what, unit="%", ours=100 * (each.rate / max(rates) - 1), paper=told))
    return rows


def _figure(settings: Settings, found: list[Found]) -> go.Figure:
    figure = go.Figure()
    for number, system in enumerate(settings.systems):
        mine = [each for each in found if each.system == system]
        places = [[each.data.name for each in mine], [f"TBT: {each.reading}" for each in mine]]
        figure.add_bar(x=places, y=[each.rate for each in mine], name=system.name,
                       marker=bar_marker(SERIES[number % len(SERIES)]))  # fmt: skip
    figure.update_yaxes(title="requests/s within the objectives", rangemode="tozero")
    figure.update_layout(barmode="group", height=420)
    said = "; ".join(f"{each.data.name}, {each.system.name}: {each.rate:.3g}/s" for each in found
                     if each.reading == "longest tenth")  # fmt: skip
    return finish(figure, "The most requests a second within the objectives", f"{said}.")


_COMMON = [
    "TBT of a request: the mean of its longest tenth of intervals, as FAST 5.1 defines it; the first paper does not "
    "say what it means, so the mean of all intervals stands beside it. Prefills that come in between make few long "
    "intervals, so that the baseline's rate rests on this more than on anything else.",
    "A lone request's TTFT and TBT are taken without reuse, the 90th percentile over the requests; the paper does not "
    "say how it measured them. The same limits hold for all systems.",
    "chunked prefill is the stronger baseline, which the paper did not measure; its chunks cost no more here than a "
    "whole prompt does, which favours it.",
]
FIG11 = Experiment(Settings, partial(run, {"ArXiv, 3 + 1": 20.0, "L-Eval, 3 + 1": 40.0}, [
    "The data sets are made from the published means and reuse: prompts and answers of log-normal lengths, L-Eval's "
    "questions on documents of which each is asked several. The real lengths are not at hand, and with longer tails "
    "the coupled instances stall longer.", *_COMMON]))  # fmt: skip
FIG12 = Experiment(Settings, partial(run, {}, [
    "The paper gives +50 % to +525 % over the four lengths together, none for each; its baseline had to serve long "
    "requests one by one to keep the TBT. Here the baseline is the better of batched and one by one.",
    *_COMMON]))  # fmt: skip
