"""A decode instance: continuous batching with places and pages.

Who comes joins at the end of the step in progress, first come, first served, if there is a place and its tokens fit,
with a token more for every member. Pages are counted in tokens. When a step would not fit, those who joined last give
way and wait in front of all others. Their KVCache goes to the node's DRAM and comes back when there is room, for which
the batch stands still, as in vLLM's swapping. With the last check, who comes and finds no place, no pages or too slow a
batch is turned away. Paper: arXiv 3.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections import deque
from typing import Protocol

from mooncake_edu.events import Kind, Reals, Refusal
from mooncake_edu.model.costs import CostModel
from mooncake_edu.simulation.agenda import Agenda, Rank
from mooncake_edu.simulation.batch import Batch
from mooncake_edu.simulation.job import Job
from mooncake_edu.simulation.record import Recorder


class Cluster(Protocol):
    """What an instance tells that decodes."""

    def began(self, job: Job, now: float) -> None:
        """A request is a member of the batch for the first time."""

    def turned_away(self, job: Job, reason: Refusal, now: float) -> None:
        """A request that came found no room."""

    def ended(self, job: Job, now: float) -> None:
        """A request has all its tokens."""

    def moved(self, what: str, size: float) -> None:
        """Bytes were moved."""


class Decoding(ABC):
    """What decode and coupled instances share: a queue, a batch, and the run of steps in progress.

    A run lasts until something can change; when somebody comes before its end, it ends with the step in progress.
    """

    def __init__(
        self, number: int, places: int, capacity: int, costs: CostModel, batch: Batch, agenda: Agenda,
        recorder: Recorder,
    ) -> None:  # fmt: skip
        self.number = number
        self.busy = 0.0
        self.waiting: deque[Job] = deque()
        self.batch = batch
        self.places, self.capacity, self.costs = places, capacity, costs
        self.agenda, self.recorder = agenda, recorder
        self._start = 0.0
        self._steps = 0  # of the run of decoding steps in progress
        self._due = -1.0  # when what is in progress ends; before all times: nothing is

    def enter(self, job: Job, now: float) -> None:
        """A request waits here from now on."""
        job.since = now
        self.waiting.append(job)
        if self._due < 0:
            self._put(now)
        elif self._steps and len(self.waiting) == 1:  # whoever waits already found no room, and goes first
            self._steps = min(self._steps, self.batch.steps_until(self._start, now))
            self._put(self._start + self.batch.elapsed(self._steps))

    def fail(self, now: float) -> list[int]:
        """Everything here is lost, but for the tokens of steps that have ended; returns the ids that were held."""
        if self._steps:
            steps = self.batch.steps_until(self._start, now)
            self._steps = steps - (self._start + self.batch.elapsed(steps) > now)
        if self._steps:
            self._advance()
        self._due = -1.0
        for job in [*self.batch.members.values()]:
            self.leave(job, now)
        self.waiting.clear()
        return []

    def _put(self, due: float) -> None:
        if due != self._due:
            self._due = due
            self.agenda.put(due, Rank.STEPPED, self.number, self._stepped)

    def _stepped(self, now: float) -> None:
        if now != self._due:
            return
        self._due = -1.0
        if self._steps:
            self._advance()
        self.finish(now)
        self.next(now)

    def _advance(self) -> None:
        start, steps, size = self._start, self._steps, len(self.batch)
        self._steps = 0
        ends = self.batch.advance(start, steps)
        self.busy += float(ends[-1]) - start
        self.record(start, ends, 0, size)

    def run(self, start: float) -> None:
        """Decode until a member ends, the pages are full or somebody comes."""
        self._start = start
        self._steps = min(self.batch.steps_to_finish(), self.room(), self.batch.longest)
        self._put(start + self.batch.elapsed(self._steps))

    def room(self) -> int:
        """How many steps of decoding the pages hold before something must go."""
        return (self.capacity - self.used()) // len(self.batch)

    def take(self, job: Job, now: float) -> None:
        """A request becomes a member, and decodes from now on."""
        job.since = now
        self.batch.join(job)

    def leave(self, job: Job, now: float) -> None:
        """A member's decoding ends, for good or not."""
        made = job.made
        self.batch.remove(job)
        self.recorder.at(Kind.DECODE, job, self.number, job.since, now, tokens=job.made - made)
        job.since = now

    @abstractmethod
    def used(self) -> int:
        """Tokens in the pages that cannot be dropped."""

    @abstractmethod
    def finish(self, now: float) -> None:
        """Let those go who have all their tokens."""

    @abstractmethod
    def next(self, now: float) -> None:
        """Decide what is done now, and begin it."""

    @abstractmethod
    def record(self, start: float, ends: Reals, prefill: int, size: int) -> None:
        """Tell of steps that decoded."""


