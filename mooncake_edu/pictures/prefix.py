"""Pictures of layer 2: what prompts have in common, the chain of their keys, and which blocks go first."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import plotly.graph_objects as go

from mooncake_edu.pictures.figures import bar_marker, finish, percent
from mooncake_edu.pictures.frames import CONTROLS, animate
from mooncake_edu.pictures.palette import COMPUTED, EVICTED, FREE, INK, MOVING, REUSED, SERIES, Paint

NEUTRAL = "rgba(128, 134, 145, 0.13)"
FRAME_MS = 1100
LINE = 10  # letters of a block on one line
AXIS = 46  # pixels of the numbers and the title under a plot
WHITE = {"color": "white", "size": 13}


def beginnings(prompts: Mapping[str, Sequence[int]]) -> go.Figure:
    """Of each prompt, in the order given: the tokens that an earlier one began with as well, and those that are new."""
    seen: list[Sequence[int]] = []
    known: dict[str, int] = {}
    for name, tokens in prompts.items():
        known[name] = max((common_length(tokens, other) for other in seen), default=0)
        seen.append(tokens)
    total = {name: len(tokens) for name, tokens in prompts.items()}
    figure = go.Figure()
    for paint, values in (
        (REUSED._replace(label="an earlier prompt began with the same"), list(known.values())),
        (COMPUTED._replace(label="new"), [total[name] - known[name] for name in prompts]),
    ):
        figure.add_bar(
            orientation="h", y=list(prompts), x=values, name=paint.label, marker=bar_marker(paint), width=0.66,
            text=[f"<b>{value:,}</b>" if value else "" for value in values], insidetextfont=WHITE, textangle=0,
            textposition="inside", insidetextanchor="middle", hovertemplate="%{y}: %{x:,} tokens<extra></extra>",
        )  # fmt: skip
    figure.update_layout(barmode="stack", height=180 + 34 * len(prompts))
    figure.update_xaxes(title="prompt tokens", rangemode="tozero")
    figure.update_yaxes(autorange="reversed", type="category")
    share = sum(known.values()) / max(sum(total.values()), 1)
    return finish(
        figure, "What the prompts have in common",
        f"Of {sum(total.values()):,} prompt tokens {sum(known.values()):,} ({percent(share)}) stand in a beginning "
        "that an earlier prompt has as well.",
    )  # fmt: skip


def common_length(one: Sequence[int], other: Sequence[int]) -> int:
    """How many tokens two prompts begin with alike."""
    for place, (a, b) in enumerate(zip(one, other, strict=False)):
        if a != b:
            return place
    return min(len(one), len(other))


def costs(lengths: Sequence[int], ways: Mapping[str, Sequence[float]], unit: str) -> go.Figure:
    """What each way costs (in `unit`) at each prompt length (tokens), on two logarithmic axes."""
    figure = go.Figure()
    for (name, values), paint, symbol in zip(ways.items(), SERIES, ("circle", "square", "diamond", "x", "cross"),
                                             strict=False):  # fmt: skip
        figure.add_scatter(
            x=list(lengths), y=list(values), name=name, mode="lines+markers",
            line={"color": paint.colour, "width": 2.5}, marker={"symbol": symbol, "size": 9},
            hovertemplate="%{x:,} tokens: %{y:,.4g} " + unit + "<extra>" + name + "</extra>",
        )  # fmt: skip
    figure.update_xaxes(title="prompt (tokens)", type="log", tickvals=list(lengths),
                        ticktext=[f"{length:,}" for length in lengths])  # fmt: skip
    figure.update_yaxes(title=unit, type="log")
    figure.update_layout(height=400)
    longer = lengths[-1] / lengths[0]
    said = "; ".join(f"{values[-1] / values[0]:,.0f} times as long ({name})" for name, values in ways.items())
    return finish(figure, "What it costs to make all keys of a prompt",
                  f"A prompt {longer:,.0f} times as long takes {said}.")  # fmt: skip


@dataclass(frozen=True)
class Chain:
    """One version of a prompt: what was changed in it, the text of each block, and each block's key."""

    change: str
    texts: Sequence[str]
    keys: Sequence[bytes]


