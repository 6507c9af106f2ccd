"""What prefill, decode and transfers cost: formulas of the paper, with the few numbers that only measuring can give.

A step of an instance computes chunks of prompts and one token of each decoding request. Computing chunks takes
products (in proportion to their tokens), attention (to pairs of tokens) and an overhead; a step takes at least a floor
(reading the weights, starting the layers), which passes while chunks are computed. Decoding adds its rows, and reading
its KVCache.
"""

from __future__ import annotations

import json
from collections.abc import Iterable
from dataclasses import dataclass
from functools import cache
from itertools import pairwise
from pathlib import Path
from typing import Annotated

import numpy as np
import numpy.typing as npt
from pydantic import Field

from mooncake_edu.config import Bandwidth, Hardware, Section
from mooncake_edu.errors import ConfigError

Seconds = Annotated[float, Field(ge=0, le=1e6)]
Reals = npt.NDArray[np.float64]
Share = Annotated[float, Field(ge=0.001, le=1)]


@dataclass(frozen=True, slots=True)
class Arithmetic:
    """What a model computes and stores, independent of hardware.

    `token_flops` of the products a token, `pair_flops` of attention for each of the n^2 pairs of tokens of a prompt
    of n (half of which a causal model computes), `token_bytes` of KVCache a token, `weight_bytes` read by each step.
    """

    token_flops: float
    pair_flops: float
    token_bytes: int
    weight_bytes: float

    def flops(self, tokens: int) -> float:
        """FLOPs to prefill that many tokens from the start, every pair counted. Paper: FAST eq. 1."""
        return self.token_flops * tokens + self.pair_flops * tokens**2


