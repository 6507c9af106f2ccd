"""A prefill instance: prompts one after the other, in chunks, through a group of pipeline stages.

What a prompt reuses is looked up when its turn comes. Layer by layer, the KVCache of the reused prefix is loaded while
layers before are computed, and what is computed is stored and sent on while layers behind are; at the end an instance
waits for its stores. Otherwise loading, computing and storing follow each other, and sending begins when the first
token is there. The prefix is loaded with the first chunk, each stage loading and storing its own layers. A pipeline
takes the next prompt when its first stage is free and what was to be fetched for that prompt is there. Of a request
whose KVCache was lost where it decoded, the tokens that it has made are computed again behind its prompt.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence
from functools import partial
from typing import NamedTuple, Protocol

import numpy as np

from mooncake_edu.events import Kind
from mooncake_edu.model.costs import CostModel
from mooncake_edu.simulation.agenda import Action, Agenda, Rank
from mooncake_edu.simulation.caches import NodeCache
from mooncake_edu.simulation.job import Job
from mooncake_edu.simulation.record import Recorder


class Work(NamedTuple):
    """Seconds of one chunk in one stage: loading the prefix it needs, computing, and storing."""

    load: float
    compute: float
    store: float


class Passage(NamedTuple):
    """How one chunk went through one stage: when one layer was computed, all layers, and all of them stored.

    `free` is when the stage can take the next chunk.
    """

    first: float
    computed: float
    stored: float
    free: float


def by_layer(start: float, stored: float, work: Work, layers: int) -> Passage:
    """A chunk whose layers are loaded, computed and stored in turn, each part while the others do other layers.

    Loading layer i takes a time, computing it begins when it is loaded and layer i - 1 computed, storing when it is
    computed and what came before is stored (at `stored`). Of such maxima over lines in i only the ends count.
    """
    load, compute, store = (time / layers for time in work)
    first = start + load + compute
    computed = first + (layers - 1) * max(load, compute)
    return Passage(first, computed, max(stored + work.store, first + work.store, computed + store), computed)


def in_turn(start: float, stored: float, work: Work, layers: int) -> Passage:
    """A chunk that is loaded, then computed, then stored."""
    computed = start + work.load + work.compute
    free = computed + work.store
    return Passage(computed, computed, free, free)


Through = Callable[[float, float, Work, int], Passage]


class Flow(NamedTuple):
    """When a prefill of `tokens` begins to send its KVCache, when its token is there, and when all of it is stored."""

    begin: float
    computed: float
    stored: float
    tokens: int


class Done(NamedTuple):
    """A prefill: when it `began`, seconds of loading the `hit` tokens, and of each chunk the span, start and tokens."""

    began: float
    load: float
    hit: int
    parts: list[tuple[float, float, int, int]]


class Cluster(Protocol):
    """What a prefill instance tells."""

    def withdrawn(self, job: Job, now: float) -> bool:
        """Whether a prompt whose turn has come is turned away after all."""

    def taken(self, job: Job, until: float, now: float) -> None:
        """A prompt's turn has come."""

    def free(self, number: int, now: float) -> None:
        """The next prompt can be taken."""

    def streaming(self, job: Job, flow: Flow, last: float, now: float) -> None:
        """KVCache begins to move; `last` is the share of it that is there only when the first token is."""

    def first(self, job: Job, now: float) -> None:
        """The first token is there, or the next one of a request that was lost."""

    def ended(self, job: Job, now: float) -> None:
        """A request has all its tokens."""

    def moved(self, what: str, size: float) -> None:
        """Bytes were loaded or stored."""


