"""The baseline: an instance that prefills and decodes in one batch, as vLLM does.

Prefill first: as long as somebody waits for whom there is a place and room, a step computes whole prompts, at most
`budget` tokens of them or one prompt, and decoding stands still. Chunked: every step makes a token for each decoding
request and spends what is left of the budget on chunks of prompts, in the order they were taken.

Pages are counted in tokens: prompts by whole blocks, answers token by token. A prompt comes in when all of it fits,
with a token more for everybody. What it reuses is looked up then; its other blocks count as cached when its prefill
ends, and stay in the pages, least recently used first to go, while nobody needs the room. A block that was computed
twice is kept once. When a step would not fit, those who were taken last are sent back to the head of the queue, and
compute all that is not cached anew.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

import numpy as np

from mooncake_edu.events import Kind, Reals
from mooncake_edu.model.costs import CostModel
from mooncake_edu.simulation.agenda import Agenda
from mooncake_edu.simulation.batch import Batch
from mooncake_edu.simulation.caches import PagedCache
from mooncake_edu.simulation.decode import Decoding
from mooncake_edu.simulation.job import Job
from mooncake_edu.simulation.record import Recorder


class Cluster(Protocol):
    """What a coupled instance tells."""

    def taken(self, job: Job, until: float, now: float) -> None:
        """A prompt's turn has come."""

    def free(self, number: int, now: float) -> None:
        """The prefill in progress has ended."""

    def first(self, job: Job, now: float) -> None:
        """The first token is there, or the next one of a request that was lost."""

    def ended(self, job: Job, now: float) -> None:
        """A request has all its tokens."""


