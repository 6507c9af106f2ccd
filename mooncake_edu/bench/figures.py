"""Rows of the engine bench: what the answers say, and what the hardware would allow."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from mooncake_edu.bench.limits import decode_bytes, prefill_flops
from mooncake_edu.bench.loads import BLOCK_SIZE, OURS, Load, Samples, Size
from mooncake_edu.bench.process import Process
from mooncake_edu.bench.results import Row
from mooncake_edu.model.config import ModelConfig

NEAR_TIE = {"float32": 1e-3, "bfloat16": 0.125, "float16": 0.02}
"""Two logits closer than this may change places between two right implementations: about 4 steps of logits near 8."""

ITEMSIZE = {"float32": 4, "bfloat16": 2, "float16": 2}


@dataclass(frozen=True)
class Limits:
    """What a model's work takes at least in a number format, at rates of `compute` FLOP/s and `read` bytes/s."""

    config: ModelConfig
    dtype: str
    block_size: int
    compute: float
    read: float

    def prefill(self, load: Load) -> float:
        """Seconds to compute the prompts, but for what is cached."""
        cached = (load.prompt - 1) // self.block_size * self.block_size if load.again else 0
        return load.batch * prefill_flops(self.config, load.prompt, cached) / self.compute

    def step(self, load: Load) -> float:
        """Seconds to read what one decode step reads, half-way through the output."""
        itemsize = ITEMSIZE[self.dtype]
        return decode_bytes(self.config, load.batch, load.prompt + load.output / 2, itemsize) / self.read

    def whole(self, load: Load) -> float:
        """Seconds from the first prompt to the last token."""
        return self.prefill(load) + (load.output - 1) * self.step(load)


def rows(samples: Samples, config: ModelConfig, size: Size, dtype: str) -> list[Row]:
    """The figures of every system in every load; the limits are the best rates seen in any round."""
    compute, read = (max(rates) for rates in zip(*samples.rates, strict=True))
    limits = Limits(config, dtype, BLOCK_SIZE, compute, read)
    short, long, again = size.prefills()
    made = [_prefill(samples, load, limits) for load in (short, long)]
    made += [_decode(samples, load, limits) for load in size.decodes()]
    made += [_end_to_end(samples, load, limits) for load in size.decodes() if load.batch == size.whole]
    made += [_first_token(samples, load, limits) for load in (long, again)]
    return made


def _row(samples: Samples, load: Load, what: str, unit: str, figure: Callable[[dict[str, Any]], float],
         limit: float, limit_is: str) -> Row:  # fmt: skip
    medians = {system: samples.median(system, load, figure) for system in samples.systems(load)}
    ours = medians.pop(OURS)
    return Row(what=what, unit=unit, ours=ours, peers=medians, limit=limit, limit_is=limit_is,
               higher_is_better=unit != "s")  # fmt: skip


def _prefill(samples: Samples, load: Load, limits: Limits) -> Row:
    return _row(samples, load, f"prefill, {load.prompt} tokens", "tok/s", lambda each: load.prompt / each["seconds"],
                load.prompt / limits.prefill(load), _matrix(limits))  # fmt: skip


def _decode(samples: Samples, load: Load, limits: Limits) -> Row:
    limit_is = f"reading weights and KVCache at {limits.read / 1e9:.1f} GB/s"
    return _row(samples, load, f"decode, batch {load.batch}, context {load.prompt}", "tok/s",
                lambda each: each["decode_tokens"] / each["decode_seconds"],
                load.batch / limits.step(load), limit_is)  # fmt: skip


def _end_to_end(samples: Samples, load: Load, limits: Limits) -> Row:
    tokens = load.batch * load.output
    return _row(samples, load, f"{load}, end to end", "tok/s", lambda each: tokens / each["seconds"],
                tokens / limits.whole(load), "prefill's and decode's together")  # fmt: skip


def _first_token(samples: Samples, load: Load, limits: Limits) -> Row:
    how = f"cached, block {limits.block_size}" if load.again else "cold"
    return _row(samples, load, f"TTFT, {load.prompt} tokens, {how}", "s", lambda each: each["first_seconds"],
                limits.prefill(load), _matrix(limits))  # fmt: skip


def _matrix(limits: Limits) -> str:
    return f"{limits.dtype} matrix products at {limits.compute / 1e9:,.0f} GFLOP/s"


def differences(samples: Samples, ours: Process, peer: str, dtype: str = "float32") -> str:
    """In words, how many of the peer's tokens are not ours, and how many of those answers a near tie explains."""
    pairs = [
        pair
        for (system, load), theirs in samples.answers.items()
        if system == peer
        for number, its in enumerate(theirs)
        for pair in zip(
            samples.prompts[load][number], samples.answers[OURS, load][number]["tokens"], its["tokens"], strict=True
        )
    ]
    wrong = [(prompt, mine, its) for prompt, mine, its in pairs if mine != its]
    total = sum(len(mine) for _, mine, _ in pairs)
    if not wrong:
        return f"{peer}: all {total} tokens are the same as ours"
    near = sum(_gap(ours, *each) < NEAR_TIE[dtype] for each in wrong)
    tokens = sum(a != b for _, mine, its in wrong for a, b in zip(mine, its, strict=True))
    return (
        f"{peer}: {tokens} of {total} tokens are not ours, in {len(wrong)} of {len(pairs)} answers; in {near} of these "
        f"the first difference is between logits closer than {NEAR_TIE[dtype]:g}"
    )


def _gap(ours: Process, prompt: list[int], mine: list[int], its: list[int]) -> float:
    """How far apart our logits of the first two tokens that differ are."""
    first = next(place for place, (a, b) in enumerate(zip(mine, its, strict=True)) if a != b)
    gap: float = ours.ask("gap", tokens=prompt + mine[:first], first=mine[first], second=its[first])["gap"]
    return gap
