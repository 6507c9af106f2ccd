"""A trace: when each request came, how long it and its answer were, and which blocks its prompt is made of.

A file holds one JSON object a line, `{"timestamp": ms, "input_length": tokens, "output_length": tokens, "hash_ids":
[..]}`, as Mooncake publishes them. An id stands for a block and everything before it, so it has one parent, one
position and one size. A partial last block has an id too: only prompts of equal length share it.
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from textwrap import shorten
from typing import Any, NamedTuple, NoReturn

import numpy as np
import numpy.typing as npt

from mooncake_edu.errors import UserError, short
from mooncake_edu.events import write_whole

BLOCK_SIZE = 512
"""Tokens of a block in Mooncake's traces (arXiv 2407.00079, appendix)."""

MOST_LATE = 60.0
"""Seconds that a row may come after rows of later requests and still be sorted in.

Several writers of one log are late by seconds; a clock that goes back further began anew, and to sort would mix runs.
"""

MOST_LINE = 1 << 20
"""Bytes of a row: with 64-bit ids, a prompt of more than 20 million tokens."""

MOST_BYTES = 1 << 32
"""Bytes of a file."""

GZIP = b"\x1f\x8b"
"""What a file packed by gzip begins with (RFC 1952, section 2.3.1)."""

MOST_TOKENS = 2**31 - 1
MOST_MILLISECONDS = 2**53
FIELDS = ("timestamp", "input_length", "output_length", "hash_ids")

Ints = npt.NDArray[np.int64]
Reals = npt.NDArray[np.float64]


class TraceError(UserError):
    """A trace cannot be read, or holds what no trace can hold."""


class Row(NamedTuple):
    """One request: `arrival` in seconds, lengths in tokens, and the ids of its prompt's blocks."""

    arrival: float
    input_length: int
    output_length: int
    ids: Sequence[int]


@dataclass(frozen=True, eq=False)
class Trace:
    """Requests in columns, in the order of their arrival.

    `arrival` [n] is in seconds on the file's clock, `input_length` and `output_length` [n] in tokens. `ids` holds the
    64-bit ids of all prompts one after the other, those of row i from `offsets[i]` to `offsets[i + 1]`. `late` counts
    the rows of the file that came after those of later requests and were sorted in.
    """

    arrival: Reals
    input_length: Ints
    output_length: Ints
    ids: Ints
    offsets: Ints
    block_size: int = BLOCK_SIZE
    name: str = ""
    late: int = 0

    @classmethod
    def of(cls, rows: Iterable[Row], block_size: int = BLOCK_SIZE, name: str = "") -> Trace:
        """A trace of rows that are in order; ids are unsigned and keep their 64 bits."""
        rows = list(rows)
        lengths = [len(row.ids) for row in rows]
        flat = np.fromiter((each for row in rows for each in row.ids), np.uint64, sum(lengths))
        return cls(
            np.array([row.arrival for row in rows], np.float64),
            np.array([row.input_length for row in rows], np.int64),
            np.array([row.output_length for row in rows], np.int64),
            flat.view(np.int64),
            np.concatenate([[0], np.cumsum(lengths, dtype=np.int64)]),
            block_size,
            name,
        )

    def __len__(self) -> int:
        """How many requests there are."""
        return len(self.arrival)

    def ids_of(self, i: int) -> Ints:
        """The ids of the blocks of prompt `i`, in order."""
        return self.ids[self.offsets[i] : self.offsets[i + 1]]

    def rows(self) -> Iterator[Row]:
        """The requests one by one, as plain numbers."""
        columns = (self.arrival.tolist(), self.input_length.tolist(), self.output_length.tolist())
        flat, offsets = self.ids.view(np.uint64).tolist(), self.offsets.tolist()
        for number, (arrival, length, output) in enumerate(zip(*columns, strict=True)):
            yield Row(arrival, length, output, flat[offsets[number] : offsets[number + 1]])

    def positions(self) -> Ints:
        """The place in its prompt, from 0, of every entry of `ids`."""
        return np.arange(len(self.ids)) - np.repeat(self.offsets[:-1], np.diff(self.offsets))

    def sizes(self) -> Ints:
        """The tokens in the block of every entry of `ids`: all are full but a prompt's last."""
        left = np.repeat(self.input_length, np.diff(self.offsets)) - self.positions() * self.block_size
        sizes: Ints = np.minimum(left, self.block_size)
        return sizes

    def slice(self, start: int, stop: int) -> Trace:
        """The requests from number `start` to before `stop`, on the same clock."""
        start, stop, _ = slice(start, stop).indices(len(self))
        stop = max(start, stop)
        first, last = self.offsets[start], self.offsets[stop]
        return replace(
            self,
            arrival=self.arrival[start:stop],
            input_length=self.input_length[start:stop],
            output_length=self.output_length[start:stop],
            ids=self.ids[first:last],
            offsets=self.offsets[start : stop + 1] - first,
        )

    def faster(self, speed: float) -> Trace:
        """The same requests, arriving `speed` times as fast."""
        return replace(self, arrival=self.arrival / speed)