class DecodeInstance(Decoding):
    """Decodes requests that were prefilled elsewhere; `capacity` in tokens, `places` in requests."""

    def __init__(
        self, number: int, places: int, capacity: int, costs: CostModel, batch: Batch, agenda: Agenda,
        recorder: Recorder, cluster: Cluster, block_size: int, last_check: bool = False,
    ) -> None:  # fmt: skip
        super().__init__(number, places, capacity, costs, batch, agenda, recorder)
        self._cluster, self._last_check = cluster, last_check
        self._blocks = capacity // block_size

    def used(self) -> int:
        """The members' tokens."""
        return self.batch.context

    def finish(self, now: float) -> None:
        """Those with all their tokens end."""
        for job in self.batch.finished():
            self.leave(job, now)
            self._cluster.ended(job, now)

    def next(self, now: float) -> None:
        """Make room, take in who fits, and decode; the batch stands still while KVCache is swapped."""
        swapped, members = 0, self.batch.members
        while members and self.used() + len(members) > self.capacity:
            job = next(reversed(members.values()))
            self.leave(job, now)
            swapped += job.stored
            self.recorder.at(Kind.PREEMPTED, job, self.number, now, now, tokens=0)
            job.swapped = True
            self.waiting.appendleft(job)
        while self.waiting:
            if self._fits(job := self.waiting[0]):
                self.waiting.popleft()
                self.recorder.at(Kind.QUEUED, job, self.number, job.since, now)
                swapped += job.stored if job.swapped else 0
                self.take(job, now)
            elif self._last_check and (new := self._newcomer()) is not None:
                self.waiting.remove(new)
                slow = self._slow(new, self.used() + new.stored)
                self._cluster.turned_away(new, Refusal.TBT if slow else Refusal.LOAD, now)
            else:
                break
        size = swapped * self.costs.token_bytes
        self._cluster.moved("swap", size)
        if members:
            self.run(now + size / self.costs.host)

    def record(self, start: float, ends: Reals, prefill: int, size: int) -> None:
        """Steps of decoding alone."""
        self.recorder.run(self.number, start, ends, prefill, size, self.batch.context, self._blocks, 0)

    def take(self, job: Job, now: float) -> None:
        """A request becomes a member."""
        if not job.swapped:
            self._cluster.began(job, now)
        super().take(job, now)

    def _newcomer(self) -> Job | None:
        """The first of those who wait and were not sent back."""
        return next((job for job in self.waiting if not job.swapped), None)

    def _slow(self, job: Job, context: int) -> bool:
        """Whether steps with so many tokens would take longer than a request wants; alone, it takes what it gets."""
        size, asked = len(self.batch), job.asked
        return size > 0 and asked is not None and self.costs.decode_step(size + 1, context) > asked.tbt

    def _fits(self, job: Job) -> bool:
        size, context = len(self.batch), self.used() + job.stored
        if self._last_check and not job.swapped and self._slow(job, context):
            return False
        return size < self.places and context + size + 1 <= self.capacity
