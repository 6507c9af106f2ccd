"""Editions: what students get and what not, what instructors get, and nothing written over or by halves."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from mooncake_edu.course import editions
from mooncake_edu.course.cells import Chapter, ChapterError, source
from mooncake_edu.course.editions import EditionError, without_solutions, write_instructor, write_student
from mooncake_edu.model.folders import ModelError
from tests.cli.conftest import Run, run
from tests.notebooks import small

__all__ = ["run"]

SETUP = "%load_ext mooncake_edu.course\n%chapter"


def chapter() -> dict[str, Any]:
    asked = [small.exercise("9.1", "one_more", "return value + 1", "naive-count")]
    return small.chapter(SETUP, asked, layer=None, number=9)


@pytest.fixture
def course(tmp_path: Path) -> Path:
    """A folder of notebooks with one small chapter, a text and a hidden folder beside it."""
    folder = tmp_path / "notebooks"
    small.write(chapter(), folder, "09-small.ipynb")
    (folder / "README.md").write_text("Read me.")
    (folder / ".ipynb_checkpoints").mkdir()
    (folder / ".ipynb_checkpoints" / "09-small.ipynb").write_text("return value + 1")
    return folder


def everything(folder: Path) -> str:
    return "".join(path.read_text() for path in sorted(folder.rglob("*")) if path.is_file())


def test_a_student_gets_every_cell_but_the_instructor_s_and_no_solution(course: Path, tmp_path: Path) -> None:
    (path,) = write_student(course, tmp_path / "student")
    cells = {cell["id"]: source(cell) for cell in Chapter(path).cells}
    expected = {cell["id"]: source(cell) for cell in chapter()["cells"]}
    del expected["notes"]
    expected["exercise-9-1"] = "def one_more(value):\n    raise NotImplementedError\n"
    assert cells == expected
    assert "value + 1" not in everything(tmp_path / "student")


def test_a_student_s_readme_says_how_to_start_and_that_no_solutions_are_there(course: Path, tmp_path: Path) -> None:
    (course / "README.md").write_text("The notebooks carry the solutions.")
    write_student(course, tmp_path / "student")
    text = (tmp_path / "student" / "README.md").read_text()
    assert "carry the solutions" not in text and "without the solutions" in text
    assert "\n- 09 Small, 30 minutes\n" in text
    assert "make lab CHAPTERS=" in text and "mooncake-edu course progress" in text
    write_instructor(course, tmp_path / "instructor")
    assert (tmp_path / "instructor" / "README.md").read_text() == "The notebooks carry the solutions."


def test_the_student_edition_keeps_nbgrader_s_metadata(course: Path, tmp_path: Path) -> None:
    (path,) = write_student(course, tmp_path / "student")
    kept = {cell["id"]: cell["metadata"] for cell in Chapter(path).cells}
    assert kept == {cell["id"]: cell["metadata"] for cell in chapter()["cells"] if cell["id"] != "notes"}


def test_a_student_gets_no_outputs(course: Path, tmp_path: Path) -> None:
    notebook = chapter()
    for cell in notebook["cells"]:
        if cell["cell_type"] == "code":
            cell.update(outputs=[{"output_type": "stream", "name": "stdout", "text": "secret"}], execution_count=7)
    small.write(notebook, course, "09-small.ipynb")
    write_student(course, tmp_path / "student")
    assert "secret" not in everything(tmp_path / "student")
    assert '"execution_count": 7' not in everything(tmp_path / "student")


@pytest.mark.parametrize("write", [write_student, write_instructor])
def test_other_files_come_along_and_hidden_ones_do_not(write: Any, course: Path, tmp_path: Path) -> None:
    write(course, tmp_path / "out")
    names = {path.name for path in (tmp_path / "out").iterdir()} - {"index.md"}
    assert names == {"09-small.ipynb", "README.md"}


@pytest.mark.parametrize("write", [write_student, write_instructor])
def test_making_an_edition_changes_no_chapter(write: Any, course: Path, tmp_path: Path) -> None:
    before = everything(course)
    write(course, tmp_path / "out")
    assert everything(course) == before


def test_a_notebook_in_memory_stays_as_it_is() -> None:
    notebook = chapter()
    editions.for_student(notebook, "09-small.ipynb")
    assert notebook == chapter()


def test_an_instructor_gets_all_of_it_and_graded_cells_require_what_they_check(course: Path, tmp_path: Path) -> None:
    (path,) = write_instructor(course, tmp_path / "out")
    expected = chapter()
    graded = [cell for cell in expected["cells"] if cell["metadata"].get("nbgrader", {}).get("grade")]
    assert graded
    for cell in graded:
        cell["source"] += ".require()"
    assert json.loads(path.read_text()) == expected


def test_a_graded_cell_that_would_give_points_to_every_answer_is_refused(course: Path, tmp_path: Path) -> None:
    notebook = chapter()
    (cell, *_) = [cell for cell in notebook["cells"] if cell["metadata"].get("nbgrader", {}).get("grade")]
    cell["source"] += "\nprint('thank you')"
    small.write(notebook, course, "09-small.ipynb")
    with pytest.raises(EditionError, match=rf"cell {cell['id']} of 09-small.ipynb is graded: end it with the line"):
        write_instructor(course, tmp_path / "out")
    assert not (tmp_path / "out").exists()


def test_the_index_gives_minutes_and_points(course: Path, tmp_path: Path) -> None:
    write_instructor(course, tmp_path / "out")
    index = (tmp_path / "out" / "index.md").read_text()
    assert "## 09 Small\n\n30 minutes, 10 of them core.\n" in index
    assert "| The problem | 10 | core |\n| The answer | 20 | extra |\n" in index
    assert "| 9.1  | 2 | The answer |\n" in index


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("x = 1\n", "x = 1\n"),
        ("x = 1\r", "x = 1\r"),
        (
            "def f():\n    a = 1\n    ### BEGIN SOLUTION\n    return 2\n    ### END SOLUTION\n\nf()",
            "def f():\n    a = 1\n    raise NotImplementedError\n\nf()",
        ),
        (
            "class C:\n    def a(self):\n        ### BEGIN SOLUTION\n        pass\n        ### END SOLUTION\n"
            "    def b(self):\n        ### BEGIN SOLUTION\n        pass\n        ### END SOLUTION",
            "class C:\n    def a(self):\n        raise NotImplementedError\n    def b(self):\n"
            "        raise NotImplementedError",
        ),
    ],
)
def test_a_solution_becomes_one_line_where_it_stood(text: str, expected: str) -> None:
    assert without_solutions(text, "cell") == expected


@pytest.mark.parametrize(
    ("text", "marker"),
    [
        ("### BEGIN SOLUTION\nx", "### BEGIN SOLUTION"),
        ("x\n### END SOLUTION", "### END SOLUTION"),
        ("### BEGIN SOLUTION\n### BEGIN SOLUTION\n### END SOLUTION", "### BEGIN SOLUTION"),
        ("### BEGIN SOLUTION\n### END SOLUTION\n### END SOLUTION", "### END SOLUTION"),
    ],
)
def test_a_marker_without_its_pair_is_refused(text: str, marker: str) -> None:
    with pytest.raises(EditionError, match=f"^cell has {marker} without its pair"):
        without_solutions(text, "cell")


def test_an_exercise_without_a_solution_would_give_its_answer_away(course: Path, tmp_path: Path) -> None:
    notebook = chapter()
    answer = next(cell for cell in notebook["cells"] if cell["id"] == "exercise-9-1")
    answer["source"] = "def one_more(value):\n    return value + 1"
    small.write(notebook, course, "09-small.ipynb")
    with pytest.raises(EditionError, match="cell exercise-9-1 of 09-small.ipynb is an exercise without a solution"):
        write_student(course, tmp_path / "student")
    assert not (tmp_path / "student").exists()


@pytest.mark.parametrize("write", [write_student, write_instructor])
def test_nothing_is_written_over(write: Any, course: Path, tmp_path: Path) -> None:
    out = tmp_path / "out"
    out.mkdir()
    (out / "09-small.ipynb").write_text("my answers")
    with pytest.raises(ModelError, match="out exists already: remove it or choose another folder"):
        write(course, out)
    assert everything(out) == "my answers"


def test_nothing_half_written_stays(course: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    small.write(chapter(), course, "10-small.ipynb")
    dumps = json.dumps

    def full_disk(content: Any, **options: Any) -> str:
        if (tmp_path / "count").exists():
            raise OSError(28, "No space left on device")
        (tmp_path / "count").touch()
        return dumps(content, **options)

    monkeypatch.setattr(json, "dumps", full_disk)
    with pytest.raises(ModelError, match="No space left on device"):
        write_student(course, tmp_path / "out")
    assert sorted(path.name for path in tmp_path.iterdir()) == ["count", "notebooks"]


@pytest.mark.parametrize("text", ["no json", "[]", "{}", '{"cells": [{"id": "x"}]}'])
def test_what_is_no_notebook_is_refused_by_name(text: str, course: Path, tmp_path: Path) -> None:
    (course / "10-odd.ipynb").write_text(text)
    with pytest.raises(ChapterError, match="10-odd.ipynb"):
        write_student(course, tmp_path / "out")
    assert not (tmp_path / "out").exists()


def test_an_edition_may_lie_inside_the_course(course: Path) -> None:
    (path,) = write_student(course, course / "student")
    assert path.exists()
    assert not (course / "student" / "student").exists()


def test_the_commands_say_what_they_wrote(course: Path, tmp_path: Path, run: Run) -> None:
    ended = run("course", "student", str(tmp_path / "s"), "--from", str(course))
    assert (ended.status, ended.out) == (0, f"{tmp_path}/s/09-small.ipynb\n")
    ended = run("course", "instructor", str(tmp_path / "i"), "--from", str(course))
    assert (ended.status, ended.out) == (0, f"{tmp_path}/i/09-small.ipynb\n{tmp_path}/i/index.md\n")
    ended = run("course", "student", str(tmp_path / "s"), "--from", str(course))
    assert (ended.status, ended.out) == (2, "")
    assert ended.err == f"mooncake-edu: {tmp_path}/s exists already: remove it or choose another folder\n"
