"""The event log as a Chrome trace, for ui.perfetto.dev or chrome://tracing."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np

from mooncake_edu.events import COLUMNS, FIELDS, EventLog, Kind, Refusal, write_whole

REASONS: dict[int, str] = {reason: reason.text for reason in Refusal}


def to_perfetto(log: EventLog, instances: Mapping[int, str] | None = None) -> dict[str, Any]:
    """The log as a Chrome trace for ui.perfetto.dev: a track per request; steps and blocks per instance.

    `instances` gives them names.
    """
    return {"displayTimeUnit": "ms", "traceEvents": list(_trace_events(log, instances or {}))}


def write_perfetto(
    log: EventLog, path: str | os.PathLike[str], instances: Mapping[int, str] | None = None
) -> None:  # fmt: skip
    """Writes `to_perfetto` as JSON, all of it or nothing. Raises UserError if it cannot be written."""
    write_whole(path, json.dumps(to_perfetto(log, instances)).encode())


def _trace_events(log: EventLog, instances: Mapping[int, str]) -> Iterator[dict[str, Any]]:
    rows, names = log.snapshot()
    zero = float(rows.start[0]) if len(rows) else 0.0
    yield {"ph": "M", "name": "process_name", "pid": 0, "tid": 0, "args": {"name": "requests"}}
    for index, name in names.items():
        yield {"ph": "M", "name": "thread_name", "pid": 0, "tid": index, "args": {"name": name}}
    for instance in np.unique(rows.instance).tolist():
        named = {"name": instances.get(instance, f"instance {instance}")}
        yield {"ph": "M", "name": "process_name", "pid": 1 + instance, "tid": 0, "args": named}
    columns = [getattr(rows, name).tolist() for name in COLUMNS]
    for number, (code, request, instance, start, end, *values) in enumerate(zip(*columns, strict=True)):
        kind = Kind(code)
        at, length = (start - zero) * 1e6, (end - start) * 1e6
        args: dict[str, Any] = dict(zip(FIELDS[kind], values, strict=False))
        if kind is Kind.REFUSED:
            args["reason"] = REASONS.get(values[0], values[0])
        track = {"pid": 1 + instance, "tid": 0} if kind is Kind.STEP else {"pid": 0, "tid": request}
        event = {"name": kind.name.lower(), "cat": "mooncake", "ts": at, **track, "args": args}
        if kind in (Kind.ARRIVED, Kind.PREEMPTED, Kind.FINISHED, Kind.REFUSED):
            yield event | {"ph": "i", "s": "t"}
        elif kind in (Kind.LOAD, Kind.STREAM):  # these overlap others of their track: asynchronous spans may
            yield event | {"ph": "b", "id": number}
            yield event | {"ph": "e", "id": number, "ts": at + length}
        else:
            yield event | {"ph": "X", "dur": length, "args": args | {"instance": instance}}
        blocks = {state: args.get(state, 0) for state in ("used", "cached", "free")}
        if kind is Kind.STEP and any(blocks.values()):  # an instance that only prefills has no pages to count
            yield {"ph": "C", "name": "blocks", "ts": at + length, **track, "args": blocks}
