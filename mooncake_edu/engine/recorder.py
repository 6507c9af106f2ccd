"""What the engine does, told to the event log."""

from __future__ import annotations

from mooncake_edu.engine.scheduler import Left, Plan, Work
from mooncake_edu.engine.sequence import Sequence
from mooncake_edu.errors import BusyError, RequestError
from mooncake_edu.events import FINISH_CODES, EventLog, Kind, Refusal
from mooncake_edu.kvcache import BlockPool
from mooncake_edu.request import FinishReason, Phase, Request

SPANS = {Phase.QUEUED: Kind.QUEUED, Phase.LOADING: Kind.WAIT, Phase.DECODE: Kind.DECODE}
"""The phases that are one span each; of a prefill every chunk is a span of its own."""


class Recorder:
    """Writes the events of one instance."""

    def __init__(self, log: EventLog, instance: int) -> None:
        self._log = log
        self._instance = instance

    def arrived(self, request: Request, now: float) -> None:
        """A request is here, to be taken or refused."""
        self._at(Kind.ARRIVED, request, now, now, prompt=len(request.prompt))

    def refused(self, request: Request, error: RequestError, now: float) -> None:
        """A request was turned away."""
        reason = Refusal.QUEUE_FULL if isinstance(error, BusyError) else Refusal.TOO_LARGE
        self._at(Kind.REFUSED, request, now, now, reason=int(reason))

    def left(self, phases: list[Left], now: float) -> None:
        """Phases that ended, and the preemptions that ended some of them."""
        for left in phases:
            self._span(left.sequence, left.phase, left.since, now, left.made)
            if left.lost:
                self._at(Kind.PREEMPTED, left.sequence.request, now, now, tokens=left.lost)

    def chunks(self, done: list[Work], start: float, end: float) -> None:
        """The parts of prompts that a step computed."""
        for work in done:
            if not work.decodes:
                self._at(Kind.CHUNK, work.sequence.request, start, end, tokens=work.count, position=work.start,
                         cached=work.cached)  # fmt: skip

    def step(self, plan: Plan, pool: BlockPool, start: float, end: float) -> None:
        """A step, once everything that it ended is noted."""
        decodes = sum(work.decodes for work in plan.work)
        prefill = sum(work.count for work in plan.work) - decodes
        self._log.add(Kind.STEP, instance=self._instance, start=start, end=end, prefill=prefill, decode=decodes,
                      used=pool.used, cached=pool.cached, free=pool.free)  # fmt: skip

    def finished(self, sequence: Sequence, reason: FinishReason, now: float) -> None:
        """A request ended, whatever phase it was in."""
        self._span(sequence, sequence.phase, sequence.since, now, sequence.made - sequence.made_before)
        self._at(Kind.FINISHED, sequence.request, now, now, output=sequence.made, reason=FINISH_CODES[reason])

    def _span(self, sequence: Sequence, phase: Phase, since: float, now: float, made: int) -> None:
        kind = SPANS.get(phase)
        if kind is Kind.DECODE:
            self._at(kind, sequence.request, since, now, tokens=made)
        elif kind is Kind.WAIT:
            self._at(kind, sequence.request, since, now, tokens=sequence.length - sequence.computed)
        elif kind is not None:
            self._at(kind, sequence.request, since, now)

    def _at(self, kind: Kind, request: Request, start: float, end: float, **values: int) -> None:
        self._log.add(kind, request=request.id, instance=self._instance, start=start, end=end, **values)