def read(path: str | Path, block_size: int = BLOCK_SIZE) -> Trace:
    """The trace in a file of JSON lines; blank lines are skipped, rows a little late are sorted in, ties stay in order.

    Raises TraceError with file, row (the line's number), reason and remedy for a file that cannot be read, a row that
    is no request, rows out of order by more than a minute, and an id with two parents, positions or sizes.
    """
    path = Path(path)
    lines, rows = [], []
    for number, value in objects(path, MOST_LINE):
        lines.append(number)
        rows.append(_row(value, block_size, path, number))
    arrivals = [row.arrival for row in rows]
    order = in_order(arrivals, path, lines)
    trace = Trace.of([rows[place] for place in order], block_size, path.stem)
    trace = replace(trace, late=int(np.count_nonzero(_lateness(arrivals))))
    check(trace, path, [lines[place] for place in order])
    return trace


def objects(path: Path, most: int) -> Iterator[tuple[int, dict[str, Any]]]:
    """The JSON objects of a file, one a line of at most `most` bytes, with the number of their line.

    Raises TraceError if the file cannot be read, is too long or compressed, a line is no object, or there is none.
    """
    found = False
    try:
        with path.open("rb") as file:
            if (size := path.stat().st_size) > MOST_BYTES:
                raise TraceError(f"{path}: {size} bytes are more than {MOST_BYTES}: split it")
            for number, line in enumerate(iter(lambda: file.readline(most + 1), b""), 1):
                if number == 1 and line.startswith(GZIP):
                    raise TraceError(f"{path}: is compressed (gzip): unpack it first")
                if len(line) > most:
                    refuse(path, number, f"longer than {most} bytes", "give one request a line")
                if line.strip():
                    yield number, _object(line, path, number)
                    found = True
    except OSError as error:
        raise TraceError(f"{path}: cannot be read ({error.strerror}): give a file of JSON lines") from None
    if not found:
        raise TraceError(f"{path}: holds no request: give a file with one JSON object a line")


def write(trace: Trace, path: str | Path) -> None:
    """Write a trace as JSON lines, times in milliseconds, whole or not at all; raises UserError if it cannot be."""
    lines = []
    for row in trace.rows():
        time = round(row.arrival * 1000, 3)
        values = (int(time) if time == int(time) else time, row.input_length, row.output_length, row.ids)
        lines.append(json.dumps(dict(zip(FIELDS, values, strict=True))) + "\n")
    write_whole(path, "".join(lines).encode())


def check(trace: Trace, path: str | Path = "trace", lines: Sequence[int] | None = None) -> None:
    """Raise TraceError unless every id has one parent, one position and one size; `lines` numbers the rows."""
    positions, first = trace.positions(), np.zeros(len(trace.ids), bool)
    first[trace.offsets[:-1][np.diff(trace.offsets) > 0]] = True
    parents = np.where(first, 0, np.roll(trace.ids, 1))  # position 0 tells "no parent" from a parent of id 0
    _, seen, inverse = np.unique(trace.ids, return_index=True, return_inverse=True)
    for what, values in (("position", positions), ("size", trace.sizes()), ("parent", parents)):
        wrong = np.flatnonzero(values != values[seen][inverse])
        if len(wrong):
            at, before = int(wrong[0]), int(seen[inverse[wrong[0]]])
            row, other = (int(np.searchsorted(trace.offsets, each, "right")) - 1 for each in (at, before))
            numbers = (row + 1, other + 1) if lines is None else (lines[row], lines[other])
            refuse(path, numbers[0], f"id {_unsigned(trace.ids[at])} has {what} {_shown(what, values[at])} here and "
                    f"{_shown(what, values[before])} in row {numbers[1]}", _REMEDIES[what])  # fmt: skip


_REMEDIES = {
    "position": "an id stands for a whole prefix: give the ids of chained hashes",
    "parent": "an id stands for a whole prefix: give the ids of chained hashes",
    "size": "only prompts of equal length share a partial last block: give it an id of its own",
}


