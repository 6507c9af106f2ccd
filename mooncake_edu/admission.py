"""Layer 7, admission: whether a request is served at all, decided when it comes, before anything is computed for it.

A pool's load is 0 when it rests and 1 when it is full; a request is turned away where it would find more than that. The
variants differ in one thing: which load of the decode instances they judge by, since a request that is admitted now
reaches them one prefill later. They know the placement's forecast, the loads that the instances report, and what they
were told: who was placed, when it began to decode, and with how many tokens it ended. Nobody tells them how long an
answer will be. They read no clock, so a simulator, an engine and a cluster ask the same object.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from bisect import bisect_right
from collections import deque
from collections.abc import Callable, Hashable, Iterable
from dataclasses import dataclass
from typing import NamedTuple, Protocol

import numpy as np

from mooncake_edu.events import Reals, Refusal

MOST = 100_000
"""Requests that are remembered; the oldest makes room."""

SHORTEST, LONGEST = 1.0, 600.0
"""Seconds after which to ask again, at least and at most."""


class Forecast(Protocol):
    """What is foretold of a placement, in seconds; a placement of the Conductor is one."""

    @property
    def ttft(self) -> float:
        """Until the first token, waiting included."""

    @property
    def work(self) -> float:
        """Of computing the prompt alone."""


class Load(NamedTuple):
    """How full the instances would be that a request was placed at, 1 being full; `instances` of them decode."""

    prefill: float
    decode: float
    instances: int = 1


@dataclass(frozen=True, slots=True)
class Asked:
    """What is known of a request when it comes: tokens, its objectives in seconds, and its class.

    `cached` tokens of the prompt are reused. Who is of a higher `priority` is shed later. A place is reserved at the
    instance `decode`, whatever names it; without, that is chosen when the prompt is computed.
    """

    prompt: int
    ttft: float
    tbt: float
    cached: int = 0
    priority: int = 0
    decode: Hashable = None


@dataclass(frozen=True, slots=True)
class Room:
    """What a decode instance holds at most: `slots` requests, with `tokens` together.

    `step` says how many seconds a batch step takes with so many requests and tokens.
    """

    slots: int
    tokens: int
    step: Callable[[float, float], float]

    def load(self, requests: float, tokens: float, tbt: float) -> float:
        """The load of an instance with those, under a TBT objective in seconds; 0 if it rests. Paper: arXiv 7."""
        if requests <= 0:
            return 0.0
        return max(self.step(requests, tokens) / tbt, requests / self.slots, tokens / self.tokens)


@dataclass(frozen=True, slots=True)
class Admit:
    """The request is served."""


@dataclass(frozen=True, slots=True)
class Refuse:
    """The request is turned away: why, the seconds after which to ask again, and what was foretold."""

    reason: Refusal
    retry_after: float
    ttft: float
    load: Load


ADMIT = Admit()


class Average:
    """A mean in which the older counts less and less; at first that of `prior`, as if seen ten times."""

    def __init__(self, prior: float, fade: float = 0.998) -> None:
        self._sum, self._count, self._fade = 10.0 * prior, 10.0, fade

    def note(self, value: float) -> None:
        """Take in one more."""
        self._sum, self._count = self._fade * self._sum + value, self._fade * self._count + 1

    @property
    def value(self) -> float:
        """The mean."""
        return self._sum / self._count


@dataclass(slots=True)
class Served:
    """Somebody who was admitted: when its prefill should be `ready`, and when it began to decode.

    `clock` is what the policy's own clock showed then, and `lives` what is known of such requests' lifetimes.
    """

    asked: Asked
    ready: float
    began: float | None = None
    clock: float = 0.0
    lives: Lifetimes | None = None


class Admission(ABC):
    """Turns away who would miss an objective or find a pool full, and remembers those who are being served.

    Until some have ended, a decode is taken to last `stay` seconds. Those that foresee multiply all times to come by
    `factor`, which is 1 but in experiments with a wrong forecast. The share `keep` is kept for the highest priority.
    """

    refuses_late = True
    """Whether a decode instance without room may still turn away whom this admitted."""

    def __init__(self, room: Room, stay: float = 10.0, factor: float = 1.0, keep: float = 0.0) -> None:
        self.room, self.factor = room, factor
        self.stay, self.classes = Average(stay), Classes(keep)
        self.served: dict[Hashable, Served] = {}
        self.decoding, self.tokens = 0, 0  # requests that decode, and the tokens of their prompts

    def decide(self, asked: Asked, forecast: Forecast, load: Load, now: float) -> Admit | Refuse:
        """Whether to serve a request."""
        if not self.feasible(asked, forecast):
            return Refuse(Refusal.TOO_LARGE, LONGEST, forecast.ttft, load)
        seen = self.foresee(asked, forecast, load, now)
        limit = self.classes.limit(asked.priority)
        waits = forecast.ttft > forecast.work and seen.prefill > limit
        decode = seen.decode if limit == 1 else max(seen.decode, load.decode)
        admitted = not waits and decode <= limit
        self.classes.note(asked.priority, admitted)
        if admitted:
            return ADMIT
        reason = Refusal.TTFT if waits else Refusal.LOAD
        return Refuse(reason, self.retry(asked, seen), forecast.ttft, seen)

    def feasible(self, asked: Asked, forecast: Forecast) -> bool:
        """Whether the request would fit into an instance and meet its objectives if it were alone."""
        alone = self.room.step(1, asked.prompt) <= asked.tbt and forecast.work <= asked.ttft
        return alone and asked.prompt < self.room.tokens

    @abstractmethod
    def foresee(self, asked: Asked, forecast: Forecast, load: Load, now: float) -> Load:
        """The loads to judge by."""

    def retry(self, asked: Asked, seen: Load) -> float:
        """Seconds until there is room if nobody else comes.

        A queue is shorter by a second each second; of those who decode, a share has left after that share of a stay.
        """
        queue = (seen.prefill - 1) * asked.ttft
        leaving = (1 - 1 / max(seen.decode, 1.0)) * self.stay.value
        return min(max(queue, leaving, SHORTEST), LONGEST)

    def placed(self, name: Hashable, asked: Asked, forecast: Forecast, now: float) -> None:
        """The request was admitted and placed; one of that name from before is forgotten."""
        self.dropped(name, now)
        self.served[name] = Served(asked, now + forecast.ttft)
        if len(self.served) > MOST:
            self.dropped(next(iter(self.served)), now)

    def began(self, name: Hashable, now: float) -> None:
        """It decodes from now on."""
        served = self.served.get(name)
        if served is not None and served.began is None:
            self.count(1, served, now)
            served.began = now

    def ended(self, name: Hashable, output: int, now: float) -> None:
        """It has all its tokens, so many; who has one only never began to decode."""
        if name in self.served:
            began = self.served[name].began
            self.dropped(name, now)
            if began is not None:
                self.stay.note(now - began)

    def dropped(self, name: Hashable, now: float) -> None:
        """It is not served any more; it was turned away after all, or given up."""
        served = self.served.pop(name, None)
        if served is not None and served.began is not None:
            self.count(-1, served, now)

    def count(self, sign: int, served: Served, now: float) -> None:
        """One more decodes, or one less."""
        self.decoding += sign
        self.tokens += sign * served.asked.prompt


class AcceptAll(Admission):
    """Serves everybody, however long it takes."""

    refuses_late = False

    def decide(self, asked: Asked, forecast: Forecast, load: Load, now: float) -> Admit | Refuse:
        """Admit."""
        return ADMIT

    def foresee(self, asked: Asked, forecast: Forecast, load: Load, now: float) -> Load:
        """What is reported."""
        return load


class DecodeRefuses(Admission):
    """Looks at the prefill instances alone; a full decode instance refuses when the prompt is computed. arXiv 7.2."""

    def foresee(self, asked: Asked, forecast: Forecast, load: Load, now: float) -> Load:
        """As if nobody decoded."""
        return load._replace(decode=0.0)


class Early(Admission):
    """Looks at both pools as they are now. Paper: arXiv 7.2, early rejection."""

    def foresee(self, asked: Asked, forecast: Forecast, load: Load, now: float) -> Load:
        """What is reported."""
        return load


class Classes:
    """How full the pools may be for each priority: lower ones leave the share `keep` free for the highest seen.

    No class starves: one of which less than the share `least` was admitted lately is judged as the highest.
    """

    MOST = 64

    def __init__(self, keep: float = 0.0, least: float = 0.1) -> None:
        self.keep, self.least = keep, least
        self._admitted: dict[int, Average] = {}

    def limit(self, priority: int) -> float:
        """The load up to which a class is admitted."""
        lately = self._admitted.get(priority := self._nearest(priority))
        starves = lately is not None and lately.value < self.least
        return 1.0 if starves or priority >= max(self._admitted, default=priority) else 1 - self.keep

    def note(self, priority: int, admitted: bool) -> None:
        """Somebody of that class was admitted, or not."""
        self._admitted.setdefault(self._nearest(priority), Average(1.0, 0.98)).note(admitted)

    def _nearest(self, priority: int) -> int:
        """The class that it counts as: with `MOST` known, the nearest of these."""
        if len(self._admitted) < self.MOST:
            return priority
        return min(self._admitted, key=lambda known: abs(known - priority))


class EarlyPredicted(Admission):
    """Looks at all decode instances as they will be when the prefill ends. Paper: arXiv 7.4.

    Every decode is taken to last equally long, as long as those did that ended lately.
    Whoever began counts until then, ended or not: if those who ended were left out, and those who are older too, long
    answers would vanish twice, and the load would seem smaller than it is. But if nobody is served, nobody counts.
    """

    def __init__(self, room: Room, stay: float = 10.0, factor: float = 1.0, keep: float = 0.0) -> None:
        super().__init__(room, stay, factor, keep)
        self._begun: deque[tuple[float, int]] = deque(maxlen=MOST)

    def began(self, name: Hashable, now: float) -> None:
        """It decodes from now on, as long as all others."""
        served = self.served.get(name)
        if served is not None and served.began is None:
            self._begun.append((now, served.asked.prompt))
        super().began(name, now)

    def foresee(self, asked: Asked, forecast: Forecast, load: Load, now: float) -> Load:
        """With all who will decode then, and who asks, spread evenly."""
        prompts = self.expect(now + forecast.ttft, now) if self.served else []
        if not prompts:
            return load._replace(decode=0.0)
        share = (len(prompts) + 1) / load.instances, (sum(prompts) + asked.prompt) / load.instances
        return load._replace(decode=self.room.load(*share, asked.tbt))

    def expect(self, at: float, now: float) -> list[int]:
        """The prompts' tokens of those whose time has come by then and is not over."""
        since, prompts = at - self.stay.value * self.factor, list[int]()
        for began, prompt in reversed(self._begun):
            if began <= since:
                break
            prompts.append(prompt)
        for served in self.served.values():
            if served.began is None and since < max(served.ready, now) <= at:
                prompts.append(served.asked.prompt)
        return prompts


