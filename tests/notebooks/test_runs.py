"""Every chapter runs from its first cell to its last; its own answers pass, and without them nothing breaks."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from mooncake_edu.course.cells import Chapter, source
from mooncake_edu.course.check import exercises
from mooncake_edu.course.editions import tags, write_instructor, write_student
from mooncake_edu.course.verdict import NOT_YET, PASSED
from tests.conftest import Once
from tests.notebooks import small
from tests.notebooks.running import CHAPTERS, ROOT, run, run_shared

MOST_S = 60
EVERY = pytest.mark.parametrize("path", CHAPTERS, ids=[path.stem for path in CHAPTERS])

CHECKS = """
from mooncake_edu.course.check import Exercise, Trial

def judge(answer, case):
    return Trial(None if answer(case) == case + 1 else "It is one more.")

EXERCISES = (Exercise("9.1", "One more", lambda: range(3), judge, lambda: ()),)
"""
SETUP = """import mooncake_edu.course.checks
mooncake_edu.course.checks.__path__.append({folder!r})"""

@pytest.fixture(scope="module")
def students(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The student edition of the course."""
    out = tmp_path_factory.mktemp("editions") / "student"
    write_student(ROOT / "notebooks", out)
    return out


def numbers(path: Path) -> list[str]:
    """The exercises that the package checks for a chapter."""
    return [exercise.number for exercise in exercises(Chapter(path).content["metadata"]["mooncake_edu"]["chapter"])]


@pytest.mark.timeout(1800)
@EVERY
def test_a_chapter_runs_at_tiny_within_a_minute(
    path: Path, once: Once, record_property: Callable[[str, object], None]
) -> None:
    ended = run_shared(path, once)
    record_property("seconds", round(ended.seconds, 1))
    assert ended.passed, ended.said
    assert ended.seconds < MOST_S


@pytest.mark.timeout(1800)
@EVERY
def test_a_chapter_s_own_answers_pass_all_its_checks(path: Path, once: Once) -> None:
    assert run_shared(path, once).verdicts == dict.fromkeys(numbers(path), PASSED)


@pytest.mark.timeout(1800)
@EVERY
def test_the_student_edition_runs_to_its_end_with_every_check_at_not_yet(
    path: Path, students: Path, tmp_path: Path
) -> None:
    ended = run(students / path.name, tmp_path)
    assert ended.passed, ended.said
    assert ended.verdicts == dict.fromkeys(numbers(path), NOT_YET)


@EVERY
def test_with_its_solutions_restored_the_student_edition_runs_what_the_chapter_runs(path: Path, students: Path) -> None:
    solutions = {cell["id"]: source(cell) for cell in Chapter(path).cells if "exercise" in tags(cell)}
    kept = [cell for cell in Chapter(path).cells if "instructor" not in tags(cell)]
    restored = [(cell["id"], solutions.get(cell["id"], source(cell))) for cell in Chapter(students / path.name).cells]
    assert restored == [(cell["id"], source(cell)) for cell in kept]


@pytest.mark.slow
@pytest.mark.timeout(3600)
@EVERY
def test_a_chapter_runs_with_a_real_model(
    path: Path, smollm2: Path, tmp_path: Path, record_property: Callable[[str, object], None]
) -> None:
    ended = run(path, tmp_path, "cpu")
    record_property("seconds", round(ended.seconds, 1))
    assert ended.passed, ended.said
    assert ended.verdicts == dict.fromkeys(numbers(path), PASSED)


def chapter(folder: Path, *cells: small.Cell) -> Path:
    """A small chapter 9 with one exercise that is checked, and further cells."""
    (folder / "checks").mkdir()
    (folder / "checks" / "chapter09.py").write_text(CHECKS)
    asked = [small.exercise("9.1", "one_more", "return value + 1", "naive-count")]
    notebook = small.chapter(SETUP.format(folder=str(folder / "checks")), asked, layer=None, number=9)
    notebook["cells"] += cells
    return small.write(notebook, folder / "source", "09-small.ipynb")


def test_a_run_reports_what_checks_said_and_what_it_took(tmp_path: Path) -> None:
    ended = run(chapter(tmp_path), tmp_path / "run")
    assert ended.passed, ended.said
    assert ended.verdicts == {"9.1": PASSED}
    assert 0 < ended.seconds < MOST_S
    shown = [cell["outputs"] for cell in ended.notebook["cells"] if cell["id"] == "check-9-1"]
    assert "✓ 9.1 One more: passed" in str(shown)


def test_a_student_s_small_chapter_reaches_its_end(tmp_path: Path) -> None:
    (path,) = write_student(chapter(tmp_path).parent, tmp_path / "student")
    ended = run(path, tmp_path / "run")
    assert ended.passed, ended.said
    assert ended.verdicts == {"9.1": NOT_YET}


@pytest.mark.parametrize(("answer", "passes"), [("return value + 1", True), ("return value", False)])
def test_an_instructor_s_edition_ends_where_an_answer_does_not_pass(answer: str, passes: bool, tmp_path: Path) -> None:
    (path,) = write_instructor(chapter(tmp_path).parent, tmp_path / "instructor")
    path.write_text(path.read_text().replace("return value + 1", answer))
    ended = run(path, tmp_path / "run")
    assert ended.passed == passes
    assert ("AssertionError: ✗ 9.1 One more: failed" in ended.said) != passes


def test_a_chapter_that_raises_does_not_pass(tmp_path: Path) -> None:
    ended = run(chapter(tmp_path, small.code("break", "1 / 0")), tmp_path / "run")
    assert not ended.passed
    assert "ZeroDivisionError" in ended.said
    assert ended.verdicts == {"9.1": PASSED}


def test_the_size_reaches_the_chapter(tmp_path: Path) -> None:
    path = chapter(tmp_path, small.code("which", "assert size == 'cpu', size"))
    assert run(path, tmp_path / "cpu", "cpu").passed
    assert not run(path, tmp_path / "tiny", "tiny").passed
