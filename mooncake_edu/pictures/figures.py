"""Figures of what an event log tells: plain plotly, on any background, each with its finding in words."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
import plotly.graph_objects as go

from mooncake_edu.events import EventLog, Ints, Kind, Reals
from mooncake_edu.outcome import RequestTable
from mooncake_edu.pictures.palette import (
    COMPUTED,
    DECODED,
    FREE,
    GRID,
    INK,
    MOVING,
    REUSED,
    SERIES,
    WAITING,
    Paint,
)

ROW = 30  # pixels of one request in a timeline
LATENCIES = {
    "ttft": ("Time to the first token", "TTFT"),
    "tbt": ("Time between tokens (mean of the slowest tenth)", "TBT"),
    "e2e": ("Time to the last token", "end-to-end time"),
}
SPANS: dict[Kind, Paint] = {
    Kind.QUEUED: WAITING,
    Kind.WAIT: WAITING._replace(label="waiting for a neighbour's KVCache", pattern="+"),
    Kind.LOAD: MOVING._replace(label="loading KVCache"),
    Kind.CHUNK: COMPUTED._replace(label="prefill: computing the prompt"),
    Kind.DECODE: DECODED._replace(label="decode: one token a step"),
}


def timeline(log: EventLog, limit: int = 40) -> go.Figure:
    """What each request did when, in seconds since the first event; at most `limit` requests, the first to arrive."""
    table, rows = log.requests(), log.columns()
    names = unique_names(table.id)[:limit]
    zero = float(rows.start[0]) if len(rows) else 0.0
    figure = go.Figure()
    indices = sorted(log.snapshot()[1])[:limit]
    lanes = dict(zip(indices, names, strict=True))
    for kind, paint in SPANS.items():
        spans = rows.of(kind)
        spans = spans.where(np.isin(spans.request, indices))
        if len(spans):
            lane = [lanes[index] for index in spans.request.tolist()]
            add_spans(figure, paint, lane, spans.start - zero, spans.end - spans.start)
    _add_reuse(figure, log, table, names, zero)
    figure.update_yaxes(categoryorder="array", categoryarray=names[::-1], title=None, type="category")
    figure.update_xaxes(title="time since the first request (s)", rangemode="tozero")
    figure.update_layout(barmode="overlay", height=170 + ROW * max(len(names), 3))
    left = f" (the first {limit} of {len(table)})" if len(table) > limit else ""
    return finish(figure, f"What each request did when{left}", _timeline_finding(table, zero))


def add_spans(figure: go.Figure, paint: Paint, lanes: list[str], begin: Reals, length: Reals) -> None:
    """Bars along time, each in its lane, from `begin` on for `length`, in seconds."""
    figure.add_bar(
        orientation="h", y=lanes, base=begin, x=length, name=paint.label, marker=bar_marker(paint), width=0.62,
        customdata=begin + length,
        hovertemplate="%{y}<br>" + paint.label + ": %{base:.3f} to %{customdata:.3f} s<extra></extra>",
    )  # fmt: skip


def _add_reuse(figure: go.Figure, log: EventLog, table: RequestTable, names: list[str], zero: float) -> None:
    """Reused tokens take no time, so they are marked where the prefill begins."""
    chunks = log.select(Kind.CHUNK)
    chunks = chunks.where(chunks.field(Kind.CHUNK, "cached") > 0)
    lanes = dict(zip(sorted(log.snapshot()[1]), names, strict=False))
    first: dict[int, tuple[float, int]] = {}
    for index, start, cached in zip(
        chunks.request.tolist(), chunks.start.tolist(), chunks.field(Kind.CHUNK, "cached").tolist(), strict=True
    ):
        if index in lanes:
            first.setdefault(index, (start - zero, cached))
    if first:
        figure.add_scatter(
            mode="markers", name="tokens reused from the cache", x=[at for at, _ in first.values()],
            y=[lanes[index] for index in first], customdata=[cached for _, cached in first.values()],
            marker={"symbol": "diamond", "size": 12, "color": REUSED.colour, "line": {"width": 1.5, "color": "white"}},
            hovertemplate="%{y}<br>%{customdata} prompt tokens reused<extra></extra>",
        )  # fmt: skip


def _timeline_finding(table: RequestTable, zero: float) -> str:
    if not len(table):
        return "No request was recorded."
    ends = (table.arrival + table.e2e)[~np.isnan(table.e2e)]
    done = f"{ends.size} of {len(table)} requests are done" + (f" by {ends.max() - zero:.1f} s" if ends.size else "")
    hits = int((table.cached > 0).sum())
    found = f"{hits} found a part of their prompt in the cache" if hits else "none found anything in the cache"
    return f"{done}; {found}, {percent(table.hit_ratio())} of all prompt tokens were reused."


def tokens_side_by_side(logs: Mapping[str, EventLog]) -> go.Figure:
    """Per run, how many prompt tokens were computed and how many reused (found in the cache, or loaded)."""
    tables = {name: log.requests() for name, log in logs.items()}
    reused = {name: int((table.cached + table.loaded).sum()) for name, table in tables.items()}
    total = {name: int(table.prompt.sum()) for name, table in tables.items()}
    figure = go.Figure()
    for paint, values in (
        (COMPUTED, [total[name] - reused[name] for name in logs]),
        (REUSED, list(reused.values())),
    ):
        figure.add_bar(
            orientation="h", y=list(logs), x=values, name=paint.label, marker=bar_marker(paint), width=0.6,
            text=[f"<b>{value:,}</b>" if value else "" for value in values], textposition="auto",
            insidetextfont={"color": "white", "size": 15}, outsidetextfont={"size": 15}, textangle=0,
            insidetextanchor="middle",
            hovertemplate="%{y}<br>%{x:,} prompt tokens " + paint.label + "<extra></extra>",
        )  # fmt: skip
    figure.update_layout(barmode="stack", height=190 + 60 * len(tables))
    figure.update_xaxes(title="prompt tokens", rangemode="tozero")
    figure.update_yaxes(autorange="reversed", type="category")
    said = "; ".join(
        f"{name}: {total[name] - reused[name]:,} of {total[name]:,} prompt tokens computed, "
        f"{reused[name]:,} reused ({percent(reused[name] / max(total[name], 1))})"
        for name in tables
    )
    return finish(figure, "Prompt tokens computed and reused", said + ".")


def memory(log: EventLog, instance: int = 0) -> go.Figure:
    """Blocks of one instance's KVCache over time: in use, cached for reuse, free."""
    steps = log.select(Kind.STEP, instance=instance)
    rows = log.columns()
    zero = float(rows.start[0]) if len(rows) else 0.0
    figure = go.Figure()
    blocks = {name: steps.field(Kind.STEP, name) for name in ("used", "cached", "free")}
    for name, paint in (
        ("used", COMPUTED._replace(label="in use by running requests")),
        ("cached", REUSED._replace(label="cached: kept for reuse, can be evicted")),
        ("free", FREE._replace(label="free")),
    ):
        figure.add_scatter(
            x=steps.end - zero, y=blocks[name], name=paint.label, stackgroup="blocks", mode="lines",
            line={"shape": "hv", "width": 0.5, "color": paint.colour}, fillcolor=paint.colour,
            fillpattern=area_pattern(paint) if paint.pattern else None,
            hovertemplate="%{y} blocks " + paint.label + "<extra></extra>",
        )  # fmt: skip
    figure.update_xaxes(title="time since the first request (s)", rangemode="tozero")
    figure.update_yaxes(title="blocks", rangemode="tozero")
    figure.update_layout(height=360, hovermode="x")
    return finish(figure, "The KVCache over time", _memory_finding(len(steps), blocks))


