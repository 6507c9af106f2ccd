"""More requests than memory: blocks are given out as tokens come, and when none is left somebody is sent back.

Counts only, without a model: what a chapter's reader plays with, and what exercise 1.6 is scored on.
"""

from __future__ import annotations

import random
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import NamedTuple

BLOCKS, BLOCK_SIZE = 64, 16
REQUESTS = 60
PRACTICE = (1, 2, 3, 4)
HELD_OUT = tuple(range(101, 109))
"""Seeds of the loads that a reader may try, and of those that only the score uses."""

MOST_STEPS = 20_000


class Running(NamedTuple):
    """A request in the batch: tokens of its prompt, tokens made so far, blocks it has."""

    prompt: int
    made: int
    blocks: int


Choose = Callable[[tuple[Running, ...]], int]
"""Given the batch, oldest request first, returns the place of the one to send back."""


class Load(NamedTuple):
    """Requests that all wait at the beginning, as (prompt tokens, tokens that will be made), and the memory."""

    requests: tuple[tuple[int, int], ...]
    blocks: int = BLOCKS
    block_size: int = BLOCK_SIZE


@dataclass(frozen=True)
class Tally:
    """What a load cost: tokens computed again, how often a request was sent back, and steps until all were done."""

    again: int
    sent_back: int
    steps: int


@dataclass
class _Member:
    prompt: int
    answer: int
    made: int = 0
    length: int = 0
    blocks: int = 0


class Endless(Exception):
    """The load is not done after very many steps, since the same requests are sent back over and over."""


def play(choose: Choose, load: Load) -> Tally:
    """Serve a load; raises Endless if that does not come to an end, ValueError if `choose` names nobody."""
    crowd = _Crowd(load)
    while crowd.waiting or crowd.running:
        crowd.step(choose)
        if crowd.steps > MOST_STEPS:
            raise Endless
    return Tally(crowd.again, crowd.sent_back, crowd.steps)


class _Crowd:
    """The state of one load. Every running request makes one token a step, the oldest first."""

    def __init__(self, load: Load) -> None:
        self.waiting = deque(_Member(prompt, answer) for prompt, answer in load.requests)
        self.running: list[_Member] = []
        self.free, self.block_size = load.blocks, load.block_size
        self.again = self.sent_back = self.steps = 0

    def step(self, choose: Choose) -> None:
        self.steps += 1
        before = self.sent_back
        for member in list(self.running):
            while member in self.running and self._needs(member, 1) > self.free:
                self._send_back(choose)
            if member in self.running:
                self._grow(member, 1)
        if self.sent_back == before:
            self._admit()
        for member in [member for member in self.running if member.made >= member.answer]:
            self._leave(member)

    def _admit(self) -> None:
        """In order, as long as there are blocks for all that the first has; its next token comes with them."""
        while self.waiting and self._needs(self.waiting[0], self._had(self.waiting[0])) <= self.free:
            member = self.waiting.popleft()
            self.running.append(member)
            self._grow(member, self._had(member))

    def _send_back(self, choose: Choose) -> None:
        batch = tuple(Running(member.prompt, member.made, member.blocks) for member in self.running)
        place = choose(batch)
        if isinstance(place, bool) or not isinstance(place, int) or not 0 <= place < len(batch):
            raise ValueError(f"{place!r} is not a place in a batch of {len(batch)}: return 0 to {len(batch) - 1}")
        member = self.running[place]
        self.again += member.length
        self.sent_back += 1
        self._leave(member)
        self.waiting.appendleft(member)

    def _leave(self, member: _Member) -> None:
        self.running.remove(member)
        self.free += member.blocks
        member.blocks = member.length = 0

    def _grow(self, member: _Member, tokens: int) -> None:
        more = self._needs(member, tokens)
        self.free -= more
        member.blocks += more
        member.length += tokens
        member.made += 1

    def _needs(self, member: _Member, tokens: int) -> int:
        return -(-(member.length + tokens) // self.block_size) - member.blocks

    def _had(self, member: _Member) -> int:
        return member.prompt + member.made


def load(seed: int, requests: int = REQUESTS) -> Load:
    """Short and long prompts mixed, 12 to 364 tokens; most answers are short, a few very long."""
    source = random.Random(seed)
    return Load(
        tuple(
            (int(source.choice((20, 40, 60, 120, 260)) * source.uniform(0.6, 1.4)), source_length(source))
            for _ in range(requests)
        )
    )


def source_length(source: random.Random) -> int:
    """Tokens of an answer: 4 or more, about 60 on average."""
    return min(400, max(4, int(source.expovariate(1 / 60))))


def again(choose: Choose, seeds: Sequence[int]) -> float:
    """Tokens computed again, on average over loads."""
    return sum(play(choose, load(seed)).again for seed in seeds) / len(seeds)


def practice(choose: Choose) -> list[Tally]:
    """What a choice costs on the loads that may be tried."""
    return [play(choose, load(seed)) for seed in PRACTICE]


def youngest(batch: tuple[Running, ...]) -> int:
    """The naive choice: last in, first out."""
    return len(batch) - 1
