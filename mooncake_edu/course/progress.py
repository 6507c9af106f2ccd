"""The record of checks: an append-only file of JSON lines in the user's data folder, and what it says today."""

from __future__ import annotations

import importlib.util
import inspect
import json
import linecache
import os
from collections.abc import Iterable, Iterator
from dataclasses import asdict, dataclass, fields
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from mooncake_edu import __version__, layers
from mooncake_edu.course.verdict import PASSED, Verdict
from mooncake_edu.errors import UserError
from mooncake_edu.model.folders import user_folder

DATA_VARIABLE = "MOONCAKE_EDU_DATA"

LIMIT = 1 << 20
"""Bytes of the record; beyond, only the last check and the last pass of each exercise are kept."""

LONGEST = 2_000
MOST = 1_000
SHOWN = 80
LOCK_S = 2.0


@dataclass(frozen=True, slots=True)
class Entry:
    """One check: when (ISO 8601, UTC), of which exercise, its verdict, and what it was made with.

    `version` is the package's, `layer` the digest of the text of the chapter's layer file as it ran (edits in the
    kernel included), `answer` the digest of the answer's source; empty where there is none.
    """

    at: str
    exercise: str
    status: str
    version: str
    layer: str
    answer: str


@dataclass(frozen=True, slots=True)
class Standing:
    """Where one exercise stands: its last pass or, without one, its last check, and why a pass counts no more."""

    entry: Entry
    stale: str = ""


def record_file() -> Path:
    """Where checks are recorded: in $MOONCAKE_EDU_DATA, else in the user's data folder.

    Raises UserError if the variable begins with the home of a user who is not there.
    """
    from platformdirs import user_data_path

    return user_folder(DATA_VARIABLE, user_data_path) / "progress.jsonl"


def note(verdict: Verdict, answer: Any, now: datetime | None = None) -> str:
    """Add a verdict to the record; returns why that was not possible, or nothing."""
    at = (now or datetime.now(UTC)).isoformat(timespec="seconds")
    layer = layer_digest(verdict.number)
    entry = Entry(at, verdict.number, verdict.status, __version__, layer, answer_digest(answer))
    try:
        append(record_file(), entry)
    except OSError as error:  # a lock that is not free in time is one too
        reason = error.strerror or "another kernel is writing"
        return f"not recorded for `course progress` ({reason}): set {DATA_VARIABLE} to a folder that can be written"
    except UserError as error:
        return f"not recorded for `course progress`: {error}"
    return ""


def append(path: Path, entry: Entry) -> None:
    """Add a line to a record, alone even if other processes do the same; raises OSError if that cannot be done."""
    from filelock import FileLock

    path.parent.mkdir(parents=True, exist_ok=True)
    with FileLock(path.with_suffix(".lock"), timeout=LOCK_S):
        with path.open("a+b") as file:
            size = file.seek(0, os.SEEK_END)
            if size:  # a line that was cut off stays alone
                file.seek(-1, os.SEEK_END)
            start = b"" if not size or file.read(1) == b"\n" else b"\n"
            file.write(start + _line(entry))
        if path.stat().st_size > LIMIT:
            _shorten(path)


def _line(entry: Entry) -> bytes:
    return json.dumps(asdict(entry)).encode() + b"\n"


def _shorten(path: Path) -> None:
    kept: dict[tuple[str, bool], Entry] = {}
    for entry in read(path):
        for passed in {False, entry.status == PASSED}:
            kept.pop((entry.exercise, passed), None)
            kept[entry.exercise, passed] = entry
    new = path.with_suffix(".new")
    unique = list(dict.fromkeys(kept.values()))  # in the order in which they were made
    new.write_bytes(b"".join(map(_line, unique[-MOST:])))
    new.replace(path)


def read(path: Path) -> Iterator[Entry]:
    """The entries of a record, the oldest first; none if there is no file. Lines that are no entry are left out."""
    try:
        file = path.open("rb")
    except FileNotFoundError:
        return
    with file:
        while line := file.readline(LONGEST):
            entry = _entry(line)
            if entry is not None:
                yield entry


def _entry(line: bytes) -> Entry | None:
    try:
        found = json.loads(line)
        values = [found[part.name] for part in fields(Entry)]
    except (ValueError, LookupError, TypeError, RecursionError):
        return None
    return Entry(*values) if all(isinstance(value, str) for value in values) else None


def standings(entries: Iterable[Entry]) -> dict[str, Standing]:
    """Per exercise in the record, where it stands with the package as it is now."""
    last: dict[str, Entry] = {}
    passed: dict[str, Entry] = {}
    for entry in entries:
        last[entry.exercise] = entry
        if entry.status == PASSED:
            passed[entry.exercise] = entry
    return {
        number: Standing(passed[number], _stale(passed[number], entry)) if number in passed else Standing(entry)
        for number, entry in last.items()
    }


def _stale(passed: Entry, last: Entry) -> str:
    """Why a pass counts no more: what it was made with is not what there is now."""
    if passed.version != __version__:
        return f"passed with version {passed.version} of the package"
    if passed.layer != layer_digest(passed.exercise):
        return f"passed with another text of {_layer(passed.exercise)}.py"
    if last.status != PASSED:
        what = "the answer was edited later" if last.answer != passed.answer else "checked again later"
        return f"{what}: {last.status}"
    return ""


def _layer(number: str) -> str | None:
    chapter = number.partition(".")[0]
    return layers.LAYERS[int(chapter) - 1] if chapter in map(str, range(1, len(layers.LAYERS) + 1)) else None


def layer_digest(number: str) -> str:
    """The digest of the layer file of an exercise's chapter, as this process runs it; empty without one."""
    layer = _layer(number)
    spec = layer and importlib.util.find_spec(f"mooncake_edu.{layer}")
    if not spec or not spec.origin:
        return ""
    return layers.digest("".join(linecache.getlines(spec.origin)))  # which holds the text of a listing that was edited


def answer_digest(answer: Any) -> str:
    """The digest of an answer's source; empty if it has none."""
    try:
        return layers.digest(inspect.getsource(answer))
    except (OSError, TypeError):  # a class of a notebook has no file: take its methods
        parts = vars(answer).values() if isinstance(answer, type) else ()
    functions = [part for part in parts if inspect.isfunction(part)]
    return layers.digest("".join(map(answer_digest, functions))) if functions else ""


def print_table() -> None:
    """Print one row an exercise: the chapters' in their order, then others that are in the record."""
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    from mooncake_edu.course.check import CHAPTERS, exercises

    path = record_file()
    found = standings(read(path))
    titles = {each.number: each.title for chapter in CHAPTERS for each in exercises(chapter)}
    table = Table("exercise", "", "stands", "checked", "package", "note", box=None, header_style="bold")
    for number in [*titles, *sorted(found.keys() - titles.keys())]:
        row = [number, titles.get(number, "(no exercise of this package)")]
        if number in found:
            entry, stale = found[number].entry, found[number].stale
            row += ["stale" if stale else entry.status, _local(entry.at), entry.version, stale]
        else:
            row += ["-"]
        table.add_row(*(Text("".join(filter(str.isprintable, cell[:SHOWN]))) for cell in row))
    console = Console()
    console.print(table if table.row_count else "The chapters have no exercises yet.")
    console.print(f"Record: {path}", highlight=False, markup=False, soft_wrap=True)


def _local(at: str) -> str:
    try:
        return datetime.fromisoformat(at).astimezone().strftime("%Y-%m-%d %H:%M")
    except (ValueError, OverflowError, OSError):
        return at
