"""Layer 6, Conductor: which prefill and which decode instance serve a request.

A policy decides from what it is shown alone: the request without its answer's length, and the view of the cluster. It
reads no clock and moves nothing, so the same object serves a simulation and a real cluster. Keys are opaque and times
come from a cost function that is handed in. Instances alike in what a policy looks at are told apart by a random
number that its seed decides, so equal inputs give equal placements.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Hashable, Sequence
from dataclasses import dataclass
from random import Random
from typing import NamedTuple, Protocol

from mooncake_edu.errors import UserError


class PlacementError(UserError):
    """No instance can take a request."""


class Costs(Protocol):
    """Estimates of times, in seconds."""

    def prefill(self, prompt: int, prefix: int = 0) -> float:
        """Computing a prompt of which the first `prefix` tokens are reused."""

    def decode_step(self, batch: int, context: int) -> float:
        """One token for each of `batch` requests that hold `context` tokens together."""


@dataclass(frozen=True, slots=True)
class Query:
    """What a policy may know of a request: `prompt` tokens, the keys of its blocks in order, `arrival` in seconds."""

    prompt: int
    keys: Sequence[Hashable]
    arrival: float
    priority: int = 0


@dataclass(slots=True)
class Pool:
    """The instances of one role in columns, one entry an instance; to be read only.

    An instance of several `stages` computes a prompt so many times as fast. `queue` is the work waiting and in
    progress, in seconds; `cached` how many tokens of the request's prompt the instance holds; `requests` those placed
    there and not ended, with `context` tokens; `usable` is false for an instance that is unhealthy or draining.
    """

    number: Sequence[int]
    stages: Sequence[int]
    queue: Sequence[float]
    cached: Sequence[int]
    requests: Sequence[int]
    context: Sequence[int]
    usable: Sequence[bool]

    def choices(self) -> list[int]:
        """The places of the usable instances; raises PlacementError if there is none."""
        found = [place for place, usable in enumerate(self.usable) if usable]
        if not found:
            raise PlacementError(f"none of the {len(self.number)} instances is usable: add one, or wait for a probe")
        return found


@dataclass(slots=True)
class ClusterView:
    """What is known of the cluster, `age` seconds old; coupled instances stand in one pool, which is both."""

    prefill: Pool
    decode: Pool
    age: float = 0.0


class Placement(NamedTuple):
    """Where a request goes, and what is forecast: tokens reused there, seconds of work there, of TTFT and of TBT."""

    prefill: int
    decode: int
    cached: int
    work: float
    ttft: float
    tbt: float


class Policy(ABC):
    """Chooses instances; every policy reuses what the instance it chose holds."""

    def __init__(self, costs: Costs, seed: int = 0) -> None:
        self.costs = costs
        self.random = Random(seed)

    def place(self, query: Query, view: ClusterView) -> Placement:
        """Where the request goes; raises PlacementError if no instance is usable."""
        first = self.choose_prefill(query, view.prefill)
        coupled = view.decode is view.prefill
        second = first if coupled else self.choose_decode(query, view.decode)
        fill, pool = view.prefill, view.decode
        work = self.costs.prefill(query.prompt, fill.cached[first]) / fill.stages[first]
        tbt = self.costs.decode_step(pool.requests[second] + 1, pool.context[second] + query.prompt)
        return Placement(
            fill.number[first], pool.number[second], fill.cached[first], work, fill.queue[first] + work, tbt
        )

    @abstractmethod
    def choose_prefill(self, query: Query, pool: Pool) -> int:
        """The place in its pool of the instance that computes the prompt."""

    @abstractmethod
    def choose_decode(self, query: Query, pool: Pool) -> int:
        """The place in its pool of the instance that makes the other tokens."""

    def least(self, pool: Pool, *columns: Sequence[float]) -> int:
        """A usable instance that is least in the columns, the first of which counts most."""
        choices = pool.choices()
        keys = list(zip(*columns, strict=True))
        low = min(keys[place] for place in choices)
        ties = [place for place in choices if keys[place] == low]
        return ties[0] if len(ties) == 1 else self.random.choice(ties)


class RandomChoice(Policy):
    """Any usable instance, each as likely."""

    def choose_prefill(self, query: Query, pool: Pool) -> int:
        """Any."""
        return self.random.choice(pool.choices())

    def choose_decode(self, query: Query, pool: Pool) -> int:
        """Any."""
        return self.random.choice(pool.choices())


class RoundRobin(Policy):
    """One instance after the other, in the order of the pool; those that are not usable are passed over."""

    def __init__(self, costs: Costs, seed: int = 0) -> None:
        super().__init__(costs, seed)
        self._last = {"prefill": -1, "decode": -1}

    def choose_prefill(self, query: Query, pool: Pool) -> int:
        """The next."""
        return self._next("prefill", pool)

    def choose_decode(self, query: Query, pool: Pool) -> int:
        """The next."""
        return self._next("decode", pool)

    def _next(self, role: str, pool: Pool) -> int:
        choices, last = pool.choices(), self._last[role]
        self._last[role] = next((place for place in choices if place > last), choices[0])
        return self._last[role]


class LoadBalance(Policy):
    """The prefill instance with the shortest queue in seconds; the decode instance with the fewest requests.

    Among decode instances with equally many, the one with the fewest tokens.
    """

    def choose_prefill(self, query: Query, pool: Pool) -> int:
        """The shortest queue."""
        return self.least(pool, pool.queue)

    def choose_decode(self, query: Query, pool: Pool) -> int:
        """The fewest requests."""
        return self.least(pool, pool.requests, pool.context)


POLICIES: dict[str, type[Policy]] = {
    "random": RandomChoice,
    "round-robin": RoundRobin,
    "load-balancing": LoadBalance,
}
"""The policies by the names that a configuration uses."""
