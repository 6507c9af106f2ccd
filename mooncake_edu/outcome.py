"""What became of the requests of an event log: TTFT, TBT, reuse and goodput, derived from its rows."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from mooncake_edu.events import FINISH_CODES, RUNNING, Ints, Kind, Mask, Reals, Rows
from mooncake_edu.request import FinishReason

_REFUSED = FINISH_CODES[FinishReason.REFUSED]
_SERVED = (FINISH_CODES[FinishReason.STOP], FINISH_CODES[FinishReason.LENGTH])
TBT_SHARE = 10  # the longest 1/10 of the token intervals count (FAST 5.1)


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

    def known(self, column: str) -> Reals:
        """The values of `ttft`, `tbt` or `e2e` that are known."""
        values: Reals = getattr(self, column)[self.complete]
        return values[~np.isnan(values)]

    def percentile(self, column: str, percent: float) -> float:
        """A percentile of `ttft`, `tbt` or `e2e` over the requests for which it is known."""
        values = self.known(column)
        return float(np.percentile(values, percent)) if values.size else float("nan")

    def mean(self, column: str) -> float:
        """The mean of `ttft`, `tbt` or `e2e` over the requests for which it is known."""
        values = self.known(column)
        return float(values.mean()) if values.size else float("nan")

    def goodput(self, ttft_slo: float, tbt_slo: float) -> Goodput:
        """Requests that ended by themselves within both SLOs (seconds), from first arrival to last end."""
        served = np.isin(self.reason, _SERVED)
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
    steps = steps.where(steps.field(Kind.STEP, "decode") > 0)
    steps = steps.where(np.lexsort((steps.start, steps.instance)))
    parts = rows.where(np.isin(rows.kind, (Kind.CHUNK, Kind.DECODE)))  # each a run of tokens
    owner = np.searchsorted(indices, parts.request)
    decode = parts.kind == Kind.DECODE
    first, count = _steps_within(steps, parts)
    chunks = np.flatnonzero(~decode)
    first[chunks] = len(steps) + chunks  # the ends of parts stand behind those of the steps
    count[chunks] = _completing(rows, indices, parts, owner)[chunks]
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


def request_table(rows: Rows, names: dict[int, str]) -> RequestTable:
    """The table of all requests of a log, from its rows in order of their start and its request ids."""
    indices = np.array(sorted(names), dtype=np.int64)
    arrived, chunk, finished, refused = map(rows.of, (Kind.ARRIVED, Kind.CHUNK, Kind.FINISHED, Kind.REFUSED))
    arrival = _first_of(indices, arrived, arrived.start, np.nan)
    prompt = _first_of(indices, arrived, arrived.field(Kind.ARRIVED, "prompt"), 0)
    cached = np.minimum(_first_of(indices, chunk, chunk.field(Kind.CHUNK, "cached"), 0), prompt)
    loaded = np.minimum(
        _loaded(indices, rows, _first_of(indices, chunk, chunk.start, np.inf)), prompt - cached
    )
    codes = np.concatenate((finished.field(Kind.FINISHED, "reason"), np.full(len(refused), _REFUSED)))
    ended = rows.where(
        np.concatenate([np.flatnonzero(rows.kind == k) for k in (Kind.FINISHED, Kind.REFUSED)])
    )
    reason = _first_of(indices, ended, codes, RUNNING)
    tokens = _tokens(rows, indices)
    output = _first_of(indices, finished, finished.field(Kind.FINISHED, "output"), -1)
    output = np.where(output < 0, np.diff(tokens.offsets), output)
    complete = ~np.isnan(arrival) & tokens.whole
    ttft, tbt = _ttft_and_tbt(tokens, arrival, complete)
    e2e = np.where(complete, _first_of(indices, ended, ended.end, np.nan) - arrival, np.nan)
    ids = tuple(names[index] for index in indices.tolist())
    return RequestTable(ids, arrival, prompt, cached, loaded, output, ttft, tbt, e2e, reason, complete)


def _first_of(indices: Ints, rows: Rows, values: npt.NDArray[Any], otherwise: float) -> npt.NDArray[Any]:
    """Per request the value of its first row."""
    column = np.full(indices.size, otherwise, dtype=values.dtype)
    column[np.searchsorted(indices, rows.request)[::-1]] = values[::-1]  # the last assignment stays
    return column


def _loaded(indices: Ints, rows: Rows, started: Reals) -> Ints:
    """Tokens per request that were loaded before its first chunk."""
    load = rows.of(Kind.LOAD)
    owner = np.searchsorted(indices, load.request)
    tokens = np.zeros(indices.size, dtype=np.int64)
    np.add.at(tokens, owner, np.where(load.start <= started[owner], load.field(Kind.LOAD, "tokens"), 0))
    return tokens


def _ttft_and_tbt(tokens: _Tokens, arrival: Reals, complete: Mask) -> tuple[Reals, Reals]:
    ttft, tbt = np.full(arrival.size, np.nan), np.full(arrival.size, np.nan)
    intervals = np.diff(tokens.times)
    bounds = tokens.offsets.tolist()
    for request in np.flatnonzero(complete).tolist():
        begin, stop = bounds[request], bounds[request + 1]
        if stop > begin:
            ttft[request] = tokens.times[begin] - arrival[request]
        if stop > begin + 1:
            tbt[request] = mean_of_longest(intervals[begin : stop - 1])
    return ttft, tbt


def mean_of_longest(intervals: Reals) -> float:
    """The mean of the longest tenth of token intervals, which is the TBT of a request. Paper: FAST 5.1."""
    count = -(-intervals.size // TBT_SHARE)
    longest = np.partition(intervals, intervals.size - count)[intervals.size - count :]
    return float(longest.sum()) / count


def token_times(rows: Rows, index: int) -> Reals:
    """When each token of the request with that index appeared; [tokens], seconds."""
    mine = rows.where((rows.request == index) | (rows.kind == Kind.STEP))
    return _tokens(mine, np.array([index], dtype=np.int64)).times
