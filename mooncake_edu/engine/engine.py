"""One instance: takes requests, computes them step by step in one continuous batch, gives out tokens as they come."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, replace

import numpy as np
import torch
from torch import Tensor

from mooncake_edu.config import EngineConfig
from mooncake_edu.engine.recorder import Recorder
from mooncake_edu.engine.scheduler import Plan, Scheduler
from mooncake_edu.engine.sequence import Sequence
from mooncake_edu.engine.text import TextStream
from mooncake_edu.errors import RequestError
from mooncake_edu.events import EventLog
from mooncake_edu.kvcache import BlockLayout, BlockPool, PageTensors
from mooncake_edu.model import Model
from mooncake_edu.model.attention import Span, attention_for
from mooncake_edu.model.sampling import sample
from mooncake_edu.prefix import KeyChain, Namespace, PrefixCache
from mooncake_edu.request import FinishReason, Phase, Request, SamplingParams, Tokens, as_tokens


@dataclass(frozen=True, slots=True)
class Output:
    """What a step made for one request: tokens, the text now safe to show, and the reason if it ended."""

    request_id: str
    tokens: list[int]
    text: str
    finish: FinishReason | None = None


class Engine:
    """Serves one model from one paged KVCache.

    `submit` and `cancel` may be called from any thread at any moment; `step` is called by one thread, over and over.
    `memory` is the KVCache's, a flat uint8 tensor on the model's device; without it the engine takes its own.
    """

    def __init__(self, model: Model, config: EngineConfig, *, log: EventLog | None = None,
                 clock: Callable[[], float] = time.perf_counter, memory: Tensor | None = None,
                 instance: int = 0) -> None:  # fmt: skip
        shape, decoder = model.config, model.decoder
        layout = BlockLayout(shape.layers, shape.kv_heads, config.block_size, shape.head_dim, decoder.dtype)
        if memory is None:
            size = config.count_blocks(layout.nbytes // config.block_size) * layout.nbytes
            memory = torch.zeros(size, dtype=torch.uint8, device=decoder.device)
        self.model = model
        self.config = config
        self.log = log if log is not None else EventLog()
        self.pages = PageTensors(memory, layout)
        self.pool = BlockPool(self.pages.blocks)
        self.cache = PrefixCache(self.pool, compare=config.compare_tokens) if config.prefix_sharing else None
        self.scheduler = Scheduler(self.pool, self.cache, config)
        self._clock = clock
        self._record = Recorder(self.log, instance)
        self._lock = threading.Lock()
        self._sequences: dict[str, Sequence] = {}
        self._cancelled: set[str] = set()
        self._owed: list[Output] = []  # of a step that failed: the next one gives them out

    def submit(self, request: Request) -> None:
        """Queue a request; raises BusyError if it can't be served now, RequestError if never; then takes nothing."""
        with self._lock:
            self._take(request)

    def fork(self, request_id: str, fork_id: str, sampling: SamplingParams) -> Request:
        """Continue a decoding request a second time from its last token on, sharing all its pages (copy-on-write).

        Returns the new request, whose prompt is everything that the first had so far. Raises RequestError if the
        first is not decoding, BusyError if the batch is full.
        """
        with self._lock:
            self._require_new(fork_id)
            first, now = self._sequences.get(request_id), self._clock()
            if first is None or first.phase is not Phase.DECODE or first.table is None:
                raise RequestError(f"request {request_id} is not decoding: fork it between two of its tokens")
            if first.computed == first.length:
                raise RequestError(f"request {request_id} is in a step right now: fork it between two steps")
            request = replace(first.request, id=fork_id, prompt=first.tokens, sampling=sampling, arrival=now)
            self._require_possible(request)
            twin = self._sequence(request, now)
            self.scheduler.join(twin, first.table, first.published, now)
            self._record.arrived(request, now)
            self._sequences[fork_id] = twin
            return request

    def cancel(self, request_id: str) -> bool:
        """End a request before, or at the end of, the next step; False if it is not being served."""
        with self._lock:
            served = request_id in self._sequences
            if served:
                self._cancelled.add(request_id)
            return served

    @property
    def idle(self) -> bool:
        """Whether nothing is queued, in the batch or still to be given out."""
        return not self._sequences and not self._owed

    def stats(self) -> dict[str, int]:
        """Blocks free, used and cached, and requests waiting and running."""
        return {
            "free": self.pool.free,
            "used": self.pool.used,
            "cached": self.pool.cached,
            "waiting": len(self.scheduler.waiting),
            "running": len(self.scheduler.running),
        }

    @torch.inference_mode()
    def step(self) -> list[Output]:
        """One batch step; returns what it made. Without work it returns at once."""
        with self._lock:
            start = self._clock()
            outputs, self._owed = self._owed + self._end_all(sorted(self._cancelled), start), []
            plan = self.scheduler.plan(start)
            self._record.left(plan.left, start)
        if not plan.work:
            return outputs
        try:
            chosen = self._compute(plan)
        except BaseException:
            with self._lock:  # nothing of it was published: whoever was in the step will be computed again
                now, self._owed = self._clock(), outputs
                self._record.left(self.scheduler.abandon(plan, now), now)
            raise
        with self._lock:
            return outputs + self._commit(plan, chosen, start, self._clock())

    def run(self, requests: Iterable[Request]) -> Iterator[Output]:
        """Submit requests as the queue has room, and step until all are done; for the thread that steps.

        Leaving early ends those that are not done, at once.
        """
        source, submitted = iter(requests), set[str]()
        following = next(source, None)
        try:
            while following is not None or not self.idle:
                while following is not None and self._taken(following):
                    submitted.add(following.id)
                    following = next(source, None)
                for output in self.step():
                    if output.finish is not None:
                        submitted.discard(output.request_id)
                    yield output
        finally:
            with self._lock:
                self._end_all([name for name in submitted if name in self._sequences], self._clock())

    def generate(self, prompts: Iterable[Tokens | list[int]], sampling: SamplingParams) -> list[list[int]]:
        """The tokens made for each prompt, in order of the prompts."""
        requests = [Request(f"prompt-{n}", as_tokens(prompt), sampling) for n, prompt in enumerate(prompts)]
        made: dict[str, list[int]] = {request.id: [] for request in requests}
        for output in self.run(requests):
            if output.request_id in made:
                made[output.request_id] += output.tokens
        return list(made.values())

    def _taken(self, request: Request) -> bool:
        """Queue a request if the queue, which other threads fill too, has room; otherwise nothing is noted of it."""
        with self._lock:
            room = not self.scheduler.full
            if room:
                self._take(request)
            return room

    def _take(self, request: Request) -> None:
        self._require_new(request.id)
        now = self._clock()
        self._record.arrived(request, now)
        try:
            self._require_possible(request)
            sequence = self._sequence(request, now)
            self.scheduler.add(sequence)
        except RequestError as error:
            self._record.refused(request, error, now)
            raise
        self._sequences[request.id] = sequence

    def _require_new(self, request_id: str) -> None:
        if request_id in self._sequences:
            raise RequestError(f"request {request_id} is being served already: give each request a name of its own")

    def _require_possible(self, request: Request) -> None:
        shape, longest = self.model.config, int(request.prompt.max())
        if len(request.prompt) + request.sampling.max_tokens > shape.positions:
            raise RequestError(
                f"request {request.id}: {len(request.prompt)} prompt tokens and max_tokens "
                f"{request.sampling.max_tokens} are more than the {shape.positions} positions of {shape.name}: "
                "shorten one of them"
            )
        if longest >= shape.vocab:
            raise RequestError(
                f"request {request.id}: token {longest} is not one of the {shape.vocab} of {shape.name}: "
                "encode the prompt with this model's tokenizer"
            )

    def _sequence(self, request: Request, now: float) -> Sequence:
        namespace = Namespace(
            self.model.name,
            self.model.revision,
            str(self.model.decoder.dtype),
            self.config.block_size,
            request.adapter,
            request.adapter_version,
            request.salt,
        )
        chain = KeyChain(namespace.encode(), self.config.block_size)
        return Sequence(request, chain, TextStream(self.model.tokenizer, request.sampling.stop), now)

    def _compute(self, plan: Plan) -> dict[Sequence, int | None]:
        """Run the model; the next token of every sequence that gets one, None where its logits are not numbers."""
        decoder = self.model.decoder
        spans = [Span(work.sequence.table.blocks, work.start, work.count) for work in plan.work if work.sequence.table]
        self.pages.copy(plan.copies)
        self._blank(spans)
        tokens = np.concatenate([work.sequence.tokens[work.start : work.start + work.count] for work in plan.work])
        inputs = torch.from_numpy(tokens.astype(np.int64)).to(decoder.device)
        hidden = decoder.forward(inputs, attention_for(self.pages.tensor, spans))
        ends = np.cumsum([work.count for work in plan.work]) - 1
        choosing = [number for number, work in enumerate(plan.work) if work.completes]
        if not choosing:
            return {}
        logits = decoder.logits(hidden[torch.from_numpy(ends[choosing]).to(decoder.device)])
        return choose(logits, [plan.work[number].sequence for number in choosing])

    def _blank(self, spans: list[Span]) -> None:
        """Clear the blocks that are begun but not filled: whatever lies there is masked, yet must be numbers."""
        size = self.config.block_size
        last = [((span.stop - 1) // size, span) for span in spans if span.stop % size]
        begun = [span.blocks[number] for number, span in last if span.start <= number * size]
        if begun:
            self.pages.tensor[begun] = 0

    def _commit(self, plan: Plan, chosen: dict[Sequence, int | None], start: float, end: float) -> list[Output]:
        """Publish the blocks that are full now, hand out the tokens chosen, end what is done."""
        outputs = []
        failed = {sequence for sequence, token in chosen.items() if token is None}
        self._record.chunks([work for work in plan.work if work.sequence not in failed], start, end)
        for work in plan.work:
            sequence = work.sequence
            if sequence in failed:  # nothing came of its step: for the record it ends where the step began
                outputs.append(self._end(sequence, FinishReason.FAILED, start))
                continue
            if self.cache is not None and sequence.table is not None:
                sequence.published = self.cache.publish(
                    sequence.table, sequence.chain, sequence.tokens, sequence.published
                )
            if (token := chosen.get(sequence)) is not None:
                outputs.append(self._advance(sequence, token, end))
            elif sequence.request.id in self._cancelled:
                outputs.append(self._end(sequence, FinishReason.CANCELLED, end))
        self._record.step(plan, self.pool, start, end)
        return outputs

    def _advance(self, sequence: Sequence, token: int, now: float) -> Output:
        text, reason = sequence.append(token, self.model.tokenizer.eos)
        if reason is None and sequence.request.id in self._cancelled:
            reason = FinishReason.CANCELLED
        if sequence.phase is not Phase.DECODE:
            sequence.enter(Phase.DECODE, now)
        if reason is None:
            return Output(sequence.request.id, [token], text)
        return self._end(sequence, reason, now, [token], text)

    def _end_all(self, names: Iterable[str], now: float) -> list[Output]:
        return [self._end(self._sequences[name], FinishReason.CANCELLED, now) for name in names]

    def _end(self, sequence: Sequence, reason: FinishReason, now: float, tokens: list[int] | None = None,
             text: str = "") -> Output:  # fmt: skip
        name = sequence.request.id
        self._record.finished(sequence, reason, now)
        self.scheduler.remove(sequence)
        del self._sequences[name]
        self._cancelled.discard(name)
        return Output(name, tokens or [], text + sequence.text.finish(), reason)


def choose(logits: Tensor, sequences: list[Sequence]) -> dict[Sequence, int | None]:
    """The next token of each sequence; one whose logits are not finite gets None and leaves the others alone."""

    def pick(rows: Tensor, chosen: list[Sequence]) -> list[int]:
        return sample(rows, [each.request.sampling for each in chosen], [each.made for each in chosen])

    try:
        return dict(zip(sequences, pick(logits, sequences), strict=True))
    except ValueError:
        healthy = logits.isfinite().all(dim=-1).tolist()
        return {each: pick(row[None], [each])[0] if fine else None
                for each, row, fine in zip(sequences, logits, healthy, strict=True)}  # fmt: skip
