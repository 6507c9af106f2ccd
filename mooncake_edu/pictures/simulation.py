"""Figures and tables of simulated runs, side by side."""

from __future__ import annotations

import os
from collections.abc import Sequence

import numpy as np
import plotly.graph_objects as go

from mooncake_edu.pictures.figures import bar_marker, finish
from mooncake_edu.pictures.palette import COMPUTED, DASHES, DECODED, MOVING, REUSED, SERIES
from mooncake_edu.pictures.report import Section, Table, write_report
from mooncake_edu.simulation.result import Result
from mooncake_edu.simulation.summary import NAMES, summary

POINTS = 400  # of a curve
TIERS = {"pages": REUSED, "dram": REUSED._replace(pattern="x"), "ssd": MOVING}
TITLES = {"ttft": "Time to the first token", "tbt": "Time between tokens"}


def distribution(results: Sequence[Result], column: str) -> go.Figure:
    """Which share of the requests had a `ttft` or `tbt` of at most so many seconds, a line a run."""
    title, short = TITLES[column], NAMES[column]
    figure, said = go.Figure(), []
    for number, result in enumerate(results):
        values = np.sort(result.table.known(column))
        places = np.unique(np.linspace(0, len(values) - 1, min(POINTS, len(values))).astype(int))
        figure.add_scatter(
            x=values[places], y=100 * (places + 1) / max(len(values), 1), name=result.name, mode="lines",
            line={"color": SERIES[number % len(SERIES)].colour, "dash": DASHES[number % len(DASHES)], "width": 2.5},
            hovertemplate="%{y:.1f} % within %{x:.3f} s<extra>" + result.name + "</extra>",
        )  # fmt: skip
        said.append(f"{result.name}: P90 {result.table.percentile(column, 90):.3g} s")
    slo = getattr(results[0].slos, column)
    if isinstance(slo, float):
        figure.add_vline(x=slo, line={"dash": "dot", "width": 1.5})
        figure.add_annotation(x=np.log10(slo), y=8, text="objective", showarrow=False, xanchor="left", xshift=4)
    figure.update_xaxes(title=f"{short} (s)", type="log")
    figure.update_yaxes(title="requests (%)", range=[0, 101])
    figure.update_layout(height=380)
    return finish(figure, f"{title}: how many of those served wait at most so long", "; ".join(said) + ".")


def reuse(results: Sequence[Result]) -> go.Figure:
    """Where the prompt tokens of each run came from: computed, or reused from a tier."""
    tiers = dict.fromkeys(tier for result in results for tier in result.hits)
    names, prompts = [result.name for result in results], [result.prompt_tokens for result in results]
    figure = go.Figure()
    parts = {tier: [result.hits.get(tier, 0) for result in results] for tier in tiers}
    parts["computed"] = [total - sum(result.hits.values()) for total, result in zip(prompts, results, strict=True)]
    for name, values in parts.items():
        paint = TIERS.get(name, COMPUTED)
        figure.add_bar(orientation="h", y=names, x=values, marker=bar_marker(paint), width=0.6,
                       name=name if name == "computed" else f"reused from {name}")  # fmt: skip
    figure.update_layout(barmode="stack", height=190 + 50 * len(results))
    figure.update_xaxes(title="prompt tokens", rangemode="tozero")
    figure.update_yaxes(autorange="reversed", type="category")
    said = (f"{result.name}: {sum(result.hits.values()) / max(total, 1):.1%} of the prompt tokens reused"
            for total, result in zip(prompts, results, strict=True))  # fmt: skip
    return finish(figure, "Prompt tokens computed and reused", "; ".join(said) + ".")


def utilisation(result: Result) -> go.Figure:
    """How much of the time each instance was busy."""
    figure = go.Figure()
    for role, paint in (("prefill", COMPUTED), ("decode", DECODED), ("coupled", MOVING)):
        busy = result.busy.get(role, {})
        if busy:
            figure.add_bar(x=[f"{role} {number}" for number in busy], y=[100 * share for share in busy.values()],
                           name=role, marker=bar_marker(paint._replace(label=role)))  # fmt: skip
    figure.update_yaxes(title="busy (% of the time)", range=[0, 100])
    figure.update_layout(height=340)
    said = ", ".join(f"{role} {result.utilisation(role):.0%}" for role in result.busy)
    return finish(figure, f"How busy the instances were: {result.name}", f"On average: {said}.")


def write_simulation_report(path: str | os.PathLike[str], lead: str, results: Sequence[Result]) -> None:
    """The runs as one page, which `lead` introduces; raises UserError if it cannot be written."""
    table = Table("The runs side by side", ["", *(result.name for result in results)], summary(results))
    sections = [
        Section("In numbers", ["Times are simulated. A TBT is the mean of a request's slowest tenth of intervals."],
                tables=[table]),
        Section("Latency", figures=[distribution(results, column) for column in TITLES]),
        Section("Reuse", figures=[reuse(results)]),
        Section("Instances", figures=[utilisation(result) for result in results]),
    ]  # fmt: skip
    write_report(path, "A simulated cluster", lead, sections)
