"""Picture of layer 1's sharing: two tables over the same blocks, and what a fork copies when somebody writes."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import plotly.graph_objects as go

from mooncake_edu.kvcache import BlockTable
from mooncake_edu.pictures.figures import finish
from mooncake_edu.pictures.frames import CONTROLS, animate
from mooncake_edu.pictures.palette import COMPUTED, FREE, INK, MOVING, REUSED
from mooncake_edu.quantities import counted

UNUSED, OWN, SHARED, COPIED = range(4)
"""What a block can be: nobody's, one table's, several tables', or one table's since it was copied just now."""

FAINT = "rgba(128, 134, 145, 0.13)"
COLOURS = ((UNUSED, FAINT), (OWN, COMPUTED.colour), (SHARED, REUSED.colour), (COPIED, MOVING.colour))
WORDS = {UNUSED: "free", OWN: "one table refers to it", SHARED: "shared", COPIED: "copied just now"}
SCALE = [[(state + side) / 4, colour] for state, colour in COLOURS for side in (0, 1)]
ROW = 46  # pixels of one block
BOX = 38  # pixels of one entry of a table
AWAY = 1.6  # slots between the blocks and a table
TOP = 120  # pixels of title, legend and headings


@dataclass(frozen=True)
class Scene:
    """What two tables refer to after one thing was done: their blocks and texts, and how often each block counts.

    `texts` are the tokens of each table as text, `copies` the (from, to) blocks copied to get here.
    """

    what: str
    blocks: Mapping[str, tuple[int, ...]]
    texts: Mapping[str, tuple[str, ...]]
    references: tuple[int, ...]
    copies: tuple[tuple[int, int], ...] = ()


def scene(
    what: str, tables: Mapping[str, BlockTable], texts: Mapping[str, Sequence[str]],
    copies: Sequence[tuple[int, int]] = (),
) -> Scene:  # fmt: skip
    """What the tables, all of one pool, refer to now; `texts` has one text for each token of each table."""
    pool = next(iter(tables.values())).pool
    return Scene(
        what,
        {name: tuple(table.blocks) for name, table in tables.items()},
        {name: tuple(texts[name][: table.length]) for name, table in tables.items()},
        tuple(pool.references(block) for block in range(pool.total)),
        tuple(copies),
    )


def sharing(scenes: Sequence[Scene], names: tuple[str, str], block_size: int, wrong: str = "") -> go.Figure:
    """The blocks between the two tables that refer to them, scene after scene; `wrong` is told first, if anything."""
    blocks = len(scenes[0].references)
    figure = go.Figure(_traces(scenes[0], names, block_size))
    for state, colour in COLOURS:
        figure.add_scatter(
            x=[None], y=[None], mode="markers", name=WORDS[state], hoverinfo="skip",
            marker={"symbol": "square", "size": 13, "color": colour,
                    "line": {"width": 1 if state == UNUSED else 0, "color": FREE.colour}},
        )  # fmt: skip
    finish(figure, "Fork and copy-on-write", f"{wrong} {_finding(scenes, names)}".lstrip())
    _arrange(figure, blocks, block_size)
    figure.update_layout(annotations=_headings(scenes[0], names, block_size))
    frames = [
        go.Frame(name=f"{number}: {each.what}", data=_traces(each, names, block_size), traces=[0, 1, 2, 3],
                 layout={"annotations": _headings(each, names, block_size)})
        for number, each in enumerate(scenes, 1)
    ]  # fmt: skip
    return animate(figure, frames, word="", milliseconds=1800)


def _places(block_size: int) -> tuple[float, float]:
    """Where the entries of the two tables stand, left and right of the blocks."""
    return -0.5 - AWAY, block_size - 0.5 + AWAY + 0.9


def _traces(now: Scene, names: Sequence[str], block_size: int) -> list[go.Scatter | go.Heatmap]:
    return [_blocks(now, block_size), _links(now, names, block_size), _entries(now, names, block_size),
            _margins(now, block_size)]  # fmt: skip


def _blocks(now: Scene, block_size: int) -> go.Heatmap:
    targets = {target for _, target in now.copies}
    states = [COPIED if block in targets else min(count, SHARED) for block, count in enumerate(now.references)]
    cells = [[""] * block_size for _ in now.references]
    for name, blocks in now.blocks.items():
        for token, text in enumerate(now.texts[name]):
            cells[blocks[token // block_size]][token % block_size] = text
    return go.Heatmap(
        z=[[state] * block_size for state in states], text=cells, texttemplate="%{text}", colorscale=SCALE,
        zmin=UNUSED, zmax=COPIED, xgap=2, ygap=10, showscale=False, textfont={"size": 13, "color": "white"},
        hovertemplate="block %{y}, slot %{x}: %{text}<extra></extra>",
    )  # fmt: skip


def _links(now: Scene, names: Sequence[str], block_size: int) -> go.Scatter:
    """A line from each entry of a table to its block."""
    across: list[float | None] = []
    down: list[float | None] = []
    for name, place, edge in zip(names, _places(block_size), (-0.95, block_size + 0.4), strict=True):
        for entry, block in enumerate(now.blocks.get(name, ())):
            across += [place, edge, None]
            down += [entry, block, None]
    return go.Scatter(
        x=across, y=down, mode="lines", line={"color": INK, "width": 1.5}, hoverinfo="skip", showlegend=False
    )


def _entries(now: Scene, names: Sequence[str], block_size: int) -> go.Scatter:
    """The tables: one box an entry, in it the number of the block."""
    marks = [
        (place, entry, block)
        for name, place in zip(names, _places(block_size), strict=True)
        for entry, block in enumerate(now.blocks.get(name, ()))
    ]
    return go.Scatter(
        x=[place for place, _, _ in marks], y=[entry for _, entry, _ in marks], mode="markers+text",
        text=[str(block) for _, _, block in marks], textfont={"size": 14, "color": "white"}, showlegend=False,
        marker={"symbol": "square", "size": BOX, "color": COMPUTED.colour, "line": {"width": 1.5, "color": "white"}},
        hovertemplate="entry %{y} of the table: block %{text}<extra></extra>",
    )  # fmt: skip


def _margins(now: Scene, block_size: int) -> go.Scatter:
    """The number of each block on its left, how many tables refer to it on its right."""
    rows = list(range(len(now.references)))
    counts = [f"×{count}" if count else "" for count in now.references]
    return go.Scatter(
        x=[-0.72] * len(rows) + [block_size] * len(rows), y=rows * 2, mode="text", showlegend=False,
        text=[str(row) for row in rows] + counts, textfont={"size": 14, "color": INK}, hoverinfo="skip",
    )  # fmt: skip


def _headings(now: Scene, names: Sequence[str], block_size: int) -> list[dict[str, object]]:
    left, right = _places(block_size)
    texts = [(names[0], left), ("blocks of the pool", (block_size - 1) / 2), (names[1], right)]
    return [
        {"text": f"<b>{text}</b>", "x": place, "xanchor": "center", "y": 1, "yref": "paper", "yanchor": "bottom",
         "showarrow": False, "font": {"size": 14, "color": INK},
         "opacity": 1 if text in now.blocks or place not in (left, right) else 0}
        for text, place in texts
    ]  # fmt: skip


def _arrange(figure: go.Figure, blocks: int, block_size: int) -> None:
    left, right = _places(block_size)
    plot = ROW * blocks
    figure.update_layout(
        height=TOP + plot + CONTROLS, margin_t=TOP,
        title={"y": 1, "yref": "container", "yanchor": "top", "pad": {"t": 14}},
        legend={"y": 1 + 36 / plot, "yanchor": "bottom"},
    )  # fmt: skip
    figure.update_xaxes(range=[left - 1, right + 1], visible=False)
    figure.update_yaxes(range=[blocks - 0.5, -0.5], visible=False)


def _finding(scenes: Sequence[Scene], names: Sequence[str]) -> str:
    copied = sum(len(each.copies) for each in scenes)
    both = [each for each in scenes if len(each.blocks) == 2]
    if not both:
        return f"Only {' and '.join(scenes[0].blocks)} refers to blocks; nothing is shared."
    shared = [sum(count > 1 for count in each.references) for each in both]
    used = sum(count > 0 for count in both[-1].references)
    apart = sum(len(blocks) for blocks in both[-1].blocks.values())
    return (
        f"After the fork {names[0]} and {names[1]} share {counted(shared[0], 'block')} and nothing is copied; their "
        f"writes copy {copied} in all and leave {shared[-1]} shared. Together they use {counted(used, 'block')}, "
        f"without sharing {apart}."
    )