def _paper(layers: int, d: int, a: int, b: int, gqa: int, s: int) -> Arithmetic:
    products = float(layers * b * d * d)
    return Arithmetic(products, float(layers * a * d), layers * 2 * d // gqa * s, products / 2 * s)


PAPER_MODEL = _paper(layers=80, d=8192, a=4, b=22, gqa=8, s=2)
"""The model of LLaMA-70B's shape, in bfloat16. Paper: FAST table 1."""

PREFILL_POINTS = {8192: 0.9, 16384: 1.9, 32768: 4.3, 65536: 10.4, 131072: 27.5}
"""Prompt tokens and seconds of prefill without reuse on 8 x A800. Paper: FAST fig. 14, read off to about 5 %."""

DECODE_POINTS = {(1, 8192): 3.4 / 128, (1, 131072): 3.9 / 128, (16, 16 * 8192): 1.25 * 3.4 / 128}
"""Batch and summed context, and seconds of a decode step on 8 x A800.

128 tokens take 3.4 to 3.9 s at batch 1 (FAST fig. 14), taken to be the times at its shortest and longest prompt; from
batch 1 to 16 the step grows by 25 % at a context of 8k (arXiv fig. 2).
"""

WIRE_SHARE = 87 / 100
"""Of a network's nominal rate, what 40 GB of KVCache get: 87 GB/s on 4 x 200 Gbit/s. Paper: FAST fig. 12."""

NODE_RATE = 190e9
"""Bytes/s that a node moves at most, whatever its network: measured on 8 x 400 Gbit/s. Paper: FAST fig. 12."""


class CostModel(Section):
    """Times of one instance, in seconds; raises ConfigError where it is made with a value that cannot work.

    `per_token` is the time of the products of a row, `per_pair` that of attention for each of the n^2 pairs of a
    prompt of n tokens; a decoding request adds `per_sequence` to a step, and `per_context` for each token of KVCache
    that is read for it. Without those a step takes at least `floor`, and with chunks at least `overhead` beside them.
    `host` and `network` are nominal rates of a node in bytes/s; transfers get the share `wire` of the network's, and
    at most `node_rate`.
    """

    name: str = Field(min_length=1, max_length=200)
    token_bytes: int = Field(ge=1, le=2**40)
    per_token: Seconds
    per_pair: Seconds
    per_sequence: Seconds
    per_context: Seconds
    floor: Seconds
    overhead: Seconds = 0.0
    host: Bandwidth
    network: Bandwidth
    wire: Share = WIRE_SHARE
    node_rate: Bandwidth = NODE_RATE

    @classmethod
    def of(cls, name: str, model: Arithmetic, hardware: Hardware, share: Shares | None = None) -> CostModel:
        """The model on hardware that gets such shares of its nominal rates; without them, those of 8 x A800."""
        share = share or published_shares()
        memory = hardware.memory * share.memory
        per_token = model.token_flops / (hardware.compute * share.products)
        return cls(
            name=name,
            token_bytes=model.token_bytes,
            per_token=per_token,
            per_pair=model.pair_flops / 2 / (hardware.compute * share.attention),
            per_sequence=per_token,
            per_context=model.token_bytes / memory,
            floor=model.weight_bytes / memory + share.latency,
            host=hardware.host,
            network=hardware.network,
        )

    @classmethod
    def named(cls, name: str) -> CostModel:
        """A preset, or else the TOML file of that name; raises ConfigError if there is neither, or it cannot work."""
        if name in PRESETS:
            return PRESETS[name]
        if not Path(name).is_file():
            raise ConfigError(f"costs {name!r} are not known: use one of {', '.join(PRESETS)}, or a file that "
                              "`mooncake-edu calibrate` wrote")  # fmt: skip
        return cls.load(name)

    def to_toml(self) -> str:
        """The text of a file that `load` reads."""
        return "".join(f"{key} = {json.dumps(value, ensure_ascii=False)}\n" for key, value in self.model_dump().items())

    def work(self, start: int, stop: int) -> float:
        """Computing tokens `start` to `stop` of a prompt behind those before them; adds up over parts. FAST eq. 1."""
        return self.per_token * (stop - start) + self.per_pair * (stop**2 - start**2)

    def prefill(self, prompt: int, prefix: int = 0, chunk: int | None = None) -> float:
        """Prefilling a prompt, its first `prefix` tokens reused, in one step or in steps of at most `chunk` tokens.

        The last token is always computed, since its logits are needed. Rises with the prompt and falls with the
        prefix. Chunks add up to the time of one step if none of them is below the floor and there is no overhead,
        and to more otherwise. Raises ValueError if the numbers do not fit together.
        """
        if not 0 <= prefix <= prompt or prompt < 1 or (chunk is not None and chunk < 1):
            raise ValueError(f"prefix {prefix} of a prompt of {prompt} tokens in chunks of {chunk}: use a prefix from "
                             "0 to the prompt's length, and chunks of at least 1")  # fmt: skip
        start = min(prefix, prompt - 1)
        if chunk is None:
            return self.step([(start, prompt)])
        borders = [*range(start, prompt, chunk), prompt]
        return sum(self.step([part]) for part in pairwise(borders))

    def decode_step(self, batch: float, context: float) -> float:
        """One token for each of `batch` requests that hold `context` tokens together; affine in the context."""
        return self.floor + self.per_sequence * batch + self.per_context * context

    def step(self, chunks: Iterable[tuple[int, int]], batch: int = 0, context: int = 0) -> float:
        """One step that computes chunks (start, stop) of prompts and one token for each of a batch."""
        computed = 0.0
        for start, stop in chunks:
            computed += self.work(start, stop)
        if computed > 0:
            computed += self.overhead
        return max(self.floor, computed) + self.per_sequence * batch + self.per_context * context

    def transfer(self, size: float, bandwidth: float | None = None, flows: int = 1) -> float:
        """Moving `size` bytes over a network of that nominal rate (the model's own), shared evenly by `flows`."""
        return size * flows / self.network_rate(bandwidth)

    def fetch(self, tokens: int) -> float:
        """Moving the KVCache of that many tokens over the network, alone on it."""
        return self.transfer(tokens * self.token_bytes)

    def network_rate(self, bandwidth: float | None = None) -> float:
        """Bytes/s that all transfers of a node get together from a network of that nominal rate."""
        return min(self.wire * (self.network if bandwidth is None else bandwidth), self.node_rate)

    def block_bytes(self, block_size: int) -> int:
        """Bytes of KVCache of a block of that many tokens."""
        return self.token_bytes * block_size


@dataclass(frozen=True, slots=True)
class Shares:
    """Of the nominal rates, what products, causal attention and reading get; `latency` seconds of a step besides."""

    products: float
    attention: float
    memory: float
    latency: float


@cache
def published_shares() -> Shares:
    """What the published points say about 8 x A800: see PREFILL_POINTS and DECODE_POINTS."""
    return shares_of(PREFILL_POINTS, DECODE_POINTS)


def shares_of(prefill: dict[int, float], decode: dict[tuple[int, int], float]) -> Shares:
    """The shares that fit such points of 8 x A800 best, by relative errors.

    That utilisation, as the paper counts it, rises from .51 to .88 with the prompt, needs no curve: it counts
    attention's n^2 pairs, of which a causal model computes half, and attention's part grows with the prompt.
    """
    model, hardware = PAPER_MODEL, HARDWARE["A800x8"]
    ideal = [(model.token_flops * n, model.pair_flops * n**2 / 2) for n in prefill]
    products, attention = fit_relative(np.array(ideal) / hardware.compute, np.array([*prefill.values()]))
    row = products * model.token_flops / hardware.compute
    rest = np.array([time - batch * row for (batch, _), time in decode.items()])
    read = [(1.0, (model.weight_bytes + context * model.token_bytes) / hardware.memory) for _, context in decode]
    latency, memory = fit_relative(np.array(read), rest)
    return Shares(1 / products, 1 / attention, 1 / memory, latency)


def fit_relative(terms: Reals, times: Reals) -> list[float]:
    """A weight for each column of `terms` [points, columns] so that they make `times`, by least relative squares."""
    weights, *_ = np.linalg.lstsq(terms / times[:, None], np.ones_like(times), rcond=None)
    return [float(weight) for weight in weights]


def reuse_bandwidth(prefix: int, compute: float) -> float:
    """Bytes/s above which fetching a prefix of that many tokens beats computing it. Paper: FAST eq. 2.

    `compute` is the nominal FLOP/s of the instance; the smaller of host and network rates must be above the result.
    """
    return compute * prefix * PAPER_MODEL.token_bytes / PAPER_MODEL.flops(prefix)


HARDWARE = {
    "A800x8": Hardware(compute=8 * 312e12, memory=8 * 2.039e12, host=128e9, network=100e9),
    "H800x8": Hardware(compute=8 * 989.5e12, memory=8 * 3.35e12, host=128e9, network=400e9),
    "H100x8": Hardware(compute=8 * 989.5e12, memory=8 * 3.35e12, host=128e9, network=400e9),
}
"""Nodes of 8 GPUs: FAST table 1; memory by NVIDIA's data sheets, the H800's and H100's network as in FAST fig. 12.

H800 and H100 differ in what links the GPUs of a node, which no formula here takes in. No time of theirs is published:
they are taken to use their nominal rates as well as the A800 do.
"""

PRESETS = {name: CostModel.of(name, PAPER_MODEL, hardware) for name, hardware in HARDWARE.items()}
"""Cost models of the paper's model on those nodes."""
