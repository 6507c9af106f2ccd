"""Every chapter has the form that the canon asks for, and the canon sees each departure from it."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from mooncake_edu.course.cells import Chapter
from mooncake_edu.course.check import Exercise, Score, exercises
from tests.notebooks import small
from tests.notebooks.canon import faults
from tests.notebooks.running import CHAPTERS

SETUP = "%load_ext mooncake_edu.course\n%chapter kvcache 0123456789abcdef 0.1.0"


def known(number: str, score: Score | None = None) -> Exercise:
    return Exercise(number, "Small", list, lambda answer, case: pytest.fail("unused"), lambda: (), score=score)


DESIGN = Score(lambda answer: 1.0, 1.0, "points", True, 0.0)
EXERCISES = [known("1.1"), known("1.2"), known("1.3"), known("1.4", DESIGN)]


def good() -> dict[str, Any]:
    """A chapter that breaks no rule."""
    asked = [small.exercise(f"1.{n}", f"answer_{n}", "return value", "naive-count") for n in (1, 2, 3, 4)]
    notebook = small.chapter(SETUP, asked)
    notebook["cells"].insert(7, small.code("list-first", "%%layer kvcache 1-2\nimport x\nimport y", "listing"))
    return notebook


def cell(notebook: dict[str, Any], id_: str) -> dict[str, Any]:
    return next(cell for cell in notebook["cells"] if cell["id"] == id_)


def edit(id_: str, **parts: Any) -> Callable[[dict[str, Any]], object]:
    return lambda notebook: cell(notebook, id_).update(parts)


def meta(id_: str, **parts: Any) -> Callable[[dict[str, Any]], object]:
    return lambda notebook: cell(notebook, id_)["metadata"].update(parts)


def front(**parts: Any) -> Callable[[dict[str, Any]], object]:
    return lambda notebook: notebook["metadata"]["mooncake_edu"].update(parts)


def drop(id_: str) -> Callable[[dict[str, Any]], object]:
    return lambda notebook: notebook["cells"].remove(cell(notebook, id_))


def append(*cells: dict[str, Any]) -> Callable[[dict[str, Any]], object]:
    return lambda notebook: notebook["cells"].extend(cells)


@pytest.mark.parametrize("path", CHAPTERS, ids=[path.stem for path in CHAPTERS])
def test_a_chapter_follows_the_canon(path: Path) -> None:
    notebook = Chapter(path).content
    assert faults(notebook, exercises(notebook["metadata"]["mooncake_edu"]["chapter"])) == []


@pytest.mark.parametrize("path", CHAPTERS, ids=[path.stem for path in CHAPTERS])
def test_a_chapter_s_file_is_named_by_its_number(path: Path) -> None:
    assert path.name.startswith(f"{Chapter(path).content['metadata']['mooncake_edu']['chapter']:02d}-")


def test_the_small_chapter_follows_the_canon() -> None:
    assert faults(good(), EXERCISES) == []


@pytest.mark.parametrize(
    ("change", "fault"),
    [
        (lambda notebook: notebook.update(nbformat_minor=4), "not of format 4.5"),
        (lambda notebook: notebook["metadata"]["kernelspec"].update(name="ir"), "kernel is not python3"),
        (lambda notebook: notebook["metadata"].update(widgets={}), "state of widgets"),
        (edit("turn", outputs=[{"output_type": "stream", "name": "stdout", "text": "3"}]), "keeps an output"),
        (edit("turn", execution_count=3), "execution count"),
        (meta("turn", execution={}), "traces of a run"),
        (edit("turn", id="naive-count"), "naive-count: two cells have this id"),
        (edit("turn", id="3fae12cd"), "3fae12cd: the id is not a few words"),
        (edit("turn", id="Turn_It"), "Turn_It: the id is not a few words"),
        (front(objectives=[]), "objectives is missing"),
        (front(minutes="30"), "minutes is missing, or no int"),
        (lambda notebook: notebook["metadata"]["mooncake_edu"].pop("layer"), "layer is missing"),
        (edit("title", source="Small"), "first cell is not the title"),
        (drop("setup"), "must be `setup`"),
        (append(small.code("again", "%load_ext mooncake_edu.course")), "must be `setup`"),
        (edit("setup", source=SETUP.replace("kvcache", "prefix")), "does not name the layer kvcache"),
        (edit("size", source="size = 'tiny'"), "does not take the size"),
        (meta("second", mooncake_edu={"minutes": 19, "kind": "extra"}), "the sections take 29 minutes, the chapter 30"),
        (meta("second", mooncake_edu={"minutes": 20, "kind": "more"}), "neither core nor extra"),
        (edit("second", source="## The answer"), "*20 minutes, extra* does not stand below"),
        (meta("prose", mooncake_edu={"minutes": 5}), "minutes stand with something else"),
        (append(small.code("long", "x = 1\n" * 41)), "long: 41 lines, at most 40"),
        (append(small.code("long", "%%layer kvcache 1-41\n" + "x\n" * 41, "listing")), "long: 41 lines"),
        (append(small.code("plain", "%%layer kvcache 1-2\nx\ny")), "has the tag listing"),
        (append(small.code("plain", "x = 1", "listing")), "has the tag listing"),
        (append(small.code("plain", "x = 1", "detail")), "is folded"),
        (lambda notebook: cell(notebook, "turn")["metadata"].update(jupyter={"source_hidden": True}), "is folded"),
        (edit("list-first", source="%%layer kvcache 1-30" + "\nx" * 30), "median of 30 lines"),
        (edit("prose", source="A step takes 12 ms here."), "'12 ms' is the figure of one machine"),
        (edit("turn", source="print('310 tok/s')"), "'310 tok/s' is the figure"),
        (edit("prose", source="It reaches 1.2 GFLOP/s."), "is the figure of one machine"),
        (drop("exercise-1-3"), "the chapter has exercises ['1.1', '1.2', '1.4'], the package checks"),
        (meta("exercise-1-2", mooncake_edu={"exercise": "1.2", "needs": ["life"]}), "life, which is no cell before"),
        (meta("exercise-1-2", mooncake_edu={"exercise": "1.2", "needs": []}), "does not name the cells"),
        (drop("question-1-2"), "exercise-1-2: no question leads it"),
        (drop("check-1-2"), "exercise-1-2: its check does not follow"),
        (edit("check-1-2", source='check("1.3", answer_2)'), "exercise-1-2: its check does not follow"),
        (edit("exercise-1-2", source="def answer_2(value):\n    return value"), "does not stand between"),
        (edit("exercise-1-2", source="def answer_2(value):\n    ### BEGIN SOLUTION\n    return 1"), "without its pair"),
        (edit("turn", source="### BEGIN SOLUTION\nx = 1\n### END SOLUTION"), "turn: a solution stands outside"),
        (meta("exercise-1-2", nbgrader={"grade": False}), "nbgrader's metadata of exercise-1-2"),
        (lambda notebook: cell(notebook, "check-1-2")["metadata"]["nbgrader"].pop("points"), "lacks the points"),
        (edit("life", source="print(answer_2(1))"), "life: it uses answer_2, an answer"),
        (drop("naive-count"), "no cell has the tag naive"),
        (drop("life"), "no cell has the tag timeline"),
    ],
)  # fmt: skip
def test_the_canon_sees(change: Callable[[dict[str, Any]], object], fault: str) -> None:
    notebook = good()
    change(notebook)
    assert any(fault in found for found in faults(notebook, EXERCISES)), faults(notebook, EXERCISES)


def test_a_figure_with_its_source_may_stand() -> None:
    notebook = good()
    cell(notebook, "prose")["source"] = "FAST measures 27 ms a token. Suppose a step takes 30 ms. The SLO is 100 ms."
    assert faults(notebook, EXERCISES) == []


def test_a_layer_s_chapter_has_four_exercises_one_of_them_a_design() -> None:
    notebook = small.chapter(SETUP, [small.exercise("1.1", "answer_1", "return 1", "naive-count")])
    found = faults(notebook, [known("1.1")])
    assert found == [
        "there are 1 exercises, a layer's chapter has at least 4",
        "no exercise is a design exercise with a score",
    ]


def test_a_chapter_without_a_layer_needs_neither() -> None:
    asked = [small.exercise("0.1", "answer_1", "return 1", "naive-count")]
    notebook = small.chapter("%load_ext mooncake_edu.course\n%chapter", asked, layer=None, number=0)
    assert faults(notebook, [known("0.1")]) == []
