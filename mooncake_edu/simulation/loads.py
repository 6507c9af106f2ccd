"""The loads of both pools over time, as a recorded run shows them."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from mooncake_edu.admission import Room
from mooncake_edu.events import EventLog, Kind, Reals, Rows


class Loads(NamedTuple):
    """The mean load of the instances of each pool at those times; [times], times in seconds, 1 is full."""

    times: Reals
    prefill: Reals
    decode: Reals


def loads(log: EventLog, room: Room, ttft: float, tbt: float, times: Reals) -> Loads:
    """What the log of a run on separate instances tells, with these objectives in seconds. Paper: arXiv 7.

    The prefill load is the work of an instance's queue over the TTFT objective; the decode load counts who is at an
    instance, waiting or in its batch.
    """
    chunks, stream = log.select(Kind.CHUNK), log.select(Kind.STREAM)
    return Loads(times, _queued(log, chunks, times) / ttft, _decoding(log, room, stream, tbt, times))


def _queued(log: EventLog, chunks: Rows, times: Reals) -> Reals:
    """Seconds of prefill that have come and are not done, a prefill instance."""
    arrived = log.select(Kind.ARRIVED)
    when = dict(zip(arrived.request.tolist(), arrived.start.tolist(), strict=True))
    came = np.array([when[request] for request in chunks.request.tolist()])
    work = chunks.end - chunks.start
    order = np.argsort(came, kind="stable")
    total = np.concatenate(([0.0], np.cumsum(work[order])))[np.searchsorted(came[order], times, side="right")]
    done = np.array([np.clip(time - chunks.start, 0.0, work).sum() for time in times.tolist()])
    left: Reals = (total - done) / max(np.unique(chunks.instance).size, 1)
    return left


def _decoding(log: EventLog, room: Room, stream: Rows, tbt: float, times: Reals) -> Reals:
    """The mean load of the instances that decode."""
    ended = log.select(Kind.FINISHED, Kind.REFUSED)
    end = dict(zip(ended.request.tolist(), ended.end.tolist(), strict=True))
    prompts = log.select(Kind.ARRIVED)
    tokens = dict(zip(prompts.request.tolist(), prompts.field(Kind.ARRIVED, "prompt").tolist(), strict=True))
    requests = stream.request.tolist()
    left = np.array([end.get(request, np.inf) for request in requests])
    sizes = np.array([tokens[request] for request in requests])
    numbers = np.unique(stream.instance)
    found = np.zeros(len(times))
    for number in numbers:
        here = stream.instance == number
        counts = _present(stream.end[here], left[here], np.ones(int(here.sum())), times)
        held = _present(stream.end[here], left[here], sizes[here], times)
        found += [room.load(*each, tbt) for each in zip(counts.tolist(), held.tolist(), strict=True)]
    return found / max(numbers.size, 1)


def _present(came: Reals, went: Reals, size: Reals, times: Reals) -> Reals:
    """The summed sizes of those who have come and not gone at each time."""
    total = np.zeros(len(times))
    for ends, sign in ((came, 1), (went, -1)):
        order = np.argsort(ends, kind="stable")
        summed = np.concatenate(([0.0], np.cumsum(size[order])))
        total += sign * summed[np.searchsorted(ends[order], times, side="right")]
    return total


def lagged(first: Reals, second: Reals, most: int) -> tuple[int, float]:
    """The lag of the second behind the first, from 0 to `most` samples, at which they correlate least, and how much."""
    found = []
    for lag in range(most + 1):
        one, other = first[: len(first) - lag], second[lag:]
        found.append(float(np.corrcoef(one, other)[0, 1]) if one.std() and other.std() else 0.0)
    lag = int(np.argmin(found))
    return lag, found[lag]


def period(values: Reals) -> float:
    """Samples between two peaks of a series: where its autocorrelation is largest behind its first dip below 0.

    The dip comes after a quarter of a period, and the peak is looked for until one and a half. Not a number where it is
    less than a tenth: then the series does not swing.
    """
    centred = values - values.mean()
    correlation = np.correlate(centred, centred, "full")[len(values) - 1 :]
    below = np.flatnonzero(correlation < 0)
    if not below.size or below[0] > len(values) // 2:
        return float("nan")
    peak = int(below[0] + np.argmax(correlation[below[0] : 6 * below[0] + 1]))
    return float(peak) if correlation[peak] > 0.1 * correlation[0] else float("nan")
