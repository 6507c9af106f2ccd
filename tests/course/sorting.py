"""An exercise to drive the tests of checks with: sort a few small numbers."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator
from typing import Any

from mooncake_edu import kvcache
from mooncake_edu.course.check import Exercise, Trial
from mooncake_edu.kvcache import BlockPool

STEP_S = 0.6
"""Seconds instead of 5, for answers that are right to be ended."""


def cases() -> Iterator[list[int]]:
    yield []
    yield [3]
    yield [2, 1]
    yield [1, 2, 3]


def judging(answer: Callable[..., Any], case: list[int]) -> Trial:
    got = answer(case)
    return Trial(None if got == sorted(case) else f"`{got!r}` is not in order.", {"values": len(case)})


def sort(values: list[int]) -> list[int]:
    """The right answer."""
    return [*itertools.chain.from_iterable([value] * values.count(value) for value in range(10))]


def bars(answer: Callable[..., Any], case: list[int]) -> Any:
    import plotly.graph_objects as go

    return go.Figure(go.Bar(y=answer(case)))


def exercise(**parts: Any) -> Exercise:
    given = {"cases": cases, "judge": judging, "own": lambda: (BlockPool, BlockPool.free.fget, kvcache)} | parts
    return Exercise("9.1", "Sort", **given)


def loops_for_ever(values: list[int]) -> list[int]:
    while True:
        pass
