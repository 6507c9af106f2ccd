"""Requests that decode together: runs of steps between two changes of the batch, in closed form.

With b requests that hold C tokens, step j of a run (from 1) costs `decode_step(b, C + j * b)`, its own tokens
included, which is affine in the context; so a run of k steps takes `k * a + k * (k + 1) / 2 * s`, and finding how many
steps begin before a given time is solving a quadratic.
"""

from __future__ import annotations

import heapq
import math

import numpy as np

from mooncake_edu.events import Reals
from mooncake_edu.model.costs import CostModel
from mooncake_edu.simulation.job import Job

_FAR = 1 << 40  # tokens: two contexts this far apart give a slope without loss
_ROOM = 1 << 10  # step times that there is room for at least, once there is one


class Batch:
    """The members of a batch in the order they joined, and when its steps ended."""

    longest = 1 << 40
    """Steps of the longest run."""

    def __init__(self, costs: CostModel) -> None:
        self.costs = costs
        self.members: dict[int, Job] = {}
        self.context = 0  # tokens stored by all members
        self.prompts = 0  # of these, the tokens of prompts
        self.done = 0  # steps so far
        self._ends: Reals = np.empty(0)  # when steps ended, from the first one on that is not forgotten
        self._dropped = 0  # of the steps, those whose times are forgotten
        self._leaving: list[tuple[int, int]] = []  # the step after which a member leaves, and its number
        self._lines: dict[int, tuple[float, float]] = {}

    def __len__(self) -> int:
        return len(self.members)

    def join(self, job: Job) -> None:
        """Take in a request that has `job.stored` tokens and some to make."""
        job.joined = self.done
        self.members[job.number] = job
        self.context += job.stored
        self.prompts += job.prompt
        heapq.heappush(self._leaving, (self.done + job.left, job.number))

    def remove(self, job: Job) -> None:
        """Let a request go, noting what it made and when."""
        del self.members[job.number]
        steps = self.done - job.joined
        job.made += steps
        job.stored += steps
        self.context -= job.stored
        self.prompts -= job.prompt
        job.times.append(self._times(job.joined))
        if not self.members and self._ends.size > _ROOM:
            self._ends, self._dropped = np.empty(0), self.done

    def finished(self) -> list[Job]:
        """Those who have made all their tokens, lower numbers first."""
        jobs = []
        while self._leaving and self.steps_to_finish() == 0:
            jobs.append(self.members[heapq.heappop(self._leaving)[1]])
        return list(dict.fromkeys(jobs))

    def steps_to_finish(self) -> int:
        """Steps until a member has made all its tokens; a large number where there is none."""
        while self._leaving:
            step, number = self._leaving[0]
            job = self.members.get(number)
            if job is not None and job.joined + job.left == step:  # it was not sent away since
                return step - self.done
            heapq.heappop(self._leaving)
        return self.longest

    def elapsed(self, steps: int) -> float:
        """Seconds that the next so many steps take."""
        first, slope = self._line()
        return steps * first + steps * (steps + 1) / 2 * slope

    def steps_until(self, start: float, time: float) -> int:
        """The fewest steps, at least one, that end at or after a time, if the first begins at `start`."""
        first, slope = self._line()
        linear, delay = first + slope / 2, time - start
        if delay <= 0:
            return 1
        steps = math.ceil(2 * delay / (linear + math.sqrt(linear * linear + 2 * slope * delay)))
        while steps > 1 and start + self.elapsed(steps - 1) >= time:
            steps -= 1
        while start + self.elapsed(steps) < time:
            steps += 1
        return max(steps, 1)

    def advance(self, start: float, steps: int) -> Reals:
        """Make so many steps from `start` on; returns when each ended."""
        first, slope = self._line()
        count, sums = _COUNTS[:, :steps] if steps <= _COUNTS.shape[1] else _counts(steps)
        ends: Reals = start + (count * first + sums * slope)
        self.note(ends)
        return ends

    def note(self, ends: Reals) -> None:
        """Count steps that ended then: every member made a token in each."""
        steps, at = ends.size, self.done - self._dropped
        if at + steps > self._ends.size:
            at = self._forget(steps)
        self._ends[at : at + steps] = ends
        self.done += steps
        self.context += steps * len(self.members)

    def _line(self) -> tuple[float, float]:
        """The cost of a next step without its own tokens, and what each step of a run costs more than the last."""
        size = len(self.members)
        if size not in self._lines:
            base = self.costs.decode_step(size, 0)
            self._lines[size] = base, (self.costs.decode_step(size, _FAR) - base) / _FAR
        base, slope = self._lines[size]
        return base + slope * self.context, slope * size

    def _times(self, step: int) -> Reals:
        return self._ends[step - self._dropped : self.done - self._dropped].copy()

    def _forget(self, steps: int) -> int:
        """Make room for so many more; members stand in the order they joined, so the first needs the oldest times."""
        oldest = next(iter(self.members.values())).joined if self.members else self.done
        kept = self._times(oldest)
        self._dropped = oldest
        self._ends = np.empty(max(2 * (kept.size + steps), _ROOM))
        self._ends[: kept.size] = kept
        return kept.size


def _counts(steps: int) -> Reals:
    """1, 2, 3, ... and their sums."""
    count = np.arange(1.0, steps + 1)
    return np.stack((count, count * (count + 1) / 2))


_COUNTS = _counts(1 << 12)
"""For runs of up to so many steps; of longer ones they are made anew."""
