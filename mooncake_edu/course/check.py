"""Checks of the exercises: an answer is given inputs, smallest first, and the first one that it fails on is shown."""

from __future__ import annotations

import copy
import importlib
import importlib.util
import linecache
import math
import traceback
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Any

from mooncake_edu.course import limits
from mooncake_edu.course.own import own_object
from mooncake_edu.course.verdict import FAILED, NOT_YET, PASSED, Verdict, verdict_from
from mooncake_edu.errors import UserError

if TYPE_CHECKING:
    import plotly.graph_objects as go

__all__ = ["Answer", "Exercise", "ExerciseError", "Score", "Trial", "Verdict", "check", "exercises", "judge"]

Answer = Callable[..., Any]
"""A function or a class of the reader's."""

CHAPTERS = range(10)
SHOWN = 400
"""Characters of an input, a message or a line of code that are shown."""


class ExerciseError(UserError):
    """There is no exercise of that number."""


@dataclass(frozen=True)
class Trial:
    """What came of one input: the rule that was broken, one sentence (None: it was right), and what was counted."""

    broken: str | None = None
    operations: Mapping[str, int] = field(default_factory=dict)


@dataclass(frozen=True)
class Score:
    """How a design exercise is measured, on an input that the reader has not seen, and what is good enough.

    `naive` is what the naive answer reaches, shown beside; a function is called only when it is shown.
    `why` says of an answer that is not good enough what keeps it from that.
    """

    measure: Callable[[Answer], float]
    threshold: float
    unit: str
    higher_is_better: bool
    naive: float | Callable[[], float]
    why: Callable[[Answer], str] | None = None


@dataclass(frozen=True)
class Exercise:
    """One exercise and how its answers are judged.

    `cases` yields inputs, the smallest first: finite, the same each time, each with a short repr that a reader
    understands. `judge` runs an answer on one of them, without a GPU; what the answer raises need not be caught, and
    if it changed a case that it was handed, that is found without it. `own` names the package's objects that are no
    answer. `picture` draws from the answer's own doing on the failing case, or the last.
    """

    number: str
    title: str
    cases: Callable[[], Iterable[Any]]
    judge: Callable[[Answer, Any], Trial]
    own: Callable[[], tuple[object, ...]]
    picture: Callable[[Answer, Any], go.Figure] | None = None
    score: Score | None = None


def check(number: str, answer: Answer) -> Verdict:
    """Judge an answer to the exercise of that number, and note the verdict in the record of progress.

    Raises ExerciseError if there is no such exercise; whatever the answer does is a verdict.
    """
    from mooncake_edu.course import progress

    verdict = judge(find(number), answer)
    problem = progress.note(verdict, answer)
    return replace(verdict, note=problem) if problem else verdict


def exercises(chapter: int) -> tuple[Exercise, ...]:
    """The exercises of a chapter in their order; none if it has none."""
    name = f"mooncake_edu.course.checks.chapter{chapter:02d}"
    if importlib.util.find_spec(name) is None:
        return ()
    return tuple(importlib.import_module(name).EXERCISES)


def find(number: str) -> Exercise:
    """The exercise of that number, such as "1.2"; raises ExerciseError if there is none."""
    chapter, _, _ = str(number).partition(".")
    there = exercises(int(chapter)) if chapter in map(str, CHAPTERS) else ()
    for exercise in there:
        if exercise.number == number:
            return exercise
    known = ", ".join(f'"{exercise.number}"' for exercise in there)
    remedy = f"chapter {chapter} has {known}" if known else 'write chapter, dot and number, such as "1.2"'
    raise ExerciseError(f"there is no exercise {number!r}: {remedy}")


def judge(exercise: Exercise, answer: Answer, step_s: float = limits.STEP_S) -> Verdict:
    """The verdict on an answer, which gets `step_s` seconds for each input; nothing is noted."""
    verdict = partial(verdict_from, exercise.number, exercise.title)
    if not callable(answer):
        return verdict({"status": FAILED, "broken": f"An answer is a function or a class, not {_named(answer)}."})
    name = own_object(answer, exercise.own())
    if name is not None:
        return verdict({"status": FAILED, "broken": f"This hands the work to the package's own `{name}`: write yours."})
    facts: dict[str, Any] = {}
    for message in limits.messages(partial(_work, exercise, answer), step_s):
        if "printed" in message:
            facts["printed"] = facts.get("printed", "") + message["printed"]
        elif "ended" not in message:
            facts.update((key, value) for key, value in message.items() if key not in ("step", "done"))
        elif "status" in facts:
            facts["note"] = f"the picture is missing: drawing it {message['ended']}"
        else:
            facts.update(status=FAILED, broken=f"Your answer {message['ended']}.")
    return verdict(facts)


