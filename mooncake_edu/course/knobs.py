"""Figures that a reader turns by knobs in a notebook, drawn again whenever a knob moves."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import plotly.graph_objects as go


def turning(draw: Callable[..., go.Figure], **knobs: Any) -> Any:
    """Widgets in a row, and below them the figure that `draw` makes of their values, each given by its name.

    Raises what `draw` raises for the values that the knobs have at first.
    """
    import ipywidgets

    # Not interactive_output: what it captures is sent back by whoever runs a notebook without a browser, on the socket
    # on which the end of the cell is awaited (jupyter_client 8.10, nbclient 0.11), and may hide that end from it.
    shown = ipywidgets.Output()

    def redraw(_change: object = None) -> None:
        figure = draw(**{name: knob.value for name, knob in knobs.items()})
        shown.outputs = ({"output_type": "display_data", "data": figure._repr_mimebundle_(), "metadata": {}},)

    redraw()
    for knob in knobs.values():
        knob.observe(redraw, "value")
    return ipywidgets.VBox([ipywidgets.HBox(list(knobs.values())), shown])