class CoupledInstance(Decoding):
    """`capacity` of the pages in tokens, `places` in requests, `budget` in tokens a step."""

    def __init__(
        self, number: int, places: int, capacity: int, costs: CostModel, batch: Batch, agenda: Agenda,
        recorder: Recorder, cluster: Cluster, cache: PagedCache, budget: int, chunked: bool, block_size: int,
    ) -> None:  # fmt: skip
        super().__init__(number, places, capacity, costs, batch, agenda, recorder)
        self.cache = cache
        self._cluster = cluster
        self._budget, self._chunked, self._block_size = budget, chunked, block_size
        self._prefilling: dict[Job, int] = {}  # in the order they were taken, with the tokens that are computed
        self._private = 0  # blocks without an id that can be found
        self._answers = 0  # tokens of answers that are computed again
        self._chunks: list[tuple[Job, int, int]] = []  # of the step in progress
        self._planned: list[tuple[float, float, list[tuple[Job, int, int]]]] = []  # steps with their begin and end

    def fail(self, now: float) -> list[int]:
        """Everything here is lost, but for the tokens of steps that have ended; returns the ids that were held."""
        if self._planned:
            start, self._planned = self._planned[-1][0], [each for each in self._planned if each[1] <= now]
            self.busy += max(now - start, 0.0)
            self._note()
        self._prefilling.clear()
        self._chunks, self._private, self._answers = [], 0, 0
        super().fail(now)
        return self.cache.clear()

    def used(self) -> int:
        """Blocks of prompts, and tokens of answers."""
        blocks = self.cache.used + self._private
        return blocks * self._block_size + self._answers + self.batch.context - self.batch.prompts

    def finish(self, now: float) -> None:
        """Prompts that are computed get a token; those with all their tokens end."""
        self._note()
        for job, _, stop in self._chunks:
            self._prefilling[job] = stop
            if stop == job.prompt + job.made:
                self._computed(job, now)
        self._chunks = []
        for job in self.batch.finished():
            self.leave(job, now)
            self._release(job)
            self._cluster.ended(job, now)

    def next(self, now: float) -> None:
        """Begin a step of prompts, a mixed one, or a run of decoding."""
        self._shrink()
        budget = self._budget
        if self._chunked:
            self._make_room(now)
            budget -= len(self.batch)
            for job in self._prefilling:
                budget -= self._plan(job, budget)
        while self.waiting and budget > 0 and self._fits(self.waiting[0], budget):
            budget -= self._plan(self._admit(now), budget)
        if self._chunks:
            self._shrink()
            self._compute(now)
            return
        self._make_room(now)
        if len(self.batch):
            self.run(now)

    def room(self) -> int:
        """How many steps of decoding the pages hold before something must go, be it a block kept for reuse."""
        if not self.cache.kept:
            return super().room()
        spare = self.capacity - self.used() - self.cache.kept * self._block_size
        return min(super().room(), spare // len(self.batch) + 1)

    def record(self, start: float, ends: Reals, prefill: int, size: int) -> None:
        """Steps that decode."""
        total = self.capacity // self._block_size
        self.recorder.run(self.number, start, ends, prefill, size, self.used(), total, self.cache.kept)

    def _fits(self, job: Job, budget: int) -> bool:
        members = len(self.batch) + len(self._prefilling)
        if members >= self.places:
            return False
        found = job.ids[: self.cache.match(job.ids)]
        if self._chunks and not self._chunked and job.prompt + job.made - self._reused(job, found) > budget:
            return False
        blocks = len(job.ids) - len(found) + self.cache.unused(found)
        return self.used() + blocks * self._block_size + job.made + members + 1 <= self.capacity

    def _reused(self, job: Job, found: Sequence[int]) -> int:
        return min(len(found) * self._block_size, job.prompt + job.made - 1)

    def _admit(self, now: float) -> Job:
        job = self.waiting.popleft()
        job.pinned = job.ids[: self.cache.match(job.ids)]
        job.private = len(job.ids) - len(job.pinned)
        job.reused = self._prefilling[job] = self._reused(job, job.pinned)
        self.cache.pin(job.pinned)
        self._private += job.private
        self._answers += job.made
        self.recorder.at(Kind.QUEUED, job, self.number, job.since, now)
        if not job.hits:
            job.started, job.hits = now, {"pages": job.reused}
        if not job.begun:
            job.begun = True
            self._cluster.taken(job, now + job.estimate, now)
        return job

    def _plan(self, job: Job, budget: int) -> int:
        """Put as much of a prompt into the step as it may compute; returns how many tokens."""
        start, stop = self._prefilling[job], job.prompt + job.made
        if self._chunked:
            stop = min(stop, start + budget)
        if stop > start:
            self._chunks.append((job, start, stop))
        return stop - start

    def _compute(self, now: float) -> None:
        """A step with chunks; as long as one prompt takes all that is left of the budget, several in a row."""
        size, context = (len(self.batch), self.batch.context) if self._chunked else (0, 0)
        end = now
        for step in range(1, self._repeats() + 1):
            if step > 1:
                job, start, stop = self._chunks[0]
                self._chunks = [(job, stop, 2 * stop - start)]
            begin, parts = end, [(start, stop) for _, start, stop in self._chunks]
            end += self.costs.step(parts, size, context + step * size)
            self._planned.append((begin, end, self._chunks))
        self._put(end)

    def _note(self) -> None:
        """What was planned has been done."""
        for begin, end, chunks in self._planned:
            self._tell(begin, end, chunks)
            self.busy += end - begin
        if self._planned and self._chunked and len(self.batch):
            times = np.array([end for _, end, _ in self._planned])
            self.batch.note(times)
            tokens = sum(stop - start for _, start, stop in self._planned[0][2])
            self.record(self._planned[0][0], times, tokens, len(self.batch))
        self._planned = []

    def _repeats(self) -> int:
        """How many steps like the one that is planned come before anything can change."""
        (job, start, stop), size = self._chunks[0], len(self.batch)
        if not self._chunked or len(self._chunks) > 1 or stop - start < self._budget - size:
            return 1
        unfinished = (job.prompt + job.made - start - 1) // (stop - start)
        room = self.room() if size else unfinished
        return max(min(unfinished, room, self.batch.steps_to_finish(), self.batch.longest), 1)

    def _tell(self, begin: float, end: float, chunks: Sequence[tuple[Job, int, int]]) -> None:
        for job, start, stop in chunks:
            cached = start if start == job.reused else 0
            self.recorder.at(Kind.CHUNK, job, self.number, begin, end, tokens=stop - start, position=start,
                             cached=cached)  # fmt: skip
        if not self._chunked or not len(self.batch):
            total, kept = self.capacity // self._block_size, self.cache.kept
            used = min(-(-self.used() // self._block_size), total)
            tokens = sum(stop - start for _, start, stop in chunks)
            self.recorder.prefill_step(self.number, begin, end, tokens, used, min(kept, total - used),
                                       max(total - used - kept, 0))  # fmt: skip

    def _computed(self, job: Job, now: float) -> None:
        """All that a request had is computed, which makes its next token; its blocks count as cached from now on."""
        del self._prefilling[job]
        self._answers -= job.made
        if self.cache.sharing:
            self.cache.pin(job.ids[len(job.pinned) :])
            self._private -= job.private
            job.pinned, job.private = job.ids, 0
        job.made += 1
        job.stored = job.prompt + job.made - 1
        job.times.append(np.array([now]))
        if not job.came:
            self._cluster.free(self.number, now)
            self._cluster.first(job, now)
        if job.left:
            self.take(job, now)
        else:
            self._release(job)
            self._cluster.ended(job, now)

    def _release(self, job: Job) -> None:
        self.cache.unpin(job.pinned)
        self._private -= job.private
        job.pinned, job.private = (), 0

    def _make_room(self, now: float) -> None:
        """Until a token more for every member fits, whoever was taken last gives way."""
        while len(self.batch) and self.used() + len(self.batch) > self.capacity:
            if self._prefilling:
                job, lost = self._prefilling.popitem()
                self._answers -= job.made
            else:
                job = next(reversed(self.batch.members.values()))
                self.leave(job, now)
                lost, job.stored = job.stored, 0
            self._release(job)
            job.since = now
            self.recorder.at(Kind.PREEMPTED, job, self.number, now, now, tokens=lost)
            self.waiting.appendleft(job)

    def _shrink(self) -> None:
        self.cache.shrink((self.capacity - self.used()) // self._block_size)
