"""A small chapter with every part that a chapter must have, to drive tests of runs, editions and the canon."""

from __future__ import annotations

import copy
import json
from pathlib import Path
from typing import Any

Cell = dict[str, Any]

GRADER = {"schema_version": 3, "task": False}


def markdown(id_: str, text: str, *tags: str, **about: object) -> Cell:
    """A cell of prose."""
    return {"cell_type": "markdown", "id": id_, "metadata": _metadata(tags, about), "source": text}


def code(id_: str, text: str, *tags: str, **about: object) -> Cell:
    """A cell of code that has not run."""
    return {
        "cell_type": "code", "id": id_, "metadata": _metadata(tags, about), "source": text, "outputs": [],
        "execution_count": None,
    }  # fmt: skip


def exercise(number: str, name: str, solution: str, *needs: str) -> list[Cell]:
    """The question, the answer's cell with its solution, and the check."""
    dashed = number.replace(".", "-")
    body = f"def {name}(value):\n    ### BEGIN SOLUTION\n    {solution}\n    ### END SOLUTION\n"
    answer = code(f"exercise-{dashed}", body, "exercise", exercise=number, needs=list(needs))
    answer["metadata"]["nbgrader"] = GRADER | {
        "grade": False, "solution": True, "locked": False, "grade_id": f"ex-{dashed}"
    }  # fmt: skip
    test = code(f"check-{dashed}", f'check("{number}", {name})')
    test["metadata"]["nbgrader"] = GRADER | {
        "grade": True, "points": 2, "solution": False, "locked": True, "grade_id": f"check-{dashed}"
    }  # fmt: skip
    return [markdown(f"question-{dashed}", f"### Exercise {number}\nWhat is asked."), answer, test]


def section(id_: str, title: str, minutes: int, kind: str = "core") -> Cell:
    """The heading of a section."""
    return markdown(id_, f"## {title}\n\n*{minutes} minutes, {kind}*", minutes=minutes, kind=kind)


def chapter(setup: str, exercises: list[list[Cell]], layer: str | None = "kvcache", number: int = 1) -> dict[str, Any]:
    """A whole notebook around its exercises."""
    front = {
        "chapter": number, "title": "Small", "layer": layer, "minutes": 30, "objectives": ["Count."],
        "needs": ["Python"], "gives": ["A count"],
    }  # fmt: skip
    cells = [
        markdown("title", "# Small\n\nWhat this chapter is about."),
        code("setup", setup),
        code("size", "from mooncake_edu import course\nfrom mooncake_edu.course import check\nsize = course.size()"),
        section("first", "The problem", 10),
        markdown("prose", "A store keeps values."),
        code("naive-count", "values = [1, 2, 3]\ncount = len(values)", "naive"),
        markdown("guess", "What will it print?", "predict"),
        section("second", "The answer", 20, "extra"),
        code("turn", "print(count)", "experiment"),
        *sum(exercises, []),
        markdown("notes", "Ask the room first.", "instructor"),
        code("life", "print('the life of a request')", "timeline"),
    ]
    kernel = {"display_name": "Python 3", "language": "python", "name": "python3"}
    metadata = {"kernelspec": kernel, "language_info": {"name": "python"}, "mooncake_edu": front}
    return {"cells": copy.deepcopy(cells), "metadata": metadata, "nbformat": 4, "nbformat_minor": 5}


def write(notebook: dict[str, Any], folder: Path, name: str = "01-small.ipynb") -> Path:
    """The notebook as a file in a folder."""
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / name
    path.write_text(json.dumps(notebook, indent=1) + "\n", encoding="utf-8")
    return path


def _metadata(tags: tuple[str, ...], about: dict[str, object]) -> dict[str, object]:
    return ({"tags": list(tags)} if tags else {}) | ({"mooncake_edu": about} if about else {})