def hash_chain(versions: Sequence[Chain], title: str = "A key stands for its block and all before it") -> go.Figure:
    """The blocks of a prompt and their keys; each further version is compared with the first, block by block."""
    base = versions[0]
    figure = go.Figure(_chain_bars(base, base))
    blocks = len(base.keys)
    for number in range(blocks):  # key -> next key, tokens -> key
        figure.add_annotation(_arrow(number + 0.02, 1.56, number + 0.02, 1.06))
        figure.add_annotation(_arrow(number - 0.55, 0.5, number - 0.43, 0.5))
    figure.add_annotation(x=-0.6, y=0.5, text="name-<br>space", showarrow=False, xanchor="right", font={"size": 12})
    figure.update_xaxes(visible=False, range=[-1.15, blocks - 0.4])
    figure.update_yaxes(
        tickvals=[0.5, 2.1], ticktext=["key", "tokens"], range=[-0.15, 2.7], showgrid=False, zeroline=False
    )
    figure.update_layout(height=330 + CONTROLS, barmode="overlay")
    changed = [sum(a != b for a, b in zip(base.keys, version.keys, strict=True)) for version in versions]
    said = "; ".join(f"{version.change}: {count} of {blocks} keys are new"
                     for version, count in zip(versions[1:], changed[1:], strict=True))  # fmt: skip
    finish(figure, title, f"{said[:1].upper()}{said[1:]}.")
    frames = [go.Frame(name=version.change, data=_chain_bars(base, version)) for version in versions]
    return animate(figure, frames, word="changed:", milliseconds=FRAME_MS)


def _chain_bars(base: Chain, version: Chain) -> list[go.Bar]:
    places = list(range(len(base.keys)))
    other = [a != b for a, b in zip(base.texts, version.texts, strict=True)]
    new = [a != b for a, b in zip(base.keys, version.keys, strict=True)]
    texts = [_folded(text) for text in version.texts]
    keys = [f"<b>{key.hex()[:6]}</b>" for key in version.keys]
    plain = Paint("tokens as before", NEUTRAL, "")
    return [
        _boxes(plain, places, [not o for o in other], 1.6, 1.0, texts, INK),
        _boxes(MOVING._replace(label="tokens changed"), places, other, 1.6, 1.0, texts, "white"),
        _boxes(REUSED._replace(label="same key: reused"), places, [not n for n in new], 0, 1,
               keys, "white"),
        _boxes(COMPUTED._replace(label="new key: computed"), places, new, 0, 1, keys, "white"),
    ]  # fmt: skip


