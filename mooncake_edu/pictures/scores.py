"""Bars side by side of which one is chosen, or the reader's own: marked by more than colour."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
import plotly.graph_objects as go

from mooncake_edu.pictures.figures import bar_marker, finish
from mooncake_edu.pictures.palette import COMPUTED, FREE, INK


def mark(figure: go.Figure, lanes: Sequence[str], chosen: str | None) -> go.Figure:
    """Let horizontal bars stand in this order from above, and one of them be marked."""
    marks = [f"<b>▶ {lane}</b>" if lane == chosen else lane for lane in lanes]
    return figure.update_yaxes(
        autorange="reversed", type="category", tickmode="array", tickvals=lanes, ticktext=marks, showgrid=False
    )


def ranked(
    reached: Mapping[str, float], yours: str, asked: float, title: str, *, axis: str, unit: str, without: str,
    least: bool = False,
) -> go.Figure:  # fmt: skip
    """What each policy reached, the best above: the most, or the `least`, then on an axis of powers of ten.

    The reader's own is marked, and what is asked is a line; `without` is said where there is no own.
    """
    order = sorted(reached, key=lambda name: reached[name], reverse=not least)
    figure = go.Figure()
    for name in order:
        figure.add_bar(
            orientation="h", y=[name], x=[reached[name]], marker=bar_marker(COMPUTED if name == yours else FREE),
            text=[f"{reached[name]:.2f}"], textposition="outside", cliponaxis=False, showlegend=False,
        )  # fmt: skip
    low, high = min(reached.values()), max([*reached.values(), asked])
    bounds = np.log10([low / 2, high * 2]).tolist() if least else [0, 1.15 * high]
    figure.add_vline(x=asked, line={"color": INK, "width": 2, "dash": "dash"})
    figure.add_annotation(x=np.log10(asked) if least else asked, y=1, yref="paper", yanchor="bottom", text="asked",
                          showarrow=False)  # fmt: skip
    figure.update_layout(height=340)
    figure.update_xaxes(title=axis, type="log" if least else "linear", range=bounds)
    said = without
    if yours in reached:
        said = f"Yours: {reached[yours]:.2f} {unit}, number {order.index(yours) + 1} of {len(order)}"
    return mark(finish(figure, title, f"{said}; asked: {asked:.2f} {unit}."), order, yours)
