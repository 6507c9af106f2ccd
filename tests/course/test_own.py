"""The package's own object is no answer, in whatever dress; whoever uses the package may."""

from __future__ import annotations

import functools
from typing import Any

import pytest

from mooncake_edu import kvcache
from mooncake_edu.course.check import judge
from mooncake_edu.course.own import own_object
from mooncake_edu.course.verdict import FAILED, PASSED
from mooncake_edu.kvcache import BlockPool, BlockTable
from tests.course.sorting import exercise, sort


class Changed(BlockPool):
    def allocate(self, count: int) -> list[int]:
        return super().allocate(count)[::-1]


class Unchanged(BlockPool):
    """Says more, does the same."""


class Twice(Unchanged):
    pass


def release(pool: BlockPool) -> None:
    pool.release([0])


OWN_FREE = BlockPool.free.fget
OWN: tuple[object, ...] = (BlockPool, BlockPool.release, kvcache.Hold)


def named(pool: BlockPool) -> object:
    return kvcache.Hold(pool, [0])


def imported(pool: BlockPool) -> object:
    from mooncake_edu.kvcache import Hold

    return Hold(pool, [0])


def nested(pool: BlockPool) -> list[object]:
    return [(lambda: kvcache.Hold(pool, [0]))()]


def by_a_helper(pool: BlockPool) -> object:
    return named(pool)


@functools.wraps(BlockPool.release)
def wrapped(*arguments: Any) -> None:
    pass


class Method:
    def call(self, pool: BlockPool) -> object:
        return named(pool)


@pytest.mark.parametrize(
    ("answer", "name"),
    [
        (BlockPool, "BlockPool"),
        (BlockPool.release, "BlockPool.release"),
        (BlockPool(2).release, "BlockPool.release"),
        (functools.partial(BlockPool, 3), "BlockPool"),
        (functools.partial(functools.partial(BlockPool.release), 3), "BlockPool.release"),
        (Unchanged, "BlockPool"),
        (Twice, "BlockPool"),
        (wrapped, "BlockPool.release"),
        (lambda blocks: BlockPool(blocks), "BlockPool"),
        (named, "Hold"),
        (imported, "Hold"),
        (nested, "Hold"),
        (by_a_helper, "Hold"),
        (Method().call, "Hold"),
        (Method, "Hold"),
        (staticmethod(BlockPool.release), "BlockPool.release"),
        (type(release)(BlockPool.release.__code__, {}), "BlockPool.release"),
        ((lambda own: lambda pool: own(pool))(BlockPool.release), "BlockPool.release"),
    ],
)
def test_the_package_s_own_object_is_no_answer_in_any_dress(answer: Any, name: str) -> None:
    verdict = judge(exercise(own=lambda: OWN), answer)
    assert (verdict.status, verdict.tried) == (FAILED, 0)
    assert verdict.broken == f"This hands the work to the package's own `{name}`: write yours."


@pytest.mark.parametrize("answer", [Changed, release, sort, BlockTable, len, lambda pool: pool.release([0])])
def test_an_answer_of_its_own_may_use_the_package(answer: Any) -> None:
    assert own_object(answer, OWN) is None


def test_looking_through_an_answer_runs_nothing_of_it() -> None:
    class Trap:
        def __getattr__(self, name: str) -> object:
            raise AssertionError(name)

        def __eq__(self, other: object) -> bool:
            raise AssertionError

        __hash__ = None  # type: ignore[assignment]

        def __call__(self, values: list[int]) -> list[int]:
            return sort(values)

    assert own_object(Trap(), OWN) is None
    assert judge(exercise(), Trap()).status == PASSED
