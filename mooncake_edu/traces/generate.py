"""Traces made by chance: sessions of several turns that share system prompts and popular documents.

A session begins with a system prompt and perhaps a document, both shared with others, and a first question; each
later turn sends all that was said before, the last answer included, and a new question.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from mooncake_edu.traces.trace import BLOCK_SIZE, Ints, Reals, Row, Trace, TraceError

MOST_REQUESTS = 1_000_000

PAUSE_SPREAD = 1.17
"""Sigma of the logarithm of a pause, less the shortest one. In the conversation trace a tenth of the pauses is shorter
than 42 s, half of them than 123 s and nine tenths than 483 s, as with 20 s and a log-normal time of median 103 s."""


class Lengths(NamedTuple):
    """A log-normal number of tokens of this mean and spread (the sigma of its logarithm), from 1 to `most`."""

    mean: float
    spread: float
    most: int = 128_000

    def draw(self, random: np.random.Generator, count: int) -> Ints:
        """So many numbers; the cut at `most` makes the mean a little smaller."""
        centre = np.log(self.mean) - self.spread**2 / 2
        return np.clip(np.rint(random.lognormal(centre, self.spread, count)), 1, self.most).astype(np.int64)


class Shared(NamedTuple):
    """Texts that many sessions begin with: `texts` says how many, their tokens, and how popular the first of them are.

    The r-th most popular is used as r to the power of minus `zipf`; a session uses one with probability `share`.
    """

    texts: int
    tokens: Lengths
    zipf: float = 1.0
    share: float = 1.0

    def draw(self, random: np.random.Generator, sessions: int) -> tuple[Ints, Ints]:
        """The tokens of every text, and which one each session uses; -1 is none."""
        weights = np.arange(1.0, self.texts + 1) ** -self.zipf
        chosen = random.choice(self.texts, sessions, p=weights / weights.sum())
        chosen[random.random(sessions) >= self.share] = -1
        return self.tokens.draw(random, self.texts), chosen


@dataclass(frozen=True)
class Workload:
    """What requests are like: `rate` in requests/s, `turns` a session on average.

    Between two turns pass `pause` seconds on average, and never less than `least_pause`. With `tick`, requests come
    only every so many seconds, many at once.
    """

    rate: float
    turns: float
    pause: float
    system: Shared
    documents: Shared
    opening: Lengths
    question: Lengths
    output: Lengths
    tick: float = 0.0
    least_pause: float = 0.0


def generate(workload: Workload, requests: int, seed: int, name: str = "generated") -> Trace:
    """A trace of so many requests; equal seeds give equal traces. Raises TraceError for an impossible number.

    Sessions start at random; times are then stretched, so that the rate is the workload's.
    """
    if not 1 <= requests <= MOST_REQUESTS:
        raise TraceError(f"{requests} requests: give a number from 1 to {MOST_REQUESTS}")
    random = np.random.default_rng(seed)
    turns = random.geometric(1 / workload.turns, requests)
    sessions = int(np.searchsorted(np.cumsum(turns), requests)) + 1
    times, owner = _times(workload, turns[:sessions], requests, random)
    order = np.argsort(times, kind="stable")[:requests]
    arrival = times[order]
    arrival = (arrival - arrival[0]) * (requests / workload.rate / max(arrival[-1] - arrival[0], 1e-9))
    if workload.tick:
        arrival = np.floor(arrival / workload.tick) * workload.tick
    talks = _Talks(workload, sessions, random)
    rows = [Row(float(time), *talks.next(int(owner[at]))) for time, at in zip(arrival, order, strict=True)]
    return Trace.of(rows, BLOCK_SIZE, name)


def _times(workload: Workload, turns: Ints, requests: int, random: np.random.Generator) -> tuple[Reals, Ints]:
    """When each turn of each session comes, and whose it is."""
    starts = np.sort(random.uniform(0, requests / workload.rate, len(turns)))
    owner = np.repeat(np.arange(len(turns)), turns)
    centre = np.log(workload.pause - workload.least_pause) - PAUSE_SPREAD**2 / 2
    pauses = workload.least_pause + random.lognormal(centre, PAUSE_SPREAD, len(owner))
    first = np.concatenate([[0], np.cumsum(turns)[:-1]])
    pauses[first] = 0
    waited = np.cumsum(pauses)
    times: Reals = np.repeat(starts, turns) + waited - np.repeat(waited[first], turns)
    return times, owner


class _Talks:
    """All sessions as they grow, and the ids of the blocks that they are made of, numbered as they come up."""

    def __init__(self, workload: Workload, sessions: int, random: np.random.Generator) -> None:
        self._workload, self._random = workload, random
        self._shared = [shared.draw(random, sessions) for shared in (workload.system, workload.documents)]
        self._opening = workload.opening.draw(random, sessions)
        self._said: dict[int, _Said] = {}
        self._ids: dict[tuple[int, tuple[tuple[int, int, int], ...]], int] = {}
        self._texts = sum(len(tokens) for tokens, _ in self._shared)

    def next(self, session: int) -> tuple[int, int, list[int]]:
        """Prompt tokens, output tokens and ids of a session's next turn."""
        said = self._said.get(session)
        if said is None:
            said = self._said[session] = self._begin(session)
            question = int(self._opening[session])
        else:
            question = int(self._workload.question.draw(self._random, 1)[0])
        self._add(said, self._own(), question)
        ids = said.ids + ([self._id(said.parent, said.pieces)] if said.pieces else [])
        prompt, output = said.tokens, int(self._workload.output.draw(self._random, 1)[0])
        self._add(said, self._own(), output)
        return prompt, output, ids

    def _begin(self, session: int) -> _Said:
        said, base = _Said(), 0
        for tokens, chosen in self._shared:
            if (text := int(chosen[session])) >= 0:
                self._add(said, base + text, int(tokens[text]))
            base += len(tokens)
        return said

    def _own(self) -> int:
        """The number of a text that nobody else has."""
        self._texts += 1
        return self._texts

    def _add(self, said: _Said, text: int, tokens: int) -> None:
        """Append a text; every block that it fills gets its id."""
        start = 0
        while start < tokens:
            stop = min(tokens, start + BLOCK_SIZE - said.tokens % BLOCK_SIZE)
            said.pieces += ((text, start, stop),)
            said.tokens += stop - start
            start = stop
            if said.tokens % BLOCK_SIZE == 0:
                said.parent = self._id(said.parent, said.pieces)
                said.ids.append(said.parent)
                said.pieces = ()

    def _id(self, parent: int, pieces: tuple[tuple[int, int, int], ...]) -> int:
        return self._ids.setdefault((parent, pieces), len(self._ids))


class _Said:
    """What a session has said: the ids of its full blocks, and the pieces of texts in the block that is not full."""

    def __init__(self) -> None:
        self.ids: list[int] = []
        self.parent = -1
        self.pieces: tuple[tuple[int, int, int], ...] = ()
        self.tokens = 0
