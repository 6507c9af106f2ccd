"""The two editions of the notebooks: a student's without solutions, an instructor's with everything and an index."""

from __future__ import annotations

import re
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from mooncake_edu.course.cells import Cell, chapters, notebook_text, source, write_source
from mooncake_edu.course.check import exercises
from mooncake_edu.errors import UserError
from mooncake_edu.model.folders import whole_folder

Notebook = dict[str, Any]
Page = tuple[str, Callable[[list[Notebook]], str]]
"""A text beside the notebooks: its file's name, and what writes it from them."""

BEGIN, END = "### BEGIN SOLUTION", "### END SOLUTION"
"""The markers of nbgrader; what stands between them is the solution."""

CHECK = re.compile(r"check\(.*\)")

STUB = "raise NotImplementedError"


class EditionError(UserError):
    """The notebooks cannot be made into an edition."""


def write_student(folder: Path, out: Path) -> list[Path]:
    """Write the notebooks without solutions, with a `README.md` of their own, into the new folder `out`; returns them.

    Raises UserError, and leaves nothing behind, if `out` holds something or a notebook is not as it must be.
    """
    return _write(folder, out, for_student, ("README.md", readme))


def write_instructor(folder: Path, out: Path) -> list[Path]:
    """Write the notebooks with everything, and `index.md` of exercises and minutes, into the new folder `out`.

    The cells that are graded raise unless the answer passed, since nbgrader gives points to every cell that does not.
    Raises UserError, and leaves nothing behind, if `out` holds something or a notebook is not as it must be.
    """
    return _write(folder, out, for_graders, ("index.md", index))


def _write(
    folder: Path,
    out: Path,
    edit: Callable[[Notebook, str], Notebook],
    page: Page,
) -> list[Path]:
    there = chapters(folder)
    notebooks = [edit(chapter.content, chapter.path.name) for chapter in there]
    with whole_folder(out) as new:
        shutil.copytree(folder, new, ignore=shutil.ignore_patterns(".*", "*.ipynb"), dirs_exist_ok=True)
        for chapter, notebook in zip(there, notebooks, strict=True):
            (new / chapter.path.name).write_text(notebook_text(notebook), encoding="utf-8")
        name, write = page
        (new / name).write_text(write(notebooks), encoding="utf-8")
    return [out / chapter.path.name for chapter in there]


def tags(cell: Cell) -> list[str]:
    """The tags of a cell."""
    return list(cell.get("metadata", {}).get("tags", []))


def for_student(notebook: Notebook, name: str) -> Notebook:
    """A notebook without solutions, instructor's cells and outputs; raises EditionError for a marker without a pair."""
    cells = [dict(cell) for cell in notebook["cells"] if "instructor" not in tags(cell)]
    for cell in cells:
        place = f"cell {cell.get('id', '?')} of {name}"
        if cell["cell_type"] == "code":
            cell.update(outputs=[], execution_count=None)
            text = without_solutions(source(cell), place)
            if "exercise" in tags(cell) and STUB not in text:
                raise EditionError(f"{place} is an exercise without a solution: write it between {BEGIN} and {END}")
            write_source(cell, text)
    return {**notebook, "cells": cells}


def for_graders(notebook: Notebook, name: str) -> Notebook:
    """A notebook whose graded cells raise unless the check in their last line passed.

    Raises EditionError if a graded cell does not end with a check, and so would give points to every answer.
    """
    cells = [dict(cell) for cell in notebook["cells"]]
    for cell in cells:
        if cell["metadata"].get("nbgrader", {}).get("grade"):
            text = source(cell).rstrip()
            if not CHECK.fullmatch(text.split("\n")[-1]):
                raise EditionError(f"cell {cell.get('id', '?')} of {name} is graded: end it with the line check(...)")
            write_source(cell, f"{text}.require()")
    return {**notebook, "cells": cells}


def without_solutions(text: str, place: str) -> str:
    """A cell's text with one line in place of each solution, indented like its marker; `place` names it in errors."""
    lines: list[str] = []
    inside = False
    for line in text.split("\n"):
        marker = line.strip()
        if marker in (BEGIN, END):
            if inside == (marker == BEGIN):
                raise EditionError(f"{place} has {marker} without its pair: write {BEGIN}, the solution, {END}")
            inside = marker == BEGIN
            if inside:
                lines.append(line[: len(line) - len(line.lstrip())] + STUB)
        elif not inside:
            lines.append(line)
    if inside:
        raise EditionError(f"{place} has {BEGIN} without its pair: write {BEGIN}, the solution, {END}")
    return "\n".join(lines)


README = """# Your copy of the course

The chapters, without the solutions of their exercises. Read them in order:

{chapters}

Start JupyterLab where the package is, and give it the name of this folder:

    make lab CHAPTERS=my-course

Write your answer into the cell of an exercise, run it, then run the check below it. A wrong answer costs nothing: the
check shows the smallest input on which it fails. What you have passed, and what is still open:

    .venv/bin/mooncake-edu course progress
"""


def readme(notebooks: list[Notebook]) -> str:
    """What a student reads first, as Markdown: the chapters with their minutes, how to start, how to see progress."""
    fronts = [notebook["metadata"].get("mooncake_edu", {}) for notebook in notebooks]
    lines = [
        f"- {front.get('chapter', 0):02d} {front.get('title', '')}, {front.get('minutes', 0)} minutes"
        for front in fronts
    ]
    return README.format(chapters="\n".join(lines))


def index(notebooks: list[Notebook]) -> str:
    """What an instructor plans with, as Markdown: per chapter its sections with minutes, its exercises with points."""
    parts = ["# The course at a glance\n"]
    for notebook in notebooks:
        front = notebook["metadata"].get("mooncake_edu", {})
        sections = list(_sections(notebook))
        core = sum(minutes for _, minutes, kind in sections if kind == "core")
        chapter = front.get("chapter", 0)
        parts.append(f"\n## {chapter:02d} {front.get('title', '')}\n")
        parts.append(f"{front.get('minutes', 0)} minutes, {core} of them core.\n")
        parts.append("| section | minutes | kind |\n|---|---:|---|")
        parts += [f"| {title} | {minutes} | {kind} |" for title, minutes, kind in sections]
        rows = list(_exercises(notebook, chapter))
        if rows:
            parts.append("\n| exercise | points | section |\n|---|---:|---|")
            parts += rows
    return "\n".join(parts) + "\n"


def _sections(notebook: Notebook) -> Iterator[tuple[str, int, str]]:
    for cell in notebook["cells"]:
        about = cell["metadata"].get("mooncake_edu", {})
        if cell["cell_type"] == "markdown" and "minutes" in about:
            yield _title(cell), about["minutes"], about.get("kind", "")


def _exercises(notebook: Notebook, chapter: int) -> Iterator[str]:
    titles = {exercise.number: exercise.title for exercise in exercises(chapter)}
    section, number = "", None
    for cell in notebook["cells"]:
        about = cell["metadata"].get("mooncake_edu", {})
        grader = cell["metadata"].get("nbgrader", {})
        if "minutes" in about:
            section = _title(cell)
        number = about.get("exercise", number)
        if number is not None and grader.get("grade"):
            yield f"| {number} {titles.get(number, '')} | {grader.get('points', 0)} | {section} |"
            number = None


def _title(cell: Cell) -> str:
    heading = re.search(r"^#+\s+(.*?)\s*$", source(cell), re.MULTILINE)
    return heading.group(1) if heading else ""