def _memory_finding(steps: int, blocks: Mapping[str, Ints]) -> str:
    if not steps:
        return "No batch step was recorded."
    total = int(blocks["used"][-1] + blocks["cached"][-1] + blocks["free"][-1])
    return (
        f"Over {steps} batch steps at most {int(blocks['used'].max())} of {total} blocks were in use at once; at the "
        f"end {int(blocks['cached'][-1])} hold KVCache for reuse and {int(blocks['free'][-1])} are free."
    )


def latency_bars(logs: Mapping[str, EventLog], column: str = "ttft") -> go.Figure:
    """`ttft`, `tbt` or `e2e` of each request, in milliseconds, one bar per run; requests of one name stand together."""
    title, short = LATENCIES[column]
    figure, means = go.Figure(), {}
    tables = {name: log.requests() for name, log in logs.items()}
    for (name, table), paint in zip(tables.items(), _series(len(tables)), strict=True):
        figure.add_bar(
            x=unique_names(table.id), y=getattr(table, column) * 1e3, name=name, marker=bar_marker(paint),
            hovertemplate="%{x}<br>" + name + ": %{y:.1f} ms<extra></extra>",
        )  # fmt: skip
        means[name] = table.mean(column) * 1e3
    figure.update_layout(barmode="group", height=400)
    figure.update_yaxes(title=f"{short} (ms)", rangemode="tozero")
    figure.update_xaxes(type="category", tickangle=-40)
    said = "; ".join(f"{name} {mean:,.0f} ms" for name, mean in means.items())
    return finish(figure, f"{title}, per request", f"Mean {short}: {said}.")


