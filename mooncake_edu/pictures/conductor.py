"""Pictures of layer 6: the candidates of a request, the cluster as Conductor sees it, and what policies lead to."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import plotly.graph_objects as go
from plotly.subplots import make_subplots

from mooncake_edu.conductor import ClusterView, Placement, Pool, Query
from mooncake_edu.pictures.figures import bar_marker, finish, percent
from mooncake_edu.pictures.frames import CONTROLS, animate
from mooncake_edu.pictures.palette import COMPUTED, DASHES, DECODED, FREE, INK, MOVING, REUSED, SERIES, WAITING, Paint
from mooncake_edu.pictures.scores import mark, ranked
from mooncake_edu.quantities import counted
from mooncake_edu.simulation.explain import Candidate, Journal
from mooncake_edu.simulation.result import Result

QUEUE = WAITING._replace(label="queue: prompts before it")
TRANSFER = MOVING._replace(label="transfer: fetching a prefix")
PREFILL = COMPUTED._replace(label="prefill: computing the rest")
CHOSEN = "◀ chosen"
LANE = 44  # pixels of a candidate


def candidates(found: Sequence[Candidate], chosen: int, title: str = "The candidates of one request") -> go.Figure:
    """Seconds to the first token at each prefill instance, as bars of queue, transfer and prefill; one is `chosen`."""
    figure = go.Figure()
    lanes = [f"instance {each.instance}" for each in found]
    for paint, column in ((QUEUE, "queue"), (TRANSFER, "transfer"), (PREFILL, "prefill")):
        values = [getattr(each, column) if each.usable else 0.0 for each in found]
        figure.add_bar(
            orientation="h", y=lanes, x=values, name=paint.label, marker=bar_marker(paint), width=0.62,
            showlegend=paint is not TRANSFER or any(values),
            hovertemplate="%{y}<br>" + paint.label + ": %{x:.2f} s<extra></extra>",
        )  # fmt: skip
    figure.add_scatter(
        mode="text", y=lanes, x=[each.ttft if each.usable else 0.0 for each in found], cliponaxis=False,
        text=[_told(each, each.instance == chosen) for each in found], textposition="middle right", showlegend=False,
        hoverinfo="skip", textfont={"color": INK, "size": 13},
    )  # fmt: skip
    longest = max((each.ttft for each in found if each.usable), default=1.0)
    figure.update_layout(barmode="stack", height=170 + LANE * len(found))
    figure.update_xaxes(title="forecast: time to the first token (s)", range=[0, 1.75 * longest])
    return mark(finish(figure, title, _candidates_finding(found, chosen)), lanes, f"instance {chosen}")


def _told(each: Candidate, chosen: bool) -> str:
    if not each.usable:
        return " may not be chosen"
    holds = f" {each.ttft:.2f} s; holds {each.cached:,}"
    fetches = f", fetches {each.fetched:,} from {each.source}" if each.fetched else ""
    return f"<b>{holds}{fetches} {CHOSEN}</b>" if chosen else holds + fetches


def _candidates_finding(found: Sequence[Candidate], chosen: int) -> str:
    usable = {each.instance: each for each in found if each.usable}
    if chosen not in usable:
        return "No instance may be chosen."
    best, longest = usable[chosen], max(found, key=lambda each: each.cached)
    least = min(usable.values(), key=lambda each: each.queue)
    return (
        f"Instance {chosen} is chosen: {best.ttft:.2f} s, of which {best.queue:.2f} s in the queue, "
        f"{best.transfer:.2f} s of fetching and {best.prefill:.2f} s of computing. Instance {longest.instance} holds "
        f"most, {longest.cached:,} tokens; the shortest queue is that of instance {least.instance}, "
        f"{least.queue:.2f} s."
    )


def cluster_map(journal: Journal, numbers: Sequence[int]) -> go.Figure:
    """The instances when each of these requests was placed: their queues, what they hold of it, and where it goes.

    What the Conductor had placed and no view showed yet is in the queues.
    """
    scenes = [(journal.placed[n].arguments[0], journal.shown[n], journal.placed[n].answer) for n in numbers]
    figure = make_subplots(
        rows=3, cols=1, vertical_spacing=0.14, subplot_titles=(
            "prefill instances: work that waits", "what each holds of this prompt", "decode instances: requests there"),
    )  # fmt: skip
    rows = [1, 1, 2, 2, 3, 3]
    for row, trace in zip(rows, _scene(*scenes[0]), strict=True):
        figure.add_trace(trace, row=row, col=1)
    figure.data[3].showlegend = any(placement.fetched for _, _, placement in scenes)
    finish(figure, "Where requests go", _map_finding(scenes))
    _arrange(figure, scenes)
    frames = [
        go.Frame(name=f"{number}: {_goes(query, placement)}", data=_scene(query, view, placement),
                 traces=list(range(len(rows))))
        for number, (query, view, placement) in zip(numbers, scenes, strict=True)
    ]  # fmt: skip
    animate(figure, frames, word="request", milliseconds=900, below=40)
    return figure.update_layout(height=560 + CONTROLS)


def _scene(query: Query, view: ClusterView, placement: Placement) -> list[Any]:
    fill, decode = view.prefill, view.decode
    held = [100 * cached / query.prompt for cached in fill.cached]
    return [
        _columns(fill, fill.queue, QUEUE, "%{x}: %{y:.2f} s<extra></extra>"),
        _mark(fill, fill.queue, placement.prefill, True),
        _columns(fill, held, REUSED, "%{x}: %{y:.0f} %<extra></extra>"),
        _fetch(fill, held, placement),
        _columns(decode, decode.requests, DECODED, "%{x}: %{y}<extra></extra>"),
        _mark(decode, decode.requests, placement.decode, False),
    ]


def _columns(pool: Pool, values: Sequence[float], paint: Paint, hover: str) -> go.Bar:
    return go.Bar(x=_names(pool), y=list(values), marker=bar_marker(paint), hovertemplate=hover, showlegend=False)


def _names(pool: Pool) -> list[str]:
    return [str(number) for number in pool.number]


def _mark(pool: Pool, values: Sequence[float], number: int, named: bool) -> go.Scatter:
    """A mark above the instance to which the request goes."""
    return go.Scatter(
        x=[str(number)], y=[values[list(pool.number).index(number)]], mode="markers+text", text=["<b>this one</b>"],
        textposition="top center", textfont={"color": INK, "size": 13}, name="where the request goes", hoverinfo="skip",
        showlegend=named, cliponaxis=False,
        marker={"symbol": "triangle-down", "size": 16, "color": COMPUTED.colour,
                "line": {"width": 1.5, "color": "white"}},
    )  # fmt: skip


def _fetch(pool: Pool, held: Sequence[float], placement: Placement) -> go.Scatter:
    """An arrow from the instance that gives a prefix to the one that computes the rest; off the picture without one."""
    ends = [placement.source, placement.prefill] if placement.source is not None else []
    across: list[str | None] = [str(number) for number in ends]
    up: list[float | None] = [held[list(pool.number).index(number)] for number in ends]
    return go.Scatter(
        x=across or [None], y=up or [None], mode="lines+markers", name="a prefix is fetched", hoverinfo="skip",
        cliponaxis=False,
        line={"color": MOVING.colour, "width": 3, "dash": "dot"},
        marker={"symbol": ["circle", "arrow"][: len(ends)] or "circle", "size": 15, "angleref": "previous",
                "color": MOVING.colour},
    )  # fmt: skip


def _goes(query: Query, placement: Placement) -> str:
    fetched = f", {placement.fetched:,} fetched from {placement.source}" if placement.fetched else ""
    return (
        f"{query.prompt:,} tokens to {placement.prefill}, then {placement.decode}; "
        f"{placement.cached - placement.fetched:,} reused there{fetched}"
    )


def _arrange(figure: go.Figure, scenes: Sequence[tuple[Query, ClusterView, Placement]]) -> None:
    queue = max(max(view.prefill.queue) for _, view, _ in scenes)
    requests = max(max(view.decode.requests) for _, view, _ in scenes)
    first = scenes[0][1]
    figure.update_xaxes(type="category", categoryorder="array", categoryarray=_names(first.prefill))
    figure.update_xaxes(categoryarray=_names(first.decode), title="instance", row=3, col=1)
    figure.update_yaxes(title="seconds", range=[0, 1.35 * max(queue, 1.0)], row=1, col=1)
    figure.update_yaxes(title="% of its tokens", range=[0, 108], row=2, col=1)
    figure.update_yaxes(title="requests", range=[0, 1.4 * max(requests, 3)], row=3, col=1)
    figure.update_annotations(font={"size": 14, "color": INK})
    figure.update_layout(
        title={"y": 1, "yref": "container", "yanchor": "top", "pad": {"t": 14}}, margin_t=110, legend={"y": 1.09},
    )  # fmt: skip


def _map_finding(scenes: Sequence[tuple[Query, ClusterView, Placement]]) -> str:
    longest = fetched = 0
    for _, view, placement in scenes:
        place = list(view.prefill.number).index(placement.prefill)
        longest += view.prefill.cached[place] == max(view.prefill.cached)
        fetched += placement.fetched > 0
    return (
        f"Of {counted(len(scenes), 'request')} {longest} went where most of their prefix was, the others elsewhere; "
        f"for {fetched} a prefix was fetched from another instance."
    )


def waits(results: Sequence[Result], title: str = "Time to the first token under each policy") -> go.Figure:
    """Mean and 90th percentile of TTFT, a pair of bars a run."""
    figure = go.Figure()
    names = [result.name for result in results]
    values = {
        "mean": [result.table.mean("ttft") for result in results],
        "90th percentile": [result.table.percentile("ttft", 90) for result in results],
    }
    for (what, numbers), paint in zip(values.items(), SERIES, strict=False):
        figure.add_bar(x=names, y=numbers, name=what, marker=bar_marker(paint), text=[f"{n:.1f}" for n in numbers],
                       textposition="outside", cliponaxis=False,
                       hovertemplate="%{x}, " + what + ": %{y:.2f} s<extra></extra>")  # fmt: skip
    said = [f"{name} {mean:.1f} s, {late:.1f} s" for name, mean, late in zip(names, *values.values(), strict=True)]
    figure.update_layout(barmode="group", height=420)
    figure.update_yaxes(title="TTFT (s)", rangemode="tozero")
    finish(figure, title, f"Mean and 90th percentile: {'; '.join(said)}.")
    return figure.update_xaxes(type="category")


def shares(counts: Mapping[str, Mapping[int, int]], title: str) -> go.Figure:
    """How many requests each instance got, a group of bars a run; `counts` is run -> instance -> requests."""
    figure, said = go.Figure(), []
    instances = sorted({number for each in counts.values() for number in each})
    for paint, (name, each) in zip(SERIES, counts.items(), strict=False):
        figure.add_bar(x=[str(number) for number in instances], y=[each.get(number, 0) for number in instances],
                       name=name, marker=bar_marker(paint),
                       hovertemplate="instance %{x}: %{y} requests<extra>" + name + "</extra>")  # fmt: skip
        most = max(each.values(), default=0)
        said.append(f"{name}: one instance gets {most} of {sum(each.values())}")
    figure.update_layout(barmode="group", height=360)
    figure.update_yaxes(title="requests", rangemode="tozero")
    figure.update_xaxes(type="category", title="instance")
    return finish(figure, title, "; ".join(said) + ".")


def thresholds(values: Sequence[float], runs: Mapping[str, Sequence[Result]], words: Sequence[str]) -> go.Figure:
    """Mean TTFT, and what was fetched, over the balancing threshold, a line a trace; `words` stand at the values."""
    figure = make_subplots(rows=1, cols=2, horizontal_spacing=0.12)
    said = []
    for number, (name, results) in enumerate(runs.items()):
        means = [result.table.mean("ttft") for result in results]
        style = {"color": SERIES[number % len(SERIES)].colour, "dash": DASHES[number % len(DASHES)], "width": 2.5}
        sent = [sum(result.sent.values()) / 1e9 for result in results]
        for column, numbers in ((1, means), (2, sent)):
            figure.add_scatter(x=list(words), y=numbers, name=name, mode="lines+markers", line=style, legendgroup=name,
                               showlegend=column == 1, marker={"symbol": number, "size": 9}, row=1, col=column)
        middle = [mean for value, mean in zip(values, means, strict=True) if value <= 4]
        said.append(f"{name}: from 1 to 4 it moves by {percent(max(middle) / min(middle) - 1)}, "
                    f"at the end it is {means[-1] / min(means):.2f} times the best")  # fmt: skip
    figure.update_xaxes(type="category", title="threshold")
    figure.update_yaxes(title="mean TTFT (s)", rangemode="tozero", row=1, col=1)
    figure.update_yaxes(title="fetched (GB)", rangemode="tozero", row=1, col=2)
    figure.update_layout(height=400)
    return finish(figure, "What the threshold does", "; ".join(said) + ".")


def wrong_blocks(lines: Mapping[str, Sequence[int]]) -> go.Figure:
    """How many blocks an index has wrong after each change, a line an index."""
    figure = go.Figure()
    for number, ((name, counts), paint) in enumerate(zip(lines.items(), (SERIES[4], SERIES[1], FREE), strict=False)):
        figure.add_scatter(
            x=list(range(1, len(counts) + 1)), y=list(counts), name=name, mode="lines",
            line={"color": paint.colour, "dash": DASHES[number], "width": 2.5, "shape": "hv"},
        )  # fmt: skip
    said = "; ".join(f"{name}: {counted(counts[-1], 'wrong block')} in the end" for name, counts in lines.items())
    figure.update_xaxes(title="changes so far", rangemode="tozero")
    figure.update_yaxes(title="blocks that it has wrong", rangemode="tozero")
    figure.update_layout(height=340, hovermode="x")
    return finish(figure, "An index against the truth", said + ".")


def scores(seconds: Mapping[str, float], yours: str, asked: float) -> go.Figure:
    """Mean TTFT under each policy, the shortest above; the reader's own is marked, and what is asked is a line."""
    return ranked(seconds, yours, asked, "Your policy beside the five, on a slice to try", axis="mean TTFT (s)",
                  unit="s", without="Yours places not all requests", least=True)  # fmt: skip
