"""The exported trace is what Chrome's trace format asks for, and holds every event of the log."""

from __future__ import annotations

import json
from collections import Counter
from pathlib import Path

import pytest

from mooncake_edu.events import FIELDS, EventLog, Kind, Refusal
from mooncake_edu.pictures.perfetto import to_perfetto, write_perfetto

INSTANTS = (Kind.ARRIVED, Kind.PREEMPTED, Kind.FINISHED, Kind.REFUSED)


def story() -> EventLog:
    log = EventLog()
    for number, kind in enumerate(Kind):
        end = 10.0 + number if kind in INSTANTS else 10.25 + number
        values = {name: 7 + place for place, name in enumerate(FIELDS[kind])}
        request = None if kind is Kind.STEP else "r\u00e4"
        log.add(kind, request=request, instance=2, start=10.0 + number, end=end, **values)
    return log


def test_every_event_is_there_in_microseconds_from_the_first() -> None:
    events = to_perfetto(story())["traceEvents"]
    spans = {event["name"]: event for event in events if event["ph"] in "Xib"}
    assert set(spans) == {kind.name.lower() for kind in Kind}
    for number, kind in enumerate(Kind):
        event = spans[kind.name.lower()]
        assert event["ts"] == pytest.approx(number * 1e6)
        assert event["ph"] == ("i" if kind in INSTANTS else "b" if kind in (Kind.LOAD, Kind.STREAM) else "X")
        assert {name: event["args"][name] for name in FIELDS[kind]} == {n: 7 + p for p, n in enumerate(FIELDS[kind])}
        if event["ph"] == "X":
            assert event["dur"] == pytest.approx(0.25e6)


def test_asynchronous_spans_end_under_the_number_they_began_with() -> None:
    events = to_perfetto(story())["traceEvents"]
    begun = {(event["id"], event["name"]): event["ts"] for event in events if event["ph"] == "b"}
    ended = {(event["id"], event["name"]): event["ts"] for event in events if event["ph"] == "e"}
    assert begun.keys() == ended.keys() and len(begun) == 2
    assert all(ended[key] - begun[key] == pytest.approx(0.25e6) for key in begun)


def test_requests_and_instances_have_named_tracks_of_their_own_and_blocks_a_counter() -> None:
    events = to_perfetto(story())["traceEvents"]
    assert {event["args"]["name"] for event in events if event["ph"] == "M"} == {"requests", "r\u00e4", "instance 2"}
    [counter] = [event for event in events if event["ph"] == "C"]
    assert counter["args"] == {"used": 9, "cached": 10, "free": 11} and counter["pid"] == 3
    tracks = Counter((event["pid"], event["name"]) for event in events if event["ph"] in "Xib")
    assert tracks[(3, "step")] == 1 and all(pid == 0 for pid, name in tracks if name != "step")


def test_instances_have_the_names_given_and_refusals_a_reason_in_words() -> None:
    log = EventLog()
    log.add(Kind.REFUSED, request="r", instance=2, start=1.0, end=1.0, reason=int(Refusal.TOO_LARGE))
    log.add(Kind.STEP, instance=2, start=1.0, end=2.0, prefill=5, decode=0, used=0, cached=0, free=0)
    events = to_perfetto(log, {2: "prefill 2"})["traceEvents"]
    assert "prefill 2" in [event["args"]["name"] for event in events if event["ph"] == "M"]
    assert [event["args"]["reason"] for event in events if event["name"] == "refused"] == ["too large"]
    assert not [event for event in events if event["ph"] == "C"]  # without pages, no counter of blocks


def test_the_file_is_plain_json_and_an_empty_log_makes_one_too(tmp_path: Path) -> None:
    write_perfetto(story(), tmp_path / "a.json")
    assert json.loads((tmp_path / "a.json").read_text()) == to_perfetto(story())
    write_perfetto(EventLog(), tmp_path / "b.json")
    assert [event["ph"] for event in json.loads((tmp_path / "b.json").read_text())["traceEvents"]] == ["M"]
