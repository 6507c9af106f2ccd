"""How long the reader of one answer waited: for the first token, and for each one after it."""

from __future__ import annotations

import numpy as np
import plotly.graph_objects as go
from plotly.subplots import make_subplots

from mooncake_edu.events import EventLog, Mask, Reals
from mooncake_edu.pictures.figures import bar_marker, finish
from mooncake_edu.pictures.palette import COMPUTED, DECODED, EVICTED, INK

IN_TIME = (COMPUTED._replace(label="TTFT"), DECODED._replace(label="time between two tokens"))
TOO_LATE = EVICTED._replace(label="longer than the SLO allows")


def waits(log: EventLog, request: str, ttft_slo: float | None = None, tbt_slo: float | None = None) -> go.Figure:
    """TTFT and every interval between tokens of one request, with its SLOs (seconds) as lines.

    Raises ValueError if the log does not know the request.
    """
    table = log.requests()
    if request not in table.id:
        raise ValueError(f"request {request!r} is not in this log: it knows {', '.join(table.id)}")
    line = len(table) - 1 - table.id[::-1].index(request)
    times = log.token_times(request)
    figure = make_subplots(rows=1, cols=2, column_widths=[0.14, 0.86], horizontal_spacing=0.13)
    ttft = np.array([table.ttft[line]] if times.size else [])
    shown = set[str]()
    for column, (values, slo, first) in enumerate(((ttft, ttft_slo, 1), (np.diff(times), tbt_slo, 2)), 1):
        late = values > (np.inf if slo is None else slo)
        for paint, chosen in ((IN_TIME[column - 1], ~late), (TOO_LATE, late)):
            if chosen.any():
                figure.add_bar(
                    x=first + np.flatnonzero(chosen), y=1e3 * values[chosen], name=paint.label, row=1, col=column,
                    marker=bar_marker(paint), legendgroup=paint.label, showlegend=paint.label not in shown,
                    hovertemplate="token %{x}: %{y:.1f} ms<extra></extra>",
                )  # fmt: skip
                shown.add(paint.label)
        if slo is not None:
            name = "TTFT" if column == 1 else "TBT"
            figure.add_hline(
                y=1e3 * slo, line={"color": INK, "width": 2, "dash": "dash"}, annotation_text=f"SLO of {name}",
                annotation_position="top left", annotation_font={"size": 12, "color": INK}, row=1, col=column,
            )  # fmt: skip
    figure.update_xaxes(dtick=1, row=1, col=1)
    figure.update_xaxes(title="token", row=1, col=2)
    figure.update_yaxes(rangemode="tozero")
    figure.update_yaxes(title="wait for it (ms)", row=1, col=1)
    figure.update_layout(height=380)
    return finish(
        figure, f"The wait for each token of request {request}", _finding(times, ttft, table.tbt[line], tbt_slo)
    )


def _finding(times: Reals, ttft: Reals, tbt: float, tbt_slo: float | None) -> str:
    if not times.size:
        return "It has no token yet."
    said = f"The first token comes after {1e3 * ttft[0]:,.1f} ms"
    if times.size > 1:
        intervals = np.diff(times)
        said += (
            f", the others {1e3 * np.median(intervals):,.1f} ms apart in the middle, at most "
            f"{1e3 * intervals.max():,.1f} ms; TBT, the mean of the slowest tenth, is {1e3 * tbt:,.1f} ms"
        )
        if tbt_slo is not None:
            late: Mask = intervals > tbt_slo
            said += f"; {int(late.sum())} of {intervals.size} intervals are longer than {1e3 * tbt_slo:,.1f} ms"
    return said + "."
