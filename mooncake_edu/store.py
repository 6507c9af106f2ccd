"""Layer 3, the store: which blocks of KVCache are kept, and which one goes when there is no room.

Blocks hang together in chains: a block is of use only with every block before it. So only leaves, blocks without a
kept block behind them, can go, and a tail goes before its head.
"""

from __future__ import annotations

import heapq
import itertools
from abc import ABC, abstractmethod
from bisect import bisect_right
from collections import OrderedDict
from collections.abc import Hashable, Iterable, Sequence
from typing import Any


class Kept:
    """A block that is kept: its key and the one before it, its place in the prompt, and when it was used how often.

    Times count the uses of the cache. `since` is when it was stored, `used` when it was used last, `uses` how often
    since it was stored, `children` how many kept blocks come right behind it.
    """

    __slots__ = ("children", "gone", "key", "parent", "position", "since", "used", "uses")

    def __init__(self, key: Hashable, parent: Kept | None, position: int, now: int) -> None:
        self.key = key
        self.parent = parent
        self.position = position
        self.since = self.used = now
        self.uses = 1
        self.children = 0
        self.gone = False


class Eviction(ABC):
    """Which leaf goes next. It is told of every leaf that is used, and forgets the one that it lets go."""

    @abstractmethod
    def touch(self, leaf: Kept) -> None:
        """A leaf was stored or used, or became one when its last child went."""

    @abstractmethod
    def cover(self, block: Kept) -> None:
        """A leaf got a block behind it, and cannot go before that."""

    @abstractmethod
    def evict(self) -> Kept:
        """The leaf that goes; there is always one."""


class Ranked(Eviction):
    """The leaf of the lowest rank goes: O(log n) in a heap.

    A rank that has changed is pushed anew, and the entry that went stale is dropped when it comes up, or when such
    entries are the most. Of equal ranks the one goes that was pushed first.
    """

    def __init__(self) -> None:
        self._heap: list[tuple[Any, int, Kept]] = []
        self._count = itertools.count()
        self._room = 64

    @abstractmethod
    def rank(self, leaf: Kept) -> Any:
        """What leaves are compared by; everything in it is known when the leaf is touched."""

    def touch(self, leaf: Kept) -> None:
        """Push its rank."""
        heapq.heappush(self._heap, (self.rank(leaf), next(self._count), leaf))
        if len(self._heap) > self._room:
            self._heap = [entry for entry in self._heap if self._stands(entry)]
            heapq.heapify(self._heap)
            self._room = 2 * len(self._heap) + 64

    def cover(self, block: Kept) -> None:
        """Its entry goes when it comes up."""

    def evict(self) -> Kept:
        """Pop until an entry still stands."""
        while not self._stands(entry := heapq.heappop(self._heap)):
            pass
        return entry[2]

    def _stands(self, entry: tuple[Any, int, Kept]) -> bool:
        rank, _, leaf = entry
        return not leaf.gone and not leaf.children and rank == self.rank(leaf)


class Lru(Eviction):
    """Least recently used first, the paper's choice (FAST 3.2): O(1).

    A use goes along one chain, so of each time there is one leaf at most; and a block is used no earlier than those
    behind it, so what becomes a leaf when its last child goes was used no earlier than that. The search for the oldest
    never goes back.
    """

    def __init__(self) -> None:
        self._leaves: dict[int, Kept] = {}  # by the time they were used; some were used again since, or have children
        self._oldest = 0
        self._room = 64

    def touch(self, leaf: Kept) -> None:
        """Note when it was used; what went stale is dropped when it is the most."""
        leaves = self._leaves
        leaves[leaf.used] = leaf
        if len(leaves) > self._room:
            self._leaves = {used: leaf for used, leaf in leaves.items() if leaf.used == used and not leaf.children}
            self._room = 2 * len(self._leaves) + 64

    def cover(self, block: Kept) -> None:
        """What is noted of it is found to be stale."""

    def evict(self) -> Kept:
        """The next in time that is still a leaf, and was not used since."""
        while True:
            leaf = self._leaves.pop(self._oldest, None)
            if leaf is not None and leaf.used == self._oldest and not leaf.children:
                return leaf
            self._oldest += 1


class Lfu(Ranked):
    """Least frequently used since it was stored first; of those, the least recently used."""

    def rank(self, leaf: Kept) -> Any:
        """How often, then when."""
        return leaf.uses, leaf.used


class LengthAware(Ranked):
    """Least frequently used first; of those, the one farthest back in its prompt (arXiv 2407.00079, table 1).

    The paper gives one sentence: like LFU, but blocks later in the requests go first. Of equal places the least
    recently used goes, which it does not say.
    """

    def rank(self, leaf: Kept) -> Any:
        """How often, then how far back, then when."""
        return leaf.uses, -leaf.position, leaf.used


class Fifo(Ranked):
    """First stored, first to go, however often it is used."""

    def rank(self, leaf: Kept) -> Any:
        """When it was stored."""
        return leaf.since, -leaf.position


class Belady(Ranked):
    """The leaf whose next use is farthest away goes: no policy can have more hits, and none can know (Belady 1966).

    `chains` are all uses to come, in order, each one call of `ChainCache.use`. A block is used whenever a block
    behind it is, so closure takes nothing from the limit.
    """

    def __init__(self, chains: Iterable[Iterable[Hashable]]) -> None:
        super().__init__()
        self._uses: dict[Hashable, list[int]] = {}
        for number, chain in enumerate(chains, 1):
            for key in chain:
                self._uses.setdefault(key, []).append(number)

    def rank(self, leaf: Kept) -> Any:
        """Farthest first, never before all others."""
        uses = self._uses[leaf.key]
        place = bisect_right(uses, leaf.used)
        return -uses[place] if place < len(uses) else float("-inf")


