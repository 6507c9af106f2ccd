"""Figures that change over time: frames with a slider and a play button, placed where they cover nothing."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import plotly.graph_objects as go

from mooncake_edu.pictures.palette import GRID, INK

CONTROLS = 92
"""Pixels under the plot that play button and slider need."""

BUTTONS = 96
"""Pixels at the left of the slider that the buttons, and half of the slider's handle, take at any width."""


def animate(
    figure: go.Figure, frames: Sequence[go.Frame], *, word: str = "step", milliseconds: int = 600, below: int = 0
) -> go.Figure:
    """Gives a finished figure its frames, the first of which it shows already; each is reached by its name.

    `word` leads the name that the slider shows, `below` is the pixels under the plot that labels of axes need.
    Raises ValueError if two frames have one name.
    """
    names = [str(frame.name) for frame in frames]
    if len(set(names)) < len(names):
        raise ValueError(f"frames {names}: give each a name of its own")
    figure.frames = list(frames)
    at_once = {"mode": "immediate", "fromcurrent": True, "frame": {"duration": 0, "redraw": True},
               "transition": {"duration": 0}}  # fmt: skip
    play = at_once | {"frame": {"duration": milliseconds, "redraw": True}}
    steps = [{"method": "animate", "label": name, "args": [[name], at_once]} for name in names]
    figure.update_layout(
        sliders=[_slider(steps, word, below)],
        updatemenus=[_buttons([("▶", play, None), ("❚❚", at_once, [None])], below)],
        margin_b=CONTROLS + below,
    )
    return figure


def _slider(steps: list[dict[str, Any]], word: str, below: int) -> dict[str, Any]:
    """Labels at the ticks would run into each other, so only the current one stands, above the slider."""
    return {
        "active": 0, "steps": steps, "x": 0, "len": 1, "y": 0, "yanchor": "top",
        "pad": {"t": 14 + below, "b": 0, "l": BUTTONS},
        "currentvalue": {"prefix": f"{word} ", "font": {"size": 14, "color": INK}, "xanchor": "left", "offset": 6},
        "font": {"size": 1, "color": "rgba(0,0,0,0)"}, "ticklen": 0, "bordercolor": GRID, "bgcolor": GRID,
        "activebgcolor": INK, "borderwidth": 1,
    }  # fmt: skip


def _buttons(buttons: list[tuple[str, dict[str, Any], list[None] | None]], below: int) -> dict[str, Any]:
    return {
        "type": "buttons", "direction": "right", "showactive": False, "x": 0, "xanchor": "left", "y": 0,
        "yanchor": "top", "pad": {"t": 30 + below, "r": 8, "b": 0}, "bgcolor": "rgba(128, 134, 145, 0.18)",
        "bordercolor": GRID, "font": {"size": 13, "color": INK},
        "buttons": [{"label": label, "method": "animate", "args": [what, how]} for label, how, what in buttons],
    }  # fmt: skip
