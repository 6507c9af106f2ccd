"""What the engine's tests share: a very small model, and a plain way to continue a prompt that has no cache at all."""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Iterable
from typing import Any

import torch
from torch import Tensor

from mooncake_edu.config import EngineConfig
from mooncake_edu.engine import Engine, Output
from mooncake_edu.events import EventLog
from mooncake_edu.model import Model, random_model
from mooncake_edu.model.config import ModelConfig
from mooncake_edu.model.decoder import Decoder
from mooncake_edu.model.sampling import sample
from mooncake_edu.request import FinishReason, Request, SamplingParams
from tests.model.plain import DenseAttention, double

SMALL = ModelConfig(
    "small", "llama", layers=2, hidden=24, heads=4, kv_heads=2, head_dim=8, intermediate=40, vocab=264, positions=2048
)


@functools.cache
def small_model(seed: int = 0) -> Model:
    """Two layers of random weights in float64 that speak bytes."""
    model = random_model(SMALL, seed=seed)
    return dataclasses.replace(model, decoder=Decoder(SMALL, double(model.decoder.weights)))


def plain_logits(model: Model, tokens: Iterable[int]) -> Tensor:
    """The logits after each of the tokens, computed all at once: [tokens, vocab]."""
    inputs = torch.tensor(list(tokens))
    with torch.inference_mode():
        return model.decoder.logits(model.decoder.forward(inputs, DenseAttention(len(inputs))))


@functools.cache
def _continued(prompt: tuple[int, ...], sampling: SamplingParams) -> tuple[int, ...]:
    model, tokens = small_model(), list(prompt)
    while len(tokens) < len(prompt) + sampling.max_tokens:
        logits = plain_logits(model, tokens)[-1:]
        tokens += sample(logits, [sampling], [len(tokens) - len(prompt)])
        ends = sampling.stop_tokens if sampling.ignore_eos else sampling.stop_tokens | model.tokenizer.eos
        if tokens[-1] in ends:
            break
    return tuple(tokens[len(prompt) :])


def plain(prompt: Iterable[int], sampling: SamplingParams) -> list[int]:
    """What follows the prompt, every token from a whole forward pass over everything before it."""
    return list(_continued(tuple(int(token) for token in prompt), sampling))


class Clock:
    """Seconds that pass by one at every look."""

    def __init__(self) -> None:
        self.now = 0.0

    def __call__(self) -> float:
        self.now += 1.0
        return self.now


def small_engine(*, log: EventLog | None = None, memory: Tensor | None = None, model: Model | None = None,
                 **config: Any) -> Engine:  # fmt: skip
    """An engine over the small model; the configuration's defaults are small too."""
    sizes = {"block_size": 4, "blocks": 64, "token_budget": 16, "max_batch": 4} | config
    return Engine(model or small_model(), EngineConfig(**sizes), log=log, clock=Clock(), memory=memory)


def drain(engine: Engine, most: int = 10_000) -> list[Output]:
    """Every output until the engine is idle."""
    outputs: list[Output] = []
    for _ in range(most):
        if engine.idle:
            return outputs
        outputs += engine.step()
    raise AssertionError(f"not idle after {most} steps: {engine.stats()}")


def tokens_of(outputs: Iterable[Output]) -> dict[str, list[int]]:
    """The tokens of each request."""
    made: dict[str, list[int]] = {}
    for output in outputs:
        made.setdefault(output.request_id, []).extend(output.tokens)
    return made


def reasons_of(outputs: Iterable[Output]) -> dict[str, list[FinishReason]]:
    """Why each request ended; more than one reason would be a fault."""
    ends: dict[str, list[FinishReason]] = {}
    for output in outputs:
        if output.finish is not None:
            ends.setdefault(output.request_id, []).append(output.finish)
    return ends


def served(engine: Engine, requests: Iterable[Request]) -> dict[str, list[int]]:
    """Submits all requests, then steps until all are done."""
    for request in requests:
        engine.submit(request)
    return tokens_of(drain(engine))


def counts(engine: Engine) -> tuple[int, int, int]:
    """Free, used and cached blocks, which always add up to all."""
    stats = engine.stats()
    assert stats["free"] + stats["used"] + stats["cached"] == engine.pool.total
    return stats["free"], stats["used"], stats["cached"]
