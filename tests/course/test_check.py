"""Checks: whatever an answer does, the reader gets a verdict, with the smallest input that shows what is wrong."""

from __future__ import annotations

import functools
import itertools
import os
import signal
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from mooncake_edu import kvcache
from mooncake_edu.course import limits
from mooncake_edu.course.check import Exercise, ExerciseError, Score, Trial, check, judge
from mooncake_edu.course.own import own_object
from mooncake_edu.course.verdict import FAILED, NOT_YET, PASSED, Verdict
from mooncake_edu.kvcache import BlockPool, BlockTable

STEP_S = 0.6
"""Seconds instead of 5, for answers that are right to be ended."""


def cases() -> Iterator[list[int]]:
    yield []
    yield [3]
    yield [2, 1]
    yield [1, 2, 3]


def judging(answer: Callable[..., Any], case: list[int]) -> Trial:
    got = answer(case)
    return Trial(None if got == sorted(case) else f"`{got!r}` is not in order.", {"values": len(case)})


def sort(values: list[int]) -> list[int]:
    """The right answer."""
    return [*itertools.chain.from_iterable([value] * values.count(value) for value in range(10))]


def bars(answer: Callable[..., Any], case: list[int]) -> Any:
    import plotly.graph_objects as go

    return go.Figure(go.Bar(y=answer(case)))


def exercise(**parts: Any) -> Exercise:
    given = {"cases": cases, "judge": judging, "own": lambda: (BlockPool, BlockPool.free.fget, kvcache)} | parts
    return Exercise("9.1", "Sort", **given)