def _shown(what: str, value: np.int64) -> str:
    return str(_unsigned(value) if what == "parent" else f"{value} tokens" if what == "size" else value)


def _unsigned(value: np.int64) -> int:
    return int(value) & (2**64 - 1)


def in_order(arrivals: list[float], path: Path, lines: list[int]) -> list[int]:
    """The places of the rows in the order of time, ties as they stand; raises TraceError if one is far too late."""
    late = _lateness(arrivals)
    if late.max() > MOST_LATE:
        at = int(np.argmax(late > MOST_LATE))
        refuse(path, lines[at], f"timestamp lies {late[at]:g} s before an earlier row's, more than {MOST_LATE:g} s",
                "sort the rows, or give each run a file of its own")  # fmt: skip
    order: list[int] = np.argsort(arrivals, kind="stable").tolist()
    return order


def _lateness(arrivals: list[float]) -> Reals:
    """By how many seconds each row comes after one of a later request."""
    times = np.array(arrivals)
    late: Reals = np.maximum.accumulate(times) - times
    return late


def _object(line: bytes, path: Path, number: int) -> dict[str, Any]:
    try:
        value = json.loads(line, object_pairs_hook=_once)
    except (ValueError, RecursionError) as error:
        refuse(path, number, f"is not JSON ({_reason(error)})", "give one JSON object a line")
    if not isinstance(value, dict):
        refuse(path, number, f"is a {type(value).__name__}", "give one JSON object a line")
    return value


def _reason(error: Exception) -> str:
    """Why a line is not JSON, without what Python's programmers could do about it."""
    return shorten(str(error).partition("; use sys.")[0], 100, placeholder=" ...")


def _row(value: dict[str, Any], block_size: int, path: Path, number: int) -> Row:
    for field in FIELDS:
        if field not in value:
            refuse(path, number, f"{field} is missing", f"give {', '.join(FIELDS)}")
    for field in value:
        if field not in FIELDS:
            refuse(path, number, f"{short(field)} is no known field", f"give {', '.join(FIELDS)} only")
    time, length, output, ids = (value[field] for field in FIELDS)
    arrival = seconds(time, path, number)
    for field, count, least in (("input_length", length, 1), ("output_length", output, 0)):
        tokens(field, count, least, path, number)
    if not isinstance(ids, list):
        refuse(path, number, f"hash_ids {short(ids)} is no list", "give the ids of the prompt's blocks")
    for each in ids:
        if not is_number(each, int) or not 0 <= each < 2**64:
            refuse(path, number, f"hash id {short(each)} is no id", "give whole numbers of 64 bits, 0 or more")
    if len(ids) != math.ceil(length / block_size):
        refuse(path, number, f"{len(ids)} hash_ids do not fit input_length {length}",
                f"give one a block of {block_size} tokens, the partial last one included, or say how large the blocks "
                "are (--block-size; engine.block_size of a simulation)")  # fmt: skip
    return Row(arrival, length, output, ids)


def seconds(time: Any, path: Path, number: int) -> float:
    """A row's timestamp, milliseconds, in seconds; raises TraceError if it is none."""
    if not is_number(time, (int, float)) or not 0 <= time <= MOST_MILLISECONDS:
        refuse(path, number, f"timestamp {short(time)} is no time", f"give milliseconds from 0 to {MOST_MILLISECONDS}")
    return float(time) / 1000


def tokens(field: str, count: Any, least: int, path: Path, number: int) -> int:
    """A row's number of tokens; raises TraceError if it is none."""
    if not is_number(count, int) or not least <= count <= MOST_TOKENS:
        refuse(path, number, f"{field} {short(count)} is no number of tokens",
               f"give a whole number from {least} to {MOST_TOKENS}")  # fmt: skip
    return int(count)


def _once(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    value: dict[str, Any] = {}
    for field, each in pairs:
        if field in value:
            raise ValueError(f"field {short(field)} stands twice")
        value[field] = each
    return value


def is_number(value: object, kind: type | tuple[type, ...]) -> bool:
    """Whether a value of JSON is a number of that kind; true and false are none."""
    return isinstance(value, kind) and not isinstance(value, bool)


def refuse(path: str | Path, row: int, reason: str, remedy: str) -> NoReturn:
    """Raise TraceError for a row."""
    raise TraceError(f"{path}: row {row}: {reason}: {remedy}")
