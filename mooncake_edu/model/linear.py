"""Matrix products with weights, by whichever way is fastest for the number of rows."""

from __future__ import annotations

from collections.abc import Iterable

import torch
from torch import Tensor
from torch.nn.functional import linear

PACKED_ROWS = range(3, 65)
"""Rows of input for which a packed copy pays on a CPU: one row is bound by memory, many are bound by arithmetic."""


class Linear:
    """x -> x @ weight.T + bias, with weight [out, in].

    For float32 on a CPU it keeps a second copy of a wide weight (feed-forward, output head) in the blocked layout of
    oneDNN: torch's own product with a few rows does not reach the memory's speed there, this one nearly does.
    `pack=False` saves that memory.
    """

    def __init__(self, weight: Tensor, bias: Tensor | None = None, pack: bool = True) -> None:
        self.weight = weight
        self.bias = bias
        self._packed = _packed(weight) if pack else None

    def __call__(self, x: Tensor) -> Tensor:
        """The product for x [rows, in]: [rows, out]."""
        if self._packed is not None and x.shape[0] in PACKED_ROWS:
            product: Tensor = torch.ops.mkldnn._linear_pointwise(x, self._packed, self.bias, "none", [], "")
            return product
        return linear(x, self.weight, self.bias)


def packed_nbytes(weights: Iterable[Tensor], device: torch.device | str) -> int:
    """Bytes of the second copies that these weights would get on a device."""
    return sum(weight.nbytes for weight in weights if _gains(weight, torch.device(device)))


def _gains(weight: Tensor, device: torch.device) -> bool:
    wide = weight.dim() == 2 and weight.shape[0] >= 2 * weight.shape[1]
    return wide and device.type == "cpu" and weight.dtype == torch.float32


def _packed(weight: Tensor) -> Tensor | None:
    """The weight in oneDNN's layout, or None where it would not help or torch was built without it."""
    if not _gains(weight, weight.device):
        return None
    try:
        with torch.no_grad():
            packed: Tensor = torch.ops.mkldnn._reorder_linear_weight(weight, PACKED_ROWS.stop // 4)
    except (AttributeError, RuntimeError, NotImplementedError):  # not a public interface: it may move or go
        return None
    return packed