def _series(count: int) -> Sequence[Paint]:
    return [SERIES[number % len(SERIES)] for number in range(count)]


def unique_names(ids: Sequence[str]) -> list[str]:
    """The ids, with a number behind those that came before."""
    seen: dict[str, int] = {}
    names = []
    for name in ids:
        seen[name] = seen.get(name, 0) + 1
        names.append(name if seen[name] == 1 else f"{name} ({seen[name]})")
    return names


def bar_marker(paint: Paint) -> dict[str, object]:
    """The marker of a bar in a paint, its pattern included."""
    marker: dict[str, object] = {"color": paint.colour, "line": {"width": 0}}
    if paint.pattern:
        marker["pattern"] = {
            "shape": paint.pattern, "fillmode": "overlay", "fgcolor": "rgba(255,255,255,0.55)", "size": 7,
            "solidity": 0.25,
        }  # fmt: skip
    return marker


def area_pattern(paint: Paint) -> dict[str, object]:
    """The fill pattern of an area in a paint."""
    return {"shape": paint.pattern, "fillmode": "replace", "fgcolor": paint.colour, "bgcolor": "rgba(0,0,0,0)",
            "size": 8, "solidity": 0.15 if paint.colour == FREE.colour else 0.45}  # fmt: skip


def percent(share: float) -> str:
    """A share in percent, without decimals."""
    return f"{100 * share:.0f} %"


LOG_TICKS = [factor * 10.0**power for power in range(-9, 13) for factor in (1, 2, 5)]
"""Marks of a logarithmic axis, written out: plotly's own say 2 and 5 for 20 and 50."""


def finish(figure: go.Figure, title: str, finding: str) -> go.Figure:
    """Gives a figure what all share; `layout.meta["alt"]` is then the text for those who cannot see it."""
    axis = {"gridcolor": GRID, "zerolinecolor": GRID, "linecolor": GRID, "automargin": True}
    figure.update_layout(
        title={"text": title, "x": 0, "xref": "container", "xanchor": "left", "pad": {"l": 12}, "font": {"size": 17}},
        meta={"alt": f"{title}. {finding}", "finding": finding},
        font={"family": "system-ui, sans-serif", "size": 14, "color": INK},
        paper_bgcolor="rgba(0,0,0,0)", plot_bgcolor="rgba(0,0,0,0)",
        legend={"orientation": "h", "x": 0, "y": 1.02, "yanchor": "bottom", "font": {"size": 13},
                "traceorder": "normal"},
        margin={"l": 12, "r": 16, "t": 96, "b": 12}, bargap=0.25, showlegend=True,
    )  # fmt: skip
    figure.update_xaxes(**axis)
    figure.update_yaxes(**axis)
    for each in (*figure.select_xaxes(), *figure.select_yaxes()):
        if each.type == "log" and each.tickvals is None and each.dtick is None:
            each.tickvals = LOG_TICKS
    return figure
