"""Prefill and decode under the roof of a machine: how much arithmetic a byte of memory feeds, and how fast it goes."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import TYPE_CHECKING

import plotly.graph_objects as go

from mooncake_edu.pictures.figures import finish, percent
from mooncake_edu.pictures.palette import COMPUTED, DECODED, INK, Paint

if TYPE_CHECKING:
    from mooncake_edu.bench.steps import Roof, Step

PHASES: dict[str, tuple[Paint, str, str, str]] = {
    "decode": (DECODED._replace(label="decode, by batch size"), "circle", "bottom right", "batch {:,}"),
    "prefill": (COMPUTED._replace(label="prefill, by tokens of the prompt"), "square", "bottom center", "{:,} tokens"),
}
"""Paint, symbol, where its label stands and what the label says."""

UNITS = ((1e12, "TFLOP/s"), (1e9, "GFLOP/s"))
MARGIN = 2.0  # of the axes around the points


def roofline(roof: Roof, steps: Sequence[Step], beside: Sequence[Step] = ()) -> go.Figure:
    """Measured steps under the measured roof; both axes are logarithmic. Raises ValueError without any step.

    The axes have room for the steps `beside` too, so that pictures of one step after another can be compared.
    """
    if not steps:
        raise ValueError("a roofline of no steps: measure at least one")
    scale, unit = next((entry for entry in UNITS if roof.compute >= entry[0]), UNITS[-1])
    shown = [*steps, *beside]
    low = min(roof.ridge, *(step.intensity for step in shown)) / MARGIN
    high = max(roof.ridge, *(step.intensity for step in shown)) * MARGIN
    figure = go.Figure()
    figure.add_scatter(
        x=[low, roof.ridge, high], y=[roof.rate(x) / scale for x in (low, roof.ridge, high)], mode="lines",
        name="the roof: what the machine allows", line={"color": INK, "width": 3}, hoverinfo="skip",
    )  # fmt: skip
    for phase, (paint, symbol, place, label) in PHASES.items():
        mine = sorted((step for step in steps if step.phase == phase), key=lambda step: step.tokens)
        if mine:
            figure.add_scatter(
                x=[step.intensity for step in mine], y=[step.rate / scale for step in mine], name=paint.label,
                mode="lines+markers+text", text=[label.format(step.tokens) for step in mine], textposition=place,
                textfont={"color": INK, "size": 12}, line={"color": paint.colour, "width": 1, "dash": "dot"},
                marker={"symbol": symbol, "size": 12, "color": paint.colour, "line": {"width": 1, "color": "white"}},
                customdata=[1e3 * step.seconds for step in mine], cliponaxis=False,
                hovertemplate="%{text}: %{customdata:.1f} ms<br>%{x:.1f} FLOP per byte, %{y:.1f} " + unit
                + "<extra></extra>",
            )  # fmt: skip
    _name_sides(figure, roof, low, high, scale)
    figure.update_xaxes(title="arithmetic intensity (FLOP per byte)", type="log", dtick=1,
                        range=[math.log10(low), math.log10(high)])  # fmt: skip
    least = min(roof.rate(low), *(step.rate for step in shown)) / scale / MARGIN
    bounds = [math.log10(least), math.log10(MARGIN * roof.compute / scale)]
    figure.update_yaxes(title=f"rate ({unit})", type="log", dtick=1, range=bounds)
    figure.update_layout(height=480)
    finish(figure, "Prefill and decode under the machine's roof", _finding(roof, steps, scale, unit))
    return figure.update_layout(margin_t=48, legend={"y": -0.2, "yanchor": "top"})


def _name_sides(figure: go.Figure, roof: Roof, low: float, high: float, scale: float) -> None:
    """What limits on either side of the ridge."""
    figure.add_scatter(
        x=[(low * roof.ridge) ** 0.5, (roof.ridge * high) ** 0.5], y=[1.35 * roof.compute / scale] * 2, mode="text",
        text=["◂ memory-bound", "compute-bound ▸"], textfont={"color": INK, "size": 13},
        showlegend=False, hoverinfo="skip", cliponaxis=False,
    )  # fmt: skip
    figure.add_vline(x=roof.ridge, line={"color": INK, "width": 1, "dash": "dash"})


def _finding(roof: Roof, steps: Sequence[Step], scale: float, unit: str) -> str:
    said = [
        f"This machine multiplies at up to {roof.compute / scale:,.1f} {unit} and reads {roof.memory / 1e9:,.1f} GB/s, "
        f"so below {roof.ridge:,.1f} FLOP per byte memory is the limit"
    ]
    for phase, thing in (("decode", "sequences"), ("prefill", "tokens")):
        mine = [step for step in steps if step.phase == phase]
        if mine:
            least = min(mine, key=lambda step: step.tokens)
            most = max(mine, key=lambda step: step.tokens)
            ends = [least] if least is most else [least, most]
            each = " and ".join(
                f"{percent(step.rate / roof.compute)} with {step.tokens:,} {thing if step.tokens > 1 else thing[:-1]} "
                f"({step.intensity:,.1f} FLOP per byte)"
                for step in ends
            )
            said.append(f"{phase} reaches {each} of the arithmetic")
    return "; ".join(said) + "."
