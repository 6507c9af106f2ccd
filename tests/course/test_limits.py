"""Whatever an answer does, it ends in a verdict, and the reader's process goes on."""

from __future__ import annotations

import itertools
import os
import signal
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import psutil
import pytest

from mooncake_edu.course import limits
from mooncake_edu.course.check import Trial, judge
from mooncake_edu.course.verdict import FAILED, PASSED
from tests.course.sorting import STEP_S, bars, exercise, loops_for_ever, sort


class RaisesWhenCompared:
    def __eq__(self, other: object) -> bool:
        raise KeyError("compared")

    __hash__ = None  # type: ignore[assignment]


class RaisesWhenShown:
    def __repr__(self) -> str:
        raise KeyError("shown")


class RaisesWhenSaid(Exception):
    def __str__(self) -> str:
        raise KeyError("said")


def says_nothing(values: list[int]) -> list[int]:
    raise RaisesWhenSaid


def leaves(values: list[int]) -> list[int]:
    sys.exit(0)


def interrupts(values: list[int]) -> list[int]:
    raise KeyboardInterrupt


def recurses(values: list[int]) -> list[int]:
    return recurses(values)


@pytest.mark.parametrize(
    ("answer", "says"),
    [
        (lambda values: RaisesWhenCompared(), "KeyError: 'compared'"),
        (lambda values: RaisesWhenShown(), "KeyError: 'shown'"),
        (says_nothing, "RaisesWhenSaid: (its message cannot be shown)"),
        (leaves, "SystemExit"),
        (interrupts, "KeyboardInterrupt"),
        (recurses, "RecursionError"),
        (lambda *, other: [], "takes 0 positional arguments"),
        (lambda values: [0] * 10_000, "is not in order"),
    ],
)  # fmt: skip
def test_whatever_an_answer_raises_or_returns_is_a_verdict(answer: Any, says: str, either: str) -> None:
    verdict = judge(exercise(), answer)
    assert verdict.status == FAILED
    assert says in verdict.where + verdict.broken
    assert len(str(verdict)) < 2_000


def changes_what_it_is_given(values: list[int]) -> list[int]:
    values.sort()
    return values


def test_an_answer_that_changes_its_input_is_told_so(either: str) -> None:
    verdict = judge(exercise(), changes_what_it_is_given)
    assert (verdict.status, verdict.input) == (FAILED, "[2, 1]")
    assert verdict.broken == "The input was changed, to `[1, 2]`: leave what you are given as it is."


def test_an_answer_cannot_spoil_a_later_input(either: str) -> None:
    shared = [[2, 1], [2, 1]]

    def judging(answer: Callable[..., Any], case: list[int]) -> Trial:
        answer(case)
        return Trial(None if case == [1, 2] else f"`{case}`")

    judge(exercise(cases=lambda: shared, judge=judging), lambda values: values.sort())
    assert shared == [[2, 1], [2, 1]]


def catches_exceptions(values: list[int]) -> list[int]:
    while True:
        try:
            while True:
                pass
        except Exception:
            pass


def prints_for_ever(values: list[int]) -> list[int]:
    while True:
        print("again and again")


def waits_for_ever(values: list[int]) -> list[int]:
    threading.Event().wait()
    return []


@pytest.mark.parametrize("answer", [loops_for_ever, catches_exceptions, prints_for_ever])
def test_an_answer_that_hangs_is_ended(answer: Any, either: str) -> None:
    start = time.perf_counter()
    verdict = judge(exercise(), answer, STEP_S)
    assert time.perf_counter() - start < 30  # and not for ever, on a machine as busy as it may be
    assert (verdict.status, verdict.broken) == (FAILED, "Your answer did not end within 0.6 seconds.")
    assert verdict.input == "[]"
    assert not [thread for thread in threading.enumerate() if "_run" in thread.name]


def children() -> set[int]:
    """The processes below this one, those that ended and were not waited for among them."""
    return {process.pid for process in psutil.Process().children(recursive=True)}


@pytest.mark.skipif(sys.platform != "linux", reason="only a copy of the process can be ended in C")
@pytest.mark.parametrize("answer", [lambda values: sum(itertools.count()), waits_for_ever], ids=["loop", "lock"])
def test_an_answer_that_hangs_in_c_is_ended_with_its_process(answer: Any) -> None:
    before = children()
    verdict = judge(exercise(), answer, STEP_S)
    assert verdict.broken == "Your answer did not end within 0.6 seconds."
    assert children() == before


@pytest.mark.skipif(sys.platform != "linux", reason="a copy of the process is ended")
def test_a_reader_who_interrupts_a_check_leaves_nothing_running() -> None:
    before = children()
    timer = threading.Timer(0.3, signal.raise_signal, [signal.SIGINT])
    timer.start()
    with pytest.raises(KeyboardInterrupt):
        judge(exercise(), loops_for_ever)
    assert children() == before


@pytest.mark.skipif(sys.platform != "linux", reason="a copy of the process is ended")
def test_what_an_answer_starts_ends_with_it(tmp_path: Path) -> None:
    def answer(values: list[int]) -> list[int]:
        import subprocess

        child = subprocess.Popen(["sleep", "600"])
        (tmp_path / "pid").write_text(str(child.pid))
        return loops_for_ever(values)

    judge(exercise(), answer, STEP_S)
    state = Path("/proc") / (tmp_path / "pid").read_text() / "stat"
    deadline = time.monotonic() + 10
    while state.exists() and state.read_text().rpartition(")")[2].split()[0] != "Z":
        assert time.monotonic() < deadline
        time.sleep(0.05)


