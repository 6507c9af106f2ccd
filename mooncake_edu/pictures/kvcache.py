"""Pictures of layer 1: where the tokens of each request lie in memory, what is wasted, and what is shared.

A picture is drawn from moments: what a cache held at the end of a step, told by the cache itself.
"""

from __future__ import annotations

import itertools
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import plotly.graph_objects as go
from plotly.subplots import make_subplots

from mooncake_edu.kvcache import BlockLayout, BlockTable
from mooncake_edu.pictures.figures import bar_marker, finish, percent
from mooncake_edu.pictures.frames import CONTROLS, animate
from mooncake_edu.pictures.palette import COMPUTED, FREE, INK, SERIES, WAITING, Paint
from mooncake_edu.quantities import counted

EMPTY, RESERVED, FILLED = range(3)
"""What a slot can be: nobody's, somebody's without a token in it, or holding a token."""

FAINT = "rgba(128, 134, 145, 0.13)"
SLOT_COLOURS = ((EMPTY, FAINT), (RESERVED, WAITING.colour), (FILLED, COMPUTED.colour))
SCALE = [[(state + side) / 3, colour] for state, colour in SLOT_COLOURS for side in (0, 1)]
"""Steps instead of a gradient: each state has a third of the scale."""

SLOT_WORDS = {EMPTY: "free", RESERVED: "reserved, holds nothing", FILLED: "holds a token"}
ROW = 17  # pixels of one row of slots
AXIS = 18  # pixels of the numbers under a plot
CELL = {"xgap": 1.5, "ygap": 1.5, "showscale": False, "zmin": EMPTY, "zmax": FILLED}
MOST_FRAMES = 48


@dataclass(frozen=True)
class Extent:
    """Where one request lies: runs of slots in the order of its tokens, the first `tokens` of which are written."""

    name: str
    runs: tuple[range, ...]
    tokens: int

    @property
    def slots(self) -> list[int]:
        """All its slots, in the order of its tokens."""
        return [slot for run in self.runs for slot in run]


@dataclass(frozen=True)
class Moment:
    """What a cache held at the end of a step, and how many requests waited for a place."""

    extents: tuple[Extent, ...]
    waiting: int = 0

    @property
    def tokens(self) -> int:
        """Slots that hold a token."""
        return sum(extent.tokens for extent in self.extents)


def paged_moment(tables: Mapping[str, BlockTable], waiting: int = 0) -> Moment:
    """What a paged cache holds now, from the table of each request."""
    return Moment(
        tuple(
            Extent(
                name,
                tuple(range(block * table.block_size, (block + 1) * table.block_size) for block in table.blocks),
                table.length,
            )
            for name, table in tables.items()
        ),
        waiting,
    )


def wasted(moments: Sequence[Moment], slots: int) -> float:
    """The mean share of slots that hold no token, over the moments at which a request waits for a place."""
    crowded = [moment for moment in moments if moment.waiting]
    return 1 - sum(moment.tokens for moment in crowded) / (slots * len(crowded)) if crowded else 0.0


def most_inside(moments: Sequence[Moment]) -> int:
    """The most requests that were in the cache at once."""
    return max((len(moment.extents) for moment in moments), default=0)