class Lifetimes:
    """How long things last: counts of those that ended, in bins that widen by a fifth; half of them fade now and then.

    Before any has ended, it is as if ten had, of exponential lengths with the mean `prior`. `unit` is the first bin.
    """

    BINS, KEPT = 72, 1000

    def __init__(self, prior: float, unit: float) -> None:
        self.borders = [0.0, *(unit * 1.2**place for place in range(self.BINS - 1)), math.inf]
        self._left = [math.exp(-border / prior) for border in self.borders]
        self._ended: Reals = -10 * np.diff(self._left)

    def like(self) -> Lifetimes:
        """Others that are as if ten such had ended."""
        other = Lifetimes(1.0, self.borders[1])
        other._left, other._ended = self._left, self._ended * (10 / self._ended.sum())
        return other

    def note(self, value: float, ages: Iterable[float]) -> None:
        """One has ended, while others of these ages have not; both tell how likely it is to last. Kaplan-Meier."""
        self._ended[self._bin(value)] += 1
        if self._ended.sum() > 2 * self.KEPT:
            self._ended /= 2
        still = np.bincount([self._bin(age) for age in ages], minlength=self.BINS)
        risk = np.cumsum((self._ended + still)[::-1])[::-1] - still / 2
        hazard = np.divide(self._ended, risk, out=np.zeros(self.BINS), where=risk > 0)
        self._left = [1.0, *np.cumprod(1 - hazard).tolist()]

    def left(self, age: float) -> float:
        """The share that lasts longer than that."""
        place = self._bin(age)
        low, high, left = self.borders[place], self.borders[place + 1], self._left
        return left[place] + (age - low) / (high - low) * (left[place + 1] - left[place])

    def _bin(self, value: float) -> int:
        return bisect_right(self.borders, value, 1, self.BINS) - 1


