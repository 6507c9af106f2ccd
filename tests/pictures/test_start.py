"""The pictures of chapter 00 show what was measured and recorded."""

from __future__ import annotations

import numpy as np
import pytest

from mooncake_edu.bench.steps import Roof, Step
from mooncake_edu.events import EventLog, Kind
from mooncake_edu.pictures.map import BOXES, course_map
from mooncake_edu.pictures.palette import COMPUTED, REUSED
from mooncake_edu.pictures.roofline import roofline
from mooncake_edu.pictures.saving import Made, saving
from mooncake_edu.pictures.waits import waits

ROOF = Roof(compute=100e9, memory=10e9)
STEPS = [
    Step("decode", 16, 8e9, 2e9, 0.5),
    Step("decode", 1, 1e9, 2e9, 0.25),
    Step("prefill", 512, 90e9, 1e9, 1.0),
]


def answer(intervals: list[float]) -> EventLog:
    """A request that waits 2 s for its first token, and then as told."""
    log, now = EventLog(), 102.0
    log.add(Kind.ARRIVED, request="r", start=100.0, prompt=4)
    log.add(Kind.CHUNK, request="r", start=100.0, end=now, tokens=4, position=0, cached=0)
    for interval in intervals:
        log.add(Kind.STEP, start=now, end=now + interval, prefill=0, decode=1, used=1, cached=0, free=0)
        now += interval
    if intervals:
        log.add(Kind.DECODE, request="r", start=102.0, end=now, tokens=len(intervals))
    return log


def test_a_roof_rises_with_the_intensity_up_to_its_ridge() -> None:
    assert ROOF.ridge == 10
    assert [ROOF.rate(intensity) for intensity in (1, 10, 50)] == [10e9, 100e9, 100e9]


def test_every_step_stands_where_it_was_measured_in_order_of_its_tokens() -> None:
    traces = {trace.name: trace for trace in roofline(ROOF, STEPS).data if trace.name}
    decode = traces["decode, by batch size"]
    assert list(decode.text) == ["batch 1", "batch 16"]
    assert list(decode.x) == [0.5, 4.0]
    assert list(decode.y) == [4.0, 16.0]  # GFLOP/s
    roof = traces["the roof: what the machine allows"]
    assert roof.x[1] == 10 and max(roof.y) == 100 and roof.x[0] < 0.5 and roof.x[2] > 90


def test_the_finding_of_a_roofline_compares_the_ends() -> None:
    said = roofline(ROOF, STEPS).layout.meta["alt"]
    assert "below 10.0 FLOP per byte memory is the limit" in said
    assert "decode reaches 4 % with 1 sequence" in said
    assert "prefill reaches 90 % with 512 tokens (90.0 FLOP per byte)" in said


def test_a_gpu_is_told_in_teraflops_and_no_step_is_refused() -> None:
    assert "TFLOP/s" in roofline(Roof(2e14, 2e12), STEPS).layout.yaxis.title.text
    with pytest.raises(ValueError, match="no steps"):
        roofline(ROOF, [])


def test_the_cache_is_shown_beside_its_lack() -> None:
    without = [Made(4, 0, 0.5), Made(5, 0, 0.75)]
    figure = saving(without, [Made(4, 0, 0.5), Made(1, 4, 0.25)])
    bars = [(bar.name, list(bar.y)) for bar in figure.data if bar.type == "bar"]
    assert bars[0] == (COMPUTED.label, [4, 5])
    assert bars[2] == (COMPUTED.label, [4, 1])
    assert bars[3] == (f"{REUSED.label} from the KVCache", [0, 4])
    assert [list(line.y) for line in figure.data if line.type == "scatter"] == [[500, 750], [500, 250]]
    assert "computed 9 tokens without and 5 with a KVCache" in figure.layout.meta["alt"]
    assert saving([], []).layout.meta["alt"]


def test_waits_are_told_by_slo_in_milliseconds() -> None:
    figure = waits(answer([0.25, 1.0, 0.5]), "r", ttft_slo=3.0, tbt_slo=0.5)
    bars = {bar.name: dict(zip(bar.x, bar.y, strict=True)) for bar in figure.data}
    assert bars["TTFT"] == {1: 2000}
    assert bars["time between two tokens"] == {2: 250, 4: 500}
    assert bars["longer than the SLO allows"] == {3: 1000}
    assert sorted(line.y0 for line in figure.layout.shapes) == [500, 3000]
    assert "1 of 3 intervals are longer than 500.0 ms" in figure.layout.meta["alt"]


def test_waits_without_slos_call_nothing_late() -> None:
    assert {bar.name for bar in waits(answer([9.0]), "r").data} == {"TTFT", "time between two tokens"}
    assert "The first token comes after 2,000.0 ms." in waits(answer([]), "r").layout.meta["alt"]


def test_waits_know_the_request_and_say_which_they_know() -> None:
    with pytest.raises(ValueError, match="'x' is not in this log: it knows r"):
        waits(answer([]), "x")
    log = EventLog()
    log.add(Kind.ARRIVED, request="r", start=0.0, prompt=1)
    assert "no token yet" in waits(log, "r").layout.meta["alt"]


def test_the_map_names_all_seven_layers_and_no_boxes_overlap_by_accident() -> None:
    texts = " ".join(note.text for note in course_map().layout.annotations)
    assert all(f"<b>{number}</b>" in texts for number in range(1, 8))
    inner = [box for box in BOXES if not box.above]
    for number, one in enumerate(inner):
        for other in inner[number + 1 :]:
            width = np.minimum(one.right, other.right) - np.maximum(one.left, other.left)
            height = np.minimum(one.top, other.top) - np.maximum(one.bottom, other.bottom)
            assert width <= 0 or height <= 0, (one.text, other.text)
