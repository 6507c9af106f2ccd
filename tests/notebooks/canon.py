"""The form that every chapter has, as rules: `faults` names what a notebook breaks."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator, Sequence
from statistics import median
from typing import Any

from mooncake_edu.course.cells import read_setup, source
from mooncake_edu.course.check import Exercise
from mooncake_edu.course.editions import BEGIN, END, EditionError, tags, without_solutions

Cell = dict[str, Any]
Notebook = dict[str, Any]

FRONT = {"chapter": int, "title": str, "minutes": int, "objectives": list, "needs": list, "gives": list}
MOST_LINES = 40
LISTING_MEDIAN = 15
FEWEST_EXERCISES = 4
PARTS = ("naive", "predict", "experiment", "timeline")
"""Tags that every chapter of a layer has at least once."""

ID = re.compile(r"[a-z0-9]+(-[a-z0-9]+)*")
RANDOM_ID = re.compile(r"[0-9a-f]{8}(-[0-9a-f]{4}){0,3}(-[0-9a-f]{12})?")

SPEED = re.compile(
    r"\d[\d.,]*\s*(ms|milliseconds?|[µu]s|microseconds?|tok(en)?s?\s*(/|per)\s*s(ec(ond)?s?)?|[GT]FLOP/?s)\b",
    re.IGNORECASE,
)
"""A figure that only one machine shows; what a source says, or is only supposed, is told apart by its words."""

SOURCED = re.compile(r"arXiv|FAST|[AH][128]00|suppose|say,|for example|SLO|at most|limit", re.IGNORECASE)


def faults(notebook: Notebook, exercises: Sequence[Exercise]) -> list[str]:
    """What is wrong with a chapter, one line each; `exercises` are those that the package checks for it."""
    cells = notebook["cells"]
    rules = (_of_format(notebook), _of_ids(cells), _of_front(notebook), _of_setup(notebook), _of_sections(notebook),
             _of_cells(cells), _of_text(cells), _of_exercises(cells, exercises), _of_answers(cells),
             _of_layer(notebook, exercises))  # fmt: skip
    return [fault for rule in rules for fault in rule]


def about(cell: Cell) -> dict[str, Any]:
    """What our own metadata says about a cell."""
    found: dict[str, Any] = cell["metadata"].get("mooncake_edu", {})
    return found


def code_cells(cells: Sequence[Cell]) -> list[Cell]:
    """The cells that run."""
    return [cell for cell in cells if cell["cell_type"] == "code"]


def _of_format(notebook: Notebook) -> Iterator[str]:
    if (notebook["nbformat"], notebook["nbformat_minor"]) != (4, 5):
        yield "the notebook is not of format 4.5"
    if notebook["metadata"].get("kernelspec", {}).get("name") != "python3":
        yield "the kernel is not python3"
    if "widgets" in notebook["metadata"]:
        yield "the state of widgets is kept"
    for cell in code_cells(notebook["cells"]):
        if cell["outputs"] or cell["execution_count"] is not None:
            yield f"{cell['id']}: it keeps an output or an execution count"
        if {"execution", "collapsed", "scrolled"} & cell["metadata"].keys():
            yield f"{cell['id']}: its metadata keeps traces of a run"


def _of_ids(cells: Sequence[Cell]) -> Iterator[str]:
    ids = [str(cell.get("id")) for cell in cells]
    yield from (f"{id_}: two cells have this id" for id_ in sorted({id_ for id_ in ids if ids.count(id_) > 1}))
    for id_ in ids:
        if not ID.fullmatch(id_) or len(id_) > 64 or RANDOM_ID.fullmatch(id_) or not re.search("[a-z]{2}", id_):
            yield f"{id_}: the id is not a few words joined by hyphens"


def _of_front(notebook: Notebook) -> Iterator[str]:
    front = notebook["metadata"].get("mooncake_edu", {})
    for name, kind in FRONT.items():
        if not isinstance(front.get(name), kind) or (kind is not int and not front[name]):
            yield f"front matter: {name} is missing, or no {kind.__name__}"
    if "layer" not in front:
        yield "front matter: layer is missing"
    first = notebook["cells"][0]
    if first["cell_type"] != "markdown" or not source(first).startswith("# "):
        yield "the first cell is not the title"


def _of_setup(notebook: Notebook) -> Iterator[str]:
    running = code_cells(notebook["cells"])
    setups = [cell for cell in running if "%load_ext mooncake_edu.course" in source(cell)]
    if [cell["id"] for cell in setups] != ["setup"] or running[0] is not setups[0]:
        yield "the first code cell, and only it, must be `setup`"
        return
    layer = notebook["metadata"].get("mooncake_edu", {}).get("layer")
    if read_setup(source(setups[0]))[0] != layer or "%chapter" not in source(setups[0]):
        yield f"setup: `%chapter` does not name the layer {layer}"
    if "course.size()" not in source(running[1]) and "= size()" not in source(running[1]):
        yield "the second code cell does not take the size from the course"


def _of_sections(notebook: Notebook) -> Iterator[str]:
    total = 0
    for cell in notebook["cells"]:
        heading = cell["cell_type"] == "markdown" and source(cell).startswith("## ")
        minutes, kind = about(cell).get("minutes"), about(cell).get("kind")
        if not heading:
            if minutes is not None:
                yield f"{cell['id']}: minutes stand with something else than a heading `## Title`"
            continue
        if not isinstance(minutes, int) or kind not in ("core", "extra"):
            yield f"{cell['id']}: the section lacks its minutes, or is neither core nor extra"
            continue
        total += minutes
        if f"*{minutes} minutes, {kind}*" not in source(cell):
            yield f"{cell['id']}: *{minutes} minutes, {kind}* does not stand below the heading"
    whole = notebook["metadata"].get("mooncake_edu", {}).get("minutes")
    if total != whole:
        yield f"the sections take {total} minutes, the chapter {whole}"


def _of_cells(cells: Sequence[Cell]) -> Iterator[str]:
    lengths = []
    for cell in code_cells(cells):
        lines = source(cell).rstrip("\n").split("\n")
        listing = lines[0].startswith("%%layer")
        lengths += [len(lines) - 1] if listing else []
        if len(lines) - listing > MOST_LINES:
            yield f"{cell['id']}: {len(lines) - listing} lines, at most {MOST_LINES} fit on a screen"
        if listing != ("listing" in tags(cell)):
            yield f"{cell['id']}: a cell `%%layer`, and no other, has the tag listing"
        if ("detail" in tags(cell)) != bool(cell["metadata"].get("jupyter", {}).get("source_hidden")):
            yield f"{cell['id']}: what has the tag detail is folded, and nothing else"
    if lengths and median(lengths) > LISTING_MEDIAN:
        yield f"the listings have a median of {median(lengths)} lines, at most {LISTING_MEDIAN} are read at once"


def _of_text(cells: Sequence[Cell]) -> Iterator[str]:
    for cell in cells:
        if source(cell).startswith("%%layer"):
            continue
        for line in source(cell).split("\n"):
            found = SPEED.search(line)
            if found and not SOURCED.search(line):
                yield f"{cell['id']}: {found.group()!r} is the figure of one machine: compute it, or name its source"


def _of_exercises(cells: Sequence[Cell], exercises: Sequence[Exercise]) -> Iterator[str]:
    numbers = [about(cell).get("exercise") for cell in cells if "exercise" in tags(cell)]
    known = [exercise.number for exercise in exercises]
    if numbers != known:
        yield f"the chapter has exercises {numbers}, the package checks {known}"
    for place, cell in enumerate(cells):
        if "exercise" in tags(cell):
            yield from (f"{cell['id']}: {fault}" for fault in _of_exercise(cells, place))
        elif BEGIN in source(cell):
            yield f"{cell['id']}: a solution stands outside an exercise"


def _of_exercise(cells: Sequence[Cell], place: int) -> Iterator[str]:
    cell = cells[place]
    number, needs = about(cell).get("exercise"), about(cell).get("needs")
    before = [other["id"] for other in cells[:place]]
    if not isinstance(needs, list) or not needs:
        yield "it does not name the cells that hold what it needs"
    else:
        yield from (f"it needs {need}, which is no cell before it" for need in needs if need not in before)
    if place == 0 or cells[place - 1]["cell_type"] != "markdown":
        yield "no question leads it"
    yield from _of_grading(cell, solution=True, id_=f"ex-{str(number).replace('.', '-')}")
    try:
        if without_solutions(source(cell), "it") == source(cell):
            yield f"its solution does not stand between {BEGIN} and {END}"
    except EditionError as error:
        yield str(error)
    test = next(iter(code_cells(cells[place + 1 :])), None)
    if test is None or f'check("{number}",' not in source(test):
        yield "its check does not follow"
    else:
        yield from _of_grading(test, solution=False, id_=None)


def _of_grading(cell: Cell, solution: bool, id_: str | None) -> Iterator[str]:
    grader = cell["metadata"].get("nbgrader", {})
    wanted = {"schema_version": 3, "task": False, "solution": solution, "grade": not solution, "locked": not solution}
    wrong = sorted(name for name, value in wanted.items() if grader.get(name) != value)
    if wrong or not grader.get("grade_id") or (id_ and grader["grade_id"] != id_):
        yield f"nbgrader's metadata of {cell['id']} is not right: {wrong or 'grade_id'}"
    if not solution and not isinstance(grader.get("points"), int):
        yield f"nbgrader's metadata of {cell['id']} lacks the points"


def _of_answers(cells: Sequence[Cell]) -> Iterator[str]:
    """Only exercises and checks use what an exercise defines, so that every other cell runs without an answer."""
    answers: dict[str, str] = {}
    for cell in code_cells(cells):
        tree = _parsed(cell)
        if "exercise" in tags(cell):
            answers |= {node.name: cell["id"] for node in tree.body if hasattr(node, "name")}
        elif not cell["metadata"].get("nbgrader", {}).get("grade"):
            used = {node.id for node in ast.walk(tree) if isinstance(node, ast.Name)}
            yield from (f"{cell['id']}: it uses {name}, an answer" for name in sorted(used & answers.keys()))


def _parsed(cell: Cell) -> ast.Module:
    """The cell's Python, magics and the listings' text left out."""
    if source(cell).startswith("%%"):
        return ast.Module([], [])
    return ast.parse("\n".join(line for line in source(cell).split("\n") if not line.lstrip().startswith(("%", "!"))))


def _of_layer(notebook: Notebook, exercises: Sequence[Exercise]) -> Iterator[str]:
    if notebook["metadata"].get("mooncake_edu", {}).get("layer") is None:
        return
    found = {tag for cell in notebook["cells"] for tag in tags(cell)}
    yield from (f"no cell has the tag {part}" for part in PARTS if part not in found)
    if len(exercises) < FEWEST_EXERCISES:
        yield f"there are {len(exercises)} exercises, a layer's chapter has at least {FEWEST_EXERCISES}"
    if not any(exercise.score for exercise in exercises):
        yield "no exercise is a design exercise with a score"
