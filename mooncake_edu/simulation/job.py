"""A request on its way through the simulated cluster."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np

from mooncake_edu.admission import Asked
from mooncake_edu.events import Reals
from mooncake_edu.outcome import mean_of_longest

NAN = float("nan")


class Job:
    """What is known of one request; times in seconds, lengths in tokens.

    `number` is its place in the order of arrival, which decides ties, and `row` that in the trace.
    `made` counts the tokens of its answer, `stored` those in the pages of the instance it decodes at. `hits` are the
    tokens of its prompt that each tier gave; a recompute after a preemption is none. `worked` are seconds of prefill;
    `asked` is what a policy of admission knows of it, and it `came` if its KVCache is where it decodes. A place is
    `reserved` there when its KVCache begins to move, which `send` does anew, at the latest; it was `swapped` if it gave
    way there. Its prefill has `begun`, and `tries` counts how often it, or its transfer, was lost with an instance.
    """

    __slots__ = (
        "arrival", "asked", "begun", "borrowed", "came", "decode", "estimate", "fetching", "first", "hits", "ids",
        "joined", "made", "name", "number", "output", "pinned", "prefill", "priority", "private", "prompt",
        "reserved", "reused", "row", "send", "since", "started", "stored", "swapped", "times", "tries", "worked",
    )  # fmt: skip

    def __init__(self, number: int, row: int, arrival: float, prompt: int, output: int, ids: Sequence[int]) -> None:
        self.number = number
        self.row = row
        self.name = f"request {row}"
        self.arrival = arrival
        self.prompt = prompt
        self.output = max(output, 1)  # a prefill makes a token, wanted or not
        self.ids = ids
        self.prefill = self.decode = 0
        self.estimate = 0.0
        self.fetching = False  # its prefix is under way from another instance
        self.borrowed = 0  # blocks of its prefix that came from there and are not kept
        self.hits: dict[str, int] = {}
        self.started = self.first = NAN
        self.since = arrival  # when its present phase began
        self.made = self.stored = self.joined = 0
        self.times: list[Reals] = []
        self.pinned: Sequence[int] = ()
        self.private = self.reused = 0
        self.priority = 0
        self.asked: Asked | None = None
        self.begun = self.reserved = self.came = self.swapped = False
        self.send: Callable[[float], None] | None = None
        self.tries = 0
        self.worked = 0.0

    @property
    def left(self) -> int:
        """Tokens still to be made."""
        return self.output - self.made

    @property
    def hit(self) -> int:
        """Tokens of its prompt that were reused."""
        return sum(self.hits.values())

    def tbt(self) -> float:
        """Mean of the longest tenth of its token intervals; not a number where there is none. Paper: FAST 5.1."""
        times = np.concatenate(self.times)
        return mean_of_longest(times[1:] - times[:-1]) if times.size > 1 else NAN