@pytest.mark.skipif(sys.platform != "linux", reason="a copy of the process has other streams")
def test_input_is_at_its_end_and_output_beside_print_goes_nowhere(capfd: pytest.CaptureFixture[str]) -> None:
    def answer(values: list[int]) -> list[int]:
        os.write(1, b"past print")
        return [int(input("a number? "))]

    verdict = judge(exercise(), answer)
    assert verdict.where.endswith("EOFError: a check gives no input")
    assert capfd.readouterr().out == ""


@pytest.mark.skipif(sys.platform != "linux", reason="only what another process sends is limited")
def test_a_result_too_large_to_show_ends_the_check(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(limits, "LONGEST", 100_000)
    verdict = judge(exercise(picture=lambda answer, case: bars(lambda case: [1.5] * 200_000, case)), sort)
    assert verdict.status == PASSED
    assert verdict.note == "the picture is missing: drawing it gave a result too large to show"


def test_in_a_thread_a_hang_in_c_gets_its_verdict_and_the_reader_is_told_what_goes_on() -> None:
    stop = threading.Event()

    def work(send: limits.Send) -> None:
        send({"step": True})
        stop.wait()

    *_, last = limits.messages(work, STEP_S, copy=False)
    stop.set()
    assert last["ended"] == (
        "did not end within 0.6 seconds; it goes on in the background until the kernel is restarted"
    )


def test_a_reader_waits_five_seconds_at_most_for_an_input_and_thirty_for_all() -> None:
    assert (limits.STEP_S, limits.TOTAL_S) == (5.0, 30.0)


def test_every_input_has_its_own_seconds(either: str) -> None:
    def answer(values: list[int]) -> list[int]:
        time.sleep(0.4)
        return sort(values)

    assert judge(exercise(), answer, step_s=1.2).status == PASSED  # 1.6 seconds in all


def test_many_slow_inputs_end_too(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(limits, "TOTAL_S", 0.5)

    def answer(values: list[int]) -> list[int]:
        time.sleep(0.2)
        return sort(values)

    verdict = judge(exercise(cases=lambda: [[1]] * 50), answer)
    assert verdict.broken == "Your answer took more than 0.5 seconds for all inputs."
    assert 1 <= verdict.tried <= 5


def test_time_in_which_the_machine_was_stopped_does_not_count(monkeypatch: pytest.MonkeyPatch) -> None:
    now = itertools.count(step=60.0)
    monkeypatch.setattr(limits.time, "monotonic", lambda: next(now))
    clock = limits._Clock(5.0)
    assert [clock.over() for _ in range(10)] == [None] * 10


@pytest.mark.skipif(sys.platform != "linux", reason="memory is limited in a copy of the process")
def test_memory_without_end_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(limits, "MEMORY", 200 << 20)

    def answer(values: list[int]) -> list[int]:
        return [len(bytearray(1 << 40))]

    verdict = judge(exercise(), answer)
    assert verdict.broken == "Your answer raised MemoryError."

    def many(values: list[int]) -> list[bytearray]:
        return [bytearray(64 << 20) for _ in range(100)]

    assert judge(exercise(), many).broken == "Your answer raised MemoryError."


@pytest.mark.skipif(sys.platform != "linux", reason="only a copy of the process may end")
@pytest.mark.parametrize("how", [lambda: os._exit(0), lambda: os.kill(os.getpid(), signal.SIGSEGV)])
def test_an_answer_that_ends_its_process_does_not_end_the_reader_s(how: Callable[[], None]) -> None:
    verdict = judge(exercise(), lambda values: how())
    assert (verdict.status, verdict.broken) == (FAILED, "Your answer ended the process it ran in.")


def test_what_an_answer_prints_is_shown_up_to_a_limit(either: str, capsys: pytest.CaptureFixture[str]) -> None:
    def answer(values: list[int]) -> list[int]:
        print("looking at", values)
        print("x" * 10_000)
        return values

    verdict = judge(exercise(), answer)
    assert verdict.printed.startswith("looking at []\nxxx")
    assert len(verdict.printed) == limits.PRINTED
    print("printing works afterwards")
    assert capsys.readouterr().out == "printing works afterwards\n"


@pytest.mark.skipif(sys.platform != "linux", reason="changes stay in a copy of the process")
def test_what_an_answer_changes_elsewhere_stays_in_its_process() -> None:
    def answer(values: list[int]) -> list[int]:
        os.environ["SPOILED"] = "yes"
        sys.path.clear()
        return sort(values)

    assert judge(exercise(), answer).status == PASSED
    assert "SPOILED" not in os.environ
    assert sys.path


def test_no_check_uses_the_network(monkeypatch: pytest.MonkeyPatch) -> None:
    import socket

    monkeypatch.setattr(socket, "socket", None)
    assert judge(exercise(), sort).status == PASSED


def test_a_fault_of_the_exercise_is_no_verdict() -> None:
    def broken_cases() -> Iterator[list[int]]:
        yield []
        raise ZeroDivisionError("no more cases")

    with pytest.raises(limits.Bug, match="no more cases"):
        judge(exercise(cases=broken_cases), sort)
