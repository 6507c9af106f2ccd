"""Figures say what the log says, in data and in words."""

from __future__ import annotations

import json
from collections.abc import Callable

import plotly.graph_objects as go
import pytest

from mooncake_edu.events import EventLog, Kind
from mooncake_edu.pictures.figures import finish, latency_bars, memory, timeline, tokens_side_by_side, unique_names
from mooncake_edu.pictures.palette import COMPUTED, REUSED


def story(requests: int = 2, zero: float = 100.0) -> EventLog:
    """Requests of 40 tokens, one after the other; all but the first find 32 of them in the cache."""
    log = EventLog()
    for number in range(requests):
        name, at, cached = f"r{number}", zero + 4 * number, 32 if number else 0
        log.add(Kind.ARRIVED, request=name, start=at, prompt=40)
        log.add(Kind.QUEUED, request=name, start=at, end=at + 1)
        log.add(Kind.CHUNK, request=name, start=at + 1, end=at + 2, tokens=40 - cached, position=cached, cached=cached)
        for step in range(3):
            log.add(Kind.STEP, start=at + 1 + step / 2, end=at + 1.5 + step / 2, prefill=0, decode=1, used=3 + number,
                    cached=2 * number, free=5 - 3 * number)  # fmt: skip
        log.add(Kind.DECODE, request=name, start=at + 2, end=at + 2.5, tokens=1)
        log.add(Kind.FINISHED, request=name, start=at + 2.5, output=2, reason=1)
    return log


MAKERS: dict[str, Callable[[EventLog], go.Figure]] = {
    "timeline": timeline,
    "tokens": lambda log: tokens_side_by_side({"one": log, "two": log}),
    "memory": memory,
    "ttft": lambda log: latency_bars({"one": log, "two": log}, "ttft"),
    "tbt": lambda log: latency_bars({"one": log}, "tbt"),
    "e2e": lambda log: latency_bars({"one": log}, "e2e"),
}


@pytest.mark.parametrize("make", MAKERS.values(), ids=MAKERS)
def test_every_figure_has_a_text_alternative_units_and_no_background(make: Callable[[EventLog], go.Figure]) -> None:
    figure = make(story())
    alt = figure.layout.meta["alt"]
    assert figure.layout.title.text in alt and figure.layout.meta["finding"] in alt and len(alt) > 60
    titles = [axis.title.text for axis in (figure.layout.xaxis, figure.layout.yaxis) if axis.title.text]
    assert titles and all("(s)" in title or "(ms)" in title or title in ("blocks", "prompt tokens") for title in titles)
    assert figure.layout.paper_bgcolor == figure.layout.plot_bgcolor == "rgba(0,0,0,0)"
    json.loads(figure.to_json())


@pytest.mark.parametrize("make", MAKERS.values(), ids=MAKERS)
def test_an_empty_log_makes_a_figure_too(make: Callable[[EventLog], go.Figure]) -> None:
    assert make(EventLog()).layout.meta["alt"]


@pytest.mark.parametrize("make", MAKERS.values(), ids=MAKERS)
def test_things_that_differ_in_colour_also_differ_in_pattern_or_form(make: Callable[[EventLog], go.Figure]) -> None:
    looks: dict[str, str] = {}
    for trace in make(story()).data:
        if trace.type == "bar":
            form, colour = str(trace.marker.pattern.shape or "solid"), trace.marker.color
        elif trace.mode == "markers":
            form, colour = trace.marker.symbol, trace.marker.color
        else:
            form, colour = str(trace.fillpattern.shape or "solid"), trace.fillcolor
        assert looks.setdefault(form, colour) == colour
    assert len(looks) == len(make(story()).data)


def test_timeline_draws_each_span_where_it_was_counted_from_the_first_event() -> None:
    bars = {bar.name.split(":")[0]: bar for bar in timeline(story()).data if bar.type == "bar"}
    assert list(bars["waiting"].base) == [0.0, 4.0] and list(bars["waiting"].x) == [1.0, 1.0]
    assert list(bars["prefill"].base) == [1.0, 5.0] and list(bars["prefill"].y) == ["r0", "r1"]
    assert list(bars["decode"].base) == [2.0, 6.0] and list(bars["decode"].x) == [0.5, 0.5]


def test_timeline_marks_where_tokens_were_reused() -> None:
    [mark] = [trace for trace in timeline(story(3)).data if trace.type == "scatter"]
    assert list(mark.x) == [5.0, 9.0] and list(mark.y) == ["r1", "r2"] and list(mark.customdata) == [32, 32]
    assert not [trace for trace in timeline(story(1)).data if trace.type == "scatter"]


def test_timeline_of_many_requests_shows_the_first_and_says_so() -> None:
    figure = timeline(story(9), limit=4)
    assert "first 4 of 9" in figure.layout.title.text
    assert {name for trace in figure.data for name in trace.y} == {"r0", "r1", "r2", "r3"}


def test_tokens_are_split_in_computed_and_reused() -> None:
    computed, reused = tokens_side_by_side({"cold": story(1), "warm": story(2)}).data
    assert (computed.name, list(computed.x)) == (COMPUTED.label, [40, 48])
    assert (reused.name, list(reused.x)) == (REUSED.label, [0, 32])
    assert (
        "warm: 48 of 80 prompt tokens computed, 32 reused (40 %)"
        in tokens_side_by_side({"warm": story(2)}).layout.meta["alt"]
    )


def test_memory_stacks_used_cached_and_free_to_the_total_at_every_step() -> None:
    figure = memory(story(2))
    assert [trace.name.split(":")[0] for trace in figure.data] == ["in use by running requests", "cached", "free"]
    assert [sum(parts) for parts in zip(*(trace.y for trace in figure.data), strict=True)] == [8] * 6
    assert "at most 4 of 8 blocks were in use" in figure.layout.meta["finding"]


def test_memory_shows_one_instance_only() -> None:
    log = story(1)
    log.add(Kind.STEP, instance=7, start=0.0, end=1.0, prefill=0, decode=0, used=1, cached=1, free=1)
    assert [len(trace.y) for trace in memory(log, instance=7).data] == [1, 1, 1]


def test_latencies_are_in_milliseconds() -> None:
    [bars] = latency_bars({"one": story(2)}, "ttft").data
    assert list(bars.x) == ["r0", "r1"] and list(bars.y) == pytest.approx([2000, 2000])
    [bars] = latency_bars({"one": story(2)}, "tbt").data
    assert list(bars.y) == pytest.approx([500, 500])


def test_requests_of_one_name_get_numbers() -> None:
    assert unique_names(["a", "b", "a", "a"]) == ["a", "b", "a (2)", "a (3)"]


def test_every_mark_of_a_logarithmic_axis_is_written_out() -> None:
    figure = finish(go.Figure().update_yaxes(type="log").update_xaxes(type="log", dtick=1), "Marks", "They are whole.")
    assert figure.layout.xaxis.tickvals is None
    assert {20.0, 50.0} <= set(figure.layout.yaxis.tickvals)