class Expected(NamedTuple):
    """How many requests will decode, with how many tokens, and the variance of their number."""

    requests: float
    tokens: float
    variance: float = 0.0


class Survival(Admission):
    """Weighs everybody by the chance to decode when the prefill ends, given for how long already. Beyond the paper.

    Their number is uncertain, and so as many places are left free as it deviates by, in the mean.
    """

    def __init__(self, room: Room, stay: float = 10.0, factor: float = 1.0, keep: float = 0.0) -> None:
        super().__init__(room, stay, factor, keep)
        self.lives = Lifetimes(stay, 0.1)

    def foresee(self, asked: Asked, forecast: Forecast, load: Load, now: float) -> Load:
        """With all who should decode then where the request will, and some more."""
        expected = self.expect(now + forecast.ttft, now, asked.decode)
        if expected.requests <= 0:
            return load._replace(decode=0.0)
        more = 1 + expected.variance**0.5 / expected.requests
        many = Expected(more * expected.requests, more * expected.tokens)
        return load._replace(decode=self.full(asked, many, load))

    def full(self, asked: Asked, expected: Expected, load: Load) -> float:
        """The load with those and who asks: of the instance that is reserved, or of all if they are spread evenly."""
        instances = load.instances if asked.decode is None else 1
        share = (expected.requests + 1) / instances, (expected.tokens + asked.prompt) / instances
        return self.room.load(*share, asked.tbt)

    def expect(self, at: float, now: float, decode: Hashable = None) -> Expected:
        """Of those who were admitted, who would decode there at a time if none was refused."""
        many, tokens, spread = 0.0, 0.0, 0.0
        clock, pace = self.clock(now), self.pace() / self.factor
        for served in self.served.values():
            left = served.lives.left if served.lives is not None else self.lives.left
            if served.asked.decode != decode or (served.began is None and served.ready > at):
                continue
            if served.began is None:
                chance = left((at - max(served.ready, now)) * pace)
            else:
                age = (clock - served.clock) / self.factor
                chance = left(age + (at - now) * pace) / max(left(age), 1e-9)
            many += chance
            tokens += chance * served.asked.prompt
            spread += chance * (1 - chance)
        return Expected(many, tokens, spread)

    def placed(self, name: Hashable, asked: Asked, forecast: Forecast, now: float) -> None:
        """The request was admitted and placed."""
        super().placed(name, asked, forecast, now)
        self.served[name].lives = self.lives_of(asked)

    def began(self, name: Hashable, now: float) -> None:
        """It decodes from now on."""
        served = self.served.get(name)
        if served is not None and served.began is None:
            served.clock = self.clock(now)
        super().began(name, now)

    def ended(self, name: Hashable, output: int, now: float) -> None:
        """It has all its tokens."""
        if name in self.served:
            self.learn(self.served[name], output, now)
        super().ended(name, output, now)

    def learn(self, served: Served, output: int, now: float) -> None:
        """How long it decoded."""
        clock, lives = self.clock(now), served.lives or self.lives
        others = [each for each in self.served.values() if each.lives is lives and each is not served]
        lives.note(self.lasted(served, output, now), [clock - each.clock for each in others if each.began is not None])

    def lasted(self, served: Served, output: int, now: float) -> float:
        """For how long it decoded, by the clock."""
        return 0.0 if served.began is None else now - served.began

    def clock(self, now: float) -> float:
        """What lifetimes are counted in: seconds."""
        return now

    def pace(self) -> float:
        """How far the clock goes in a second."""
        return 1.0

    def lives_of(self, asked: Asked) -> Lifetimes:
        """Lifetimes of requests like that: of all."""
        return self.lives


