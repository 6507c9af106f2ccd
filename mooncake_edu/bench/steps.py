"""Single steps of a model, measured: the work that they cannot do without, how long they took, and the roof above."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import torch

from mooncake_edu.bench.limits import decode_bytes, fastest, matrix_rate, prefill_flops, read_rate
from mooncake_edu.kvcache import BlockLayout, PageTensors
from mooncake_edu.model import Model
from mooncake_edu.model.attention import Span, attention_for

BLOCK_SIZE = 16  # tokens
MATRIX = {"cpu": 1024, "cuda": 4096}  # rows and columns: enough to keep the device busy, done in a moment
READ = 1 << 29  # bytes: far beyond the caches
TRIES = 3


@dataclass(frozen=True)
class Roof:
    """What a machine allows at most: `compute` in FLOP/s, `memory` in bytes/s."""

    compute: float
    memory: float

    @property
    def ridge(self) -> float:
        """The FLOP per byte from which on not the memory but the arithmetic is the limit."""
        return self.compute / self.memory

    def rate(self, intensity: float) -> float:
        """The highest FLOP/s at `intensity` FLOP per byte (Williams, Waterman, Patterson 2009)."""
        return min(self.compute, self.memory * intensity)


@dataclass(frozen=True)
class Step:
    """One step: `tokens` new ones in all, `flops` operations, `nbytes` read, `seconds` taken."""

    phase: Literal["prefill", "decode"]
    tokens: int
    flops: float
    nbytes: float
    seconds: float

    @property
    def intensity(self) -> float:
        """FLOP per byte."""
        return self.flops / self.nbytes

    @property
    def rate(self) -> float:
        """FLOP/s."""
        return self.flops / self.seconds


def measure_roof(dtype: torch.dtype, device: str) -> Roof:
    """The roof of a device, measured with a product of two matrices and a sum over a long array."""
    kind = torch.device(device).type
    return Roof(matrix_rate(dtype, device, MATRIX[kind]), read_rate(device, READ))


def prefill_step(model: Model, tokens: int) -> Step:
    """A prompt of `tokens` computed at once, with nothing in the cache."""
    seconds = _seconds(model, sequences=1, new=tokens, context=0)
    nbytes = decode_bytes(model.config, 1, tokens, model.decoder.dtype.itemsize)
    return Step("prefill", tokens, prefill_flops(model.config, tokens), nbytes, seconds)


def decode_step(model: Model, batch: int, context: int) -> Step:
    """One token for each of `batch` sequences that have `context` tokens each in the cache."""
    seconds = _seconds(model, sequences=batch, new=1, context=context)
    flops = batch * prefill_flops(model.config, context + 1, context)
    nbytes = decode_bytes(model.config, batch, context, model.decoder.dtype.itemsize)
    return Step("decode", batch, flops, nbytes, seconds)


@torch.inference_mode()
def _seconds(model: Model, sequences: int, new: int, context: int) -> float:
    """Seconds of a step with `new` tokens for each sequence; what the tokens are does not matter."""
    config, decoder = model.config, model.decoder
    layout = BlockLayout(config.layers, config.kv_heads, BLOCK_SIZE, config.head_dim, decoder.dtype)
    width = -(-(context + new) // BLOCK_SIZE)
    memory = torch.zeros(sequences * width * layout.nbytes, dtype=torch.uint8, device=decoder.device)
    pages = PageTensors(memory, layout).tensor
    spans = [Span(range(first, first + width), context, new) for first in range(0, sequences * width, width)]
    tokens = torch.arange(sequences * new, device=decoder.device) % config.vocab
    last = torch.arange(1, sequences + 1, device=decoder.device) * new - 1

    def step() -> None:
        decoder.logits(decoder.forward(tokens, attention_for(pages, spans))[last])

    return fastest(step, str(decoder.device), TRIES)
