"""Cost models fitted to measured times, and how far they are from times that they were not fitted to."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from mooncake_edu.errors import UserError
from mooncake_edu.model.costs import (
    DECODE_POINTS,
    HARDWARE,
    PAPER_MODEL,
    PREFILL_POINTS,
    PRESETS,
    CostModel,
    Reals,
    fit_relative,
    shares_of,
)


@dataclass(frozen=True, slots=True)
class Prefill:
    """A prompt of `prompt` tokens, the first `prefix` reused, computed in chunks of at most `chunk`, in `seconds`."""

    prompt: int
    prefix: int
    chunk: int
    seconds: float

    def __str__(self) -> str:
        return f"prefill of {self.prompt} tokens, {self.prefix} reused"

    @property
    def rows(self) -> int:
        """Tokens computed."""
        return self.prompt - self.prefix

    def error(self, costs: CostModel) -> float:
        """By how much the model is off, as a share of the measured time."""
        return costs.prefill(self.prompt, self.prefix, self.chunk) / self.seconds - 1


@dataclass(frozen=True, slots=True)
class Decode:
    """A decode step of `batch` requests that hold `context` tokens together, in `seconds`."""

    batch: int
    context: int
    seconds: float

    def __str__(self) -> str:
        return f"decode step of batch {self.batch}, {self.context} tokens of context"

    def error(self, costs: CostModel) -> float:
        """By how much the model is off, as a share of the measured time."""
        return costs.decode_step(self.batch, self.context) / self.seconds - 1


def fit(
    name: str, prefills: Sequence[Prefill], decodes: Sequence[Decode], *, token_bytes: int, copy_rate: float
) -> CostModel:
    """The cost model of an instance, from prefills of a single step each and decode steps: least relative squares.

    `copy_rate` is in bytes/s. Raises UserError if there are too few points to tell the terms apart, or a term that
    every step has comes out as nothing.
    """
    if any(point.rows > point.chunk for point in prefills):
        raise ValueError("a prefill of several steps: fit to prompts that are computed in one")
    work = np.array([(1.0, p.rows, p.prompt**2 - p.prefix**2) for p in prefills])
    reading = np.array([(1.0, d.batch, d.context) for d in decodes])
    overhead, per_token, per_pair = _fit(work, np.array([p.seconds for p in prefills]))
    floor, per_sequence, per_context = _fit(reading, np.array([d.seconds for d in decodes]))
    if per_token == 0 or floor == 0:
        raise UserError("the times do not grow with the tokens: measure again on a machine with less other work")
    return CostModel(
        name=name, token_bytes=token_bytes, per_token=per_token, per_pair=per_pair, per_sequence=per_sequence,
        per_context=per_context, floor=floor, overhead=overhead, host=copy_rate,
        network=copy_rate, wire=1.0, node_rate=copy_rate,
    )  # fmt: skip


def _fit(terms: Reals, times: Reals) -> list[float]:
    """Weights of the columns, none of them negative: what would be is left out, the most negative first."""
    if np.linalg.matrix_rank(terms / terms.max(axis=0)) < terms.shape[1]:
        raise UserError(f"{len(times)} measured points cannot tell {terms.shape[1]} terms apart: measure more of them")
    kept = list(range(terms.shape[1]))
    while True:
        scale = terms[:, kept].max(axis=0)  # columns from 1 to 10^7 would cost digits
        weights = np.array(fit_relative(terms[:, kept] / scale, times)) / scale
        worst = int(np.argmin(weights * scale))
        if weights[worst] >= 0:
            return [float(weights[kept.index(column)]) if column in kept else 0.0 for column in range(terms.shape[1])]
        del kept[worst]


@dataclass(frozen=True, slots=True)
class Published:
    """A published time, and the errors of the model fitted to all of them and of one fitted to all the others.

    `held_out` is None where the others do not determine a model.
    """

    point: Prefill | Decode
    error: float
    held_out: float | None


def published() -> list[Published]:
    """Each published time of 8 x A800 beside the preset, and beside a model that was fitted without it."""
    points: list[Prefill | Decode] = [Prefill(n, 0, n, seconds) for n, seconds in PREFILL_POINTS.items()]
    points += [Decode(batch, context, seconds) for (batch, context), seconds in DECODE_POINTS.items()]
    return [Published(point, point.error(PRESETS["A800x8"]), _held_out(point)) for point in points]


def _held_out(point: Prefill | Decode) -> float | None:
    prefill, decode = dict(PREFILL_POINTS), dict(DECODE_POINTS)
    if isinstance(point, Prefill):
        del prefill[point.prompt]
    else:
        del decode[point.batch, point.context]
    if len({context for _, context in decode}) == 1:  # nothing tells reading from the rest of a step
        return None
    return point.error(CostModel.of("without", PAPER_MODEL, HARDWARE["A800x8"], shares_of(prefill, decode)))
