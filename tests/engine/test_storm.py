"""Whatever users do in whatever order: no block is lost, every request ends once, and the record tells it all."""

from __future__ import annotations

import dataclasses
from collections import Counter
from typing import Any

import numpy as np
import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule
from torch import Tensor

from mooncake_edu.engine import Output
from mooncake_edu.errors import BusyError, RequestError
from mooncake_edu.events import FINISH_CODES, Kind
from mooncake_edu.model.attention import Attention
from mooncake_edu.model.decoder import Decoder
from mooncake_edu.request import FinishReason, Phase, Request, SamplingParams
from tests.engine.plain import SMALL, plain, small_engine, small_model

TEXT = [int(token) for token in np.random.default_rng(5).integers(0, 250, 40)]


class Broken(Exception):
    """A machine that failed in the middle of a step."""


class Fragile(Decoder):
    """A decoder that fails once, after its work, whenever it is told to."""

    failing = False

    def forward(self, x: Tensor, attention: Attention) -> Tensor:
        """See Decoder."""
        hidden = super().forward(x, attention)
        if self.failing:
            self.failing = False
            raise Broken
        return hidden


class Storm(RuleBasedStateMachine):
    """Submits, forks, cancels and steps an engine whose pool is too small for its batch."""

    @initialize(
        block_size=st.integers(1, 5), spare=st.integers(0, 12), max_batch=st.integers(1, 4), budget=st.integers(0, 12),
        sharing=st.booleans(), max_queue=st.integers(3, 12),
    )  # fmt: skip
    def build(self, block_size: int, spare: int, max_batch: int, budget: int, sharing: bool, max_queue: int) -> None:
        self.decoder = Fragile(SMALL, small_model().decoder.weights)
        self.engine = small_engine(
            model=dataclasses.replace(small_model(), decoder=self.decoder),
            block_size=block_size,
            blocks=-(-24 // block_size) + spare,
            max_batch=max_batch,
            token_budget=max_batch + budget,
            prefix_sharing=sharing,
            max_queue=max_queue,
        )
        self.asked: dict[str, Request] = {}
        self.refused: set[str] = set()
        self.made: dict[str, list[int]] = {}
        self.times: dict[str, list[float]] = {}
        self.ends: dict[str, FinishReason] = {}
        self.steps = 0

    def name(self) -> str:
        return f"r{len(self.asked) + len(self.refused)}"

    @rule(start=st.sampled_from((0, 0, 7)), length=st.integers(0, 14), ends=st.lists(st.integers(0, 2), min_size=1,
          max_size=4), tokens=st.integers(1, 10), temperature=st.sampled_from((0.0, 1.0)))  # fmt: skip
    def submit(self, start: int, length: int, ends: list[int], tokens: int, temperature: float) -> None:
        for end in ends:
            sampling = SamplingParams(max_tokens=tokens, temperature=temperature)
            request = Request(self.name(), [*TEXT[start : start + length], end], sampling)
            try:
                self.engine.submit(request)
                self.asked[request.id] = request
            except BusyError:
                assert len(self.engine.scheduler.waiting) >= self.engine.config.max_queue
                self.refused.add(request.id)

    @rule(token=st.integers(SMALL.vocab, 2**32 - 1))
    def submit_what_cannot_be_served(self, token: int) -> None:
        name = self.name()
        with pytest.raises(RequestError):
            self.engine.submit(Request(name, [1, token]))
        self.refused.add(name)

    @rule(which=st.integers(0, 20), tokens=st.integers(1, 6))
    def fork(self, which: int, tokens: int) -> None:
        decoding = [s for s in self.engine.scheduler.running if s.phase is Phase.DECODE]
        if not decoding:
            return
        origin = decoding[which % len(decoding)]
        name = self.name()
        try:
            self.asked[name] = self.engine.fork(origin.request.id, name, SamplingParams(max_tokens=tokens))
        except BusyError:
            assert len(self.engine.scheduler.running) == self.engine.config.max_batch
        except RequestError:
            assert origin.length + tokens - 1 > 24

    @rule(which=st.integers(0, 20))
    def cancel(self, which: int) -> None:
        names = list(self.asked)
        if names:
            name = names[which % len(names)]
            over = {*self.ends, *(output.request_id for output in self.engine._owed)}
            assert self.engine.cancel(name) == (name not in over)

    @rule(times=st.integers(1, 8))
    def step(self, times: int) -> None:
        for _ in range(times):
            self.take(self.engine.step())

    @rule()
    def fail(self) -> None:
        self.decoder.failing = True
        try:
            self.take(self.engine.step())
        except Broken:
            assert not self.engine.idle  # nobody is lost
        self.decoder.failing = False

    def take(self, outputs: list[Output]) -> None:
        now = self.engine._clock.now  # type: ignore[attr-defined]
        assert len({output.request_id for output in outputs}) == len(outputs)
        for output in outputs:
            assert output.request_id not in self.ends, "an output after the end"
            self.made.setdefault(output.request_id, []).extend(output.tokens)
            self.times.setdefault(output.request_id, []).extend([now] * len(output.tokens))
            if output.finish is not None:
                self.ends[output.request_id] = output.finish

    @invariant()
    def blocks_add_up_and_every_reference_has_its_table(self) -> None:
        if not hasattr(self, "engine"):
            return
        pool, scheduler = self.engine.pool, self.engine.scheduler
        assert pool.free + pool.used + pool.cached == pool.total
        tables = [sequence.table for sequence in scheduler.running if sequence.table]
        assert len(tables) == len(scheduler.running) <= self.engine.config.max_batch
        references = Counter(block for table in tables for block in table.blocks)
        assert all(pool.references(block) == references[block] for block in range(pool.total))
        assert all(sequence.table is None for sequence in scheduler.waiting)

    def teardown(self) -> None:
        if not hasattr(self, "engine"):
            return
        for _ in range(2000):
            if self.engine.idle:
                break
            self.take(self.engine.step())
        stats = self.engine.stats()
        assert self.engine.idle and stats["used"] == stats["waiting"] == stats["running"] == 0
        assert self.ends.keys() == self.asked.keys()
        self.check_tokens()
        self.check_record()

    def check_tokens(self) -> None:
        for name, request in self.asked.items():
            whole, made = plain(request.prompt, request.sampling), self.made.get(name, [])
            assert made == (whole[: len(made)] if self.ends[name] is FinishReason.CANCELLED else whole)

    def check_record(self) -> None:
        log = self.engine.log
        table, codes = log.requests(), {name: FINISH_CODES[reason] for name, reason in self.ends.items()}
        assert set(table.id) == self.asked.keys() | self.refused and table.complete.all()
        for row, name in enumerate(table.id):
            assert int(table.reason[row]) == codes.get(name, FINISH_CODES[FinishReason.REFUSED])
            assert int(table.output[row]) == len(self.made.get(name, []))
            assert int(table.cached[row]) < int(table.prompt[row])
            assert log.token_times(name).tolist() == self.times.get(name, [])
            ended = log.select(Kind.FINISHED, Kind.REFUSED, request=name)
            assert len(ended) == 1
        self.check_steps(log.select(Kind.STEP))

    def check_steps(self, steps: Any) -> None:
        prefill, decode, *blocks = (
            steps.field(Kind.STEP, name) for name in ("prefill", "decode", "used", "cached", "free")
        )
        config = self.engine.config
        assert (sum(blocks) == self.engine.pool.total).all() and (prefill + decode <= config.token_budget).all()
        chunks, decodes = self.engine.log.select(Kind.CHUNK), self.engine.log.select(Kind.DECODE)
        assert prefill.sum() == chunks.field(Kind.CHUNK, "tokens").sum()
        assert decode.sum() == decodes.field(Kind.DECODE, "tokens").sum()
        assert (steps.start[1:] >= steps.end[:-1]).all()


TestStorm = Storm.TestCase
TestStorm.settings = settings(max_examples=80, stateful_step_count=50, deadline=None)
