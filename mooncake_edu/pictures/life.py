"""The life of one request, row by row through the layers: what is built already is lit, the rest is still grey."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import plotly.graph_objects as go

from mooncake_edu.events import EventLog, Kind, Reals, Refusal, Rows
from mooncake_edu.pictures.figures import SPANS, add_spans, finish
from mooncake_edu.pictures.palette import COMPUTED, DECODED, EVICTED, INK, MOVING, REUSED, Paint

LAYERS = 7
ROW = 34  # pixels
GREY = "rgba(128, 134, 145, 0.16)"
NARROW = 0.1  # of the picture: too little for a word
SECONDS_FROM = 10.0  # a longer life is told in seconds, a shorter one in milliseconds


@dataclass(frozen=True)
class Row:
    """One station on the way, and the kinds of span shown in it; `layer` 0 lies under the layers, always there."""

    name: str
    layer: int = 0
    kinds: tuple[Kind, ...] = ()

    @property
    def label(self) -> str:
        """What stands at the row."""
        return f"{self.name} ({self.layer})" if self.layer else self.name


TOKENIZER = Row("API and tokenizer")
HASHING = Row("Prefix hashing", 2, (Kind.WAIT,))
PAGES = Row("Paged KVCache", 1)
CONDUCTOR = Row("Conductor", 6)
REJECTION = Row("Early rejection", 7)
WAY = (
    TOKENIZER,
    HASHING,
    CONDUCTOR,
    REJECTION,
    Row("Queue of the engine", 0, (Kind.QUEUED,)),
    Row("Tiered store", 3, (Kind.LOAD,)),
    Row("RDMA transfer", 4, (Kind.STREAM,)),
    PAGES,
    Row("Pipelined prefill", 5, (Kind.CHUNK,)),
    Row("Model in the engine", 0, (Kind.CHUNK, Kind.DECODE)),
)
"""The stations in the order in which a request comes to them."""

STREAM_PAINT = MOVING._replace(label="streaming KVCache, layer by layer", pattern="")
PAINTS: dict[Kind, Paint] = SPANS | {Kind.STREAM: STREAM_PAINT}
PAGES_PAINT = COMPUTED._replace(label="blocks held for the request", pattern=".")


def life(log: EventLog, request: str, lit: int = 2) -> go.Figure:
    """One request's way from arrival to last token; rows of layers up to `lit` show its recorded spans.

    Later layers are grey, with the number of their chapter. Raises ValueError if the log does not know the request,
    or `lit` is not from 0 to 7.
    """
    if not 0 <= lit <= LAYERS:
        raise ValueError(f"lit {lit} is not from 0 to {LAYERS}: give the number of the last layer that is built")
    rows = log.select(request=request)
    arrived = rows.of(Kind.ARRIVED)
    if not len(arrived):
        raise ValueError(f"request {request!r} did not arrive in this log: it knows {', '.join(log.requests().id)}")
    zero, last = float(arrived.start[0]), float(rows.end.max())
    unit, scale = ("s", 1.0) if last - zero >= SECONDS_FROM else ("ms", 1e3)
    tokens = log.token_times(request)
    figure = go.Figure()
    _add_later(figure, lit, (last - zero) * scale)
    for row in WAY:
        if row.layer <= lit:
            _add(figure, row, rows, zero, scale)
    if lit >= HASHING.layer:
        _add_reused(figure, rows, zero, scale)
    _add_tokens(figure, rows, tokens, zero, scale)
    _arrange(figure, lit, unit)
    finish(figure, f"The life of request {request.removeprefix('request ')}", _finding(rows, tokens, lit))
    figure.update_layout(margin_t=44, legend={"y": -0.16, "yanchor": "top"}).update_yaxes(showgrid=False)
    return figure


def _add(figure: go.Figure, row: Row, rows: Rows, zero: float, scale: float) -> None:
    """The recorded spans of a row; one without any says so."""
    told = {PAINTS[kind]: (rows.of(kind).start, rows.of(kind).end) for kind in row.kinds}
    if row is PAGES:
        told = {PAGES_PAINT: _held(rows)}
    for paint, (begin, end) in told.items():
        if begin.size:
            add_spans(figure, paint, [row.label] * begin.size, (begin - zero) * scale, (end - begin) * scale)
            shown_before = any(trace.name == paint.label for trace in figure.data[:-1])
            figure.data[-1].update(showlegend=not shown_before, hovertemplate=f"{paint.label}<extra></extra>")
    if row is CONDUCTOR:
        _add_text(figure, row, 0.0, f"\u2002{_placed(rows)}")
    elif row is REJECTION:
        _add_text(figure, row, 0.0, f"\u2002{_admitted(rows)}")
    elif row.layer and row is not HASHING and not any(begin.size for begin, _ in told.values()):
        _add_text(figure, row, 0.0, " not needed by this request")


def _placed(rows: Rows) -> str:
    """Where the request went."""
    fill, decode = int(rows.of(Kind.ARRIVED).instance[0]), rows.of(Kind.DECODE).instance
    there = f"instance {fill} computes the prompt"
    return there if not decode.size or decode[0] == fill else f"{there}, {int(decode[0])} makes the other tokens"


def _admitted(rows: Rows) -> str:
    """Whether the request was turned away, and when."""
    refused = rows.of(Kind.REFUSED)
    if not len(refused):
        return "admitted"
    why = f"refused ({Refusal(int(refused.field(Kind.REFUSED, 'reason')[0])).name})"
    return f"admitted, then {why} after its prefill" if len(rows.of(Kind.CHUNK)) else f"{why} on arrival"


def _add_text(figure: go.Figure, row: Row, at: float, text: str) -> None:
    figure.add_scatter(
        mode="text", x=[at], y=[row.label], text=[text], textposition="middle right", showlegend=False,
        hoverinfo="skip", textfont={"color": INK, "size": 13},
    )  # fmt: skip


def _add_later(figure: go.Figure, lit: int, length: float) -> None:
    """Rows that are still to be built, as long as the whole life."""
    later = [row for row in WAY if row.layer > lit]
    figure.add_bar(
        orientation="h", y=[row.label for row in later], width=0.62, showlegend=False, hoverinfo="skip",
        x=[length] * len(later), marker={"color": GREY, "line": {"width": 0}}, insidetextanchor="middle",
        text=[f"chapter {row.layer}" for row in later], textposition="inside", textfont={"color": INK, "size": 13},
    )  # fmt: skip


def _held(rows: Rows) -> tuple[Reals, Reals]:
    """From when to when the request held blocks: from a load or chunk to its end, or until it was preempted."""
    taken = rows.start[np.isin(rows.kind, (Kind.LOAD, Kind.CHUNK))]
    given = np.sort(rows.end[np.isin(rows.kind, (Kind.PREEMPTED, Kind.FINISHED, Kind.REFUSED))])
    until = np.append(given, rows.end.max())[np.searchsorted(given, taken, side="right")]
    end, first = np.unique(until, return_index=True)
    return taken[first], end


def _add_reused(figure: go.Figure, rows: Rows, zero: float, scale: float) -> None:
    chunks = rows.of(Kind.CHUNK)
    if len(chunks):
        prompt = int(rows.of(Kind.ARRIVED).field(Kind.ARRIVED, "prompt")[0])
        figure.add_scatter(
            mode="markers", name="tokens found in the cache", x=[(chunks.start[0] - zero) * scale],
            y=[HASHING.label], cliponaxis=False, hoverinfo="skip",
            marker={"symbol": "diamond", "size": 13, "color": REUSED.colour, "line": {"width": 1.5, "color": "white"}},
        )  # fmt: skip
        told = f"\u2002{_found(rows):,} of {prompt:,} tokens found"
        _add_text(figure, HASHING, (chunks.start[0] - zero) * scale, told)


def _found(rows: Rows) -> int:
    """Tokens of the prompt that were in the pages, or loaded into them, before its first chunk."""
    chunks, loads = rows.of(Kind.CHUNK), rows.of(Kind.LOAD)
    loaded = loads.field(Kind.LOAD, "tokens")[loads.start <= chunks.start[0]]
    return int(chunks.field(Kind.CHUNK, "cached")[0]) + int(loaded.sum())


def _add_tokens(figure: go.Figure, rows: Rows, tokens: Reals, zero: float, scale: float) -> None:
    """When the prompt came, and when each token went back to the reader."""
    if tokens.size:
        first, life_time = (tokens[0] - zero) * scale, (rows.end.max() - zero) * scale
        name = "TTFT" if first > NARROW * life_time else ""
        figure.add_scatter(
            mode="lines+text", x=[0, first / 2, first], y=[TOKENIZER.label] * 3, text=["", name, ""],
            textposition="top center", showlegend=False, hoverinfo="skip", line={"color": INK, "width": 1.5},
            textfont={"color": INK, "size": 13},
        )  # fmt: skip
    refused = rows.of(Kind.REFUSED)
    for name, symbol, times, colour in (
        ("prompt arrives", "triangle-right", rows.of(Kind.ARRIVED).start, COMPUTED.colour),
        ("a token goes back", "line-ns", tokens, DECODED.colour),
        ("refused", "x", refused.start, EVICTED.colour),
    ):
        if times.size:
            line = {"width": 2 if symbol == "line-ns" else 0, "color": colour}
            figure.add_scatter(
                mode="markers", name=name, x=(times - zero) * scale, y=[TOKENIZER.label] * times.size, cliponaxis=False,
                marker={"symbol": symbol, "size": 13, "color": colour, "line": line},
                hovertemplate=name + ": %{x:.1f}<extra></extra>",
            )  # fmt: skip


def _arrange(figure: go.Figure, lit: int, unit: str) -> None:
    labels = [row.label for row in WAY]
    texts = [
        f"<span style='opacity:0.65'>{row.label}</span>" if row.layer > lit
        else f"<b>{row.label}</b>" if row.layer and row.layer == lit else row.label
        for row in WAY
    ]  # fmt: skip
    figure.update_yaxes(
        type="category", categoryorder="array", categoryarray=labels, range=[len(WAY) - 0.4, -0.8],
        autorange=False, tickmode="array", tickvals=labels, ticktext=texts,
    )  # fmt: skip
    figure.update_xaxes(title=f"time since its arrival ({unit})", rangemode="tozero")
    figure.update_layout(barmode="overlay", height=180 + ROW * len(WAY))


def _finding(rows: Rows, tokens: Reals, lit: int) -> str:
    arrived, chunks = rows.of(Kind.ARRIVED), rows.of(Kind.CHUNK)
    prompt, zero = int(arrived.field(Kind.ARRIVED, "prompt")[0]), float(arrived.start[0])
    said = f"It arrived with {prompt:,} prompt tokens"
    if lit >= HASHING.layer and len(chunks):
        said += f", found {_found(rows):,} of them in the cache"
    if tokens.size:
        said += (
            f", gave its first token after {1e3 * (tokens[0] - zero):,.0f} ms and the last of {tokens.size} after "
            f"{1e3 * (tokens[-1] - zero):,.0f} ms"
        )
    begin, end = _held(rows)
    if lit >= PAGES.layer and begin.size:
        held = [f"{1e3 * (a - zero):,.0f} to {1e3 * (b - zero):,.0f} ms" for a, b in zip(begin, end, strict=True)]
        said += f", and held blocks from {' and from '.join(held)}"
    later = f" Still grey, until their chapters: layers above {lit}." if lit < LAYERS else ""
    return f"{said}.{later}"
