"""Of two ways to the same result the one that is faster just now."""

from __future__ import annotations

import math
import time
from collections import deque
from collections.abc import Callable

from torch import Tensor

Way = Callable[[], Tensor]


class Race:
    """Two ways to the same result, of which the one that lately cost less is taken.

    A core's matrix unit is two times as fast as its vectors, or slower than they, as long as the core's other
    hyperthread keeps it busy, perhaps with another machine's work: it can only be tried, time and again. Both ways
    round as float32 does, each its own way.
    """

    PERIOD = 32
    """Of so many products in a row each way takes one, whatever it cost."""
    KEPT = 4
    """Costs of each way that count, the least of them: a single one may be that of an interruption."""

    def __init__(self, clock: Callable[[], float] = time.perf_counter) -> None:
        self._clock = clock
        self._costs = [deque([math.inf], self.KEPT) for _ in range(2)]  # seconds a multiplication
        self._run = 0

    def __call__(self, work: int, ways: tuple[Way, Way]) -> Tensor:
        """The result of one of two ways, whose cost is noted; `work` is the number of multiplications."""
        turn = self._run % self.PERIOD
        self._run += 1
        way = turn if turn < len(ways) else self._costs.index(min(self._costs, key=min))
        start = self._clock()
        result = ways[way]()
        self._costs[way].append((self._clock() - start) / work)
        return result
