"""The exercises of chapter 00: latencies, bytes of KVCache, intensity of a decode step, the best batch size."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from functools import partial
from itertools import pairwise
from typing import TYPE_CHECKING

from mooncake_edu.course.check import Answer, Exercise, Score, Trial
from mooncake_edu.model.config import LLAMA_70B, SMOLLM2_135M, TINY

if TYPE_CHECKING:
    from mooncake_edu.model.config import ModelConfig

CLOSE = 1e-9  # relative: sums may be taken in any order


@dataclass(frozen=True)
class Shape:
    """What of a model decides how large its KVCache is; `heads` are those of the queries."""

    layers: int
    heads: int
    kv_heads: int
    head_dim: int
    hidden: int


@dataclass(frozen=True)
class Machine:
    """What a decode instance has: memory in bytes, rates in bytes/s and FLOP/s, and the model that it serves.

    `weights` counts numbers, `kvcache` the bytes of KVCache of one request.
    """

    memory: float
    memory_rate: float
    compute_rate: float
    weights: int
    itemsize: int
    kvcache: float

    def fits(self, batch: int) -> bool:
        """Whether the weights and the KVCache of `batch` requests have room together."""
        return self.weights * self.itemsize + batch * self.kvcache <= self.memory

    def step_time(self, batch: int) -> float:
        """Seconds of a decode step under the roof: as long as its arithmetic or its reading takes, if that is more."""
        flops = 2 * self.weights * batch
        read = self.weights * self.itemsize + batch * self.kvcache
        return max(flops / self.compute_rate, read / self.memory_rate)


def _shape(config: ModelConfig) -> Shape:
    return Shape(config.layers, config.heads, config.kv_heads, config.head_dim, config.hidden)


def _times() -> Iterator[tuple[float, list[float]]]:
    """Arrival and token times, seconds."""
    yield 0.0, [1.0]
    yield 2.0, [3.0]
    yield 2.0, [3.0, 3.5]
    yield 1.0, [4.0, 4.5, 4.75]
    yield 0.0, [9.0, 9.25, 9.75, 10.0]
    for count, slow in ((10, {4}), (11, {2, 7}), (25, {3, 11, 20})):
        times = [5.0]
        for interval in range(count):
            times.append(times[-1] + (0.5 + interval / 64 if interval in slow else 0.125))
        yield 4.0, times


def _right_latencies(arrival: float, times: list[float]) -> tuple[float, float | None]:
    intervals = sorted(later - sooner for sooner, later in pairwise(times))
    slowest = intervals[-math.ceil(len(intervals) / 10) :] if intervals else []
    return times[0] - arrival, sum(slowest) / len(slowest) if slowest else None


def judge_latencies(answer: Answer, case: tuple[float, list[float]]) -> Trial:
    """Whether TTFT and TBT are those of a request that arrived and whose tokens appeared then."""
    ttft, tbt = _right_latencies(*case)
    given = answer(*case)
    if not isinstance(given, tuple) or len(given) != 2:
        return Trial(f"Give a pair, TTFT and TBT, not {given!r}.")
    if not _close(given[0], ttft):
        return Trial(f"TTFT runs from the arrival to the first token: {ttft:g} s, not {given[0]!r}.")
    if tbt is None:
        return Trial(None if given[1] is None else f"One token has no interval: TBT is None, not {given[1]!r}.")
    if not _close(given[1], tbt):
        count = math.ceil((len(case[1]) - 1) / 10)
        return Trial(f"TBT is the mean of the longest tenth, here {count}, of the {len(case[1]) - 1} intervals between "
                     f"tokens: {tbt:g} s, not {given[1]!r}.")  # fmt: skip
    return Trial()


def _shapes() -> Iterator[tuple[Shape, int]]:
    """A model's shape and the bytes of a number."""
    yield Shape(layers=1, heads=1, kv_heads=1, head_dim=2, hidden=2), 1
    yield Shape(layers=1, heads=1, kv_heads=1, head_dim=2, hidden=2), 2
    yield Shape(layers=3, heads=1, kv_heads=1, head_dim=2, hidden=2), 2
    yield Shape(layers=3, heads=4, kv_heads=2, head_dim=8, hidden=24), 2
    for config, itemsize in ((TINY, 4), (SMOLLM2_135M, 4), (SMOLLM2_135M, 2), (LLAMA_70B, 2)):
        yield _shape(config), itemsize


def judge_kvcache(answer: Answer, case: tuple[Shape, int]) -> Trial:
    """Whether these are the bytes of one token's keys and values in all layers."""
    shape, itemsize = case
    right, given = 2 * shape.layers * shape.kv_heads * shape.head_dim * itemsize, answer(*case)
    if not _close(given, right):
        return Trial(f"One token keeps a key and a value in each layer for each KV head: {right:,} bytes, "
                     f"not {given!r}.")  # fmt: skip
    return Trial()


def _decodes() -> Iterator[tuple[int, int, int, float]]:
    """Weights, batch, bytes of a number, bytes of KVCache a request."""
    yield 10, 1, 2, 0
    yield 10, 1, 4, 0
    yield 10, 3, 4, 0
    yield 10, 1, 2, 20
    yield 10, 3, 2, 20
    yield 70_000_000_000, 16, 2, 8192 * 327_680


