"""Figures and tables of simulated runs, side by side."""

from __future__ import annotations

import os
from collections.abc import Sequence

import numpy as np
import plotly.graph_objects as go

from mooncake_edu.pictures.figures import bar_marker, finish
from mooncake_edu.pictures.palette import COMPUTED, DASHES, DECODED, MOVING, REUSED, SERIES
from mooncake_edu.pictures.report import Cell, Section, Table, write_report
from mooncake_edu.simulation.result import Result, Stage

POINTS = 400  # of a curve
TIERS = {"pages": REUSED, "dram": REUSED._replace(pattern="x"), "ssd": MOVING}
COLUMNS = {"ttft": ("Time to the first token", "TTFT"), "tbt": ("Time between tokens", "TBT")}


def distribution(results: Sequence[Result], column: str) -> go.Figure:
    """Which share of the requests had a `ttft` or `tbt` of at most so many seconds, a line a run."""
    title, short = COLUMNS[column]
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
    return finish(figure, f"{title}: how many requests wait at most so long", "; ".join(said) + ".")


def reuse(results: Sequence[Result]) -> go.Figure:
    """Where the prompt tokens of each run came from: computed, or reused from a tier."""
    tiers = dict.fromkeys(tier for result in results for tier in result.hits)
    names, prompts = [result.name for result in results], [_served(result) for result in results]
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


def summary(results: Sequence[Result]) -> list[list[Cell]]:
    """What is compared, a line each: a name, then a value a run."""
    lines: dict[str, list[Cell]] = {"requests served": [int(np.sum(~np.isnan(r.table.ttft))) for r in results]}
    if any(r.refused() for r in results):  # too large for an instance, or not admitted
        lines["requests refused"] = [r.refused() for r in results]
    if any(r.refused(Stage.DECODE) for r in results):
        lines["refused after the prefill"] = [r.refused(Stage.DECODE) for r in results]
        lines["prefill wasted (s)"] = [r.wasted for r in results]
    for column, (_, short) in COLUMNS.items():
        unit, scale = ("s", 1) if column == "ttft" else ("ms", 1e3)
        lines[f"{short} mean ({unit})"] = [scale * r.table.mean(column) for r in results]
        for percent in (50, 90, 99):
            values = [scale * r.table.percentile(column, percent) for r in results]
            lines[f"{short} P{percent} ({unit})"] = [*values]
    lines["within both objectives (%)"] = [100 * float(r.met.mean()) for r in results]
    lines["goodput (requests/s)"] = [r.goodput for r in results]
    for tier in dict.fromkeys(tier for r in results for tier in r.hits):
        shares = [r.hits.get(tier, 0) / max(_served(r), 1) for r in results]
        lines[f"hits in {tier} (% of prompt tokens)"] = [100 * share for share in shares]
    for what in dict.fromkeys(what for r in results for what in r.moved):
        lines[f"moved: {what} (GB)"] = [r.moved.get(what, 0.0) / 1e9 for r in results]
    for role in dict.fromkeys(role for r in results for role in r.busy):
        lines[f"{role} busy (%)"] = [100 * r.utilisation(role) if role in r.busy else float("nan") for r in results]
    return [[name, *values] for name, values in lines.items()]


def write_simulation_report(path: str | os.PathLike[str], trace: str, results: Sequence[Result]) -> None:
    """The runs as one page; raises UserError if it cannot be written."""
    table = Table("The runs side by side", ["", *(result.name for result in results)], summary(results))
    sections = [
        Section("In numbers", ["Times are simulated. A TBT is the mean of a request's slowest tenth of intervals."],
                tables=[table]),
        Section("Latency", figures=[distribution(results, column) for column in COLUMNS]),
        Section("Reuse", figures=[reuse(results)]),
        Section("Instances", figures=[utilisation(result) for result in results]),
    ]  # fmt: skip
    write_report(path, "A simulated cluster", f"{len(results[0].table):,} requests of {trace}.", sections)


def _served(result: Result) -> int:
    return int(result.table.prompt[~np.isnan(result.table.ttft)].sum())
