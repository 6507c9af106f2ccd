"""One record of what happened, real or simulated: every figure, picture and trace is derived from it."""

from __future__ import annotations

import io
import json
import os
import struct
import threading
import zipfile
from collections.abc import Iterator
from dataclasses import dataclass, fields
from enum import IntEnum
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from mooncake_edu.errors import UserError
from mooncake_edu.request import FinishReason

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
    Kind.STREAM: ("layer", "bytes"),
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

TBT_SHARE = 10  # the longest 1/10 of the token intervals count (FAST 5.1)
MAX_ROWS = 50_000_000  # of a file: 4 GB of columns
MAX_NAMES_BYTES = 1 << 30
_FIRST_ROWS = 1024
_INF = float("inf")
_ARRIVED = Kind.ARRIVED  # looking a member up costs more than the comparison


class Refusal(IntEnum):
    """Why a request was turned away."""

    QUEUE_FULL = 0
    TOO_LARGE = 1  # it could never fit
    TTFT = 2  # predicted to miss its TTFT SLO
    TBT = 3
    LOAD = 4  # the load of a pool is too high
    OTHER = 5


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


_COLUMNS = tuple(column.name for column in fields(Rows))
_FORMATS = ("u1", "<i8", "<i4", "<f8", "<f8", "<i8", "<i8", "<i8", "<i8", "<i8")
_DTYPE = np.dtype(list(zip(_COLUMNS, _FORMATS, strict=True)))
_ROW_BYTES = _DTYPE.itemsize
# Packing writes a row in one call and checks types and ranges; unused columns of a kind are padding, so zero.
_WRITERS = tuple(
    (names, struct.Struct(f"<Bqidd{len(names)}q{8 * (5 - len(names))}x")) for names in FIELDS.values()
)
_REQUEST = struct.Struct("<q")


