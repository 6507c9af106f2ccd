"""Rules of the record itself: what is kept, in which order, and what is refused."""

from __future__ import annotations

import threading
from collections import deque
from pathlib import Path

import numpy as np
import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule

from mooncake_edu.events import COLUMNS, FIELDS, EventLog, Kind

TIMES = st.integers(0, 50).map(float)
VALUES = st.integers(-(2**63), 2**63 - 1)


class LogModel(RuleBasedStateMachine):
    """The log against a plain deque of tuples."""

    @initialize(capacity=st.sampled_from((1, 2, 7, 40, 1023, 1500)), ahead=st.sampled_from((0, 30, 1500)))
    def begin(self, capacity: int, ahead: int) -> None:
        self.log = EventLog(capacity)
        self.kept: deque[tuple[object, ...]] = deque(maxlen=capacity)
        self.added = 0
        self.lives: dict[str, int] = {}
        for number in range(ahead):
            self._add(Kind.QUEUED, f"r{number % 5}", 0, float(number % 7), 1.0, [])

    @rule(kind=st.sampled_from(Kind), name=st.sampled_from("abc"), instance=st.integers(0, 3), data=st.data())
    def add(self, kind: Kind, name: str, instance: int, data: st.DataObject) -> None:
        values = [data.draw(VALUES) for _ in FIELDS[kind]]
        request = None if kind is Kind.STEP else name
        self._add(kind, request, instance, data.draw(TIMES), data.draw(TIMES), values)

    def _add(
        self, kind: Kind, request: str | None, instance: int, start: float, length: float, values: list[int]
    ) -> None:
        named = dict(zip(FIELDS[kind], values, strict=True))
        self.log.add(kind, request=request, instance=instance, start=start, end=start + length, **named)
        alive = any(row[1] == request for row in self.kept)
        if request is not None and (kind is Kind.ARRIVED or not alive):
            self.lives[request] = self.added  # a new request of that name begins
        padded = values + [0] * (5 - len(values))
        life = None if request is None else self.lives[request]
        self.kept.append((kind, request, life, instance, start, start + length, *padded))
        self.added += 1

    @rule()
    def survives_being_written_and_read(self) -> None:
        path = Path(self.folder) / "log.npz"
        self.log.save(path)
        self.log = EventLog.load(path)

    @invariant()
    def holds_the_newest_rows_in_order_of_their_start(self) -> None:
        rows, names = self.log.snapshot()
        expected = sorted(self.kept, key=lambda row: row[4])
        assert len(self.log) == len(expected) and self.log.dropped == self.added - len(expected)
        found = list(zip(*(getattr(rows, column).tolist() for column in COLUMNS), strict=True))
        assert [(row[0], *row[2:]) for row in found] == [(row[0], *row[3:]) for row in expected]
        assert [names.get(row[1]) for row in found] == [row[1] for row in expected]
        index_of_life: dict[object, int] = {}
        for row, wanted in zip(found, expected, strict=True):
            assert index_of_life.setdefault(wanted[2], row[1]) == row[1]
        assert len(set(index_of_life.values())) == len(index_of_life)

    @invariant()
    def remembers_no_request_without_rows(self) -> None:
        lives = {row[2] for row in self.kept if row[1] is not None}
        assert len(self.log.snapshot()[1]) == len(lives)


@pytest.fixture(scope="module", autouse=True)
def _folder(tmp_path_factory: pytest.TempPathFactory) -> None:
    LogModel.folder = str(tmp_path_factory.mktemp("log"))


TestLogModel = LogModel.TestCase
TestLogModel.settings = settings(max_examples=40, stateful_step_count=25, deadline=None)


@pytest.mark.parametrize(
    ("start", "end"),
    [(2.0, 1.0), (float("nan"), 1.0), (0.0, float("nan")), (0.0, float("inf")), (-float("inf"), 0.0)],
)
def test_times_that_are_not_finite_and_in_order_are_refused(start: float, end: float) -> None:
    log = EventLog()
    with pytest.raises(ValueError, match="finite and in order"):
        log.add(Kind.QUEUED, request="a", start=start, end=end)
    assert len(log) == 0


