"""The system as a map: where each of the seven layers stands between a request and its answer."""

from __future__ import annotations

from typing import NamedTuple

import plotly.graph_objects as go

from mooncake_edu.pictures.figures import finish
from mooncake_edu.pictures.palette import COMPUTED, DECODED, INK, MOVING, REUSED

FILL = 0.12  # opacity
PAPER = "rgba(128, 134, 145, 0.10)"


class Box(NamedTuple):
    """A rectangle on the map, from left and bottom to right and top."""

    text: str
    left: float
    bottom: float
    right: float
    top: float
    colour: str
    above: bool = False  # the text stands at its upper edge, since other boxes lie inside


class Arrow(NamedTuple):
    """Something that goes from one place to another."""

    text: str
    x0: float
    y0: float
    x1: float
    y1: float
    colour: str = INK


BOXES = (
    Box("", 22, 79, 80, 99, INK, above=True),
    Box("<b>6</b> Conductor<br>which machines?", 25, 82, 49, 96, INK),
    Box("<b>7</b> Early rejection<br>is there time for it?", 52, 82, 77, 96, INK),
    Box("prefill instances", 2, 32, 42, 72, COMPUTED.colour, above=True),
    Box("<b>5</b> Pipelined prefill", 4, 53, 40, 64, COMPUTED.colour),
    Box("<b>2</b> Prefix<br>hashing", 4, 36, 21, 49, COMPUTED.colour),
    Box("<b>1</b> Paged<br>KVCache", 23, 36, 40, 49, COMPUTED.colour),
    Box("decode instances", 62, 32, 98, 72, DECODED.colour, above=True),
    Box("continuous batch:<br>everybody's next token", 64, 53, 96, 64, DECODED.colour),
    Box("<b>1</b> Paged KVCache", 64, 36, 96, 49, DECODED.colour),
    Box("<b>3</b> Tiered store: DRAM and SSD of all machines as one pool of KVCache", 2, 3, 98, 17, REUSED.colour),
)
ARROWS = (
    Arrow("request", 4, 89, 21, 89),
    Arrow("", 33, 78, 27, 73),
    Arrow("", 69, 78, 75, 73),
    Arrow("<b>4</b> RDMA transfer:<br>KVCache,<br>layer by layer", 43, 51, 61, 51, MOVING.colour),
    Arrow("<b>4</b> reuse", 12, 18, 12, 31, MOVING.colour),
    Arrow("<b>4</b> keep", 31, 31, 31, 18, MOVING.colour),
    Arrow("<b>4</b> keep", 80, 31, 80, 18, MOVING.colour),
    Arrow("tokens", 99, 60, 108, 60),
)


def course_map() -> go.Figure:
    """Mooncake's parts and the way of a request through them, each with the number of its layer and chapter."""
    figure = go.Figure()
    for box in BOXES:
        rgb = ", ".join(str(int(box.colour[place : place + 2], 16)) for place in (1, 3, 5))
        figure.add_shape(
            type="rect", x0=box.left, y0=box.bottom, x1=box.right, y1=box.top, layer="below",
            line={"color": box.colour, "width": 1.5, "dash": "dot" if box.above else "solid"},
            fillcolor=PAPER if box.above else f"rgba({rgb}, {FILL})",
        )  # fmt: skip
        figure.add_annotation(
            x=(box.left + box.right) / 2, y=box.top - 1 if box.above else (box.bottom + box.top) / 2, text=box.text,
            showarrow=False, yanchor="top" if box.above else "middle", font={"size": 13, "color": INK},
        )  # fmt: skip
    for arrow in ARROWS:
        figure.add_annotation(
            x=arrow.x1, y=arrow.y1, ax=arrow.x0, ay=arrow.y0, xref="x", yref="y", axref="x", ayref="y", text="",
            arrowhead=2, arrowwidth=2, arrowcolor=arrow.colour,
        )  # fmt: skip
        upright = arrow.x0 == arrow.x1
        figure.add_annotation(
            x=(arrow.x0 + arrow.x1) / 2 + (1 if upright else 0), y=(arrow.y0 + arrow.y1) / 2 + (0 if upright else 1),
            text=arrow.text, showarrow=False, font={"size": 12, "color": INK}, xanchor="left" if upright else "center",
            yanchor="middle" if upright else "bottom",
        )  # fmt: skip
    finish(figure, "Where the seven layers stand", FINDING)
    figure.update_xaxes(visible=False, range=[0, 110], fixedrange=True)
    figure.update_yaxes(visible=False, range=[0, 100], fixedrange=True)
    return figure.update_layout(height=520, margin_t=48, showlegend=False)


FINDING = (
    "A request goes to Conductor (6), which chooses a prefill and a decode instance, and to early rejection (7), which "
    "turns it away if its objectives cannot be met. The prefill instance finds what is known of the prompt (2), brings "
    "it into its pages (1) and computes the rest in a pipeline (5). The KVCache goes by RDMA (4), layer by layer, to "
    "the decode instance, which makes the tokens, and into the store (3), where the next request finds it."
)
