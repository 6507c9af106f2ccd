"""What a KVCache saves: the tokens that each new token makes the model compute, without and with one."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import plotly.graph_objects as go
from plotly.subplots import make_subplots

from mooncake_edu.pictures.figures import bar_marker, finish
from mooncake_edu.pictures.palette import COMPUTED, EVICTED, REUSED


@dataclass(frozen=True)
class Made:
    """One token that was made: tokens `computed` for it, those `reused` from the cache, `seconds` taken."""

    computed: int
    reused: int
    seconds: float


def saving(without: Sequence[Made], with_cache: Sequence[Made]) -> go.Figure:
    """Tokens computed and reused for each token made, above the time that each took."""
    figure = make_subplots(
        rows=2, cols=2, specs=[[{}, {}], [{"colspan": 2}, None]], shared_yaxes=True, vertical_spacing=0.14,
        horizontal_spacing=0.04, row_heights=[0.55, 0.45], subplot_titles=("without a KVCache", "with a KVCache", ""),
    )  # fmt: skip
    for column, made in enumerate((without, with_cache), 1):
        number = list(range(1, len(made) + 1))
        for paint, counts in (
            (COMPUTED, [each.computed for each in made]),
            (REUSED._replace(label="reused from the KVCache"), [each.reused for each in made]),
        ):
            figure.add_bar(
                x=number, y=counts, name=paint.label, marker=bar_marker(paint), row=1, col=column,
                legendgroup=paint.label, showlegend=column == 2,
                hovertemplate="token %{x}: %{y} tokens " + paint.label + "<extra></extra>",
            )  # fmt: skip
    for name, made, colour, symbol in (
        ("without a KVCache", without, EVICTED.colour, "x"),
        ("with a KVCache", with_cache, REUSED.colour, "circle"),
    ):
        figure.add_scatter(
            x=list(range(1, len(made) + 1)), y=[1e3 * each.seconds for each in made], mode="lines+markers", name=name,
            line={"color": colour, "width": 1.5}, marker={"symbol": symbol, "size": 7, "color": colour},
            hovertemplate=name + ": %{y:.1f} ms for token %{x}<extra></extra>", row=2, col=1,
        )  # fmt: skip
    figure.update_layout(barmode="stack", height=620, bargap=0.1)
    figure.update_xaxes(range=[0, len(without) + 1])
    figure.update_yaxes(title="tokens of the sequence", row=1, col=1)
    figure.update_yaxes(title="time for it (ms)", rangemode="tozero", row=2, col=1)
    figure.update_xaxes(title="token made", row=2, col=1)
    finish(figure, "What a KVCache saves", _finding(without, with_cache))
    return figure.update_layout(bargap=0.1, legend={"y": -0.16, "yanchor": "top"}, margin_t=84)


def _finding(without: Sequence[Made], with_cache: Sequence[Made]) -> str:
    computed = [sum(each.computed for each in made) for made in (without, with_cache)]
    last = [made[-1].seconds * 1e3 if made else 0.0 for made in (without, with_cache)]
    return (
        f"For {len(without)} tokens the model computed {computed[0]:,} tokens without and {computed[1]:,} with a "
        f"KVCache; the last one took {last[0]:,.1f} and {last[1]:,.1f} ms."
    )