def judge_intensity(answer: Answer, case: tuple[int, int, int, float]) -> Trial:
    """Whether this is the arithmetic intensity of that decode step."""
    weights, batch, itemsize, kvcache = case
    flops, nbytes = 2 * weights * batch, weights * itemsize + batch * kvcache
    given = answer(*case)
    if not _close(given, flops / nbytes):
        return Trial(f"The step does {flops:,} operations and reads {nbytes:,} bytes, the weights once and every "
                     f"request's KVCache: {flops / nbytes:.4g} FLOP per byte, not {given!r}.")  # fmt: skip
    return Trial()


SMALL = Machine(memory=100, memory_rate=10, compute_rate=100, weights=20, itemsize=2, kvcache=10)
LAPTOP = Machine(16e9, 20e9, 200e9, 135_000_000, 4, 512 * 46_080)
SERVER = Machine(8 * 80e9, 8 * 2e12, 8 * 312e12, 70_000_000_000, 2, 8192 * 327_680)


def _machines() -> Iterator[tuple[Machine, float]]:
    """A machine and the SLO of TBT, seconds."""
    yield SMALL, 5.0
    yield SMALL, 8.0
    yield SMALL, 100.0
    yield SMALL, 1.0
    yield Machine(1000, 100, 20, 20, 2, 1), 6.0
    yield LAPTOP, 0.1
    yield SERVER, 0.1


def judge_batch(answer: Answer, case: tuple[Machine, float]) -> Trial:
    """Whether a batch of that size fits and keeps the SLO; how large it should be is scored."""
    machine, tbt_slo = case
    given = answer(machine, tbt_slo)
    if isinstance(given, bool) or not isinstance(given, int) or given < 0:
        return Trial(f"A batch size is a whole number from 0, not {given!r}.")
    if given and not machine.fits(given):
        return Trial(f"A batch of {given} needs {machine.weights * machine.itemsize + given * machine.kvcache:,.0f} "
                     f"bytes, the machine has {machine.memory:,.0f}.")  # fmt: skip
    if given and machine.step_time(given) > tbt_slo:
        took = machine.step_time(given)
        return Trial(f"A step with a batch of {given} takes {took:g} s, the SLO allows {tbt_slo:g}.")
    return Trial()


HELD_OUT = (
    (Machine(640e9, 16e12, 2.5e15, 70_000_000_000, 2, 2_000 * 327_680), 0.02),
    (Machine(640e9, 16e12, 2.5e15, 70_000_000_000, 2, 32_768 * 327_680), 0.1),
    (Machine(8e9, 50e9, 0.4e12, 500_000_000, 2, 1_000 * 24_576), 0.1),
    (Machine(8e9, 50e9, 2e12, 1_000_000_000, 2, 4_096 * 65_536), 0.15),
)
"""One limited by the SLO's reading, one by memory, one by arithmetic, one by reading again."""


def _best_batch(machine: Machine, tbt_slo: float) -> int:
    """The largest batch that fits and keeps the SLO; larger ones make more tokens a second."""
    batch = 0
    while machine.fits(batch + 1) and machine.step_time(batch + 1) <= tbt_slo:
        batch += 1
    return batch


def share_of_best(answer: Answer) -> float:
    """Tokens a second of the answer's batches, as a mean share of the best ones, in percent."""
    shares = []
    for machine, tbt_slo in HELD_OUT:
        batch, best = answer(machine, tbt_slo), _best_batch(machine, tbt_slo)
        kept = judge_batch(lambda *_, batch=batch: batch, (machine, tbt_slo)).broken is None
        rate = batch / machine.step_time(batch) if kept and batch else 0.0
        shares.append(rate / (best / machine.step_time(best)))
    return 100 * sum(shares) / len(shares)


def _one(machine: Machine, tbt_slo: float) -> int:
    return 1


def _close(given: object, right: float) -> bool:
    return (
        isinstance(given, int | float)
        and not isinstance(given, bool)
        and math.isclose(given, right, rel_tol=CLOSE, abs_tol=CLOSE)
    )


def _own_kvcache() -> tuple[object, ...]:
    from mooncake_edu.bench.limits import kvcache_bytes

    return (kvcache_bytes,)


EXERCISES: tuple[Exercise, ...] = (
    Exercise("0.1", "TTFT and TBT of a request", _times, judge_latencies, lambda: (_right_latencies,)),
    Exercise("0.2", "Bytes of KVCache a token", _shapes, judge_kvcache, _own_kvcache),
    Exercise("0.3", "Arithmetic intensity of a decode step", _decodes, judge_intensity, lambda: ()),
    Exercise(
        "0.4", "The batch that serves most within the SLO", _machines, judge_batch, lambda: (_best_batch,),
        score=Score(share_of_best, threshold=99.0, unit="% of the best tokens a second", higher_is_better=True,
                    naive=partial(share_of_best, _one)),
    ),
)  # fmt: skip
