"""Figures derived from the log, against an oracle that notes every token as it is made."""

from __future__ import annotations

import math
import random
import time
from dataclasses import dataclass, field

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from mooncake_edu.events import FINISH_CODES, RUNNING, EventLog, Kind
from mooncake_edu.request import FinishReason


@dataclass
class Told:
    """What truly happened to one request."""

    prompt: int
    arrival: float
    hit: int = 0  # reused at its first start
    times: list[float] = field(default_factory=list)
    computed: int = 0
    started: bool = False
    since: float | None = None  # begin of its open decode span
    made: int = 0  # tokens in the open decode span
    place: int = 0
    wanted: int = 1
    end: float | None = None
    ready: float = 0.0  # nothing more happens to it before

    @property
    def intervals(self) -> list[float]:
        return [later - earlier for earlier, later in zip(self.times, self.times[1:], strict=False)]

    @property
    def ttft(self) -> float:
        return self.times[0] - self.arrival if self.times else math.nan

    @property
    def tbt(self) -> float:
        longest = sorted(self.intervals, reverse=True)
        count = math.ceil(len(longest) / 10)
        return sum(longest[:count]) / count if count else math.nan


class Story:
    """Serves requests at random on some instances; prefill may be on another instance than decode."""

    def __init__(self, choice: random.Random, log: EventLog) -> None:
        self.choice, self.log = choice, log
        self.begins = [choice.random() for _ in range(3)]  # of the next step of each instance
        self.told = {
            f"r{n}": Told(choice.randint(1, 40), choice.random(), wanted=choice.choice((1, 2, 12, 35)))
            for n in range(choice.randint(1, 6))
        }
        for name, one in self.told.items():
            log.add(Kind.ARRIVED, request=name, start=one.arrival, prompt=one.prompt)
            one.place = choice.randrange(3)

    def run(self, steps: int) -> None:
        for _ in range(steps):
            self.step(self.begins.index(min(self.begins)))

    def step(self, instance: int) -> None:
        start = self.begins[instance]
        end = start + self.choice.choice((0.5, 0.01 + self.choice.random()))
        self.begins[instance] = end + self.choice.choice((0.0, 0.25, self.choice.random()))
        mine = {name: one for name, one in self.told.items() if one.place == instance and one.end is None}
        decoding = {name for name, one in mine.items() if one.since is not None and one.since <= start}
        chunked = set()
        for name, one in mine.items():
            if name in decoding:
                one.times.append(end)
                one.made += 1
            elif one.since is None and max(one.arrival, one.ready) <= start and self.choice.random() < 0.7:
                self.chunk(name, one, instance, start, end)
                chunked.add(name)
        self.log.add(
            Kind.STEP,
            instance=instance,
            start=start,
            end=end,
            prefill=0,
            decode=len(decoding),
            used=0,
            cached=0,
            free=0,
        )
        for name in sorted(decoding | chunked):
            self.after(name, self.told[name], end)

    def chunk(self, name: str, one: Told, instance: int, start: float, end: float) -> None:
        target = one.prompt + len(one.times)
        cached = 0
        if one.computed == 0 and target > 1:
            loaded = self.choice.choice((0, self.choice.randrange(target)))
            cached = self.choice.choice((0, self.choice.randrange(target - loaded)))
            if loaded:
                begin = max(one.arrival, one.ready, start - 0.1)  # not before the preemption that made it needed
                self.log.add(Kind.LOAD, request=name, start=begin, end=start, tokens=loaded, bytes=loaded)
            one.computed = cached + loaded
            if not one.started:
                one.hit = one.computed
        one.started = True
        tokens = self.choice.randint(1, target - one.computed)
        self.log.add(
            Kind.CHUNK, request=name, instance=instance, start=start, end=end,
            tokens=tokens, position=one.computed, cached=cached,
        )  # fmt: skip
        one.computed += tokens
        one.ready = end
        if one.computed == target:
            one.times.append(end)
            one.place = self.choice.choice((instance, self.choice.randrange(3)))
            one.since = end
            one.made = 0

    def after(self, name: str, one: Told, end: float) -> None:
        if len(one.times) >= one.wanted:
            self.close(name, one)
            self.finish(name, one, end, FinishReason.LENGTH)
        elif self.choice.random() < 0.05:
            self.close(name, one)
            self.log.add(Kind.PREEMPTED, request=name, instance=one.place, start=end, tokens=one.computed)
            one.computed = 0
            one.ready = end
        elif self.choice.random() < 0.02:
            self.close(name, one)
            self.finish(name, one, end, FinishReason.CANCELLED)

    def close(self, name: str, one: Told) -> None:
        """Ends the open decode span at the last step of its instance."""
        if one.since is not None and one.made:
            end = one.times[-1]
            self.log.add(
                Kind.DECODE, request=name, instance=one.place, start=one.since, end=end, tokens=one.made
            )
        one.since = None

    def finish(self, name: str, one: Told, end: float, reason: FinishReason) -> None:
        one.end = end
        self.log.add(
            Kind.FINISHED, request=name, start=one.end, output=len(one.times), reason=FINISH_CODES[reason]
        )

    def pause(self) -> None:
        """Closes all open spans, so that the log knows every token."""
        for name, one in self.told.items():
            self.close(name, one)


