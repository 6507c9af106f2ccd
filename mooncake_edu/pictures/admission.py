"""Who was served when not everybody could be: the loads of both pools over time, and what each policy makes of them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
import plotly.graph_objects as go
from plotly.subplots import make_subplots

from mooncake_edu.events import Reals
from mooncake_edu.pictures.figures import finish
from mooncake_edu.pictures.palette import COMPUTED, DECODED, EVICTED, INK, SERIES, SYMBOLS, WAITING
from mooncake_edu.simulation.loads import Loads
from mooncake_edu.simulation.result import Result, Stage

TICKS = {
    Stage.ARRIVAL: WAITING._replace(label="refused before the prefill"),
    Stage.DECODE: EVICTED._replace(label="refused after the prefill"),
}


def swings(runs: Mapping[str, Loads], results: Mapping[str, Result] | None = None) -> go.Figure:
    """The two loads over time, a panel a run; with results, a tick for each request that was turned away, when it was.

    Times are in seconds since the first one of a run, loads in percent.
    """
    figure = make_subplots(rows=len(runs), cols=1, shared_xaxes=True, subplot_titles=list(runs),
                           vertical_spacing=0.14 / len(runs))  # fmt: skip
    said, top = [], 100 * max(1.0, *(float(max(seen.decode.max(), seen.prefill.max())) for seen in runs.values()))
    for row, (name, seen) in enumerate(runs.items(), 1):
        zero = float(seen.times[0])
        for paint, dash, load in ((COMPUTED, "solid", seen.prefill), (DECODED, "dash", seen.decode)):
            label = "prefill load" if paint is COMPUTED else "decode load"
            figure.add_scatter(x=seen.times - zero, y=100 * load, name=label, mode="lines", row=row, col=1,
                               line={"color": paint.colour, "dash": dash, "width": 2}, legendgroup=label,
                               showlegend=row == 1)  # fmt: skip
        if results is not None and name in results:
            _ticks(figure, results[name], zero, float(seen.times[-1]), row, top)
        figure.add_hline(y=100, line={"color": INK, "dash": "dot", "width": 1}, row=row, col=1)
        said.append(f"{name}: the decode load is {100 * seen.decode.mean():.0f} ± {100 * seen.decode.std():.0f} %")
    figure.update_xaxes(title="time (s)", row=len(runs), col=1)
    figure.update_yaxes(title="load (%)", rangemode="tozero", matches="y")  # panels are compared
    figure.update_layout(height=130 + 230 * len(runs))
    finish(figure, "The load of the prefill and of the decode instances", "; ".join(said) + ".")
    return figure.update_layout(legend_y=1 + 36 / figure.layout.height, margin_t=130)  # above the panels' titles


def _ticks(figure: go.Figure, result: Result, zero: float, last: float, row: int, top: float) -> None:
    """Marks below the loads, which reach to `top`, where requests were turned away; after the prefill further down."""
    when: Reals = result.table.arrival + result.table.e2e
    for height, (stage, paint) in zip((-0.06 * top, -0.14 * top), TICKS.items(), strict=True):
        chosen = (result.stage >= 0) & ((result.stage == Stage.DECODE) == (stage == Stage.DECODE))
        times = when[chosen & (when >= zero) & (when <= last)] - zero
        figure.add_scatter(x=times, y=np.full(len(times), height), mode="markers", name=paint.label, row=row, col=1,
                           legendgroup=paint.label, showlegend=row == 1, hoverinfo="x+name",
                           marker={"symbol": "line-ns-open", "size": 8, "color": paint.colour})  # fmt: skip


def goodput(shares: Mapping[str, Mapping[str, Sequence[float]]], title: str) -> go.Figure:
    """The share of requests within both objectives by case and policy; a value a run, of which the points are means.

    Whiskers reach from the smallest to the largest. A policy has a line of its own, a case its own mark.
    """
    figure, said = go.Figure(), []
    for number, (case, policies) in enumerate(shares.items()):
        runs = {name: 100 * np.array(values) for name, values in policies.items()}
        means = [float(run.mean()) for run in runs.values()]
        below, above = ([abs(float(end(run)) - mean) for run, mean in zip(runs.values(), means, strict=True)]
                        for end in (np.min, np.max))  # fmt: skip
        paint, symbol = SERIES[number % len(SERIES)], SYMBOLS[number % len(SYMBOLS)]
        figure.add_scatter(x=means, y=list(policies), name=case, mode="markers",
                           marker={"symbol": symbol, "size": 12, "color": paint.colour},
                           error_x={"type": "data", "symmetric": False, "array": above, "arrayminus": below,
                                    "thickness": 1.2, "width": 4, "color": paint.colour},
                           hovertemplate="%{y}, " + case + ": %{x:.1f} %<extra></extra>")  # fmt: skip
        best = int(np.argmax(means))
        said.append(f"{case}: {list(policies)[best]} {means[best]:.1f} %")
    figure.update_layout(height=200 + 44 * max(map(len, shares.values())))
    figure.update_yaxes(type="category", autorange="reversed")
    figure.update_xaxes(title="requests within both objectives (%)", rangemode="tozero")
    return finish(figure, title, f"Most were served within both objectives by: {'; '.join(said)}.")
