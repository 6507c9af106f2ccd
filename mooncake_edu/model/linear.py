"""Matrix products with weights, by whichever way is fastest for the number of rows."""

from __future__ import annotations

from torch import Tensor
from torch.nn.functional import linear

from mooncake_edu.model.native import BLOCK, STRIPE, Kernels

FEW = 64
"""Rows of input that are bound by reading the weight; more of them are bound by arithmetic."""


class Linear:
    """x -> x @ weight.T + bias, with weight [out, in].

    With kernels it keeps a second copy of the weight, laid out for products with few rows, and with many on a
    processor that has a matrix unit.
    """

    def __init__(self, weight: Tensor, bias: Tensor | None = None, kernels: Kernels | None = None) -> None:
        self.weight = weight
        self.bias = bias
        self._kernels = kernels if kernels is not None and packs(weight) else None
        self._packed = self._kernels.pack(weight) if self._kernels is not None else weight

    def __call__(self, x: Tensor) -> Tensor:
        """The product for x [rows, in]: [rows, out]."""
        if self._kernels is not None and len(x) <= FEW:
            return self._kernels.few_rows(x.contiguous(), self._packed, self.bias)
        if self._kernels is not None and self._kernels.matrix_unit and x.shape[1] % BLOCK == 0:
            return self._kernels.many_rows(x.contiguous(), self._packed, self.bias)
        return linear(x, self.weight, self.bias)


def packs(weight: Tensor) -> bool:
    """Whether a weight's shape allows a packed copy."""
    return weight.shape[0] % STRIPE == 0
