"""Checks: the reader gets the smallest input that shows what is wrong, the rule, the counts, a picture."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from mooncake_edu.course import limits
from mooncake_edu.course.check import Exercise, ExerciseError, Score, Trial, check, judge
from mooncake_edu.course.verdict import FAILED, NOT_YET, PASSED, Verdict
from mooncake_edu.kvcache import BlockPool, BlockTable
from tests.course.sorting import STEP_S, bars, exercise, loops_for_ever, sort


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


def design(**parts: Any) -> Exercise:
    given = {"threshold": 2.0, "unit": "values", "higher_is_better": True, "naive": lambda: 1.0} | parts
    return exercise(score=Score(**{"measure": lambda answer: float(len(answer([5, 4]))), **given}))


def test_a_score_that_reaches_its_threshold_passes(either: str) -> None:
    verdict = judge(design(), sort)
    assert verdict.status == PASSED
    assert verdict.score == "2 values (asked: at least 2; the naive answer: 1)"
    assert str(verdict).startswith("✓ 9.1 Sort: passed. It works, and well enough on the unseen inputs.\n    score: ")
    assert verdict.operations == {}  # a count and a score of different inputs would contradict each other


@pytest.mark.parametrize(
    "parts",
    [{"threshold": 2.5}, {"threshold": 1.5, "higher_is_better": False}, {"measure": lambda answer: float("nan")},
     {"measure": lambda answer: float("inf")}],
)  # fmt: skip
def test_a_score_that_misses_its_threshold_fails(parts: dict[str, Any]) -> None:
    verdict = judge(design(**parts), sort)
    assert (verdict.status, verdict.input) == (FAILED, "")  # which stays unseen
    assert "not well enough yet" in verdict.broken
    assert verdict.operations == {}


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
        "    counted:        values: 2"
    )  # fmt: skip
    assert str(judge(exercise(), sort)) == (
        "✓ 9.1 Sort: passed. Right on all of 4 inputs, the smallest first.\n    counted:        values: 3"
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