class PrefillInstance:
    """A group of `stages` nodes that computes prompts in chunks of at most `chunk` tokens, first come, first served."""

    def __init__(
        self, number: int, stages: int, chunk: int, layers: int, through: Through, block_size: int, costs: CostModel,
        cache: NodeCache, agenda: Agenda, recorder: Recorder, cluster: Cluster,
    ) -> None:  # fmt: skip
        self.number = number
        self.busy = 0.0  # seconds of all stages together, over their number
        self.cache = cache
        self._stages, self._chunk, self._through = stages, chunk, through
        self._layers = max(layers // stages, 1)
        self._block_size, self._costs = block_size, costs
        self._agenda, self._recorder, self._cluster = agenda, recorder, cluster
        self._queue: deque[Job] = deque()
        self._free = [0.0] * stages
        self._spans: list[tuple[float, float]] = []  # of computing, in all stages; those that are over are dropped
        self._idle = True
        self._held = False  # by the fetch of whose turn it is
        self._life = 0  # what was to happen in a life before does not

    def submit(self, job: Job, now: float) -> None:
        """A request was placed here."""
        self._queue.append(job)
        if self._idle:
            self._idle = False
            self._put(now, Rank.TAKEN, self.number, self._take)

    def fail(self, now: float) -> list[int]:
        """Everything here is lost, cache and work alike; returns the ids that were held."""
        self.busy -= sum(max(end - max(begin, now), 0.0) for begin, end in self._spans) / self._stages
        self._spans = []
        self._life += 1
        self._queue.clear()
        self._free = [0.0] * self._stages
        self._idle, self._held = True, False
        return self.cache.clear()

    def _put(self, time: float, rank: Rank, number: int, action: Action) -> None:
        self._agenda.put(time, rank, number, partial(self._act, self._life, action))

    def _act(self, life: int, action: Action, now: float) -> None:
        if self._life == life:
            action(now)

    def fetched(self, now: float) -> None:
        """The prefix of a request has come."""
        if self._held:
            self._held = False
            self._put(now, Rank.TAKEN, self.number, self._take)

    def _take(self, now: float) -> None:
        while self._queue and not self._queue[0].fetching and self._cluster.withdrawn(self._queue[0], now):
            self._queue.popleft()
        if not self._queue:
            self._idle = True
            return
        if self._queue[0].fetching:
            self._held = True
            return
        job = self._queue.popleft()
        hits, load = self._reuse(job)
        if not job.made:
            job.started, job.hits = now, hits
        self._recorder.at(Kind.QUEUED, job, self.number, job.since, now)
        start, stop = min(sum(hits.values()), job.prompt - 1), job.prompt + job.made
        chunks = [(at, min(at + self._chunk, stop)) for at in range(start, stop, self._chunk)]
        flow, parts = self._compute(job, chunks, load, now)
        self._cluster.taken(job, self._free[0], now)
        last = (chunks[-1][1] - chunks[-1][0]) / stop / (self._layers * self._stages)
        if self._through is in_turn:
            flow, last = flow._replace(begin=flow.computed), 1.0
        put, number = self._put, job.number
        put(flow.begin, Rank.MOVED, -1 - number, partial(self._cluster.streaming, job, flow, last))
        done = Done(now, load, sum(hits.values()), parts)
        put(flow.computed, Rank.PREFILLED, number, partial(self._computed, job, done))
        put(flow.stored, Rank.STORED, number, partial(self._store, job))
        put(self._free[0], Rank.TAKEN, self.number, self._next)

    def _computed(self, job: Job, done: Done, now: float) -> None:
        self._tell(job, done)
        job.made, job.stored = job.made + 1, job.prompt + job.made
        job.times.append(np.array([now]))
        self._cluster.first(job, now)
        if not job.left:
            self._cluster.ended(job, now)

    def _next(self, now: float) -> None:
        self._cluster.free(self.number, now)
        self._take(now)

    def _reuse(self, job: Job) -> tuple[dict[str, int], float]:
        """The tokens that each tier holds of a prompt, all but its last token, and the seconds of loading them."""
        left, seconds, hits = job.prompt - 1, 0.0, {}
        found = self.cache.match(job.ids)
        for tier in self.cache.tiers:
            tokens = min(found[tier.name] * self._block_size, left)
            left -= tokens
            size = tokens * self._costs.token_bytes
            hits[tier.name] = tokens
            seconds += size / tier.bandwidth
            self._cluster.moved(f"load {tier.name}", size)
        if job.borrowed > sum(found.values()):
            hits["borrowed"] = min(left, (job.borrowed - sum(found.values())) * self._block_size)
            seconds += hits["borrowed"] * self._costs.token_bytes / self._costs.host
        return hits, seconds

    def _store(self, job: Job, _: float) -> None:
        """Keep a prompt; behind a prefix that was only borrowed, nothing of it can be kept."""
        held = sum(self.cache.match(job.ids).values()) if job.borrowed else 0
        self.cache.store(job.ids[:held] if job.borrowed > held else job.ids)

    def _tell(self, job: Job, done: Done) -> None:
        """Record a prefill when it has ended; of one that was lost, nothing is told."""
        if done.hit:
            size = done.hit * self._costs.token_bytes
            self._recorder.at(Kind.LOAD, job, self.number, done.began, done.began + done.load, tokens=done.hit,
                              bytes=size)  # fmt: skip
        for begin, end, start, tokens in done.parts:
            self._recorder.at(Kind.CHUNK, job, self.number, begin, end, tokens=tokens, position=start, cached=0)
            self._recorder.prefill_step(self.number, begin, end, tokens)

    def _compute(
        self, job: Job, chunks: Sequence[tuple[int, int]], load: float, now: float
    ) -> tuple[Flow, list[tuple[float, float, int, int]]]:
        """Send all chunks through the stages, and say when what happens, and when each chunk was where."""
        stages, stored, begin, at = self._stages, [0.0] * self._stages, 0.0, now
        self._spans = [span for span in self._spans if span[1] > now]
        job.worked, parts = 0.0, []
        for start, stop in chunks:
            size = (stop - start) * self._costs.token_bytes
            work = Work(load / stages, self._costs.step([(start, stop)]) / stages, size / self._costs.host / stages)
            at = entered = max(now, self._free[0])
            for stage in range(stages):
                at = max(at, self._free[stage])
                passage = self._through(at, stored[stage], work, self._layers)
                job.worked += (passage.free - at) / stages
                self._spans.append((at, passage.free))
                begin, stored[stage] = begin or passage.first, passage.stored
                self._free[stage], at = passage.free, passage.computed
            parts.append((entered, at, start, stop - start))
            self._cluster.moved("store", size)
            load = 0.0
        self.busy += job.worked
        self._free = [max(free, end) for free, end in zip(self._free, stored, strict=True)]
        return Flow(begin, at, max(stored), chunks[-1][1]), parts