def memory_map(moment: Moment, slots: int, width: int, title: str = "The memory, slot by slot") -> go.Figure:
    """One moment: every slot of the memory, `width` in a row, with the name of the request whose token it holds."""
    figure = go.Figure(_grid(moment, slots, width))
    _add_slot_legend(figure)
    finish(figure, title, _moment_finding(moment, slots))
    rows = -(-slots // width)
    _head(figure, ROW * rows, legend=4)
    figure.update_layout(height=figure.layout.margin.t + ROW * rows + 32, margin_b=32)
    _slot_axes(figure, width, rows)
    return figure


def memories(contiguous: Sequence[Moment], paged: Sequence[Moment], slots: int, block_size: int) -> go.Figure:
    """The same requests over time in a contiguous cache, as block tables, and in a paged cache of equal size.

    The run that ends first stays at its last moment. At most `MOST_FRAMES` moments are shown, evenly spread up to the
    last.
    """
    total = max(len(contiguous), len(paged))
    steps = [*range(0, total - 1, -(-total // (MOST_FRAMES - 1))), total - 1]
    names = sorted({extent.name for moment in paged for extent in moment.extents})
    columns = max((len(extent.runs) for moment in paged for extent in moment.extents), default=1)

    def pair(step: int) -> tuple[Moment, Moment]:
        return contiguous[min(step, len(contiguous) - 1)], paged[min(step, len(paged) - 1)]

    def traces(step: int) -> list[go.Heatmap]:
        old, new = pair(step)
        return [_grid(old, slots, block_size), _tables(new, names, columns), _grid(new, slots, block_size)]

    figure = make_subplots(cols=3, column_widths=[0.38, 0.2, 0.38], horizontal_spacing=0.06)
    for number, trace in enumerate(traces(0), 1):
        figure.add_trace(trace, row=1, col=number)
    _add_slot_legend(figure)
    finish(figure, "One memory, two ways to give it out", _memories_finding(contiguous, paged, slots))
    _arrange_memories(figure, slots, block_size, columns)
    figure.update_layout(annotations=_headings(*pair(0), slots))
    frames = [
        go.Frame(name=str(step), data=traces(step), traces=[0, 1, 2],
                 layout={"annotations": _headings(*pair(step), slots)})
        for step in steps
    ]  # fmt: skip
    return animate(figure, frames, milliseconds=350, below=AXIS)


def block_sizes(measured: Mapping[int, tuple[float, float]], chosen: int, title: str = "") -> go.Figure:
    """Per block size, in tokens, the share of taken slots that is empty, and the mean entries of a block table.

    `measured` has both for each size; `chosen` is the one that is marked, and stands in the title if none is given.
    """
    sizes = list(measured)
    figure = make_subplots(cols=2, horizontal_spacing=0.12)
    _add_sizes(figure, 1, WAITING._replace(label="empty slots in taken blocks (%)"), chosen,
               {size: 100 * waste for size, (waste, _) in measured.items()})  # fmt: skip
    _add_sizes(figure, 2, COMPUTED._replace(label="entries of a block table"), chosen,
               {size: entries for size, (_, entries) in measured.items()})  # fmt: skip
    said = "; ".join(
        f"with blocks of {counted(size, 'token')} {percent(waste)} of the taken slots are empty, a table has "
        f"{entries:,.1f} entries"
        for size, (waste, entries) in ((size, measured[size]) for size in dict.fromkeys((chosen, sizes[0], sizes[-1])))
    )
    finish(figure, title or f"Blocks of {counted(chosen, 'token')}", f"{said[:1].upper()}{said[1:]}.")
    figure.update_xaxes(title="tokens a block", type="category")
    return figure.update_layout(height=360, margin_t=56, showlegend=False)


def block_bytes(layout: BlockLayout) -> go.Figure:
    """Where each vector of a block begins, in bytes: a row for every layer, keys or values, and head."""
    rows = list(itertools.product(range(layout.layers), (0, 1), range(layout.kv_heads)))
    names = [f"layer {layer}, {('keys', 'values')[kv]}, head {head}" for layer, kv, head in rows]
    token = layout.head_nbytes // layout.block_size
    starts = [[number * layout.head_nbytes + slot * token for slot in range(layout.block_size)]
              for number in range(len(rows))]  # fmt: skip
    figure = go.Figure(go.Heatmap(
        y=names, z=[[kv] * layout.block_size for _, kv, _ in rows], text=starts, texttemplate="%{text}", xgap=2, ygap=2,
        colorscale=[[0, SERIES[0].colour], [0.5, SERIES[0].colour], [0.5, SERIES[3].colour], [1, SERIES[3].colour]],
        zmin=0, zmax=1, showscale=False, textfont={"size": 13, "color": "white"},
        hovertemplate="%{y}, slot %{x}: begins at byte %{text}<extra></extra>",
    ))  # fmt: skip
    said = f"A block has {layout.nbytes} bytes, row behind row; each of its layers has {layout.layer_nbytes} of them."
    finish(figure, "The bytes of a block", f"{said} {_order(layout)}")
    figure.update_xaxes(title="slot in the block", dtick=1, showgrid=False, zeroline=False)
    figure.update_yaxes(autorange="reversed", showgrid=False, zeroline=False)
    return figure.update_layout(height=120 + 28 * len(rows), margin_t=56, showlegend=False)


def _order(layout: BlockLayout) -> str:
    """At which bytes the parts of a block begin, outermost last."""
    heads = [f"of head {head} from {head * layout.head_nbytes}" for head in range(1, layout.kv_heads)]
    keys = ", ".join(["Layer 0: keys of head 0 from byte 0", *heads])
    layers = [f"layer {layer} from {layer * layout.layer_nbytes}" for layer in range(1, layout.layers)]
    slots = f"slots {layout.head_nbytes // layout.block_size} bytes apart"
    return "; ".join([f"{keys}, values from {layout.layer_nbytes // 2}", *layers, slots]) + "."


def _add_sizes(figure: go.Figure, column: int, paint: Paint, chosen: int, values: Mapping[int, float]) -> None:
    figure.add_bar(
        x=[str(size) for size in values], y=list(values.values()), name=paint.label, row=1, col=column, width=0.7,
        marker=bar_marker(paint) | {"line": {"width": [3 if size == chosen else 0 for size in values], "color": INK}},
        text=[f"<b>{value:,.1f}</b>" if size == chosen else f"{value:,.1f}" for size, value in values.items()],
        textposition="outside", textfont={"color": INK}, constraintext="none", cliponaxis=False,
        hovertemplate="blocks of %{x} tokens: %{y:,.1f} " + paint.label + "<extra></extra>",
    )  # fmt: skip
    figure.update_yaxes(title=paint.label, rangemode="tozero", row=1, col=column)


def _grid(moment: Moment, slots: int, width: int) -> go.Heatmap:
    states, texts = [EMPTY] * slots, [""] * slots
    for extent in moment.extents:
        for token, slot in enumerate(extent.slots):
            filled = token < extent.tokens
            states[slot], texts[slot] = (FILLED, extent.name) if filled else (RESERVED, "·")
    return go.Heatmap(
        z=_rows(states, width), text=_rows(texts, width), texttemplate="%{text}", colorscale=SCALE, **CELL,
        textfont={"size": 11, "color": "white"}, hovertemplate="row %{y}, slot %{x}: %{text}<extra></extra>",
    )  # fmt: skip


def _tables(moment: Moment, names: Sequence[str], columns: int) -> go.Heatmap:
    """The block table of each request: in its row and column i, the number of its i-th block."""
    blocks = {extent.name: [run.start // len(run) for run in extent.runs] for extent in moment.extents}
    cells = [[*blocks.get(name, [])] + [None] * (columns - len(blocks.get(name, []))) for name in names]
    told = [[f"no block {place} yet" if cell is None else f"its block {place} is block {cell} of the memory"
             for place, cell in enumerate(row)] for row in cells]  # fmt: skip
    return go.Heatmap(
        y=list(names), z=[[EMPTY if cell is None else FILLED for cell in row] for row in cells],
        text=[["" if cell is None else str(cell) for cell in row] for row in cells], texttemplate="%{text}",
        textfont={"size": 12, "color": "white"}, colorscale=SCALE, **CELL, customdata=told,
        hovertemplate="%{y}: %{customdata}<extra></extra>",
    )  # fmt: skip


def _rows(values: Sequence[object], width: int) -> list[list[object]]:
    return [list(values[start : start + width]) for start in range(0, len(values), width)]


def _headings(contiguous: Moment, paged: Moment, slots: int) -> list[dict[str, object]]:
    """What stands above the three panels, with the numbers of the moment."""
    texts = [
        f"<b>contiguous</b>: {_state(contiguous, slots)}",
        "<b>block tables</b>",
        f"<b>paged</b>: {_state(paged, slots)}",
    ]
    return [
        {"text": text, "xref": f"x{number or ''} domain", "x": 0, "xanchor": "left", "yref": "paper", "y": 1,
         "yanchor": "bottom", "yshift": 6, "showarrow": False, "align": "left", "font": {"size": 14, "color": INK}}
        for number, text in zip(("", 2, 3), texts, strict=True)
    ]  # fmt: skip


def _state(moment: Moment, slots: int) -> str:
    waiting = f", {moment.waiting} wait" if moment.waiting else ""
    return f"{len(moment.extents)} inside{waiting}<br>{percent(moment.tokens / slots)} of the memory holds tokens"


def _arrange_memories(figure: go.Figure, slots: int, block_size: int, columns: int) -> None:
    rows = -(-slots // block_size)
    _head(figure, ROW * rows, legend=48)
    figure.update_layout(height=figure.layout.margin.t + ROW * rows + AXIS + CONTROLS)
    for column in (1, 3):
        _slot_axes(figure, block_size, rows, column)
    figure.update_yaxes(title="block", title_standoff=4, row=1, col=3)
    figure.update_xaxes(title=None, tickvals=list(range(columns)), row=1, col=2, showgrid=False, zeroline=False)
    figure.update_yaxes(autorange="reversed", row=1, col=2, showgrid=False, zeroline=False, dtick=1)


def _head(figure: go.Figure, plot: int, legend: int) -> None:
    """Title at the top edge and legend `legend` pixels above a plot of `plot` pixels, so that neither moves."""
    figure.update_layout(
        margin_t=legend + 68, title={"y": 1, "yref": "container", "yanchor": "top", "pad": {"t": 14}},
        legend={"y": 1 + legend / plot, "yanchor": "bottom", "x": 0},
    )  # fmt: skip


def _slot_axes(figure: go.Figure, width: int, rows: int, column: int | None = None) -> None:
    where = {} if column is None else {"row": 1, "col": column}
    figure.update_xaxes(range=[-0.5, width - 0.5], tickvals=list(range(0, width, 4)), showgrid=False, zeroline=False,
                        showline=False, **where)  # fmt: skip
    figure.update_yaxes(range=[rows - 0.5, -0.5], tickvals=list(range(0, rows, 4)), showgrid=False, zeroline=False,
                        showline=False, **where)  # fmt: skip


def _add_slot_legend(figure: go.Figure) -> None:
    for state, colour in reversed(SLOT_COLOURS):
        figure.add_scatter(
            x=[None], y=[None], mode="markers", name=SLOT_WORDS[state], hoverinfo="skip",
            marker={"symbol": "square", "size": 13, "color": colour,
                    "line": {"width": 1 if state == EMPTY else 0, "color": FREE.colour}},
        )  # fmt: skip


def _moment_finding(moment: Moment, slots: int) -> str:
    reserved = sum(len(extent.slots) for extent in moment.extents)
    return (
        f"{counted(len(moment.extents), 'request')} hold {moment.tokens} tokens in {reserved} slots; "
        f"{slots - reserved} of {slots} slots are free, "
        f"{percent(1 - moment.tokens / slots)} of the memory holds nothing."
    )


def _memories_finding(contiguous: Sequence[Moment], paged: Sequence[Moment], slots: int) -> str:
    return (
        f"While requests wait, {percent(wasted(contiguous, slots))} of the contiguous cache holds no token, of "
        f"the paged one {percent(wasted(paged, slots))}; at most {counted(most_inside(contiguous), 'request')} fit at "
        f"once, paged {most_inside(paged)}; all are done after {counted(len(contiguous), 'step')}, paged {len(paged)}."
    )
