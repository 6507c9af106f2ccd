"""What the model's tests share: weights of more bits, and attention as in a textbook."""

from __future__ import annotations

import dataclasses
from typing import Any

import torch
from torch import Tensor

from mooncake_edu.model.attention import Attention, Span


def double(value: Any) -> Any:
    """Weights in float64, so that no other order of adding up changes which token is best."""
    if isinstance(value, Tensor):
        return value.double()
    if isinstance(value, list):
        return [double(each) for each in value]
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        fields = {field.name: double(getattr(value, field.name)) for field in dataclasses.fields(value)}
        return dataclasses.replace(value, **fields)
    return value


class DenseAttention(Attention):
    """Attention as in a textbook, over the tokens of one step and nothing else: no pages."""

    def __init__(self, tokens: int) -> None:
        super().__init__(torch.empty(0), [Span((), 0, tokens)])

    def attend(self, layer: int, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        """Every token looks at itself and at all before it."""
        share = q.shape[1] // k.shape[1]
        k, v = k.repeat_interleave(share, dim=1), v.repeat_interleave(share, dim=1)
        scores = torch.einsum("qhd,khd->hqk", q, k) / q.shape[-1] ** 0.5
        hidden = torch.ones(len(q), len(q), dtype=torch.bool).triu(1)
        return torch.einsum("hqk,khd->qhd", scores.masked_fill(hidden, float("-inf")).softmax(-1), v)
