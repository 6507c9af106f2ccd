"""What the hardware would allow: rates measured on the spot, and the work that a model cannot do without."""

from __future__ import annotations

import time
from collections.abc import Callable

import torch

from mooncake_edu.model.config import ModelConfig

FLOAT32 = 4  # bytes
REPEATS = 5


def matrix_rate(dtype: torch.dtype = torch.float32, device: str = "cpu", size: int = 2048) -> float:
    """FLOP/s of a product of two square matrices, the fastest of a few tries."""
    a, b = (torch.randn(size, size, device=device).to(dtype) for _ in range(2))
    return 2 * size**3 / fastest(lambda: a @ b, device)


def read_rate(device: str = "cpu", nbytes: int = 1 << 30) -> float:
    """Bytes/s at which a large array is read once, the fastest of a few tries.

    `nbytes` must be far beyond the caches.
    """
    data = torch.zeros(nbytes // FLOAT32, device=device)
    return nbytes / fastest(lambda: data.sum(), device)


def fastest(work: Callable[[], object], device: str, repeats: int = REPEATS) -> float:
    """Seconds of the fastest of `repeats` runs after one to warm up."""
    work()
    seconds = []
    for _ in range(repeats):
        _wait(device)
        start = time.perf_counter()
        work()
        _wait(device)
        seconds.append(time.perf_counter() - start)
    return min(seconds)


def matrix_parameters(config: ModelConfig) -> int:
    """Weights of all layers' matrices."""
    attention = config.hidden * config.head_dim * (2 * config.heads + 2 * config.kv_heads)
    return config.layers * (attention + 3 * config.hidden * config.intermediate)


def prefill_flops(config: ModelConfig, tokens: int, cached: int = 0) -> int:
    """Operations to prefill a prompt behind `cached` tokens, with logits of the last token only."""
    pairs = tokens * (tokens + 1) // 2 - cached * (cached + 1) // 2
    attention = 4 * config.layers * config.heads * config.head_dim * pairs
    return 2 * matrix_parameters(config) * (tokens - cached) + attention + 2 * config.vocab * config.hidden


def weight_bytes(config: ModelConfig, itemsize: int = FLOAT32) -> int:
    """Bytes of the weights that each step reads: all layers and the output head."""
    return itemsize * (matrix_parameters(config) + config.vocab * config.hidden)


def kvcache_bytes(config: ModelConfig, itemsize: int = FLOAT32) -> int:
    """Bytes of one token's keys and values in all layers."""
    return itemsize * 2 * config.layers * config.kv_heads * config.head_dim


def decode_bytes(config: ModelConfig, batch: int, context: float, itemsize: int = FLOAT32) -> float:
    """Bytes that a decode step reads: the weights once, and every sequence's KVCache."""
    return weight_bytes(config, itemsize) + batch * context * kvcache_bytes(config, itemsize)


def _wait(device: str) -> None:
    if device.startswith("cuda"):
        torch.cuda.synchronize()
