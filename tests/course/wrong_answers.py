"""The frame in which each chapter's checks are tested: the answers that must fail, and what the verdict must say.

A chapter's test file holds

    class TestChapter01(Checks):
        chapter = 1
        right = {"1.1": waste, ...}
        wrong = {"1.1": (Wrong("forgets the last block", forgets_the_last, "rounded up"), ...)}

and each exercise must have a right one and at least three wrong ones. That the notebook's own answers pass is shown by
running it (tests/notebooks).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import ClassVar

import pytest

from mooncake_edu.course.check import Answer, Exercise, exercises, find, judge
from mooncake_edu.course.verdict import FAILED, NOT_YET, PASSED

FEWEST = 3


@dataclass(frozen=True)
class Wrong:
    """A plausible wrong answer: what is wrong with it, itself, words of the verdict, and the input it must be shown.

    `says` stands in what the verdict says besides the input; `input`, where given, is the smallest input's repr.
    """

    what: str
    answer: Answer
    says: str
    input: str | None = None


def unanswered(*_: object, **__: object) -> None:
    """What stands in the student edition."""
    raise NotImplementedError


class Checks:
    """Tests that hold for every exercise of `chapter`, and for every answer in `wrong` and in `right`."""

    chapter: ClassVar[int]
    wrong: ClassVar[Mapping[str, tuple[Wrong, ...]]]
    right: ClassVar[Mapping[str, Answer]]

    def pytest_generate_tests(self, metafunc: pytest.Metafunc) -> None:
        """One test an exercise, one a wrong answer."""
        if "exercise" in metafunc.fixturenames:
            there = exercises(self.chapter)
            metafunc.parametrize("exercise", there, ids=[exercise.number for exercise in there])
        if "mistake" in metafunc.fixturenames:
            pairs = [(number, mistake) for number, mistakes in self.wrong.items() for mistake in mistakes]
            metafunc.parametrize(("number", "mistake"), pairs, ids=[f"{n}-{m.what}" for n, m in pairs])

    def test_an_exercise_is_tested_with_at_least_three_wrong_answers(self, exercise: Exercise) -> None:
        mistakes = self.wrong.get(exercise.number, ())
        assert len({mistake.what for mistake in mistakes}) >= FEWEST
        assert len({mistake.answer for mistake in mistakes}) == len(mistakes)

    def test_a_wrong_answer_fails_and_the_verdict_says_why(self, number: str, mistake: Wrong) -> None:
        verdict = judge(find(number), mistake.answer)
        assert verdict.status == FAILED
        assert mistake.says in f"{verdict.broken}\n{verdict.where}\n{verdict.score}", str(verdict)
        assert mistake.input is None or verdict.input == mistake.input
        assert "picture is missing" not in verdict.note

    def test_a_right_answer_passes(self, exercise: Exercise) -> None:
        verdict = judge(exercise, self.right[exercise.number])
        assert verdict.status == PASSED, str(verdict)
        assert (verdict.picture is not None) == (exercise.picture is not None) and not verdict.note

    def test_what_the_student_edition_holds_is_not_yet_an_answer(self, exercise: Exercise) -> None:
        if not self._takes_a_class(exercise):
            assert judge(exercise, unanswered).status == NOT_YET

    def _takes_a_class(self, exercise: Exercise) -> bool:
        return any(isinstance(mistake.answer, type) for mistake in self.wrong.get(exercise.number, ()))

    def test_the_package_s_own_objects_are_refused(self, exercise: Exercise) -> None:

        for mine in exercise.own():
            verdict = judge(exercise, mine)  # type: ignore[arg-type]
            assert (verdict.status, verdict.tried) == (FAILED, 0)

    def test_the_inputs_are_few_the_same_each_time_and_short_to_read(self, exercise: Exercise) -> None:
        first, second = [repr(case) for case in exercise.cases()], [repr(case) for case in exercise.cases()]
        assert first == second
        assert 1 <= len(first) <= 5_000
        assert max(map(len, first)) <= 400
        assert not any(" at 0x" in text for text in first)