class EarlyPredictedLengths(Survival):
    """Learns how many tokens the answers to which prompts have, and counts in tokens, not seconds. Beyond the paper.

    Prompts are alike whose lengths have the same power of two, whose reuse lies on the same side of a half, and whose
    priority is equal. A decode lasts its tokens times the steps of batches as large as the present ones.
    """

    GROUPS = 64

    def __init__(self, room: Room, stay: float = 10.0, factor: float = 1.0, keep: float = 0.0) -> None:
        super().__init__(room, stay, factor, keep)
        self.lives = Lifetimes(200.0, 1.0)
        self.groups: dict[Hashable, Lifetimes] = {}
        self.calibration = [0] * 10  # answers, by the tenth of the foretold distribution in which they lay
        self._turned, self._clock, self._instances = 0.0, 0.0, 1

    def foresee(self, asked: Asked, forecast: Forecast, load: Load, now: float) -> Load:
        """As for seconds, once it is known how many instances there are."""
        self._instances = load.instances
        return super().foresee(asked, forecast, load, now)

    def count(self, sign: int, served: Served, now: float) -> None:
        """One more decodes, or one less, so that steps take longer or shorter from now on."""
        self._clock, self._turned = self.clock(now), now
        super().count(sign, served, now)

    def learn(self, served: Served, output: int, now: float) -> None:
        """How many tokens it made, and where among those that were foretold."""
        self.calibration[min(int(10 * (1 - (served.lives or self.lives).left(output - 0.5))), 9)] += 1
        self.lives.note(output, ())
        super().learn(served, output, now)

    def lasted(self, served: Served, output: int, now: float) -> float:
        """Its tokens."""
        return output

    def clock(self, now: float) -> float:
        """Tokens that somebody made who decoded all the time."""
        return self._clock + (now - self._turned) * self.pace()

    def pace(self) -> float:
        """Tokens a second in batches as they are; who finds no place in them waits."""
        size, tokens = max(self.decoding / self._instances, 1.0), self.tokens / self._instances
        inside = min(size, self.room.slots)
        return inside / size / self.room.step(inside, tokens)

    def lives_of(self, asked: Asked) -> Lifetimes:
        """Lengths of answers to prompts like that, at first those of all; with too many kinds, those of all."""
        group = min(asked.prompt >> 10, 255).bit_length(), 2 * asked.cached > asked.prompt, asked.priority
        if group not in self.groups and len(self.groups) < self.GROUPS:
            self.groups[group] = self.lives.like()
        return self.groups.get(group, self.lives)