@pytest.fixture(params=["copy", "thread"])
def either(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    """Answers run in a copy of the process, or in a thread as where systems lack that."""
    if request.param == "thread":
        monkeypatch.setattr(limits.messages, "__defaults__", (limits.STEP_S, False))
    return str(request.param)


# What is said


def test_a_right_answer_passes_on_every_input(either: str) -> None:
    verdict = judge(exercise(), sort)
    assert (verdict.status, verdict.tried, verdict.broken) == (PASSED, 4, "")
    assert verdict.operations == {"values": 3}


def test_the_first_input_that_fails_is_shown_with_the_rule_and_the_counts(either: str) -> None:
    verdict = judge(exercise(), lambda values: list(values))
    assert (verdict.status, verdict.input, verdict.tried) == (FAILED, "[2, 1]", 3)
    assert verdict.broken == "`[2, 1]` is not in order."
    assert verdict.operations == {"values": 2}


def test_no_input_after_the_first_that_fails_is_tried(tmp_path: Path) -> None:
    tried = tmp_path / "tried"

    def answer(values: list[int]) -> list[int]:
        with tried.open("a") as file:
            file.write(f"{values}\n")
        return list(values)

    judge(exercise(), answer)
    assert tried.read_text() == "[]\n[3]\n[2, 1]\n"


def test_an_answer_not_yet_written_is_not_yet(either: str) -> None:
    def answer(values: list[int]) -> list[int]:
        raise NotImplementedError

    verdict = judge(exercise(), answer)
    assert (verdict.status, verdict.where) == (NOT_YET, "")
    assert "Write your answer" in str(verdict)


def test_an_answer_written_in_part_is_not_yet() -> None:
    def answer(values: list[int]) -> list[int]:
        if len(values) < 2:
            return values
        raise NotImplementedError

    assert judge(exercise(), answer).status == NOT_YET


def test_what_a_library_has_not_implemented_is_the_answer_s_fault() -> None:
    import torch

    def answer(values: list[int]) -> object:
        return torch.zeros(1, device="meta").tolist()

    verdict = judge(exercise(), answer)
    assert verdict.status == FAILED
    assert "NotImplementedError" in verdict.broken


def test_an_exception_is_shown_with_the_reader_s_own_line(either: str) -> None:
    def answer(values: list[int]) -> list[int]:
        return sorted(values, key=lambda value: value.nothing)  # type: ignore[attr-defined]

    verdict = judge(exercise(), answer)
    assert (verdict.status, verdict.input) == (FAILED, "[3]")
    assert verdict.broken == "Your answer raised AttributeError."
    assert "in <lambda>: return sorted(values, key=lambda value: value.nothing)" in verdict.where
    assert verdict.where.endswith("\nAttributeError: 'int' object has no attribute 'nothing'")


def test_an_exception_in_the_package_points_at_the_reader_s_line() -> None:
    def answer(values: list[int]) -> object:
        return BlockTable(BlockPool(1), 1).extend(2)

    where = judge(exercise(own=lambda: ()), answer).where
    assert "in answer: return BlockTable(BlockPool(1), 1).extend(2)\nValueError: 2 blocks asked for" in where
    assert "kvcache" not in where


def test_a_result_that_cannot_be_used_is_said_to_be_so() -> None:
    def judging(answer: Callable[..., Any], case: list[int]) -> Trial:
        return Trial(None if len(answer(case)) == len(case) else "wrong")

    # the frames of this file count as the reader's, so the judge must stand where the package does
    code = judging.__code__.replace(co_filename=str(Path(limits.__file__).with_name("checks") / "x.py"))
    verdict = judge(exercise(judge=type(judging)(code, globals())), lambda values: None)
    assert verdict.broken == (
        "What your answer gives cannot be used: TypeError: object of type 'NoneType' has no len()"
    )


@pytest.mark.parametrize("thing", [None, 3, "text", [1]])
def test_what_cannot_be_called_is_no_answer(thing: Any) -> None:
    verdict = judge(exercise(), thing)
    assert verdict.status == FAILED
    assert verdict.broken.startswith("An answer is a function or a class, not a")


def test_a_class_may_be_an_answer() -> None:
    class Sorter:
        def __init__(self, values: list[int]) -> None:
            self.values = sort(values)

    def judging(answer: Callable[..., Any], case: list[int]) -> Trial:
        return Trial(None if answer(case).values == sorted(case) else "wrong")

    assert judge(exercise(judge=judging), Sorter).status == PASSED


# What an answer may do


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


def loops_for_ever(values: list[int]) -> list[int]:
    while True:
        pass


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


@pytest.mark.skipif(sys.platform != "linux", reason="only a copy of the process can be ended in C")
@pytest.mark.parametrize("answer", [lambda values: sum(itertools.count()), waits_for_ever], ids=["loop", "lock"])
def test_an_answer_that_hangs_in_c_is_ended_with_its_process(answer: Any) -> None:
    verdict = judge(exercise(), answer, STEP_S)
    assert verdict.broken == "Your answer did not end within 0.6 seconds."
    with pytest.raises(ChildProcessError):
        os.waitpid(-1, os.WNOHANG)


@pytest.mark.skipif(sys.platform != "linux", reason="a copy of the process is ended")
def test_a_reader_who_interrupts_a_check_leaves_nothing_running() -> None:
    timer = threading.Timer(0.3, signal.raise_signal, [signal.SIGINT])
    timer.start()
    with pytest.raises(KeyboardInterrupt):
        judge(exercise(), loops_for_ever)
    with pytest.raises(ChildProcessError):
        os.waitpid(-1, os.WNOHANG)


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


# The package's own


class Changed(BlockPool):
    def allocate(self, count: int) -> list[int]:
        return super().allocate(count)[::-1]


class Unchanged(BlockPool):
    """Says more, does the same."""


class Twice(Unchanged):
    pass


def release(pool: BlockPool) -> None:
    pool.release([0])


OWN_FREE = BlockPool.free.fget
OWN: tuple[object, ...] = (BlockPool, BlockPool.release, kvcache.Hold)


def named(pool: BlockPool) -> object:
    return kvcache.Hold(pool, [0])


def imported(pool: BlockPool) -> object:
    from mooncake_edu.kvcache import Hold

    return Hold(pool, [0])


def by_a_helper(pool: BlockPool) -> object:
    return named(pool)


@functools.wraps(BlockPool.release)
def wrapped(*arguments: Any) -> None:
    pass


class Method:
    def call(self, pool: BlockPool) -> object:
        return named(pool)


@pytest.mark.parametrize(
    ("answer", "name"),
    [
        (BlockPool, "BlockPool"),
        (BlockPool.release, "BlockPool.release"),
        (BlockPool(2).release, "BlockPool.release"),
        (functools.partial(BlockPool, 3), "BlockPool"),
        (functools.partial(functools.partial(BlockPool.release), 3), "BlockPool.release"),
        (Unchanged, "BlockPool"),
        (Twice, "BlockPool"),
        (wrapped, "BlockPool.release"),
        (lambda blocks: BlockPool(blocks), "BlockPool"),
        (named, "Hold"),
        (imported, "Hold"),
        (by_a_helper, "Hold"),
        (Method().call, "Hold"),
        (Method, "Hold"),
        (staticmethod(BlockPool.release), "BlockPool.release"),
        (type(release)(BlockPool.release.__code__, {}), "BlockPool.release"),
        ((lambda own: lambda pool: own(pool))(BlockPool.release), "BlockPool.release"),
    ],
)
def test_the_package_s_own_object_is_no_answer_in_any_dress(answer: Any, name: str) -> None:
    verdict = judge(exercise(own=lambda: OWN), answer)
    assert (verdict.status, verdict.tried) == (FAILED, 0)
    assert verdict.broken == f"This hands the work to the package's own `{name}`: write yours."


@pytest.mark.parametrize("answer", [Changed, release, sort, BlockTable, len, lambda pool: pool.release([0])])
def test_an_answer_of_its_own_may_use_the_package(answer: Any) -> None:
    assert own_object(answer, OWN) is None


def test_looking_through_an_answer_runs_nothing_of_it() -> None:
    class Trap:
        def __getattr__(self, name: str) -> object:
            raise AssertionError(name)

        def __eq__(self, other: object) -> bool:
            raise AssertionError

        __hash__ = None  # type: ignore[assignment]

        def __call__(self, values: list[int]) -> list[int]:
            return sort(values)

    assert own_object(Trap(), OWN) is None
    assert judge(exercise(), Trap()).status == PASSED


# Design exercises and pictures


def design(**parts: Any) -> Exercise:
    given = {"threshold": 2.0, "unit": "values", "higher_is_better": True, "naive": lambda: 1.0} | parts
    return exercise(score=Score(**{"measure": lambda answer: float(len(answer([5, 4]))), **given}))


def test_a_score_that_reaches_its_threshold_passes(either: str) -> None:
    verdict = judge(design(), sort)
    assert verdict.status == PASSED
    assert verdict.score == "2 values (asked: at least 2; the naive answer: 1)"


@pytest.mark.parametrize(
    "parts",
    [{"threshold": 2.5}, {"threshold": 1.5, "higher_is_better": False}, {"measure": lambda answer: float("nan")},
     {"measure": lambda answer: float("inf")}],
)  # fmt: skip
def test_a_score_that_misses_its_threshold_fails(parts: dict[str, Any]) -> None:
    verdict = judge(design(**parts), sort)
    assert (verdict.status, verdict.input) == (FAILED, "")  # which stays unseen
    assert "not good enough yet" in verdict.broken


def test_a_wrong_answer_is_not_scored() -> None:
    assert judge(design(), lambda values: values).score == ""


def test_what_raises_or_hangs_only_when_scored_fails() -> None:
    def raises(values: list[int]) -> list[int]:
        return sort(values) if values != [5, 4] else [][0]

    def hangs(values: list[int]) -> list[int]:
        return sort(values) if values != [5, 4] else loops_for_ever(values)

    assert "IndexError" in judge(design(), raises).where
    assert judge(design(), hangs, STEP_S).broken == "Your answer did not end within 0.6 seconds."


@pytest.mark.parametrize(("answer", "heights"), [(sort, [1, 2, 3]), (lambda values: list(values), [2, 1])])
def test_the_picture_is_drawn_by_the_answer_on_the_case_shown(answer: Any, heights: list[int], either: str) -> None:
    picture = judge(exercise(picture=bars), answer).picture
    assert picture is not None
    assert list(picture.data[0].y) == heights


def test_no_picture_is_drawn_of_nothing_yet() -> None:
    def answer(values: list[int]) -> list[int]:
        raise NotImplementedError

    verdict = judge(exercise(picture=bars), answer)
    assert (verdict.picture, verdict.note) == (None, "")


@pytest.mark.parametrize(
    ("picture", "note"),
    [
        (lambda answer, case: [][0], "raised an IndexError"),
        (lambda answer, case: loops_for_ever([]), "did not end within 0.6 seconds"),
    ],
)
def test_a_picture_that_cannot_be_drawn_changes_no_verdict(picture: Any, note: str) -> None:
    verdict = judge(exercise(picture=picture), sort, STEP_S)
    assert (verdict.status, verdict.note) == (PASSED, f"the picture is missing: drawing it {note}")


# How it is told


def test_require_gives_the_verdict_back_or_raises_with_its_text() -> None:
    passed = judge(exercise(), sort)
    assert passed.require() is passed
    for answer in (lambda values: values[:1], lambda values: loops_for_ever(values)):
        with pytest.raises(AssertionError, match="9.1 Sort: failed"):
            judge(exercise(), answer, STEP_S).require()
    with pytest.raises(AssertionError, match="9.1 Sort: not yet"):
        Verdict("9.1", "Sort").require()


def test_the_plain_text_names_input_rule_and_counts() -> None:
    assert str(judge(exercise(), lambda values: list(values))) == (
        "✗ 9.1 Sort: failed. `[2, 1]` is not in order.\n"
        "    smallest input: [2, 1]\n"
        "    counted:        2 values"
    )  # fmt: skip
    assert str(judge(exercise(), sort)) == (
        "✓ 9.1 Sort: passed. Right on all of 4 inputs, the smallest first.\n    counted:        3 values"
    )


def test_what_an_answer_says_is_never_taken_for_html() -> None:
    def answer(values: list[int]) -> list[int]:
        print("<script>alert(1)</script>")
        raise ValueError("<b>bold</b>")

    html = judge(exercise(), answer)._repr_html_()
    assert "<script>" not in html
    assert "<b>" not in html
    assert "&lt;b&gt;bold&lt;/b&gt;" in html


def test_the_html_says_in_words_what_the_colour_says() -> None:
    for status in (PASSED, NOT_YET, FAILED):
        assert status in Verdict("9.1", "Sort", status)._repr_html_()


@pytest.mark.parametrize(
    ("number", "remedy"),
    [("9.9", "such as"), ("nonsense", "such as"), (9.1, "such as"), ("../1.1", "such as"), ("0.99", 'has "0.1"')],
)
def test_an_exercise_that_is_not_there_is_refused_with_those_that_are(number: Any, remedy: str) -> None:
    with pytest.raises(ExerciseError, match=f"there is no exercise .*{remedy}"):
        check(number, sort)
