"""Of two ways the one that costs less is taken, as long as it does."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch

from mooncake_edu.model.race import Race


class Clock:
    """Seconds that pass only while something is computed."""

    now = 0.0

    def __call__(self) -> float:
        return self.now

    def way(self, seconds: float, value: int) -> Callable[[], torch.Tensor]:
        """Takes so long and gives this number."""

        def compute() -> torch.Tensor:
            self.now += seconds
            return torch.tensor(value)

        return compute


@pytest.mark.parametrize("faster", [0, 1])
def test_the_faster_way_is_taken_but_for_one_trial_a_period(faster: int) -> None:
    clock = Clock()
    race = Race(clock)
    ways = tuple(clock.way(1.0 if way == faster else 2.0, way) for way in (0, 1))
    taken = [int(race(10, ways)) for _ in range(3 * Race.PERIOD)]
    assert taken.count(1 - faster) == 3


def test_it_follows_when_the_other_way_becomes_the_faster() -> None:
    clock = Clock()
    race = Race(clock)
    for _ in range(Race.PERIOD):
        race(10, (clock.way(1.0, 0), clock.way(2.0, 1)))
    taken = [int(race(10, (clock.way(3.0, 0), clock.way(2.0, 1)))) for _ in range(Race.PERIOD)]
    assert taken.count(1) >= Race.PERIOD - Race.KEPT - 1


def test_a_single_interruption_changes_nothing() -> None:
    clock = Clock()
    race = Race(clock)
    seconds = [1.0] * 10 + [50.0] + [1.0] * (Race.PERIOD - 11)
    taken = [int(race(10, (clock.way(each, 0), clock.way(2.0, 1)))) for each in seconds]
    assert taken.count(1) == 1


def test_costs_are_told_by_the_multiplication_so_that_sizes_may_vary() -> None:
    clock = Clock()
    race = Race(clock)
    taken = []
    for number in range(2 * Race.PERIOD):
        work = 1 + number % 7
        taken.append(int(race(work, (clock.way(2.0 * work, 0), clock.way(1.0 * work, 1)))))
    assert taken.count(0) == 2


def test_what_fails_is_not_noted_as_fast() -> None:
    clock = Clock()
    race = Race(clock)

    def fails() -> torch.Tensor:
        raise MemoryError

    with pytest.raises(MemoryError):
        race(10, (fails, clock.way(1.0, 1)))
    taken = [int(race(10, (clock.way(5.0, 0), clock.way(1.0, 1)))) for _ in range(Race.PERIOD - 1)]
    assert set(taken) == {1}
