"""What the decoder computes besides matrix products and attention: in plain torch, or by compiled kernels."""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn.functional import silu

from mooncake_edu.model.native import Kernels

Turn = tuple[Tensor, Tensor]
"""Cosines and sines [tokens, head_dim / 2] of the angles by which a step's tokens are turned."""


class Ops:
    """In plain torch, on any device and in any number format."""

    def rms_norm(self, x: Tensor, weight: Tensor, eps: float) -> Tensor:
        """x over the root of its mean square in the last dimension, times a weight a channel; statistics in float32."""
        exact = torch.promote_types(x.dtype, torch.float32)
        length: Tensor = torch.linalg.vector_norm(x, dim=-1, keepdim=True, dtype=exact)
        scale = length.square_().div_(x.shape[-1]).add_(eps).rsqrt_()
        return (x * scale).to(x.dtype).mul_(weight)

    def add_norm(self, x: Tensor, more: Tensor, weight: Tensor, eps: float) -> Tensor:
        """Adds `more` to x in place, and gives the sum's rms_norm."""
        return self.rms_norm(x.add_(more), weight, eps)

    def rotate(self, x: Tensor, turn: Turn) -> Tensor:
        """Rotary embedding: turns each pair (i, i + head_dim/2) of x [tokens, heads, head_dim] by its token's angle.

        What was in x is lost: the result may take its place.
        """
        cosine, sine = turn[0][:, None], turn[1][:, None]
        first, second = x.chunk(2, dim=-1)
        return torch.cat(
            (torch.addcmul(first * cosine, second, sine, value=-1), torch.addcmul(second * cosine, first, sine)),
            dim=-1,
        )

    def gated(self, gate_up: Tensor) -> Tensor:
        """silu(gate) * up for gate and up side by side: [tokens, 2 * width] to [tokens, width]."""
        gate, up = gate_up.chunk(2, dim=-1)
        return silu(gate).mul_(up)


class NativeOps(Ops):
    """By compiled kernels, each in one go over the data and without temporaries; what does not fit them, in torch."""

    def __init__(self, kernels: Kernels) -> None:
        self._kernels = kernels

    def rms_norm(self, x: Tensor, weight: Tensor, eps: float) -> Tensor:
        """See Ops."""
        if x.dim() == 2 and x.is_contiguous() and x.shape[1] % self._kernels.lanes == 0:
            return self._kernels.rms_norm(x, weight, eps)
        return super().rms_norm(x, weight, eps)

    def add_norm(self, x: Tensor, more: Tensor, weight: Tensor, eps: float) -> Tensor:
        """See Ops."""
        if x.is_contiguous() and more.is_contiguous() and x.shape[1] % self._kernels.lanes == 0:
            return self._kernels.rms_norm(x, weight, eps, more)
        return super().add_norm(x, more, weight, eps)

    def rotate(self, x: Tensor, turn: Turn) -> Tensor:
        """See Ops."""
        if x.stride()[1:] != (x.shape[2], 1):
            return super().rotate(x, turn)
        self._kernels.rotate(x, *turn)
        return x

    def gated(self, gate_up: Tensor) -> Tensor:
        """See Ops."""
        if gate_up.is_contiguous() and gate_up.shape[1] % (2 * self._kernels.lanes) == 0:
            return self._kernels.gated(gate_up)
        return super().gated(gate_up)


def ops_for(kernels: Kernels | None) -> Ops:
    """The variant that goes with these kernels, or with none."""
    return Ops() if kernels is None else NativeOps(kernels)
