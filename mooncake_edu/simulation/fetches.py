"""Prefixes that instances fetch from each other: for a request that was placed so, or ahead of demand."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import accumulate
from typing import NamedTuple

from mooncake_edu.model.costs import CostModel
from mooncake_edu.simulation.caches import NodeCache
from mooncake_edu.simulation.network import Network
from mooncake_edu.simulation.sight import Sight

Done = Callable[[float, bool], None]
"""Told when, and whether all of it came; if not, an instance went down."""


class Fetch(NamedTuple):
    """`ids` of a whole prefix of so many `tokens`, from one instance to another; `kept` there or only borrowed."""

    source: int
    target: int
    ids: Sequence[int]
    tokens: int
    kept: bool = True


class Fetches:
    """Carries fetches out, from the source's tiers over the network, and counts what each instance sent.

    A prefix under way to an instance is not sent there again: who asks for it waits for that.
    """

    def __init__(self, network: Network, costs: CostModel, sight: Sight, block_size: int) -> None:
        self.sent: dict[int, float] = {}
        self.caches: dict[int, NodeCache] = {}
        self.down: set[int] = set()
        self._network, self._costs, self._sight, self._block_size = network, costs, sight, block_size
        self._coming: dict[tuple[int, int], list[Done]] = {}

    def begin(self, fetch: Fetch, number: int, now: float, done: Done) -> int:
        """Fetch what the source still has and the target has not; returns how many blocks the target then has.

        If there is nothing to fetch, that is 0 and `done` is not called. `number` tells the transfer from all others.
        """
        source, target = self.caches[fetch.source], self.caches[fetch.target]
        reach = [*accumulate(source.match(fetch.ids).values())]
        own, there = sum(target.match(fetch.ids).values()), reach[-1] if reach else 0
        if there <= own:
            return 0
        ids = fetch.ids[:there]
        if waiting := self._coming.get(coming := (fetch.target, ids[-1])):
            waiting.append(done)
            return there
        tokens = min(there * self._block_size, fetch.tokens) - own * self._block_size
        size, spent, at = tokens * self._costs.token_bytes, 0.0, own
        for tier, until in zip(source.tiers, reach, strict=True):
            spent += max(until - at, 0) / tier.bandwidth
            at = max(at, until)
        limit = (there - own) / spent
        seconds = self._costs.transfer(size)
        self._coming[coming] = [done]
        source.store(ids)
        self.sent[fetch.source] = self.sent.get(fetch.source, 0.0) + size
        self._sight.report(now, self._sight.sends, fetch.source, seconds)

        def ended(time: float, came: bool = True) -> None:
            if came or fetch.source not in self.down:  # what an instance that is down had to send is forgotten
                self._sight.report(time, self._sight.sends, fetch.source, -seconds)
            if came and fetch.kept:
                target.store(ids)
            for each in self._coming.pop(coming):
                each(time, came)

        self._network.send(now, number, fetch.source, fetch.target, size, ended, limit,
                           lambda time: ended(time, False))  # fmt: skip
        return there
