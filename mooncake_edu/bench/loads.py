"""What the engine bench measures, and what it was answered."""

from __future__ import annotations

import statistics
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

OURS = "ours"
BLOCK_SIZE = 16  # of our KVCache, in tokens

Prompts = list[list[int]]


@dataclass(frozen=True)
class Setting:
    """What everybody is measured with."""

    threads: int
    dtype: str = "float32"
    device: str = "cpu"


@dataclass(frozen=True)
class Load:
    """What is measured in one go: `batch` prompts of `prompt` tokens, each continued by `output` tokens.

    `again` sends the prompts of the load before it, so that those who cache prefixes need not compute them.
    """

    batch: int
    prompt: int
    output: int
    again: bool = False

    def __str__(self) -> str:
        cached = " again" if self.again else ""
        return f"{self.batch} x ({self.prompt} in{cached}, {self.output} out)"


@dataclass(frozen=True)
class Size:
    """The lengths that a bench uses, in tokens, and the batch sizes.

    The batch of `whole` prompts is measured from end to end as well. `matrix` rows and `read` bytes are those of the
    measured limits.
    """

    context: int = 512
    long: int = 2048
    decoded: int = 33
    output: int = 64
    batches: tuple[int, ...] = (1, 8, 16)
    whole: int = 8
    matrix: int = 2048
    read: int = 1 << 30

    def prefills(self) -> list[Load]:
        """A prompt, a long one, and that one again."""
        return [Load(1, self.context, 1), Load(1, self.long, 1), Load(1, self.long, 1, again=True)]

    def decodes(self) -> list[Load]:
        """One for each batch size; that of `whole` is longer, since it is measured from end to end too."""
        outputs = {self.whole: self.output}
        return [Load(batch, self.context, outputs.get(batch, self.decoded)) for batch in self.batches]


FULL = Size()
QUICK = Size(context=64, long=128, decoded=5, output=6, batches=(1, 2, 3), whole=2, matrix=256, read=1 << 24)
GPU = Size(batches=(1, 2, 4, 8, 16, 32, 64), matrix=8192, read=4 << 30)


@dataclass
class Samples:
    """What every system answered to every load, round after round."""

    answers: dict[tuple[str, Load], list[dict[str, Any]]] = field(default_factory=dict)
    prompts: dict[Load, list[Prompts]] = field(default_factory=dict)
    rates: list[tuple[float, float]] = field(default_factory=list)  # FLOP/s and bytes/s

    def add(self, system: str, load: Load, answer: dict[str, Any]) -> None:
        """Keep an answer to `generate`."""
        self.answers.setdefault((system, load), []).append(answer)

    def systems(self, load: Load) -> list[str]:
        """Who answered this load."""
        return [system for system, answered in self.answers if answered == load]

    def median(self, system: str, load: Load, figure: Callable[[dict[str, Any]], float]) -> float:
        """The median over the rounds of what `figure` makes of an answer."""
        return statistics.median(figure(answer) for answer in self.answers[system, load])
