"""The tree of prefixes: one node a block key, shared by every prompt that begins like it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import plotly.graph_objects as go

from mooncake_edu.pictures.figures import finish, percent
from mooncake_edu.pictures.frames import CONTROLS, animate
from mooncake_edu.pictures.palette import COMPUTED, FREE, INK, REUSED, Paint

FRAME_MS = 1300
AXIS = 46  # pixels of the numbers and the title under the plot
ROW = 46
FEW = 12  # prompts that are told one by one
WHITE = {"color": "white", "size": 13}
EMPTY: list[float] = [float("nan")]
"""A trace without any point would lose its place in the legend."""


@dataclass
class Node:
    """One block of the tree: where it is drawn, and the prompts that went through it, by number."""

    depth: int
    height: float = 0.0
    parent: bytes | None = None
    children: list[bytes] = field(default_factory=list)
    prompts: list[int] = field(default_factory=list)
    text: str = ""


def prefix_tree(prompts: Mapping[str, Sequence[bytes]], texts: Mapping[bytes, str] | None = None) -> go.Figure:
    """The prefixes of all prompts as a tree, one node a block key, growing prompt by prompt.

    `prompts` gives each prompt's block keys, in the order of arrival; `texts` what a key's block says. The number in
    a node counts the prompts that used it so far.
    """
    nodes = _tree(prompts, texts or {})
    names = list(prompts)
    figure = go.Figure(_tree_traces(nodes, names, 0))
    rows = sum(not node.children for node in nodes.values())
    deepest = max((node.depth for node in nodes.values()), default=0)
    figure.update_xaxes(title="block of the prompt", range=[-0.6, deepest + 1.9], dtick=1, tick0=0, showgrid=False,
                        zeroline=False, tickvals=list(range(deepest + 1)))  # fmt: skip
    figure.update_yaxes(visible=False, range=[rows - 0.4, -0.85])
    figure.update_layout(height=110 + ROW * max(rows, 2) + AXIS + CONTROLS)
    used = sum(len(keys) for keys in prompts.values())
    finish(figure, "The tree of prefixes",
           f"{len(names)} prompts have {used} full blocks, but only {len(nodes)} different ones: {used - len(nodes)} "
           f"({percent((used - len(nodes)) / max(used, 1))}) need not be computed again."
           f"{_finds(prompts, nodes)}")  # fmt: skip
    frames = [go.Frame(name=name, data=_tree_traces(nodes, names, step)) for step, name in enumerate(names)]
    return animate(figure, frames, word="arrived:", milliseconds=FRAME_MS, below=AXIS)


def _finds(prompts: Mapping[str, Sequence[bytes]], nodes: Mapping[bytes, Node]) -> str:
    """What each of a few prompts found when it came."""
    if len(prompts) > FEW:
        return ""
    found = (sum(nodes[key].prompts[0] < number for key in keys) for number, keys in enumerate(prompts.values()))
    return " Found on arrival: " + "; ".join(
        f"{name} {count} of {len(keys)}" for (name, keys), count in zip(prompts.items(), found, strict=True)
    ) + "."  # fmt: skip


def _tree(prompts: Mapping[str, Sequence[bytes]], texts: Mapping[bytes, str]) -> dict[bytes, Node]:
    nodes: dict[bytes, Node] = {}
    for number, keys in enumerate(prompts.values()):
        parent = None
        for depth, key in enumerate(keys):
            if key not in nodes:
                nodes[key] = Node(depth, parent=parent, text=texts.get(key, ""))
                if parent is not None:
                    nodes[parent].children.append(key)
            nodes[key].prompts.append(number)
            parent = key
    row = 0
    for key, node in nodes.items():
        if node.parent is None:
            row = _place(nodes, key, row)
    return nodes


def _place(nodes: dict[bytes, Node], root: bytes, row: int) -> int:
    """Give the nodes under a root their heights: a first child stays level with its parent, a leaf ends its row."""
    waiting = [root]
    while waiting:
        node = nodes[waiting.pop()]
        first = node.parent is not None and nodes[nodes[node.parent].children[0]] is node
        node.height = nodes[node.parent].height if first and node.parent is not None else row
        row += not node.children
        waiting += node.children[::-1]
    return row


def _tree_traces(nodes: dict[bytes, Node], names: Sequence[str], step: int) -> list[go.Scatter]:
    """The tree once the prompts up to number `step` have arrived."""
    there = {key: node for key, node in nodes.items() if node.prompts[0] <= step}
    edges: list[tuple[float | None, float | None]] = []
    for node in there.values():
        if node.parent is not None:
            above = nodes[node.parent]
            elbow = node.depth - 0.5
            edges += [(above.depth, above.height), (elbow, above.height), (elbow, node.height),
                      (node.depth, node.height), (None, None)]  # fmt: skip
    traces = [go.Scatter(x=[x for x, _ in edges], y=[y for _, y in edges], mode="lines", hoverinfo="skip",
                         line={"color": INK, "width": 3}, opacity=0.35, showlegend=False)]  # fmt: skip
    for paint, symbol, chosen in (
        (FREE._replace(label="in the cache"), "circle", [n for n in there.values() if step not in n.prompts]),
        (REUSED._replace(label="reused by this prompt"), "diamond",
         [n for n in there.values() if step in n.prompts and n.prompts[0] < step]),
        (COMPUTED._replace(label="computed for this prompt"), "square",
         [n for n in there.values() if n.prompts[0] == step]),
    ):  # fmt: skip
        traces.append(_nodes(paint, symbol, chosen, step))
    ends = [next((n for n in reversed(there.values()) if number in n.prompts), None) for number in range(step + 1)]
    return [*traces, _names(names, ends)]


def _nodes(paint: Paint, symbol: str, chosen: list[Node], step: int) -> go.Scatter:
    size = 34 if symbol == "diamond" else 27
    counts = [sum(number <= step for number in node.prompts) for node in chosen]
    return go.Scatter(
        x=[node.depth for node in chosen] or EMPTY, y=[node.height for node in chosen] or EMPTY,
        text=[f"<b>{count}</b>" for count in counts] or [""], mode="markers+text", textfont=WHITE, name=paint.label,
        marker={"symbol": symbol, "size": size, "color": paint.colour, "line": {"width": 0}}, cliponaxis=False,
        customdata=[node.text for node in chosen] or [""],
        hovertemplate="%{customdata}<br>used by %{text} prompts<extra></extra>",
    )  # fmt: skip


def _names(names: Sequence[str], ends: Sequence[Node | None]) -> go.Scatter:
    """The names of the prompts at their last blocks: behind a leaf, above a block that has others behind it."""
    labels: dict[int, tuple[Node, list[str]]] = {}
    for name, node in zip(names, ends, strict=False):
        if node is not None:
            labels.setdefault(id(node), (node, []))[1].append(name)
    chosen = [node for node, _ in labels.values()]
    return go.Scatter(
        x=[node.depth if node.children else node.depth + 0.25 for node in chosen] or EMPTY, mode="text",
        y=[node.height - 0.53 if node.children else node.height for node in chosen] or EMPTY,
        text=[", ".join(line) for _, line in labels.values()] or [""], hoverinfo="skip", showlegend=False,
        textposition=["middle center" if node.children else "middle right" for node in chosen] or "middle right",
        textfont={"size": 13, "color": INK}, cliponaxis=False,
    )  # fmt: skip
