"""A stream of prompts over a cache too small for all of them: who is evicted decides how much is found again.

Counts only, without a model: what a chapter's reader plays with, and what exercise 2.5 is scored on.
"""

from __future__ import annotations

import itertools
import random
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

BLOCKS = 80
"""Blocks of the cache."""

REQUESTS = 600
RENEWED = 50
"""Requests between two changes of a system prompt."""

PRACTICE = (1, 2)
HELD_OUT = (101, 102, 103)
"""Seeds of the streams that a reader may try, and of those that only the score uses."""


class Block(NamedTuple):
    """A cached block, as an order of eviction sees it.

    `place` counts from 0, the first block of its prompt; `last_used` is the number of the request that used it last;
    `uses` counts the requests that used it; `behind` counts the cached blocks directly behind it.
    """

    place: int
    last_used: int
    uses: int
    behind: int


Worth = Callable[[Block], Any]
"""What a block is worth: the one worth least is evicted first; of several, the one that came into the cache first."""

Prompt = list[int]
"""The keys of a prompt's blocks, as whole numbers; as with real keys, equal keys mean equal whole prefixes."""


class Tally(NamedTuple):
    """Blocks of all prompts, those found, and those evicted; `found_by` counts the blocks found after each prompt."""

    blocks: int
    found: int
    evicted: int
    found_by: list[int]

    @property
    def percent(self) -> float:
        """Percent of the prompts' blocks that were found."""
        return 100 * self.found / max(self.blocks, 1)


def stream(seed: int, requests: int = REQUESTS) -> list[Prompt]:
    """Prompts of three kinds, mixed: a long document with one question, a new conversation, a further turn of one.

    A document comes once and never again. A conversation begins with one of four system prompts of 8 blocks; every
    `RENEWED` requests one of the four is replaced by a new one.
    """
    source, prompts, keys = random.Random(seed), list[Prompt](), itertools.count()

    def fresh(low: int, high: int) -> Prompt:
        return [next(keys) for _ in range(source.randint(low, high))]

    systems = [fresh(8, 8) for _ in range(4)]
    talks: list[tuple[Prompt, int]] = []  # what was said so far, and turns left
    while len(prompts) < requests:
        if len(prompts) % RENEWED == RENEWED - 1:
            systems = [*systems[1:], fresh(8, 8)]
        kind = source.random()
        if kind < 0.35:
            said, left = fresh(8, 20), 0
        elif kind < 0.6 or not talks:
            said, left = source.choice(systems) + fresh(1, 2), source.randint(1, 4)
        else:
            said, left = talks.pop(source.randrange(len(talks)))
            said, left = said + fresh(1, 3), left - 1
        prompts.append(said)
        if left:
            talks.append((said, left))
    return prompts


def replay(worth: Worth, prompts: Sequence[Prompt], blocks: int = BLOCKS) -> Tally:
    """Serve prompts one after another from a cache of so many blocks.

    Of each, the blocks up to the first that is missing are found, the rest computed and cached. Raises ValueError
    if a prompt has more blocks than the cache.
    """
    cache = _Cache(worth)
    found_by: list[int] = []
    for number, prompt in enumerate(prompts):
        if len(prompt) > blocks:
            raise ValueError(f"a prompt of {len(prompt)} blocks is more than the cache of {blocks}: use more blocks")
        cache.serve(number, prompt, blocks)
        found_by.append(cache.found)
    return Tally(sum(map(len, prompts)), cache.found, cache.evicted, found_by)


class _Cache:
    """Cached blocks by key, and what each is worth; a worth is asked for again only when its block has changed."""

    def __init__(self, worth: Worth) -> None:
        self.worth, self.found, self.evicted = worth, 0, 0
        self.blocks: dict[int, Block] = {}
        self.worths: dict[int, Any] = {}
        self.before: dict[int, int | None] = {}

    def serve(self, number: int, prompt: Prompt, blocks: int) -> None:
        hit = next((place for place, key in enumerate(prompt) if key not in self.blocks), len(prompt))
        self.found += hit
        used = set(prompt)
        missing = sum(key not in self.blocks for key in prompt)
        while len(self.blocks) + missing > blocks:
            self._evict(used)
        before = None
        for place, key in enumerate(prompt):
            if key in self.blocks:
                block = self.blocks[key]
                self._set(key, block._replace(last_used=number, uses=block.uses + 1))
            else:
                self.before[key] = before
                self._set(key, Block(place, number, 1, 0))
                self._count(before, 1)
            before = key

    def _evict(self, used: set[int]) -> None:
        key = min((key for key in self.blocks if key not in used), key=self.worths.__getitem__)
        del self.blocks[key], self.worths[key]
        self.evicted += 1
        self._count(self.before[key], -1)

    def _count(self, key: int | None, more: int) -> None:
        """Note that a block has one more, or one less, directly behind it."""
        if key in self.blocks:
            block = self.blocks[key]
            self._set(key, block._replace(behind=block.behind + more))

    def _set(self, key: int, block: Block) -> None:
        self.blocks[key] = block
        self.worths[key] = self.worth(block)


def found_percent(worth: Worth, seeds: Sequence[int]) -> float:
    """Percent of all blocks that are found, on average over streams."""
    return sum(replay(worth, stream(seed)).percent for seed in seeds) / len(seeds)


def practice(worth: Worth) -> list[float]:
    """Percent of the blocks that are found on each stream that may be tried."""
    return [replay(worth, stream(seed)).percent for seed in PRACTICE]


def least_recently_used(block: Block) -> int:
    """The naive order: whatever was not used for longest goes first, heads and tails alike."""
    return block.last_used
