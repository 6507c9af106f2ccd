"""Where an instance keeps KVCache of prompts: tiers of a node, and the pages of a coupled instance.

A block counts as cached from the end of the prefill that computed it, when its store has ended; two requests that
compute the same block side by side both compute it. Blocks of answers are not kept, since a trace has no ids of them.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

from mooncake_edu.store import POLICIES, ChainCache

Told = Callable[[Sequence[int], Sequence[int]], None]
"""Told of the ids that were stored, and of those that are gone."""


class Tier(NamedTuple):
    """A tier by its name, with room for `blocks`, read at `bandwidth` bytes/s."""

    name: str
    blocks: int
    bandwidth: float


class NodeCache:
    """The tiers of one node, fastest first; each holds all that the faster ones hold, and what is used comes into all.

    Told are the ids of the last tier.
    """

    def __init__(self, tiers: Sequence[Tier], eviction: str, told: Told) -> None:
        self.tiers = tiers
        self._caches = [ChainCache(tier.blocks, POLICIES[eviction]()) for tier in tiers]
        self._told = told

    def __len__(self) -> int:
        return max(map(len, self._caches), default=0)

    def match(self, ids: Sequence[int]) -> dict[str, int]:
        """How many blocks, from the first on, each tier gives: the fastest that holds it."""
        found, reached = {}, 0
        for tier, cache in zip(self.tiers, self._caches, strict=True):
            until = max(cache.match(ids), reached)
            found[tier.name], reached = until - reached, until
        return found

    def store(self, ids: Sequence[int]) -> None:
        """All blocks of a prompt are used, or stored where they are missing."""
        for cache in self._caches:
            new, gone = ids[cache.match(ids) :], cache.use(ids)
            if cache is self._caches[-1]:
                self._told(new, gone)  # type: ignore[arg-type]

    def clear(self) -> list[int]:
        """Everything is gone; returns the ids, of which nobody is told."""
        gone: list[Any] = []
        for cache in self._caches:
            cache.capacity, room = 0, cache.capacity
            gone, cache.capacity = cache.use(()), room
        return gone


class PagedCache:
    """The pages of a coupled instance: blocks in use by requests, and blocks kept for reuse while there is room.

    Blocks that no request uses any more go in the order of their last use, tails first.
    """

    def __init__(self, sharing: bool, told: Told) -> None:
        self.sharing = sharing
        self._told = told
        self._users: dict[int, int] = {}
        self._kept: OrderedDict[int, None] = OrderedDict()

    @property
    def used(self) -> int:
        """Blocks in use that have an id."""
        return len(self._users)

    @property
    def kept(self) -> int:
        """Blocks that wait for reuse."""
        return len(self._kept)

    def match(self, ids: Sequence[int]) -> int:
        """How many blocks, from the first on, are there."""
        found = 0
        for id_ in ids:
            if id_ not in self._users and id_ not in self._kept:
                break
            found += 1
        return found

    def unused(self, ids: Sequence[int]) -> int:
        """How many of these blocks no request uses."""
        return sum(id_ not in self._users for id_ in ids)

    def pin(self, ids: Sequence[int]) -> None:
        """A request uses these blocks; those that are not there come in."""
        if not self.sharing:
            return
        new = []
        for id_ in ids:
            if id_ in self._users:
                self._users[id_] += 1
                continue
            self._users[id_] = 1
            if id_ in self._kept:
                del self._kept[id_]
            else:
                new.append(id_)
        self._told(new, ())

    def unpin(self, ids: Sequence[int]) -> None:
        """A request uses these no more."""
        for id_ in reversed(ids):
            self._users[id_] -= 1
            if not self._users[id_]:
                del self._users[id_]
                self._kept[id_] = None

    def clear(self) -> list[int]:
        """Everything is gone; returns the ids, of which nobody is told."""
        gone = [*self._users, *self._kept]
        self._users.clear()
        self._kept.clear()
        return gone

    def shrink(self, room: int) -> None:
        """Keep at most `room` blocks for reuse."""
        gone = []
        while len(self._kept) > max(room, 0):
            gone.append(self._kept.popitem(last=False)[0])
        if gone:
            self._told((), gone)
