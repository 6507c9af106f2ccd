"""Which part of a model one worker holds: a range of layers (pipeline) and a share of the heads (tensor parallel)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

from torch import Tensor

from mooncake_edu.errors import ModelError


@dataclass(frozen=True, slots=True)
class Cut:
    """The layers `layers` of a model of `total` layers, and share `rank` of `size` of every layer's heads.

    Raises ModelError if the layers are not a range within the model or the rank not one of the shares.
    """

    layers: range
    total: int
    rank: int = 0
    size: int = 1

    def __post_init__(self) -> None:
        if self.layers.step != 1 or not 0 <= self.layers.start < self.layers.stop <= self.total:
            raise ModelError(f"layers {self.layers} are not a run within 0 to {self.total}")
        if not 0 <= self.rank < self.size:
            raise ModelError(f"rank {self.rank} is not from 0 to {self.size - 1}")

    @property
    def first(self) -> bool:
        """Whether this part begins with the embedding."""
        return self.layers.start == 0

    @property
    def last(self) -> bool:
        """Whether this part ends with the final norm and the output head."""
        return self.layers.stop == self.total

    def share(self, what: str, count: int) -> range:
        """This rank's equal run of `count` heads, channels or rows; raises ModelError if they do not divide."""
        if count % self.size:
            raise ModelError(f"tensor parallel size {self.size} does not divide {count} {what}: choose a divisor")
        each = count // self.size
        return range(self.rank * each, (self.rank + 1) * each)


def whole(layers: int) -> Cut:
    """The cut that holds all of a model of `layers` layers."""
    return Cut(range(layers), layers)


class Group(Protocol):
    """The ranks that together hold one pipeline stage, as the decoder sees them."""

    def sum(self, partial: Tensor) -> Tensor:
        """The sum of every rank's `partial`, known to all ranks."""

    def concat(self, part: Tensor) -> Tensor:
        """Every rank's `part` side by side along the last dimension, known to all ranks."""


class Alone:
    """The group of one rank: nothing to exchange."""

    def sum(self, partial: Tensor) -> Tensor:
        """The partial sum itself, since it is already whole."""
        return partial

    def concat(self, part: Tensor) -> Tensor:
        """The part itself, since it is already whole."""
        return part