def _work(exercise: Exercise, answer: Answer, send: limits.Send) -> None:
    """Sends what a verdict is made of, as it becomes known."""
    case, result = None, {"status": PASSED}
    for tried, case in enumerate(exercise.cases(), 1):
        send({"step": True, "tried": tried, "input": shown(case)})
        result = _try(exercise, answer, case)
        if result["status"] != PASSED:
            break
    if exercise.score is not None and result["status"] == PASSED:
        send({"step": True, "input": "the held-out input that is scored"})
        result |= _scored(exercise.score, answer)
    send({"step": True, **result})
    if exercise.picture is not None and result["status"] != NOT_YET:
        try:
            send({"picture": exercise.picture(answer, case).to_json()})
        except BaseException as error:
            send({"note": f"the picture is missing: drawing it raised {_named(error)}"})


def _try(exercise: Exercise, answer: Answer, case: Any) -> dict[str, Any]:
    given = copy.deepcopy(case)
    try:
        trial = exercise.judge(answer, given)
        broken = trial.broken and _cut(trial.broken)
        operations = {str(what): int(count) for what, count in trial.operations.items()}
    except BaseException as error:
        return _raised(error)
    if repr(given) != repr(case):
        broken = f"The input was changed, to `{shown(given)}`: leave what you are given as it is."
    return {"status": FAILED if broken else PASSED, "broken": broken or "", "operations": operations}


def _scored(score: Score, answer: Answer) -> dict[str, Any]:
    try:
        reached = float(score.measure(answer))
    except BaseException as error:
        return _raised(error)
    naive = score.naive() if callable(score.naive) else score.naive
    good = reached >= score.threshold if score.higher_is_better else reached <= score.threshold
    bound = "at least" if score.higher_is_better else "at most"
    text = f"{reached:,.4g} {score.unit} (asked: {bound} {score.threshold:,.4g}; the naive answer: {naive:,.4g})"
    if good and math.isfinite(reached):
        return {"status": PASSED, "score": text, "operations": {}}  # counted on a small input: not what is scored
    said = "It works, but not well enough yet on the unseen inputs." + (f" {score.why(answer)}" if score.why else "")
    return {"status": FAILED, "score": text, "operations": {}, "broken": said, "input": ""}


def _raised(error: BaseException) -> dict[str, Any]:
    """A verdict's part for what an answer raised: the last line of the reader's code, and the message."""
    line = _readers_line(error.__traceback__)
    said = _message(error)
    if isinstance(error, NotImplementedError) and (line is None or "NotImplementedError" in line[2] or not line[2]):
        return {"status": NOT_YET}
    where = f"{said}" if line is None else f"line {line[0]}, in {line[1]}: {line[2]}\n{said}"
    if line is None:
        return {"status": FAILED, "broken": f"What your answer gives cannot be used: {said}"}
    return {"status": FAILED, "broken": f"Your answer raised {type(error).__name__}.", "where": where}


def _readers_line(trace: TracebackType | None) -> tuple[int, str, str] | None:
    """Number, function and text of the last line that ran outside the package and other libraries."""
    found = None
    for frame, number in traceback.walk_tb(trace):
        name = frame.f_code.co_filename
        if not _is_library(name):
            text = linecache.getline(name, number, frame.f_globals).strip()
            found = (number, frame.f_code.co_name, text[:SHOWN])
    return found


def _is_library(filename: str) -> bool:
    path = Path(filename)
    return "site-packages" in path.parts or any(path.is_relative_to(folder) for folder in _LIBRARIES)


_LIBRARIES = (Path(__file__).parents[1], Path(copy.__file__).parent)


def _message(error: BaseException) -> str:
    try:
        text = str(error)
    except BaseException:
        text = "(its message cannot be shown)"
    return _cut(f"{type(error).__name__}: {text}").removesuffix(": ")


def _named(thing: object) -> str:
    name = type(thing).__name__
    return f"an {name}" if name[:1].lower() in "aeiou" else f"a {name}"


def shown(thing: object) -> str:
    """The repr of a thing, cut to what can be read; never raises."""
    try:
        text = repr(thing)
    except BaseException as error:
        return f"{_named(thing)} whose repr raises {type(error).__name__}"
    return _cut(text)


def _cut(text: str) -> str:
    return text if len(text) <= SHOWN else f"{text[: SHOWN * 3 // 4]} … {text[-SHOWN // 4 :]}"