def _folded(text: str) -> str:
    """A long text on two lines."""
    middle = -(-len(text) // 2)
    return text if len(text) <= LINE else f"{text[:middle]}<br>{text[middle:]}"


def _boxes(paint: Paint, places: list[int], shown: list[bool], base: float, height: float, texts: list[str],
           colour: str) -> go.Bar:  # fmt: skip
    """One trace of boxes; those not shown are gaps, so that legend and frames keep every trace."""
    return go.Bar(
        x=places, y=[height if show else None for show in shown], base=[base] * len(places), width=0.86,
        name=paint.label, marker=bar_marker(paint), text=texts, textposition="inside", insidetextanchor="middle",
        textangle=0, insidetextfont={"color": colour, "size": 13}, constraintext="none",
        hovertemplate="%{text}<extra></extra>",
    )  # fmt: skip


def _arrow(x0: float, y0: float, x1: float, y1: float) -> dict[str, object]:
    return {"x": x1, "y": y1, "ax": x0, "ay": y0, "axref": "x", "ayref": "y", "showarrow": True, "arrowhead": 2,
            "arrowwidth": 1.6, "arrowcolor": INK, "text": ""}  # fmt: skip


@dataclass(frozen=True)
class Kept:
    """What is left after some evictions: per chain, which blocks are kept, and how many of them a prompt finds."""

    kept: Mapping[str, Sequence[bool]]
    hits: Mapping[str, int]


def evictions(orders: Mapping[str, Sequence[Kept]]) -> go.Figure:
    """The same chains losing block after block in several orders, and what a prompt still finds of each chain."""
    steps = min(len(run) for run in orders.values())
    rows = [f"{order}: {chain}" for order, run in orders.items() for chain in run[0].kept]
    frames = [
        go.Frame(name=str(step), data=_kept_bars({order: run[step] for order, run in orders.items()}))
        for step in range(steps)
    ]
    figure = go.Figure(frames[0].data)
    width = max((len(kept) for run in orders.values() for kept in run[0].kept.values()), default=0)
    figure.update_xaxes(title="block of the chain", range=[-0.55, width + 1.6], tickvals=list(range(width)),
                        showgrid=False, zeroline=False)  # fmt: skip
    figure.update_yaxes(type="category", categoryorder="array", categoryarray=rows[::-1], showgrid=False,
                        range=[-0.6, len(rows) - 0.4])  # fmt: skip
    figure.update_layout(height=110 + AXIS + CONTROLS + 46 * len(rows), barmode="overlay")
    said = "; ".join(
        f"{order}: {chain} {', '.join(str(kept.hits[chain]) for kept in run[:steps])}"
        for order, run in orders.items() for chain in run[0].kept
    )  # fmt: skip
    finish(figure, "Which blocks go first", f"Blocks still found after 0 to {steps - 1} evictions: {said}.")
    return animate(figure, frames, word="blocks evicted:", milliseconds=FRAME_MS, below=AXIS)


def _kept_bars(runs: Mapping[str, Kept]) -> list[go.Bar | go.Scatter]:
    cells: list[tuple[str, int, str]] = []
    found: dict[str, str] = {}
    for order, run in runs.items():
        for chain, kept in run.kept.items():
            row, hit = f"{order}: {chain}", run.hits[chain]
            found[row] = f"{hit} of {len(kept)} found"
            for number, is_kept in enumerate(kept):
                cells.append((row, number, "lost" if not is_kept else "found" if number < hit else "useless"))
    traces: list[go.Bar | go.Scatter] = []
    for state, paint, sign in (
        ("found", REUSED._replace(label="kept, and found"), "✓"),
        ("useless", FREE._replace(label="kept, but out of reach"), "?"),
        ("lost", EVICTED._replace(label="evicted"), "×"),
    ):
        traces.append(go.Bar(
            orientation="h", y=[row for row, _, _ in cells], base=[number - 0.46 for _, number, _ in cells],
            x=[0.92 if cell == state else None for _, _, cell in cells], name=paint.label, width=0.78,
            marker=bar_marker(paint), text=[f"<b>{sign}</b>"] * len(cells), textposition="inside", textangle=0,
            insidetextanchor="middle", insidetextfont=WHITE, constraintext="none", hoverinfo="skip",
        ))  # fmt: skip
    length = max((number for _, number, _ in cells), default=0)
    return [*traces, go.Scatter(
        x=[length + 0.7] * len(found), y=list(found), text=list(found.values()), mode="text", showlegend=False,
        textposition="middle right", textfont={"size": 13, "color": INK}, hoverinfo="skip", cliponaxis=False,
    )]  # fmt: skip


def reuse_by_block_size(
    reused: Mapping[int, int], shared: int, total: int, title: str = "What the size of a block costs"
) -> go.Figure:
    """How many of `total` prompt tokens are reused at each block size (tokens), below the `shared` that could be."""
    figure = go.Figure()
    sizes = [f"{size:,}" for size in reused]
    figure.add_bar(
        x=sizes, y=list(reused.values()), name=REUSED.label, marker=bar_marker(REUSED), width=0.62,
        text=[f"<b>{value:,}</b>" for value in reused.values()], textposition="auto", insidetextfont=WHITE,
        hovertemplate="blocks of %{x} tokens: %{y:,} prompt tokens reused<extra></extra>",
    )  # fmt: skip
    figure.add_scatter(x=sizes, y=[shared] * len(sizes), mode="lines", name="begins like an earlier prompt",
                       line={"color": INK, "dash": "dash", "width": 2}, hoverinfo="skip")  # fmt: skip
    figure.update_xaxes(title="block size (tokens)", type="category")
    figure.update_yaxes(title="prompt tokens", range=[0, total])
    figure.update_layout(height=380)
    said = "; ".join(f"{value:,} in blocks of {size:,}" for size, value in reused.items())
    return finish(
        figure, title,
        f"{shared:,} of {total:,} prompt tokens stand in a beginning that came before. Reused are {said}.",
    )  # fmt: skip


def found_over_time(
    runs: Mapping[str, Sequence[int]], total: int, title: str = "What is found in the cache"
) -> go.Figure:
    """Blocks found in the cache after each request, summed up, one line a run; `total` blocks were asked for."""
    figure = go.Figure()
    for (name, found), paint, dash in zip(runs.items(), SERIES, ("solid", "dash", "dot", "dashdot"), strict=False):
        figure.add_scatter(
            x=list(range(1, len(found) + 1)), y=list(found), name=name, mode="lines",
            line={"color": paint.colour, "width": 2.5, "dash": dash},
            hovertemplate="after %{x} requests: %{y:,} blocks found<extra>" + name + "</extra>",
        )  # fmt: skip
    figure.update_xaxes(title="requests served", rangemode="tozero")
    figure.update_yaxes(title="blocks found", rangemode="tozero")
    figure.update_layout(height=380)
    said = "; ".join(f"{name} {percent(found[-1] / max(total, 1))}" for name, found in runs.items() if found)
    return finish(figure, title, f"Of {total:,} blocks were found: {said}.")