@pytest.mark.parametrize(
    "values",
    [
        {},
        {"tokens": 1},
        {"tokens": 1, "position": 0, "cached": 0, "more": 1},
        {"tokens": 1, "position": 0, "hit": 0},
    ]
    + [{"tokens": bad, "position": 0, "cached": 0} for bad in (1.5, "1", None, 2**63)],
)
def test_a_field_missing_unknown_or_no_integer_is_refused_by_name(values: dict[str, int]) -> None:
    log = EventLog()
    with pytest.raises(ValueError, match=r"CHUNK .* give \['tokens', 'position', 'cached'\]"):
        log.add(Kind.CHUNK, request="a", start=0.0, end=1.0, **values)
    assert len(log) == 0 and log.snapshot()[1] == {}


def test_a_step_has_no_request_and_every_other_event_has_one() -> None:
    log = EventLog()
    with pytest.raises(ValueError, match="QUEUED of request None"):
        log.add(Kind.QUEUED, start=0.0)
    with pytest.raises(ValueError, match="STEP of request a"):
        log.add(Kind.STEP, request="a", start=0.0, prefill=0, decode=0, used=0, cached=0, free=0)


@pytest.mark.parametrize("capacity", [0, -1, 10**9])
def test_a_capacity_that_cannot_work_is_refused(capacity: int) -> None:
    with pytest.raises(ValueError, match=str(capacity)):
        EventLog(capacity)


def test_what_is_read_cannot_be_written_to() -> None:
    log = EventLog()
    log.add(Kind.ARRIVED, request="a", start=0.0, prompt=3)
    rows = log.columns()
    for column in COLUMNS:
        with pytest.raises(ValueError, match="read-only"):
            getattr(rows, column)[0] = 1


def test_rows_read_earlier_do_not_change_when_more_are_added() -> None:
    log = EventLog(2)
    log.add(Kind.ARRIVED, request="a", start=0.0, prompt=3)
    before = log.columns()
    for number in range(5):
        log.add(Kind.ARRIVED, request="b", start=1.0, prompt=number)
    assert before.field(Kind.ARRIVED, "prompt").tolist() == [3]


def test_select_chooses_by_kind_request_instance_and_time() -> None:
    log = EventLog()
    for name, instance, start in (("a", 0, 3.0), ("a", 1, 1.0), ("b", 1, 2.0)):
        log.add(Kind.WAIT, request=name, instance=instance, start=start, end=start + 1, tokens=instance)
        log.add(Kind.QUEUED, request=name, instance=instance, start=start, end=start + 1)
    assert log.select(Kind.WAIT).start.tolist() == [1.0, 2.0, 3.0]
    assert log.select(Kind.WAIT, Kind.QUEUED, request="a").start.tolist() == [1.0, 1.0, 3.0, 3.0]
    assert log.select(Kind.WAIT, instance=1).field(Kind.WAIT, "tokens").tolist() == [1, 1]
    assert log.select(start=1.5, end=3.5).start.tolist() == [2.0, 2.0]
    assert len(log.select(request="nobody")) == 0


def test_a_second_arrival_begins_a_new_request_of_that_name() -> None:
    log = EventLog()
    for at in (0.0, 10.0):
        log.add(Kind.ARRIVED, request="a", start=at, prompt=1)
        log.add(Kind.FINISHED, request="a", start=at + 2, output=0, reason=2)
    table = log.requests()
    assert (
        table.id == ("a", "a") and table.arrival.tolist() == [0.0, 10.0] and table.e2e.tolist() == [2.0, 2.0]
    )


def test_many_threads_add_without_losing_a_row() -> None:
    log = EventLog(5000)

    def work(name: str) -> None:
        for number in range(2000):
            log.add(Kind.WAIT, request=name, start=float(number), tokens=number)

    threads = [threading.Thread(target=work, args=(name,)) for name in "abcd"]
    for thread in threads:
        thread.start()
    while any(thread.is_alive() for thread in threads):
        assert len(log.columns()) <= 5000
    for thread in threads:
        thread.join()
    assert len(log) == 5000 and log.dropped == 3000
    rows, names = log.snapshot()
    for index, name in names.items():
        numbers = rows.field(Kind.WAIT, "tokens")[rows.request == index]
        assert np.array_equal(numbers, np.arange(2000 - len(numbers), 2000)), name
