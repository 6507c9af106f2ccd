"""One record of what happened, real or simulated: every figure, picture and trace is derived from it."""

from __future__ import annotations

import errno
import io
import json
import os
import struct
import threading
import zipfile
import zlib
from dataclasses import dataclass, fields
from enum import IntEnum
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from mooncake_edu.errors import UserError
from mooncake_edu.request import FinishReason

if TYPE_CHECKING:
    from mooncake_edu.outcome import RequestTable

Ints = npt.NDArray[np.int64]
Reals = npt.NDArray[np.float64]
Mask = npt.NDArray[np.bool_]


class Kind(IntEnum):
    """What a row of the log tells; the numbers are written to files and never change."""

    ARRIVED = 0  # instant, and the first row of its request: a second one begins a new request of that name
    QUEUED = 1  # span in the queue; one more after each preemption
    LOAD = 2  # span in which KVCache comes from a tier or a peer
    CHUNK = 3  # span in which a part of the prompt is computed
    STREAM = 4  # span in which the KVCache of one layer goes to the decode instance
    WAIT = 5  # span waiting for KVCache that is under way
    DECODE = 6  # span as a member of the decode batch of one instance
    PREEMPTED = 7  # instant: its pages were taken, it must be recomputed
    FINISHED = 8  # instant
    REFUSED = 9  # instant
    STEP = 10  # one batch step of an instance; belongs to no request


FIELDS: dict[Kind, tuple[str, ...]] = {
    Kind.ARRIVED: ("prompt",),  # tokens
    Kind.QUEUED: (),
    Kind.LOAD: ("tokens", "bytes"),
    Kind.CHUNK: (
        "tokens",
        "position",
        "cached",
    ),  # computed; before the first of them; found in the local cache
    Kind.STREAM: ("layer", "bytes"),  # layer -1 is all of them
    Kind.WAIT: ("tokens",),  # waited for
    Kind.DECODE: ("tokens",),  # made in this span
    Kind.PREEMPTED: ("tokens",),  # computed tokens lost
    Kind.FINISHED: ("output", "reason"),  # tokens made; a code of FINISH_CODES
    Kind.REFUSED: ("reason",),  # a Refusal
    Kind.STEP: ("prefill", "decode", "used", "cached", "free"),  # tokens, sequences, then blocks
}
"""Names of the value columns a, b, c ... of each kind. `cached` of a chunk is set on the first chunk after
each start or restart (without what LOAD brought), and is 0 on the others."""

FINISH_CODES: dict[FinishReason, int] = {
    FinishReason.STOP: 0,
    FinishReason.LENGTH: 1,
    FinishReason.CANCELLED: 2,
    FinishReason.REFUSED: 3,
    FinishReason.FAILED: 4,
}
RUNNING = -1
"""The reason code of a request that has not ended."""

MAX_ROWS = 50_000_000  # of a file: 4 GB of columns
MAX_NAMES_BYTES = 1 << 30
_FIRST_ROWS = 1024
_INF = float("inf")
_ARRIVED, _STEP = Kind.ARRIVED, Kind.STEP  # looking a member up costs more than the comparison


class Refusal(IntEnum):
    """Why a request was turned away."""

    QUEUE_FULL = 0
    TOO_LARGE = 1  # it could never fit
    TTFT = 2  # predicted to miss its TTFT SLO
    TBT = 3
    LOAD = 4  # the load of a pool is too high
    OTHER = 5
    DOWN = 6  # no instance of a role can be used

    @property
    def text(self) -> str:
        """In a word or two."""
        return self.name.lower().replace("_", " ")


@dataclass(frozen=True, slots=True)
class Rows:
    """Read-only columns of the log; row i of each belongs together. Times are seconds."""

    kind: npt.NDArray[np.uint8]
    request: Ints  # index of the request, -1 for none
    instance: npt.NDArray[np.int32]
    start: Reals
    end: Reals
    a: Ints
    b: Ints
    c: Ints
    d: Ints
    e: Ints

    def __len__(self) -> int:
        return int(self.kind.size)

    def where(self, chosen: Mask | Ints) -> Rows:
        """Those rows that a mask or an array of row numbers chooses."""
        return Rows(*(_frozen(getattr(self, column.name)[chosen]) for column in fields(self)))

    def of(self, kind: Kind) -> Rows:
        """The rows of one kind."""
        return self.where(self.kind == kind)

    def field(self, kind: Kind, name: str) -> Ints:
        """The value column that `name` means for `kind`; rows of other kinds hold something else there."""
        column: Ints = getattr(self, "abcde"[FIELDS[kind].index(name)])
        return column


