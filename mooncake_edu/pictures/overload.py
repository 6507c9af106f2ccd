"""Figures of a service that is asked for more than it can do: what became of requests, and what was foreseen."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
import plotly.graph_objects as go

from mooncake_edu.events import Reals
from mooncake_edu.pictures.figures import add_spans, bar_marker, finish, percent
from mooncake_edu.pictures.palette import COMPUTED, DASHES, DECODED, EVICTED, FREE, INK, MOVING, SERIES, SYMBOLS, Paint
from mooncake_edu.pictures.scores import ranked
from mooncake_edu.simulation.result import Result, Stage

MET = COMPUTED._replace(label="served in time")
LATE = MOVING._replace(label="served, but too late")
WASTED = EVICTED._replace(label="refused after the prefill")
REFUSED = FREE._replace(label="refused on arrival")
SIX = (*SERIES, FREE)
"""One colour for each policy of admission but that which turns nobody away."""

FULL = {"color": INK, "width": 1.5, "dash": "dash"}


def fates(results: Sequence[Result], title: str = "What became of the requests") -> go.Figure:
    """A bar a run: requests served in time, served too late, refused after their prefill, refused on arrival."""
    figure, names = go.Figure(), [result.name for result in results]
    counts = {paint: [fate(result)[paint] for result in results] for paint in (MET, LATE, WASTED, REFUSED)}
    for paint, values in counts.items():
        figure.add_bar(
            orientation="h", y=names, x=values, name=paint.label, marker=bar_marker(paint), width=0.62,
            showlegend=any(values), hovertemplate="%{y}<br>%{x:,} " + paint.label + "<extra></extra>",
        )  # fmt: skip
    figure.add_scatter(
        mode="text", y=names, x=[int(result.stage.size) for result in results], cliponaxis=False, showlegend=False,
        text=[f" {result.goodput:.2f} in time a second, {result.wasted:,.0f} s wasted" for result in results],
        textposition="middle right", hoverinfo="skip", textfont={"color": INK, "size": 13},
    )  # fmt: skip
    most = max(int(result.stage.size) for result in results)
    said = [f"{result.name}: {', '.join(f'{values[row]:,} {paint.label}' for paint, values in counts.items())}; "
            f"{result.wasted:,.0f} s of prefill wasted" for row, result in enumerate(results)]  # fmt: skip
    figure.update_layout(barmode="stack", height=190 + 46 * len(results))
    figure.update_xaxes(title="requests", range=[0, 1.62 * most], tickvals=np.linspace(0, most, 6).tolist())
    finish(figure, title, "; ".join(said) + ".")
    return figure.update_yaxes(autorange="reversed", type="category", showgrid=False)


def fate(result: Result) -> dict[Paint, int]:
    """How many requests of a run ended in each way."""
    met, wasted, refused = int(result.met.sum()), result.refused(Stage.DECODE), result.refused()
    return {MET: met, WASTED: wasted, REFUSED: refused - wasted, LATE: int(result.stage.size) - met - refused}


def trade(results: Sequence[Result], title: str = "What a policy wastes, and what it serves") -> go.Figure:
    """Seconds of prefill wasted for each request that came, and goodput: a small point a run, a large one their mean.

    Runs of one name stand together.
    """
    figure, said = go.Figure(), []
    runs: dict[str, list[tuple[float, float]]] = {}
    for result in results:
        point = result.wasted / max(int(result.stage.size), 1), result.goodput
        runs.setdefault(result.name, []).append(point)
    means = {name: np.mean(points, axis=0) for name, points in runs.items()}
    near = 0.15 * max(float(mean[0]) for mean in means.values())
    for number, (name, points) in enumerate(runs.items()):
        (across, up), (x, y) = np.array(points).T, means[name]
        is_under = any(abs(other[0] - x) < near and other[1] > y for other in means.values())  # so its name is, too
        mark = {"symbol": SYMBOLS[number % len(SYMBOLS)], "color": SIX[number % len(SIX)].colour}
        each = {"name": name, "cliponaxis": False, "hovertemplate": name + ": %{y:.2f} a second, %{x:.2f} s"}
        if len(points) > 1:
            figure.add_scatter(x=across, y=up, mode="markers", marker=mark | {"size": 6, "opacity": 0.6}, **each)
        figure.add_scatter(
            x=[x], y=[y], mode="markers+text", marker=mark | {"size": 15}, text=[name],
            textposition=f"{'bottom' if is_under else 'top'} center", textfont={"color": INK, "size": 13}, **each,
        )  # fmt: skip
        said.append(f"{name} serves {y:.2f} a second in time and wastes {x:.2f} s a request")
    figure.update_xaxes(title="prefill wasted for each request that came (s)", rangemode="tozero")
    figure.update_yaxes(title="goodput (requests/s)")
    figure.update_layout(height=460)
    return finish(figure, title, "; ".join(said) + ".").update_layout(showlegend=False, margin_t=64)


def curves(lines: Mapping[str, tuple[Reals, Reals]], across: str, title: str) -> go.Figure:
    """Survival curves: for each name, ages, and the share that lasts longer than each."""
    figure, said = go.Figure(), []
    for number, (name, (x, y)) in enumerate(lines.items()):
        figure.add_scatter(
            x=x, y=100 * np.asarray(y), name=name, mode="lines",
            line={"color": SERIES[number % len(SERIES)].colour, "dash": DASHES[number % len(DASHES)], "width": 2.5},
        )  # fmt: skip
        half = np.flatnonzero(np.asarray(y) <= 0.5)
        said.append(f"{name}: half last longer than {x[half[0]]:.3g}" if half.size else f"{name}: more than half last")
    figure.update_xaxes(title=across, rangemode="tozero")
    figure.update_yaxes(title="share that lasts longer (%)", range=[0, 103])
    figure.update_layout(height=380, hovermode="x")
    return finish(figure, title, "; ".join(said) + ".")


def calibration(tenths: Mapping[str, Sequence[int]]) -> go.Figure:
    """How many answers lay in each tenth of what was foretold of them, a group of bars a run; right is even."""
    figure, said = go.Figure(), []
    for (name, counts), paint in zip(tenths.items(), SERIES, strict=False):
        total = max(sum(counts), 1)
        figure.add_bar(x=[f"{10 * n}-{10 * n + 10}" for n in range(10)], y=[100 * count / total for count in counts],
                       name=name, marker=bar_marker(paint))  # fmt: skip
        said.append(f"{name}: of {total} answers a tenth of the forecast holds from {percent(min(counts) / total)} to "
                    f"{percent(max(counts) / total)}")  # fmt: skip
    figure.add_hline(y=10, line=FULL, annotation_text="right", annotation_font={"color": INK})
    figure.update_xaxes(title="where in its forecast an answer's length lay (%)", type="category")
    figure.update_yaxes(title="answers (%)", rangemode="tozero")
    figure.update_layout(barmode="group", height=360)
    return finish(figure, "Are the forecasts right?", "; ".join(said) + ".")


def stays(spans: Sequence[tuple[float, float]], at: float, title: str, finding: str) -> go.Figure:
    """Decodes as bars from when they begin for as long as they are taken to last, and the time that is asked about."""
    figure = go.Figure()
    lanes = [f"decode {number}" for number in range(1, len(spans) + 1)]
    for held, paint in ((True, DECODED._replace(label="decodes then")), (False, FREE._replace(label="does not"))):
        chosen = [n for n, (begin, length) in enumerate(spans) if (begin <= at < begin + length) == held]
        if chosen:
            begin, length = (np.array([spans[n][place] for n in chosen], float) for place in (0, 1))
            add_spans(figure, paint, [lanes[n] for n in chosen], begin, length)
    figure.add_vline(x=at, line=FULL | {"width": 2}, annotation_text="asked", annotation_font={"color": INK},
                     annotation_yshift=20)  # fmt: skip
    figure.update_xaxes(title="time (s)")
    figure.update_layout(height=180 + 30 * len(spans), barmode="overlay")
    finish(figure, title, finding)
    return figure.update_yaxes(type="category", categoryorder="array", categoryarray=lanes[::-1], showgrid=False)


def scores(goodputs: Mapping[str, float], yours: str, asked: float, harder: float) -> go.Figure:
    """Goodput under each policy, the highest above; the reader's own is marked, what is asked is a line.

    A harder goal, for fun, is a thinner one.
    """
    figure = ranked(goodputs, yours, asked, "Your count beside the package's, on the unseen slices",
                    axis="goodput (requests/s)", unit="a second",
                    without="Yours gives no numbers that can be used")  # fmt: skip
    figure.add_vline(x=harder, line={"color": INK, "width": 1, "dash": "dot"})
    return figure.add_annotation(x=harder, y=1, yref="paper", yanchor="bottom", text="for fun", showarrow=False)
