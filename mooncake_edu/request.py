"""What a user asks for, how its tokens are to be chosen, and the phases it goes through."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from enum import StrEnum

import numpy as np
import numpy.typing as npt

from mooncake_edu.errors import RequestError

Tokens = npt.NDArray[np.uint32]
"""Token ids, one dimension."""

MAX_SEED = 2**64 - 1


class Phase(StrEnum):
    """Where a request is on its way; it only moves forward, but for a preemption, which puts it back in the queue."""

    QUEUED = "queued"  # waiting for a place in the batch
    LOADING = "loading"  # its KVCache is under way: being computed by a neighbour, loaded or received
    PREFILL = "prefill"  # its prompt is being computed, chunk by chunk
    DECODE = "decode"  # one token a step
    FINISHED = "finished"


class FinishReason(StrEnum):
    """Why a request ended."""

    STOP = "stop"  # a stop token, or a stop string
    LENGTH = "length"  # max_tokens made
    CANCELLED = "cancelled"
    REFUSED = "refused"
    FAILED = "failed"


@dataclass(frozen=True, slots=True)
class SamplingParams:
    """How the next token is chosen, and when to stop.

    `temperature` 0 is greedy. `top_k` 0 and `top_p` 1 switch those filters off. The i-th token of a request
    depends on the seed, i and the logits alone. Stop strings are matched in the text, so they may begin in one
    token and end in another. Raises RequestError on a value that cannot work.
    """

    max_tokens: int = 128
    temperature: float = 0.0
    top_k: int = 0
    top_p: float = 1.0
    seed: int = 0
    stop: tuple[str, ...] = ()
    stop_tokens: frozenset[int] = frozenset()
    ignore_eos: bool = False

    def __post_init__(self) -> None:
        _require_int("max_tokens", self.max_tokens, 1, 2**31 - 1)
        _require_int("top_k", self.top_k, 0, 2**31 - 1)
        _require_int("seed", self.seed, 0, MAX_SEED)
        _require_real("temperature", self.temperature, 0.0, 100.0)
        _require_real("top_p", self.top_p, 0.0, 1.0)
        if self.top_p == 0:
            raise RequestError("top_p 0 leaves no token: use a value above 0, or temperature 0 for greedy")
        if isinstance(self.stop, str) or not all(isinstance(text, str) for text in self.stop):
            raise RequestError(f"stop {self.stop!r} is not a sequence of strings: pass ('text',)")
        if not all(isinstance(token, int) and token >= 0 for token in self.stop_tokens):
            raise RequestError(f"stop_tokens {sorted(self.stop_tokens, key=str)}: token ids are whole numbers from 0")
        if "" in self.stop:
            raise RequestError("stop '' would match everywhere: drop the empty stop string")


@dataclass(frozen=True, slots=True, eq=False)
class Request:
    """One prompt to be continued.

    `prompt` is copied and made read-only. `arrival` is in seconds on the clock of whoever serves it. A higher
    `priority` is shed later. `adapter`, `adapter_version` and `salt` are part of the namespace of its block keys:
    requests that differ in one of them share no KVCache. Raises RequestError if the prompt is empty or holds
    something that is no token id.
    """

    id: str
    prompt: Tokens
    sampling: SamplingParams = field(default_factory=SamplingParams)
    arrival: float = 0.0
    priority: int = 0
    adapter: str = ""
    adapter_version: str = ""
    salt: str = ""

    def __post_init__(self) -> None:
        if not self.id:
            raise RequestError("request id '' is empty: give each request a name of its own")
        object.__setattr__(self, "prompt", as_tokens(self.prompt))
        if self.prompt.size == 0:
            raise RequestError(f"request {self.id}: the prompt is empty: give at least one token")


def as_tokens(tokens: Sequence[int] | npt.NDArray[np.integer]) -> Tokens:
    """A read-only copy of token ids as little-endian unsigned 32-bit integers.

    Raises RequestError if a value is not an integer from 0 to 2**32 - 1 or there is more than one dimension.
    """
    try:
        array = np.asarray(tokens)
    except ValueError:
        raise RequestError("token ids are rows of several lengths: pass one row of integers") from None
    if array.size == 0:
        array = array.astype(np.uint32)
    if array.ndim != 1 or array.dtype.kind not in "iu":
        raise RequestError(f"token ids of type {array.dtype} and {array.ndim} dimensions: pass one row of integers")
    if array.size and (int(array.min()) < 0 or int(array.max()) >= 2**32):
        raise RequestError(f"token id {int(array.min())} or {int(array.max())} is outside 0 to {2**32 - 1}")
    copy = array.astype("<u4", copy=True)
    copy.flags.writeable = False
    return copy


def _require_int(name: str, value: int, low: int, high: int) -> None:
    if isinstance(value, bool) or not isinstance(value, int) or not low <= value <= high:
        raise RequestError(f"{name} {value!r} is not a whole number from {low} to {high}")


def _require_real(name: str, value: float, low: float, high: float) -> None:
    usable = isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value)
    if not usable or not low <= value <= high:
        raise RequestError(f"{name} {value!r} is not a number from {low:g} to {high:g}")
