"""The slow way of the same: step by step, token by token, layer by layer. The closed forms are checked against it."""

from __future__ import annotations

import numpy as np

from mooncake_edu.events import Reals
from mooncake_edu.simulation.batch import Batch
from mooncake_edu.simulation.job import Job
from mooncake_edu.simulation.prefill import Passage, Work


class StepBatch(Batch):
    """A batch whose runs are one step long, and whose members count their own tokens."""

    longest = 1

    def join(self, job: Job) -> None:
        """Take in a request."""
        self.members[job.number] = job
        self._sum()

    def remove(self, job: Job) -> None:
        """Let a request go."""
        del self.members[job.number]
        self._sum()

    def finished(self) -> list[Job]:
        """Those who have made all their tokens, lower numbers first."""
        return sorted((job for job in self.members.values() if not job.left), key=lambda job: job.number)

    def steps_to_finish(self) -> int:
        """One."""
        return 1

    def elapsed(self, steps: int) -> float:
        """Seconds of the next step."""
        return self.costs.decode_step(len(self.members), self.context + len(self.members))

    def steps_until(self, start: float, time: float) -> int:
        """One."""
        return 1

    def advance(self, start: float, steps: int) -> Reals:
        """Make one step."""
        ends = np.array([start + self.elapsed(1)])
        self.note(ends)
        return ends

    def note(self, ends: Reals) -> None:
        """Every member made a token."""
        for job in self.members.values():
            job.made += 1
            job.stored += 1
            job.times.append(ends)
        self._sum()

    def _sum(self) -> None:
        self.context = sum(job.stored for job in self.members.values())
        self.prompts = sum(job.prompt for job in self.members.values())


def layer_after_layer(start: float, stored: float, work: Work, layers: int) -> Passage:
    """A chunk through a stage, one layer at a time."""
    load, compute, store = (time / layers for time in work)
    loaded, computed, first = start, start, 0.0
    for _ in range(layers):
        loaded += load
        computed = max(computed, loaded) + compute
        stored = max(stored, computed) + store
        first = first or computed
    return Passage(first, computed, stored, computed)
