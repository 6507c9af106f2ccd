"""What is to happen next in the simulated cluster."""

from __future__ import annotations

import heapq
from collections.abc import Callable
from enum import IntEnum

Action = Callable[[float], None]


class Rank(IntEnum):
    """What comes first at one time; of one rank, the lower number."""

    PREFILLED = 0  # a first token is there
    STORED = 1  # blocks count as cached
    MOVED = 2  # a transfer has ended
    CHANGED = 3  # an instance goes, or comes back
    AGAIN = 4  # who was lost with it is placed again
    TAKEN = 5  # an instance begins with its next prompt
    ARRIVED = 6
    STEPPED = 7  # a run of batch steps has ended, so that all who came until now can join the next one


class Agenda:
    """Actions in order of time, rank and number; the order in which they were put in never counts.

    A number is that of an instance, request or transfer, which has at most one action of a rank that it still means;
    actions that were overtaken are called too, and find that the time is not the one they are due at.
    """

    def __init__(self) -> None:
        self._heap: list[tuple[float, int, int, int, Action]] = []
        self._count = 0
        self.now = 0.0

    def put(self, time: float, rank: Rank, number: int, action: Action) -> None:
        """Call `action` with the time when it has come."""
        self._count += 1  # only tells apart actions of one owner, of which one is overtaken
        heapq.heappush(self._heap, (time, rank, number, self._count, action))

    def run(self, until: float = float("inf"), rank: Rank = Rank.ARRIVED) -> None:
        """Everything before that time, and of that time what ranks before `rank`."""
        heap, end = self._heap, (until, rank)
        while heap and heap[0] < end:
            self.now, _, _, _, action = heapq.heappop(heap)
            action(self.now)