class EventLog:
    """Columns that grow up to `capacity` rows; then the oldest row makes room for the newest.

    Any thread may add or read; `dropped` counts the rows lost. A span is added when it ends, so the log holds no
    open ones. How tokens follow from it: the first token of a request appears at the end of the CHUNK that
    completes its prompt (after a preemption: its prompt and tokens so far); and each STEP of an instance that
    begins and ends within a DECODE span of a request on that instance makes one token, at the step's end. The
    steps of one instance begin and end in the same order, and take time.
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
        self._ordered: tuple[int, Rows] | None = None
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

    def name(self, index: int) -> str:
        """The id of the request that the column `request` calls `index`."""
        return self._names[index]

    def columns(self) -> Rows:
        """All rows in order of their start; rows that start together stay in the order they were added."""
        with self._lock:
            if self._ordered is None or self._ordered[0] != self._added:
                rows = self._in_order_added()
                rows = rows.where(np.argsort(rows.start, kind="stable"))
                self._ordered = (self._added, rows)
            return self._ordered[1]

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
        rows = self.columns()
        indices = np.unique(rows.request[rows.request >= 0])
        return _request_table(rows, indices, tuple(self._names.get(int(i), "?") for i in indices))

    def token_times(self, request: str) -> Reals:
        """When each token of a request appeared, as far as its spans are closed; [tokens], seconds."""
        rows = self.columns()
        index = self._newest.get(request, -2)
        mine = rows.where((rows.request == index) | (rows.kind == Kind.STEP))
        return _tokens(mine, np.array([index], dtype=np.int64)).times

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
            return cls._restored(facts, Rows(*(_frozen(table[name].copy()) for name in _COLUMNS)))
        except (
            OSError,
            zipfile.BadZipFile,
            EOFError,
            KeyError,
            TypeError,
            ValueError,
            AttributeError,
        ) as error:
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
        if (
            counted.keys() != names.keys()
            or min(names, default=0) < 0
            or bool(np.any(rows.kind >= len(Kind)))
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
            for name in _COLUMNS:
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
        return Rows(*(_frozen(self._table[name][places]) for name in _COLUMNS))


class Goodput(NamedTuple):
    """What was served within both SLOs."""

    met: int
    share: float  # of all requests
    per_second: float


@dataclass(frozen=True, slots=True)
class RequestTable:
    """One line per request: what came in and out, in tokens, and how long it took, in seconds.

    Not a number means not known (yet). Where rows of a request were dropped, `complete` is False, its times
    are not a number, and the summaries leave it out.
    """

    id: tuple[str, ...]
    arrival: Reals
    prompt: Ints
    cached: Ints  # of the prompt, found in the local cache at the first start; a recompute is no hit
    loaded: Ints  # of the prompt, brought from a tier or peer before the first chunk
    output: Ints
    ttft: Reals
    tbt: Reals  # mean of the longest tenth of its token intervals; not a number for a single token (FAST 5.1)
    e2e: Reals
    reason: Ints  # a code of FINISH_CODES, or RUNNING
    complete: Mask

    def __len__(self) -> int:
        return len(self.id)

    def hit_ratio(self) -> float:
        """Share of the prompt tokens of all requests with a first token that were reused, not computed."""
        started = self.complete & ~np.isnan(self.ttft)
        prompt = int(self.prompt[started].sum())
        return int((self.cached + self.loaded)[started].sum()) / prompt if prompt else 0.0

    def percentile(self, column: str, percent: float) -> float:
        """A percentile of `ttft`, `tbt` or `e2e` over the requests for which it is known."""
        values: Reals = getattr(self, column)[self.complete]
        values = values[~np.isnan(values)]
        return float(np.percentile(values, percent)) if values.size else float("nan")

    def mean(self, column: str) -> float:
        """The mean of `ttft`, `tbt` or `e2e` over the requests for which it is known."""
        values: Reals = getattr(self, column)[self.complete]
        values = values[~np.isnan(values)]
        return float(values.mean()) if values.size else float("nan")

    def goodput(self, ttft_slo: float, tbt_slo: float) -> Goodput:
        """Requests that ended by themselves within both SLOs (seconds), from first arrival to last end."""
        served = (self.reason == FINISH_CODES[FinishReason.STOP]) | (
            self.reason == FINISH_CODES[FinishReason.LENGTH]
        )
        in_time = (self.ttft <= ttft_slo) & ((self.tbt <= tbt_slo) | np.isnan(self.tbt))
        met = int((served & in_time & self.complete).sum())
        ends = (self.arrival + self.e2e)[self.complete & ~np.isnan(self.e2e)]
        duration = float(ends.max() - np.nanmin(self.arrival)) if ends.size else 0.0
        total = int(self.complete.sum())
        return Goodput(met, met / total if total else 0.0, met / duration if duration > 0 else 0.0)


class _Tokens(NamedTuple):
    """Times of all tokens, request by request: those of request i are times[offsets[i]:offsets[i + 1]]."""

    times: Reals
    offsets: Ints
    whole: Mask  # per request: as many steps are in the log as its decode spans made tokens


def _tokens(rows: Rows, indices: Ints) -> _Tokens:
    """Times of the tokens of the requests `indices` (sorted); see EventLog for the rule."""
    steps = rows.of(Kind.STEP)
    steps = steps.where(np.lexsort((steps.start, steps.instance)))
    parts = rows.where(np.isin(rows.kind, (Kind.CHUNK, Kind.DECODE)))  # each a run of tokens
    owner = np.searchsorted(indices, parts.request)
    decode = parts.kind == Kind.DECODE
    first, count = _steps_within(steps, parts)
    first[~decode] = len(steps) + np.flatnonzero(
        ~decode
    )  # the end of a chunk stands behind those of the steps
    count[~decode] = _completing(rows, indices, parts, owner)[~decode]
    whole = np.ones(indices.size, dtype=np.bool_)
    whole[owner[decode & (count != parts.field(Kind.DECODE, "tokens"))]] = False
    order = np.argsort(owner, kind="stable")
    first, count, owner = first[order], count[order], owner[order]
    runs = np.repeat(first - np.concatenate(([0], np.cumsum(count)[:-1])), count)
    times = np.concatenate((steps.end, parts.end))[runs + np.arange(runs.size)]
    made = np.bincount(owner, weights=count, minlength=indices.size).astype(np.int64)
    return _Tokens(times, np.concatenate((np.zeros(1, np.int64), np.cumsum(made))), whole)


def _steps_within(steps: Rows, spans: Rows) -> tuple[Ints, Ints]:
    """Per span, the first step of its instance within it and their number; steps are sorted by instance."""
    first, count = np.zeros(len(spans), np.int64), np.zeros(len(spans), np.int64)
    for instance in np.unique(steps.instance):
        low, high = np.searchsorted(steps.instance, (instance, instance + 1))
        here = np.flatnonzero(spans.instance == instance)
        begin = np.searchsorted(steps.start[low:high], spans.start[here], side="left")
        stop = np.searchsorted(steps.end[low:high], spans.end[here], side="right")
        first[here], count[here] = low + begin, np.maximum(stop - begin, 0)
    return first, count


def _completing(rows: Rows, indices: Ints, parts: Rows, owner: Ints) -> Mask:
    """Which of the parts are chunks that complete the prompt and the tokens so far, and so make a token."""
    target = np.full(indices.size, -1, dtype=np.int64)  # without its arrival nothing is known
    arrived = rows.of(Kind.ARRIVED)
    target[np.searchsorted(indices, arrived.request)] = arrived.field(Kind.ARRIVED, "prompt")
    missing, made = target.tolist(), np.zeros(len(parts), dtype=np.bool_)
    stop = parts.field(Kind.CHUNK, "position") + parts.field(Kind.CHUNK, "tokens")
    for part, (request, kind, tokens, reached) in enumerate(
        zip(owner.tolist(), parts.kind.tolist(), parts.a.tolist(), stop.tolist(), strict=True)
    ):
        if kind == Kind.DECODE:
            missing[request] += tokens if missing[request] >= 0 else 0
        elif reached == missing[request]:
            made[part] = True
            missing[request] += 1
    return made


def _request_table(rows: Rows, indices: Ints, names: tuple[str, ...]) -> RequestTable:
    arrival, ended = np.full(indices.size, np.nan), np.full(indices.size, np.nan)
    prompt, cached, loaded, output = (np.zeros(indices.size, np.int64) for _ in range(4))
    reason = np.full(indices.size, RUNNING, dtype=np.int64)

    def put(kind: Kind, column: npt.NDArray[Any], values: npt.NDArray[Any]) -> None:
        # the last assignment wins: give rows so that the first in time comes last
        column[np.searchsorted(indices, picked[kind].request)[::-1]] = values[::-1]

    picked = {
        kind: rows.of(kind) for kind in (Kind.ARRIVED, Kind.CHUNK, Kind.LOAD, Kind.FINISHED, Kind.REFUSED)
    }
    arrived, chunk, load, finished, refused = picked.values()
    put(Kind.ARRIVED, arrival, arrived.start)
    put(Kind.ARRIVED, prompt, arrived.field(Kind.ARRIVED, "prompt"))
    put(Kind.CHUNK, cached, chunk.field(Kind.CHUNK, "cached"))
    started = np.full(indices.size, np.inf)
    put(Kind.CHUNK, started, chunk.start)
    owner = np.searchsorted(indices, load.request)
    np.add.at(loaded, owner, np.where(load.start < started[owner], load.field(Kind.LOAD, "tokens"), 0))
    put(Kind.REFUSED, reason, np.full(len(refused), FINISH_CODES[FinishReason.REFUSED]))
    put(Kind.REFUSED, ended, refused.end)
    put(Kind.FINISHED, reason, finished.field(Kind.FINISHED, "reason"))
    put(Kind.FINISHED, ended, finished.end)

    tokens = _tokens(rows, indices)
    complete = ~np.isnan(arrival) & tokens.whole
    output[:] = np.diff(tokens.offsets)
    put(Kind.FINISHED, output, finished.field(Kind.FINISHED, "output"))
    ttft, tbt = _ttft_and_tbt(tokens, arrival, complete)
    cached = np.minimum(cached, prompt)
    loaded = np.minimum(loaded, prompt - cached)
    e2e = np.where(complete, ended - arrival, np.nan)
    return RequestTable(names, arrival, prompt, cached, loaded, output, ttft, tbt, e2e, reason, complete)


def _ttft_and_tbt(tokens: _Tokens, arrival: Reals, complete: Mask) -> tuple[Reals, Reals]:
    ttft, tbt = np.full(arrival.size, np.nan), np.full(arrival.size, np.nan)
    intervals = np.diff(tokens.times)
    bounds = tokens.offsets.tolist()
    for request in np.flatnonzero(complete).tolist():
        begin, stop = bounds[request], bounds[request + 1]
        if stop > begin:
            ttft[request] = tokens.times[begin] - arrival[request]
        if stop > begin + 1:
            tbt[request] = _mean_of_longest(intervals[begin : stop - 1])
    return ttft, tbt


def _mean_of_longest(intervals: Reals) -> float:
    count = -(-intervals.size // TBT_SHARE)
    return float(np.partition(intervals, intervals.size - count)[intervals.size - count :].mean())


def to_perfetto(log: EventLog) -> dict[str, Any]:
    """The log as a Chrome trace for ui.perfetto.dev: a track per request; steps and blocks per instance."""
    return {"displayTimeUnit": "ms", "traceEvents": list(_trace_events(log))}


def write_perfetto(log: EventLog, path: str | os.PathLike[str]) -> None:
    """Writes `to_perfetto` as JSON, all of it or nothing. Raises UserError if it cannot be written."""
    write_whole(path, json.dumps(to_perfetto(log)).encode())


def write_whole(path: str | os.PathLike[str], content: bytes) -> None:
    """Writes a file so that it is never seen half-written. Raises UserError if it cannot be written."""
    target = Path(path)
    part = target.with_name(f".{target.name}.{os.getpid()}.part")
    try:
        try:
            part.write_bytes(content)
            part.replace(target)
        finally:
            part.unlink(missing_ok=True)
    except OSError as error:
        raise UserError(f"{target} cannot be written ({error.strerror}): choose another folder") from None


def _trace_events(log: EventLog) -> Iterator[dict[str, Any]]:
    rows = log.columns()
    zero = float(rows.start[0]) if len(rows) else 0.0
    yield {"ph": "M", "name": "process_name", "pid": 0, "tid": 0, "args": {"name": "requests"}}
    for index in np.unique(rows.request[rows.request >= 0]).tolist():
        yield {"ph": "M", "name": "thread_name", "pid": 0, "tid": index, "args": {"name": log.name(index)}}
    for instance in np.unique(rows.instance).tolist():
        args = {"name": f"instance {instance}"}
        yield {"ph": "M", "name": "process_name", "pid": 1 + instance, "tid": 0, "args": args}
    columns = [getattr(rows, name).tolist() for name in _COLUMNS]
    for number, (code, request, instance, start, end, *values) in enumerate(zip(*columns, strict=True)):
        kind = Kind(code)
        at, length = (start - zero) * 1e6, (end - start) * 1e6
        args = dict(zip(FIELDS[kind], values, strict=False))
        track = {"pid": 1 + instance, "tid": 0} if kind is Kind.STEP else {"pid": 0, "tid": request}
        event = {"name": kind.name.lower(), "cat": "mooncake", "ts": at, **track, "args": args}
        if kind in (Kind.ARRIVED, Kind.PREEMPTED, Kind.FINISHED, Kind.REFUSED):
            yield event | {"ph": "i", "s": "t"}
        elif kind in (Kind.LOAD, Kind.STREAM):  # these overlap others of their track: asynchronous spans may
            yield event | {"ph": "b", "id": number}
            yield event | {"ph": "e", "id": number, "ts": at + length}
        else:
            yield event | {"ph": "X", "dur": length, "args": args | {"instance": instance}}
        if kind is Kind.STEP:
            blocks = {name: args[name] for name in ("used", "cached", "free")}
            yield {"ph": "C", "name": "blocks", "ts": at + length, **track, "args": blocks}


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
