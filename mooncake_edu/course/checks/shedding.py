"""A service that sums up long documents, offered twice what it can do: what a chapter's reader replays, and 7.5 too."""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Callable, Hashable, Sequence
from dataclasses import replace
from functools import cache

import numpy as np

from mooncake_edu.admission import Admission, Asked, Forecast, Load, Room
from mooncake_edu.config import Config
from mooncake_edu.quantities import Slo
from mooncake_edu.simulation.cluster import simulate
from mooncake_edu.simulation.gate import admission_of
from mooncake_edu.simulation.parts import costs_of
from mooncake_edu.simulation.result import Result
from mooncake_edu.traces.generate import Lengths, Workload, generate
from mooncake_edu.traces.profiles import NOTHING
from mooncake_edu.traces.trace import Trace

REQUESTS = 350
"""Requests of a slice."""

ANSWERS = (60.0, 100.0, 170.0)
"""Tokens of an answer, on average, in one slice after the other: who fits one of them alone does not fit all."""

PRACTICE = (0, 1, 2)
HELD_OUT = (102, 103, 104)
"""Seeds of the slices that a reader may try, and of those that only the score uses."""

KEPT = 200
"""Decodes that ended last, whose times an answer is given."""

Count = Callable[[float, Sequence[float], Sequence[float], Sequence[float]], float]
"""How many will decode `ahead` seconds from now, given when prefills will be ready, ages of decodes, and past times."""


@cache
def cluster(prefill: int = 16, last_check: bool = True, policy: str = "all", factor: float = 1.0) -> Config:
    """So many prefill instances, and one that decodes at most 8 requests at a time."""
    whole = Config.size("cluster")
    counts = {"prefill": prefill, "decode": 1}
    return whole.model_copy(update={
        "engine": whole.engine.model_copy(update={"max_batch": 8}),
        "instances": tuple(each.model_copy(update={"count": counts[each.role]}) for each in whole.instances),
        "slo": whole.slo.model_copy(update={"ttft": Slo(10.0)}),
        "policies": whole.policies.model_copy(update={"admission": policy}),
        "tiers": whole.tiers.model_copy(update={"dram": 0}),  # nothing is shared, so nothing need be kept
        "admission": whole.admission.model_copy(update={"last_check": last_check, "factor": factor}),
    })  # fmt: skip


@cache
def room() -> Room:
    """What the decode instance holds at most."""
    return admission_of(cluster(), costs_of(cluster())).room


def documents(
    seed: int, requests: int = REQUESTS, rate: float = 5.0, prompt: float = 30_000, answer: float = 100,
    spread: float = 0.3,
) -> Trace:  # fmt: skip
    """Prompts of about so many tokens, none of it shared, and answers that differ by `spread`; `rate` come a second."""
    return _alone(rate, Lengths(prompt, 0.1), Lengths(answer, spread, 2000), requests, seed)


def mixed(seed: int, requests: int = REQUESTS, rate: float = 8.0) -> Trace:
    """Prompts of all lengths; those of less than 8,000 tokens get answers that are four times as long."""
    trace = _alone(rate, Lengths(16_000, 1.0, 100_000), Lengths(60, 0.3, 500), requests, seed)
    return replace(trace, output_length=np.where(trace.input_length < 8_000, 4, 1) * trace.output_length)


def _alone(rate: float, prompts: Lengths, answers: Lengths, requests: int, seed: int) -> Trace:
    """Requests of one turn that share nothing."""
    workload = Workload(rate=rate, turns=1, pause=60, system=NOTHING, documents=NOTHING, opening=prompts,
                        question=Lengths(1, 0), output=answers)  # fmt: skip
    return generate(workload, requests, seed, "documents, generated")


@cache
def slice_of(seed: int) -> Trace:
    """The slice of a seed."""
    return documents(seed, answer=ANSWERS[seed % len(ANSWERS)])


class Own(Admission):
    """Judges by a function that says how many will decode when the prefill ends."""

    def __init__(self, count: Count, room: Room) -> None:
        super().__init__(room)
        self._count, self._lasted = count, deque[float](maxlen=KEPT)

    def foresee(self, asked: Asked, forecast: Forecast, load: Load, now: float) -> Load:
        """With as many as the function says, and who asks; raises ValueError if it says no number."""
        ready = [max(each.ready - now, 0.0) for each in self.served.values() if each.began is None]
        ages = [now - each.began for each in self.served.values() if each.began is not None]
        many = checked(self._count(forecast.ttft, ready, ages, [*self._lasted]))
        decode = self.room.load(many + 1, (many + 1) * asked.prompt, asked.tbt) if many > 0 else 0.0
        return load._replace(decode=decode)

    def ended(self, name: Hashable, output: int, now: float) -> None:
        """It has all its tokens; how long that took is kept."""
        served = self.served.get(name)
        if served is not None and served.began is not None:
            self._lasted.append(now - served.began)
        super().ended(name, output, now)


def checked(many: object) -> float:
    """A number of requests; raises ValueError for anything else."""
    if isinstance(many, bool) or not isinstance(many, int | float) or not 0 <= many < math.inf:
        raise ValueError(f"{many!r} is no number of requests: return a number of at least 0")
    return float(many)


def served(policy: Admission, seed: int) -> Result:
    """A slice under a policy; who has been admitted is not refused any more."""
    return simulate(cluster(last_check=False), slice_of(seed), admission=policy)


def replayed(count: Count, seeds: Sequence[int]) -> list[Result]:
    """The slices under a function."""
    return [served(Own(count, room()), seed) for seed in seeds]


def scored(count: Count, seeds: Sequence[int]) -> float:
    """Goodput under a function: requests a second that met both objectives, on average over the slices."""
    return sum(run.goodput for run in replayed(count, seeds)) / len(seeds)


def practice(count: Count) -> list[float]:
    """Goodput on each slice that may be tried."""
    return [scored(count, [seed]) for seed in PRACTICE]


def of_policies(names: Sequence[str], seeds: Sequence[int]) -> dict[str, float]:
    """Goodput under policies of the package, by their names."""
    found = {}
    for name in names:
        runs = [served(admission_of(cluster(policy=name), costs_of(cluster())), seed) for seed in seeds]
        found[name] = sum(run.goodput for run in runs) / len(runs)
    return found


def decoding_now(_ahead: float, _ready: Sequence[float], ages: Sequence[float], _lasted: Sequence[float]) -> float:
    """The naive count: whoever decodes now."""
    return len(ages)