def assert_same(found: float, expected: float) -> None:
    assert found == pytest.approx(expected, abs=1e-9, nan_ok=True)


@settings(max_examples=300, deadline=None)
@given(seed=st.integers(0, 2**32), steps=st.integers(0, 200))
def test_tokens_ttft_tbt_and_hits_are_those_of_the_oracle(seed: int, steps: int) -> None:
    story = Story(random.Random(seed), EventLog())
    story.run(steps)
    story.pause()
    table = story.log.requests()
    assert set(table.id) == set(story.told) and table.complete.all()
    for line, name in enumerate(table.id):
        one = story.told[name]
        assert story.log.token_times(name).tolist() == one.times
        assert_same(table.ttft[line], one.ttft)
        assert_same(table.tbt[line], one.tbt)
        assert table.cached[line] + table.loaded[line] == min(one.hit, one.prompt)
        assert table.output[line] == len(one.times) and table.prompt[line] == one.prompt
        assert_same(table.e2e[line], math.nan if one.end is None else one.end - one.arrival)
        assert (table.reason[line] == RUNNING) == (one.end is None)


@settings(max_examples=300, deadline=None)
@given(seed=st.integers(0, 2**32), steps=st.integers(1, 200), capacity=st.integers(1, 150))
def test_where_rows_were_dropped_a_figure_is_right_or_not_a_number(
    seed: int, steps: int, capacity: int
) -> None:
    story = Story(random.Random(seed), EventLog(capacity))
    story.run(steps)
    story.pause()
    table = story.log.requests()
    for line, name in enumerate(table.id):
        one = story.told[name]
        if table.complete[line]:
            assert_same(table.ttft[line], one.ttft)
            assert_same(table.tbt[line], one.tbt)
        else:
            assert story.log.dropped and np.isnan([table.ttft[line], table.tbt[line], table.e2e[line]]).all()


def served(
    ttft: float, gaps: list[float], log: EventLog, name: str, reason: FinishReason = FinishReason.STOP
) -> None:
    """One request alone on its instance, arriving at 0."""
    instance = len(log)
    log.add(Kind.ARRIVED, request=name, start=0.0, prompt=10)
    log.add(Kind.CHUNK, request=name, instance=instance, start=0.0, end=ttft, tokens=10, position=0, cached=0)
    now = ttft
    for gap in gaps:
        log.add(
            Kind.STEP,
            instance=instance,
            start=now,
            end=now + gap,
            prefill=0,
            decode=1,
            used=0,
            cached=0,
            free=0,
        )
        now += gap
    if gaps:
        log.add(Kind.DECODE, request=name, instance=instance, start=ttft, end=now, tokens=len(gaps))
    log.add(Kind.FINISHED, request=name, start=now, output=1 + len(gaps), reason=FINISH_CODES[reason])


@pytest.mark.parametrize(
    ("gaps", "tbt"),
    [
        ([3.0], 3.0),
        ([1.0, 4.0], 4.0),
        ([1.0] * 9 + [5.0], 5.0),
        ([1.0] * 10 + [5.0], 3.0),
        ([2.0] * 17 + [4.0, 6.0, 8.0], 7.0),
    ],
)
def test_tbt_is_the_mean_of_the_longest_tenth_and_at_least_of_one_interval(
    gaps: list[float], tbt: float
) -> None:
    log = EventLog()
    served(1.0, gaps, log, "a")
    assert log.requests().tbt.tolist() == [tbt]


def test_goodput_counts_what_ends_by_itself_within_both_slos() -> None:
    log = EventLog()
    served(1.0, [0.5] * 3, log, "good")
    served(1.0, [], log, "one token: its tbt counts as met")
    served(3.0, [0.5], log, "late first token")
    served(1.0, [0.5, 2.0], log, "slow tokens")
    served(1.0, [0.5], log, "cancelled", FinishReason.CANCELLED)
    log.add(Kind.ARRIVED, request="refused", start=2.0, prompt=4)
    log.add(Kind.REFUSED, request="refused", start=2.0, reason=0)
    log.add(Kind.ARRIVED, request="waits", start=2.0, prompt=4)
    result = log.requests().goodput(ttft_slo=2.0, tbt_slo=1.0)
    assert result.met == 2 and result.share == 2 / 7 and result.per_second == 2 / 3.5


