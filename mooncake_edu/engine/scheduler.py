"""Who is computed in the next step: continuous batching with chunked prefill under a token budget.

Decisions only: it moves references in the block pool, but computes nothing, reads no clock and starts no thread.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, field

from mooncake_edu.config import EngineConfig
from mooncake_edu.engine.sequence import Sequence
from mooncake_edu.errors import BusyError, RequestError
from mooncake_edu.kvcache import BlockPool, BlockTable
from mooncake_edu.prefix import Key, PrefixCache
from mooncake_edu.request import Phase


@dataclass(frozen=True, slots=True)
class Work:
    """`count` tokens of a sequence to be computed behind `start` that are in the pages.

    `decodes` tells the one token of a decoding sequence from a chunk of a prompt. `cached` tokens were found in the
    prefix cache; they are counted once, where the sequence starts or restarts.
    """

    sequence: Sequence
    start: int
    count: int
    decodes: bool
    cached: int = 0

    @property
    def completes(self) -> bool:
        """Whether the next token of the sequence can be chosen after this."""
        return self.start + self.count == self.sequence.length


@dataclass(frozen=True, slots=True)
class Left:
    """A phase that a sequence left, for the record; `lost` computed tokens if it was sent back to the queue."""

    sequence: Sequence
    phase: Phase
    since: float
    made: int
    lost: int = 0


@dataclass(slots=True)
class Plan:
    """What one step does: copy blocks, then compute the work; and which phases ended where it begins."""

    work: list[Work] = field(default_factory=list)
    copies: list[tuple[int, int]] = field(default_factory=list)
    left: list[Left] = field(default_factory=list)


class Scheduler:
    """A bounded queue, and the batch in order of age: a younger sequence gives way to an older one, never the reverse.

    So the oldest moves on in every step, and since no sequence is taken that could not fit alone, all of them finish.
    """

    def __init__(self, pool: BlockPool, cache: PrefixCache | None, config: EngineConfig) -> None:
        self.waiting: deque[Sequence] = deque()
        self.running: list[Sequence] = []
        self._pool = pool
        self._cache = cache
        self._config = config

    @property
    def full(self) -> bool:
        """Whether the queue takes no more."""
        return len(self.waiting) >= self._config.max_queue

    def add(self, sequence: Sequence) -> None:
        """Queue a sequence; raises BusyError if the queue is full, RequestError if the sequence could never fit."""
        request = sequence.request
        self._require_fit(sequence)
        if self.full:
            raise BusyError(f"request {request.id}: {len(self.waiting)} requests wait already: try again later")
        self.waiting.append(sequence)

    def join(self, sequence: Sequence, table: BlockTable, published: int, now: float) -> None:
        """Put a sequence that has its pages already into the batch; raises BusyError if the batch is full.

        Raises RequestError if the sequence could never fit alone.
        """
        self._require_fit(sequence)
        if len(self.running) >= self._config.max_batch:
            raise BusyError(f"request {sequence.request.id}: the batch of {len(self.running)} is full: try again later")
        sequence.table, sequence.published = table.fork(), published
        sequence.enter(Phase.PREFILL, now)
        self.running.append(sequence)

    def remove(self, sequence: Sequence) -> None:
        """Take a sequence out, wherever it is, and free its pages."""
        if sequence in self.running:
            self.running.remove(sequence)
        else:
            self.waiting.remove(sequence)
        sequence.release()

    def plan(self, now: float) -> Plan:
        """The next step: every decoding sequence, then as much prefill as the budget holds, then newcomers."""
        plan = Plan()
        spare = self._config.token_budget - sum(sequence.phase is Phase.DECODE for sequence in self.running)
        for sequence in list(self.running):
            if sequence.table is None:  # it gave way to an older one, a few lines above
                continue
            decodes = sequence.phase is Phase.DECODE
            wanted = 1 if decodes else min(sequence.length - sequence.computed, spare)
            count = self._make_room(sequence, sequence.table, wanted, plan, now)
            if count:
                self._schedule(plan, sequence, sequence.table, count)
                spare -= 0 if decodes else count
        self._admit(plan, 0 if any(left.lost for left in plan.left) else spare, now)
        return plan

    def abandon(self, plan: Plan, now: float) -> list[Left]:
        """Send everybody in a step that failed back to the queue; returns the phases they left."""
        undone = Plan()
        for work in reversed(plan.work):
            self._send_back(work.sequence, undone, now)
        return undone.left

    def _require_fit(self, sequence: Sequence) -> None:
        request, size = sequence.request, self._config.block_size
        needed = -(-(sequence.length + request.sampling.max_tokens - 1) // size)  # the last token is not stored
        if needed > self._pool.total:
            raise RequestError(
                f"request {request.id}: {sequence.length} prompt tokens and max_tokens {request.sampling.max_tokens} "
                f"need {needed} blocks of {size} tokens, the KVCache has {self._pool.total}: shorten one of them"
            )

    def _make_room(self, sequence: Sequence, table: BlockTable, wanted: int, plan: Plan, now: float) -> int:
        """How many of the tokens wanted have blocks; if none has, younger sequences give way until one does."""
        while wanted and not table.room():
            victim = self.running[-1]
            self._send_back(victim, plan, now)
            if victim is sequence:
                return 0
        return min(wanted, table.room())

    def _send_back(self, sequence: Sequence, plan: Plan, now: float) -> None:
        self._enter(Phase.QUEUED, sequence, plan, now, lost=sequence.computed)
        self.running.remove(sequence)
        sequence.release()
        self.waiting.appendleft(sequence)

    def _enter(self, phase: Phase, sequence: Sequence, plan: Plan, now: float, lost: int = 0) -> None:
        if sequence.phase is not phase:
            made = sequence.made - sequence.made_before
            plan.left.append(Left(sequence, sequence.phase, sequence.since, made, lost))
            sequence.enter(phase, now)

    def _schedule(self, plan: Plan, sequence: Sequence, table: BlockTable, count: int, cached: int = 0) -> None:
        start = table.length
        plan.copies += table.extend(count)
        plan.work.append(Work(sequence, start, count, sequence.phase is Phase.DECODE, cached))

    def _admit(self, plan: Plan, spare: int, now: float) -> None:
        """Start waiting sequences in order, while budget, places and blocks for their whole prompts last.

        Behind those, only sequences that wait for KVCache are looked at: they must know when it has come.
        """
        under_way, ended = self._under_way(), False
        for number, sequence in enumerate(list(self.waiting)):
            ended = ended or spare <= 0 or max(number, len(self.running)) >= self._config.max_batch
            if ended and sequence.phase is not Phase.LOADING:
                continue
            blocks = self._cache.match(sequence.chain, sequence.tokens) if self._cache else []
            if self._next_key(sequence, len(blocks)) in under_way:
                self._enter(Phase.LOADING, sequence, plan, now)
                continue
            if ended:
                self._enter(Phase.QUEUED, sequence, plan, now)
                continue
            table = BlockTable(self._pool, self._config.block_size, blocks)  # pins them: they cannot be reused now
            rest = sequence.length - table.length
            if table.needs(rest) > self._pool.available:
                table.release()
                self._enter(Phase.QUEUED, sequence, plan, now)
                ended = True
                continue
            self._enter(Phase.PREFILL, sequence, plan, now)
            self.waiting.remove(sequence)
            self.running.append(sequence)
            sequence.table, sequence.published = table, len(blocks)
            self._schedule(plan, sequence, table, min(rest, spare), cached=table.length)
            spare -= min(rest, spare)
            under_way.update(sequence.chain.keys[len(blocks) :])

    def _under_way(self) -> set[Key]:
        """Keys of the blocks that prompts in the batch are about to compute: whoever needs one next waits for it."""
        prompts = (sequence for sequence in self.running if sequence.phase is Phase.PREFILL)
        return {key for sequence in prompts for key in sequence.chain.keys[sequence.published :]}

    def _next_key(self, sequence: Sequence, matched: int) -> Key | None:
        """The key of the first block that is not cached, if it is one that could be reused."""
        usable = (sequence.length - 1) // self._config.block_size
        return sequence.chain.keys[matched] if self._cache and matched < usable else None
