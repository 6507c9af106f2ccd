"""Matrix products with weights, by whichever way is fastest for the number of rows."""

from __future__ import annotations

from torch import Tensor
from torch.nn.functional import linear

from mooncake_edu.model.native import BLOCK, STRIPE, Kernels

FEW = 64
"""Rows of input that are bound by reading the weight; more of them are bound by arithmetic."""
LONG = 2**26
"""Multiplications of a product that takes long enough to be worth timing."""


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
        kernels, work = self._kernels, len(x) * self.weight.numel()
        if kernels is not None and len(x) <= FEW:
            return kernels.few_rows(x.contiguous(), self._packed, self.bias)
        if kernels is None or not kernels.matrix_unit or x.shape[1] % BLOCK or work < LONG:
            return linear(x, self.weight, self.bias)
        on_unit = lambda: kernels.many_rows(x.contiguous(), self._packed, self.bias)  # noqa: E731
        in_vectors = lambda: linear(x, self.weight, self.bias)  # noqa: E731
        return kernels.races[self.weight.shape](work, (on_unit, in_vectors))


def packs(weight: Tensor) -> bool:
    """Whether a weight's shape allows a packed copy."""
    return weight.shape[0] % STRIPE == 0
