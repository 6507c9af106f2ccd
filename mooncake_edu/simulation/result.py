"""What a simulated run found: a line for every request, what was moved, and how busy the instances were."""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import IntEnum

import numpy as np

from mooncake_edu.events import FINISH_CODES, RUNNING, Ints, Mask, Reals, Refusal
from mooncake_edu.outcome import RequestTable
from mooncake_edu.request import FinishReason
from mooncake_edu.simulation.job import Job

_LENGTH, _REFUSED = FINISH_CODES[FinishReason.LENGTH], FINISH_CODES[FinishReason.REFUSED]


@dataclass(frozen=True)
class Slos:
    """The objectives of every request, in seconds; [requests], or one for all."""

    ttft: Reals | float
    tbt: Reals | float


@dataclass(frozen=True)
class Result:
    """A run. Times are in seconds, hits in tokens by tier, `moved` in bytes by what moved; arrays are [requests].

    `started` is when a request's prefill began, `prefill` and `decode` the instances it was placed on. `busy` is each
    instance's share of the time from the first arrival to the last end. `ttft` counts from arrival.
    `sent` are the bytes of prefixes that each instance sent to others that fetched them. `stage` is where a request was
    turned away and `refusal` why, -1 for those that were not; `worked` is how long its last prefill took. `lost` says
    how many `requests` began anew because an instance went down, and how many `tokens` of KVCache went with it.
    """

    name: str
    table: RequestTable
    slos: Slos
    started: Reals
    prefill: Ints
    decode: Ints
    hits: dict[str, int]
    moved: dict[str, float]
    busy: dict[str, dict[int, float]]
    duration: float
    sent: dict[int, float] = field(default_factory=dict)
    stage: Ints = field(default_factory=lambda: np.empty(0, np.int64))
    refusal: Ints = field(default_factory=lambda: np.empty(0, np.int64))
    worked: Reals = field(default_factory=lambda: np.empty(0))
    lost: dict[str, int] = field(default_factory=dict)

    @property
    def met(self) -> Mask:
        """Which requests ended within both objectives; the TBT of a single token is met."""
        table = self.table
        tbt = np.isnan(table.tbt) | (table.tbt <= self.slos.tbt)
        met: Mask = (table.reason == _LENGTH) & (table.ttft <= self.slos.ttft) & tbt
        return met

    @property
    def goodput(self) -> float:
        """Requests a second that ended within both objectives."""
        return float(self.met.sum()) / self.duration if self.duration else 0.0

    @property
    def prompt_tokens(self) -> int:
        """Tokens of the prompts of all that were served."""
        return int(self.table.prompt[~np.isnan(self.table.ttft)].sum())

    def refused(self, stage: Stage | None = None) -> int:
        """How many requests were turned away, there or anywhere."""
        return int((self.stage >= 0 if stage is None else self.stage == stage).sum())

    @property
    def wasted(self) -> float:
        """Seconds of prefill for requests that were turned away afterwards, be it when they were placed again."""
        return float(self.worked[self.stage >= 0].sum())

    def late(self, column: str) -> int:
        """How many requests ended with a `ttft` or `tbt` beyond their objective."""
        return int((getattr(self.table, column) > getattr(self.slos, column)).sum())

    def utilisation(self, role: str) -> float:
        """The mean share of time that the instances of a role were busy."""
        return float(np.mean([*self.busy[role].values()]))


class Stage(IntEnum):
    """Where a request was turned away."""

    ARRIVAL = 0  # when it came
    TURN = 1  # when its prefill was about to begin
    DECODE = 2  # when its prompt was computed, for nothing


class Columns:
    """The columns of a run, filled as requests end."""

    def __init__(self, count: int) -> None:
        self.reals = {name: np.full(count, np.nan) for name in ("arrival", "ttft", "tbt", "e2e", "started")}
        self.reals["worked"] = np.zeros(count)
        self.ints = {name: np.zeros(count, np.int64) for name in ("prompt", "cached", "loaded", "output")}
        unknown = ("reason", "prefill", "decode", "stage", "refusal")
        self.ints |= {name: np.full(count, RUNNING, np.int64) for name in unknown}
        self.hits: dict[str, int] = {}

    def arrived(self, job: Job) -> None:
        """A request is known."""
        self.reals["arrival"][job.row], self.ints["prompt"][job.row] = job.arrival, job.prompt

    def placed(self, job: Job) -> None:
        """A request was admitted."""
        self.ints["prefill"][job.row], self.ints["decode"][job.row] = job.prefill, job.decode

    def ended(self, job: Job, now: float) -> None:
        """A request has all its tokens."""
        number, reals, ints = job.row, self.reals, self.ints
        reals["ttft"][number], reals["started"][number] = job.first - job.arrival, job.started
        reals["tbt"][number], reals["e2e"][number] = job.tbt(), now - job.arrival
        reals["worked"][number] = job.worked
        pages = job.hits.get("pages", 0)
        ints["cached"][number], ints["loaded"][number] = pages, sum(job.hits.values()) - pages
        ints["output"][number], ints["reason"][number] = job.output, _LENGTH
        for tier, tokens in job.hits.items():
            self.hits[tier] = self.hits.get(tier, 0) + tokens

    def refused(self, job: Job, stage: Stage, reason: Refusal, now: float) -> None:
        """A request was turned away."""
        self.ints["reason"][job.row], self.reals["e2e"][job.row] = _REFUSED, now - job.arrival
        self.ints["stage"][job.row], self.ints["refusal"][job.row] = stage, reason
        self.reals["worked"][job.row] = job.worked

    def table(self, count: int) -> RequestTable:
        """A line for every request, in the order of the trace."""
        reals, ints, names = self.reals, self.ints, tuple(f"request {row}" for row in range(count))
        return RequestTable(
            names, reals["arrival"], ints["prompt"], ints["cached"], ints["loaded"], ints["output"], reals["ttft"],
            reals["tbt"], reals["e2e"], ints["reason"], np.ones(len(names), np.bool_),
        )  # fmt: skip