def all_busy(lines: float, offered: float) -> float:
    """How often all of so many places are taken, if those who find none go away; `offered` would come to be there.

    This is the loss formula of Erlang (1917).
    """
    inverse = 1.0
    for place in range(1, int(lines) + 1):
        inverse = 1 + inverse * place / offered
        if inverse > 1e9:
            break
    return 1 / inverse


class Bet(Survival):
    """Takes a prefill for a bet that there will be a place, which is worth the more, the less there is to compute.

    Who finds no place costs a prefill, and a place that nobody takes is lost. So the chance to find one must be no less
    than the square of the prefill load: of idle instances little is asked, of those as good as full near certainty.
    """

    def foresee(self, asked: Asked, forecast: Forecast, load: Load, now: float) -> Load:
        """Instead of the decode load, the price of the bet over the chance to win it."""
        expected = self.expect(now + forecast.ttft, now, asked.decode)
        if expected.requests <= 0:
            return load._replace(decode=0.0)
        lines = (expected.requests + 1) / self.full(asked, expected, load)
        chance = 1 - all_busy(lines, expected.requests)
        return load._replace(decode=load.prefill**2 / max(chance, 1e-6))


ADMISSIONS: dict[str, type[Admission]] = {
    "all": AcceptAll,
    "decode-refuses": DecodeRefuses,
    "early": Early,
    "early-predicted": EarlyPredicted,
    "survival": Survival,
    "early-predicted-lengths": EarlyPredictedLengths,
    "bet": Bet,
}
"""The policies by the names that a configuration uses."""