class S3Fifo(Eviction):
    """New blocks wait in a small queue, and only those used again there come into the main one (S3-FIFO, SOSP 2023).

    So a long prompt that nobody asks for again passes through a tenth of the leaves and drives nobody out. A key that
    was let go from the small queue is remembered for as many evictions as there are leaves: if it returns, it comes
    into the main queue at once. A block that becomes a leaf takes the place of its last child, and counts as used if
    it was used since that child was.
    """

    SMALL = 0.1
    MOST_VISITS = 3

    def __init__(self) -> None:
        self._small: OrderedDict[Kept, int] = OrderedDict()
        self._main: OrderedDict[Kept, int] = OrderedDict()
        self._ghosts: OrderedDict[Hashable, None] = OrderedDict()
        self._last: tuple[Kept, OrderedDict[Kept, int]] | None = None

    def touch(self, leaf: Kept) -> None:
        """Count a visit; a leaf in no queue comes into one."""
        for queue in (self._small, self._main):
            if leaf in queue:
                queue[leaf] = min(queue[leaf] + 1, self.MOST_VISITS)
                return
        if self._last is not None and self._last[0].parent is leaf:
            child, queue = self._last
            queue[leaf] = int(leaf.used > child.used)
            queue.move_to_end(leaf, last=False)
            return
        known = leaf.key in self._ghosts
        self._ghosts.pop(leaf.key, None)
        (self._main if known else self._small)[leaf] = 0

    def cover(self, block: Kept) -> None:
        """Take it out of its queue, for as long as there is something behind it."""
        self._small.pop(block, None)
        self._main.pop(block, None)

    def evict(self) -> Kept:
        """The oldest of the small queue that was not used again; of the main one, if the small one is small."""
        while True:
            leaves = len(self._small) + len(self._main)
            queue = self._small if len(self._small) >= self.SMALL * leaves else self._main
            leaf, visits = queue.popitem(last=False)
            if not visits:
                break
            self._main[leaf] = 0 if queue is self._small else visits - 1
        if queue is self._small:
            self._ghosts[leaf.key] = None
            while len(self._ghosts) > leaves:
                self._ghosts.popitem(last=False)
        self._last = (leaf, queue)
        return leaf


POLICIES: dict[str, type[Eviction]] = {
    "lru": Lru,
    "lfu": Lfu,
    "length-aware": LengthAware,
    "fifo": Fifo,
    "s3-fifo": S3Fifo,
}
"""The policies that need to know nothing of the future, by name."""


class ChainCache:
    """At most `capacity` blocks of chains, each kept with all blocks before it; without a capacity, all of them."""

    def __init__(self, capacity: int | None = None, eviction: Eviction | None = None) -> None:
        if capacity is not None and capacity < 0:
            raise ValueError(f"a cache of {capacity} blocks: give 0 or more, or None for no limit")
        self.capacity = capacity
        self._eviction = eviction or Lru()
        self._kept: dict[Hashable, Kept] = {}
        self._now = 0

    def __len__(self) -> int:
        """How many blocks are kept."""
        return len(self._kept)

    def __contains__(self, key: Hashable) -> bool:
        """Whether a block is kept, and so every block before it."""
        return key in self._kept

    def match(self, keys: Iterable[Hashable]) -> int:
        """How many blocks of a chain, from its first on, are kept."""
        found = 0
        for key in keys:
            if key not in self._kept:
                break
            found += 1
        return found

    def use(self, keys: Sequence[Hashable], first: int = 0) -> list[Hashable]:
        """Use a whole chain, storing what is missing; returns the keys that went to make room, tails first.

        Room is made at the end, so of a chain longer than the capacity the head may stay. `first` is the place in its
        prompt of the first key: blocks used one by one, each a chain of its own, are kept without closure. Raises
        ValueError for a kept key that does not stand where it stood: what comes before it in the chain was used.
        """
        self._now = now = self._now + 1
        kept, parent = self._kept, None
        try:
            for position, key in enumerate(keys, first):
                block = kept.get(key)
                if block is None:
                    block = kept[key] = Kept(key, parent, position, now)
                    if parent is not None:
                        if not parent.children and parent.since < now:  # one that is new was no leaf yet
                            self._eviction.cover(parent)
                        parent.children += 1
                elif block.parent is parent:
                    block.used = now
                    block.uses += 1
                else:
                    raise ValueError(f"key {key!r} came behind another key before: give keys that name whole prefixes")
                parent = block
        finally:
            if parent is not None and not parent.children:
                self._eviction.touch(parent)
        return [] if self.capacity is None else self._evict(len(kept) - self.capacity)

    def _evict(self, count: int) -> list[Hashable]:
        gone, kept, eviction = [], self._kept, self._eviction
        for _ in range(count):
            leaf = eviction.evict()
            leaf.gone = True
            del kept[leaf.key]
            gone.append(leaf.key)
            parent = leaf.parent
            if parent is not None:
                parent.children -= 1
                if not parent.children:
                    eviction.touch(parent)
        return gone