COLUMNS = tuple(column.name for column in fields(Rows))
_FORMATS = ("u1", "<i8", "<i4", "<f8", "<f8", "<i8", "<i8", "<i8", "<i8", "<i8")
_DTYPE = np.dtype(list(zip(COLUMNS, _FORMATS, strict=True)))
_ROW_BYTES = _DTYPE.itemsize
# Packing writes a row in one call and checks types and ranges; unused columns of a kind are padding, so zero.
_WRITERS = tuple(
    (names, struct.Struct(f"<Bqidd{len(names)}q{8 * (5 - len(names))}x")) for names in FIELDS.values()
)
_REQUEST = struct.Struct("<q")
_UNREADABLE = (  # what a damaged or forged file can make zipfile, zlib, numpy and json raise
    OSError, EOFError, ArithmeticError, AttributeError, LookupError, RuntimeError, TypeError, ValueError,
    zipfile.BadZipFile, zlib.error,
)  # fmt: skip


class EventLog:
    """Columns that grow up to `capacity` rows; then the oldest row makes room for the newest.

    Any thread may add or read; `dropped` counts the rows lost. A span is added when it ends, so the log
    holds no open ones. How tokens follow from it: the first token of a request appears at the end of the
    CHUNK that completes its prompt (after a preemption: its prompt and tokens so far); and each STEP of an
    instance that decodes, and begins and ends within a DECODE span of a request on that instance, makes one token,
    at the step's end. The steps of one instance begin and end in the same order, and take time.
    """

    def __init__(self, capacity: int = 1_000_000) -> None:
        if not 1 <= capacity <= MAX_ROWS:
            raise ValueError(f"capacity {capacity} is not from 1 to {MAX_ROWS} rows")
        self.capacity = capacity
        self.dropped = 0
        self._head = 0  # the oldest row
        self._size = 0
        self._added = 0
        self._newest: dict[str, int] = {}  # request id -> index
        self._names: dict[int, str] = {}
        self._rows_of: dict[int, int] = {}  # an index without rows is forgotten
        self._next = 0
        self._lock = threading.Lock()
        self._ordered: tuple[int, Rows, dict[int, str]] | None = None
        self._allocate(min(_FIRST_ROWS, capacity))

    def __len__(self) -> int:
        return self._size

    def add(
        self,
        kind: Kind,
        *,
        request: str | None = None,
        instance: int = 0,
        start: float,
        end: float | None = None,
        **values: int,
    ) -> None:
        """Records one event, with every field that its kind has; without `end` it is an instant.

        Raises ValueError if times are not finite and in order, or a field is missing, unknown or no integer.
        """
        end = start if end is None else end
        if not -_INF < start <= end < _INF:
            raise ValueError(f"{kind.name} from {start} to {end}: times must be finite and in order")
        if (request is None) != (kind == _STEP):
            raise ValueError(
                f"{kind.name} of request {request}: a step has no request, every other event has one"
            )
        names, writer = _WRITERS[kind]
        if len(values) != len(names):
            raise ValueError(f"{kind.name} with fields {[*values]}: give {[*names]}")
        try:
            row = [*map(values.__getitem__, names)]
            with self._lock:
                place = self._make_room()
                writer.pack_into(self._bytes, place, kind, -1, instance, start, end, *row)
                if request is not None:
                    _REQUEST.pack_into(self._bytes, place + 1, self._intern(request, kind))
                self._size += 1
                self._added += 1
        except (KeyError, struct.error):
            raise ValueError(f"{kind.name} with fields {values}: give {[*names]} as integers") from None

    def add_steps(self, instance: int, start: Reals, end: Reals, **values: int | Ints) -> None:
        """Records consecutive batch steps of one instance at once: times [steps], a value or [steps] for each field.

        Raises ValueError if times are not finite and in order, or a field is missing or unknown.
        """
        names = FIELDS[_STEP]
        if not bool(np.all(np.isfinite(start) & np.isfinite(end) & (start <= end))):
            raise ValueError(f"STEPs of instance {instance}: times must be finite and in order")
        if sorted(values) != sorted(names):
            raise ValueError(f"STEP with fields {[*values]}: give {[*names]}")
        rows = np.zeros(len(end), _DTYPE)
        rows["kind"], rows["request"], rows["instance"], rows["start"], rows["end"] = _STEP, -1, instance, start, end
        for column, name in zip("abcde", names, strict=True):
            rows[column] = values[name]
        with self._lock:
            for first in range(0, len(rows), self.capacity):
                self._append(rows[first : first + self.capacity])

    def _append(self, rows: npt.NDArray[Any]) -> None:
        """Rows of no request, at most as many as the log can hold."""
        while (size := self._table.size) < min(self.capacity, self._size + len(rows)):
            self._allocate(min(2 * size, self.capacity), self._in_order_added())
        for _ in range(self._size + len(rows) - size):
            self._drop_oldest()
        self._table[(np.arange(len(rows)) + self._head + self._size) % size] = rows
        self._size += len(rows)
        self._added += len(rows)

    def columns(self) -> Rows:
        """All rows in order of their start; rows that start together stay in the order they were added."""
        return self.snapshot()[0]

    def snapshot(self) -> tuple[Rows, dict[int, str]]:
        """The same rows, and the request ids that their column `request` points to."""
        with self._lock:
            if self._ordered is None or self._ordered[0] != self._added:
                rows = self._in_order_added()
                rows = rows.where(np.argsort(rows.start, kind="stable"))
                self._ordered = (self._added, rows, dict(self._names))
            return self._ordered[1:]

    def select(
        self,
        *kinds: Kind,
        request: str | None = None,
        instance: int | None = None,
        start: float = -_INF,
        end: float = _INF,
    ) -> Rows:
        """Rows of any of `kinds`, or of all, that lie within start and end, in order of their start."""
        rows = self.columns()
        chosen = (rows.start >= start) & (rows.end <= end)
        if kinds:
            chosen &= np.isin(rows.kind, kinds)
        if request is not None:
            chosen &= rows.request == self._newest.get(request, -2)
        if instance is not None:
            chosen &= rows.instance == instance
        return rows.where(chosen)

    def requests(self) -> RequestTable:
        """One line per request that the log still knows, in order of arrival in the log."""
        from mooncake_edu.outcome import request_table

        return request_table(*self.snapshot())

    def token_times(self, request: str) -> Reals:
        """When each token of a request appeared, as far as its spans are closed; [tokens], seconds."""
        from mooncake_edu.outcome import token_times

        return token_times(self.columns(), self._newest.get(request, -2))

    def save(self, path: str | os.PathLike[str]) -> None:
        """Writes the log as one npz file, all of it or nothing. Raises UserError if it cannot be written."""
        with self._lock:
            table = np.roll(self._table, -self._head)[: self._size]
            names = {str(index): name for index, name in self._names.items()}
        facts = json.dumps({"format": 1, "capacity": self.capacity, "dropped": self.dropped, "names": names})
        buffer = io.BytesIO()
        np.savez_compressed(buffer, facts=np.frombuffer(facts.encode(), dtype=np.uint8), rows=table)
        write_whole(path, buffer.getvalue())

    @classmethod
    def load(cls, path: str | os.PathLike[str]) -> EventLog:
        """Reads a file that `save` wrote; nothing in it is trusted. Raises UserError naming what is wrong."""
        try:
            with zipfile.ZipFile(path) as archive:
                facts = json.loads(_member(archive, "facts", np.dtype("u1"), MAX_NAMES_BYTES).tobytes())
                table = _member(archive, "rows", _DTYPE, MAX_ROWS * _DTYPE.itemsize)
            return cls._restored(facts, Rows(*(_frozen(table[name].copy()) for name in COLUMNS)))
        except _UNREADABLE as error:
            raise UserError(f"{path} is no event log that can be read ({error}): record it again") from None

    @classmethod
    def _restored(cls, facts: dict[str, Any], rows: Rows) -> EventLog:
        names = {int(index): str(name) for index, name in facts["names"].items()}
        log = cls(int(facts["capacity"]))
        if facts["format"] != 1 or len(rows) > log.capacity or int(facts["dropped"]) < 0:
            raise ValueError(f"format {facts['format']}, {len(rows)} rows, dropped {facts['dropped']}")
        if not bool(np.all(np.isfinite(rows.start) & np.isfinite(rows.end) & (rows.start <= rows.end))):
            raise ValueError("its times are not finite and in order")
        indices, counts = np.unique(rows.request, return_counts=True)
        counted = {int(i): int(n) for i, n in zip(indices, counts, strict=True) if i != -1}
        known = counted.keys() == names.keys() and min(names, default=0) >= 0
        if not known or bool(
            np.any((rows.kind > Kind.STEP) | ((rows.request == -1) != (rows.kind == Kind.STEP)))
        ):
            raise ValueError("it holds requests or kinds of event that it does not name")
        log._allocate(max(log._table.size, len(rows)), rows)
        log._size = log._added = len(rows)
        log.dropped = int(facts["dropped"])
        log._names, log._rows_of, log._next = names, counted, max(names, default=-1) + 1
        log._newest = {names[index]: index for index in sorted(names)}
        return log

    def _allocate(self, size: int, rows: Rows | None = None) -> None:
        self._table = np.zeros(size, _DTYPE)
        self._bytes = self._table.view(np.uint8).data
        if rows is not None:
            for name in COLUMNS:
                self._table[name][: len(rows)] = getattr(rows, name)

    def _make_room(self) -> int:
        """The byte at which the next row begins."""
        size = self._table.size
        if self._size == size and size < self.capacity:
            self._allocate(min(2 * size, self.capacity), self._in_order_added())
        elif self._size == size:
            self._drop_oldest()
        return (self._head + self._size) % len(self._table) * _ROW_BYTES

    def _drop_oldest(self) -> None:
        index = int(self._table["request"][self._head])
        self._head = (self._head + 1) % self._table.size
        self._size -= 1
        self.dropped += 1
        if index < 0:
            return
        self._rows_of[index] -= 1
        if self._rows_of[index] == 0:
            del self._rows_of[index]
            name = self._names.pop(index)
            if self._newest.get(name) == index:
                del self._newest[name]

    def _intern(self, request: str, kind: Kind) -> int:
        index = self._newest.get(request)
        if index is None or kind == _ARRIVED:
            index = self._newest[request] = self._next
            self._names[index] = request
            self._rows_of[index] = 0
            self._next += 1
        self._rows_of[index] += 1
        return index

    def _in_order_added(self) -> Rows:
        places = (np.arange(self._size) + self._head) % self._table.size
        return Rows(*(_frozen(self._table[name][places]) for name in COLUMNS))


