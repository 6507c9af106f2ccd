"""Slices of traces on 8 prefill and 8 decode instances: what a chapter's reader replays, and what 6.5 is scored on."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import cache

from mooncake_edu.conductor import POLICIES, CacheAware, Conductor, Costs, Policy, Pool, Table
from mooncake_edu.config import Config
from mooncake_edu.model.costs import CostModel
from mooncake_edu.simulation.cluster import simulate
from mooncake_edu.simulation.parts import costs_of
from mooncake_edu.traces.profiles import make
from mooncake_edu.traces.trace import Trace

REQUESTS, OF = 300, 1000
"""Requests of a slice, and of the trace whose first ones they are: later turns come long after a first one."""

PRACTICE = (1, 2)
HELD_OUT = (101, 102)
"""Seeds of the slices that a reader may try, and of those that only the score uses."""

LOAD = 1.8
"""Prefill work that comes in, as a share of what the instances can do: more than that, if nothing were reused."""

Choose = Callable[[Pool, Table], int]
"""Given the prefill instances and what to expect of each, returns the place of the one that computes the prompt."""


@cache
def cluster() -> Config:
    """8 prefill and 8 decode instances of 8 x A800 each, and the paper's model."""
    return Config.size("cluster")


def load_of(trace: Trace, costs: CostModel, instances: int = 8) -> float:
    """Seconds of prefill that come in each second, an instance, if nothing is reused."""
    work = sum(costs.prefill(prompt) for prompt in trace.input_length.tolist())
    return float(work / instances / (trace.arrival[-1] - trace.arrival[0]))


def at_load(trace: Trace, load: float) -> Trace:
    """The requests of a trace, so fast after each other that they bring that load."""
    return trace.faster(load / load_of(trace, costs_of(cluster())))


@cache
def slice_of(seed: int) -> Trace:
    """Questions about documents, some of which many ask about."""
    return at_load(make("papers", seed, OF).slice(0, REQUESTS), LOAD)


class Own(CacheAware):
    """A policy whose prefill instance is chosen by a function; the instance uses what it holds and fetches nothing."""

    def __init__(self, choose: Choose, costs: Costs) -> None:
        super().__init__(costs)
        self._choose = choose

    def choose_prefill(self, pool: Pool, table: Table) -> int:
        """What the function says; raises ValueError if that is no place of a usable instance."""
        return checked(self._choose(pool, table), pool)


def checked(place: object, pool: Pool) -> int:
    """A place of a usable instance; raises ValueError for anything else."""
    if isinstance(place, bool) or not isinstance(place, int) or place not in pool.choices():
        raise ValueError(f"{place!r} is no place of a usable instance: return one of {pool.choices()}")
    return place


def mean_ttft(policy: Policy, seeds: Sequence[int]) -> float:
    """Seconds to the first token, on average over all requests of the slices."""
    runs = [simulate(cluster(), slice_of(seed), conductor=Conductor(policy)).table.mean("ttft") for seed in seeds]
    return sum(runs) / len(runs)


def scored(choose: Choose, seeds: Sequence[int]) -> float:
    """Mean TTFT under a function."""
    return mean_ttft(Own(choose, costs_of(cluster())), seeds)


@cache
def of_the_five(seed: int) -> Mapping[str, float]:
    """Mean TTFT on a slice under each of the package's policies."""
    return {name: mean_ttft(policy(costs_of(cluster())), [seed]) for name, policy in POLICIES.items()}


def practice(choose: Choose) -> list[float]:
    """Mean TTFT on each slice that may be tried, in seconds."""
    return [scored(choose, [seed]) for seed in PRACTICE]


def shortest_queue(pool: Pool, _table: Table) -> int:
    """The naive choice: whoever has the least work waiting."""
    return min(pool.choices(), key=lambda place: pool.queue[place])