def test_goodput_of_nothing_is_nothing() -> None:
    table = EventLog().requests()
    assert table.goodput(1.0, 1.0) == (0, 0.0, 0.0) and table.hit_ratio() == 0.0 and len(table) == 0
    assert math.isnan(table.percentile("ttft", 90)) and math.isnan(table.mean("tbt"))


def test_percentiles_and_means_leave_out_what_is_not_known() -> None:
    log = EventLog()
    for ttft in (1.0, 2.0, 3.0):
        served(ttft, [], log, f"r{ttft}")
    log.add(Kind.ARRIVED, request="waits", start=0.0, prompt=4)
    table = log.requests()
    assert (
        table.mean("ttft") == 2.0
        and table.percentile("ttft", 50) == 2.0
        and table.percentile("ttft", 100) == 3.0
    )
    assert math.isnan(table.mean("tbt"))


def test_a_recompute_after_preemption_is_no_hit_vllm_25780() -> None:
    log = EventLog()
    log.add(Kind.ARRIVED, request="a", start=0.0, prompt=32)
    log.add(Kind.CHUNK, request="a", start=0.0, end=1.0, tokens=16, position=16, cached=16)
    log.add(Kind.PREEMPTED, request="a", start=1.0, tokens=32)
    log.add(Kind.CHUNK, request="a", start=2.0, end=3.0, tokens=1, position=32, cached=32)
    table = log.requests()
    assert table.cached.tolist() == [16] and table.hit_ratio() == 0.5
    assert log.token_times("a").tolist() == [1.0, 3.0]


def test_cached_and_loaded_tokens_never_exceed_the_prompt_vllm_25780() -> None:
    log = EventLog()
    log.add(Kind.ARRIVED, request="a", start=0.0, prompt=32)
    log.add(Kind.LOAD, request="a", start=0.0, end=0.5, tokens=40, bytes=0)
    log.add(Kind.CHUNK, request="a", start=0.5, end=1.0, tokens=2, position=30, cached=30)
    table = log.requests()
    assert table.cached.tolist() == [30] and table.loaded.tolist() == [2] and table.hit_ratio() == 1.0


def test_split_and_coupled_runs_report_alike_sglang_25290() -> None:
    tables = []
    for decode_on in (0, 1):
        log = EventLog()
        log.add(Kind.ARRIVED, request="a", start=0.0, prompt=32)
        log.add(Kind.CHUNK, request="a", start=0.5, end=1.0, tokens=16, position=16, cached=16)
        log.add(Kind.STREAM, request="a", start=0.5, end=1.0, layer=0, bytes=64)
        for step in range(4):
            log.add(
                Kind.STEP, instance=decode_on, start=1.0 + step, end=2.0 + step,
                prefill=0, decode=1, used=0, cached=0, free=0,
            )  # fmt: skip
        log.add(Kind.DECODE, request="a", instance=decode_on, start=1.0, end=5.0, tokens=4)
        log.add(Kind.FINISHED, request="a", instance=decode_on, start=5.0, output=5, reason=1)
        tables.append(log.requests())
    for column in ("cached", "output", "ttft", "tbt", "e2e"):
        assert getattr(tables[0], column).tolist() == getattr(tables[1], column).tolist()
    assert tables[0].hit_ratio() == 0.5 and tables[0].output.tolist() == [5]


def test_ten_thousand_requests_of_300_tokens_are_summed_up_in_seconds() -> None:
    log = EventLog()
    for step in range(10_300):
        log.add(Kind.STEP, start=float(step), end=step + 1.0, prefill=0, decode=300, used=0, cached=0, free=0)
    for number in range(10_000):
        name, at = f"r{number}", float(number)
        log.add(Kind.ARRIVED, request=name, start=at, prompt=9)
        log.add(Kind.CHUNK, request=name, start=at, end=at + 1, tokens=9, position=0, cached=0)
        log.add(Kind.DECODE, request=name, start=at + 1, end=at + 300, tokens=299)
        log.add(Kind.FINISHED, request=name, start=at + 300, output=300, reason=1)
    begin = time.perf_counter()
    table = log.requests()
    assert time.perf_counter() - begin < 10  # 0.5 s alone on one core; the tests may share theirs
    assert table.complete.all() and set(table.tbt.tolist()) == {1.0} and set(table.output.tolist()) == {300}