def write_whole(path: str | os.PathLike[str], content: bytes) -> None:
    """Writes a file so that it is never seen half-written. Raises UserError if it cannot be written."""
    target = Path(path)
    try:
        if target.exists() and not target.is_file():  # a folder, or a device, which a file would replace
            raise OSError(errno.EINVAL, "it is no file")
        part = target.with_name(f".{target.name}.{os.getpid()}.part")
        try:
            part.write_bytes(content)
            part.replace(target)
        finally:
            part.unlink(missing_ok=True)
    except OSError as error:
        raise UserError(f"{target} cannot be written ({error.strerror}): choose another file or folder") from None


def _member(archive: zipfile.ZipFile, name: str, dtype: np.dtype[Any], limit: int) -> npt.NDArray[Any]:
    """One array of an npz archive; its size and type are checked before memory is taken for it."""
    info = archive.getinfo(name + ".npy")
    if info.file_size > limit:
        raise ValueError(f"{name} has {info.file_size} bytes, more than {limit}")
    file = io.BytesIO(archive.read(info))
    np.lib.format.read_magic(file)
    shape, _, found = np.lib.format.read_array_header_1_0(file)
    left = info.file_size - file.tell()
    if len(shape) != 1 or found != dtype or shape[0] * found.itemsize != left:
        raise ValueError(f"{name} is {found}{shape} in {left} bytes")
    return _frozen(np.frombuffer(file.read(), dtype=dtype))


def _frozen(array: npt.NDArray[Any]) -> npt.NDArray[Any]:
    array.flags.writeable = False
    return array
