"""The exercises of chapter 07: goodput, a load, who decodes later, who outlasts, a forecast of one's own."""

from __future__ import annotations

import contextlib
import itertools
import math
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, NamedTuple

from mooncake_edu.admission import ADMISSIONS, Admission, EarlyPredicted, Lifetimes, Room, Survival
from mooncake_edu.course.check import Answer, Exercise, Score, Trial
from mooncake_edu.course.checks import shedding
from mooncake_edu.simulation.result import Result

if TYPE_CHECKING:
    import plotly.graph_objects as go

ASKED = 1.4
"""Requests a second that must be served in time; judging by who decodes now gives about 70 % of that."""

HARDER = 1.7
"""More than any policy of the package reaches on these slices; for fun, it decides nothing."""

SURE = 1e-9  # relative: sums in another order differ by less


class Ended(NamedTuple):
    """A request that came: seconds of its prefill (0: none), TTFT and TBT in seconds; None where there is none.

    Who was refused after the prefill has a TTFT, since the prefill makes the first token.
    """

    prefill: float
    ttft: float | None
    tbt: float | None
    refused: bool


class Run(NamedTuple):
    """Requests of `seconds`, and what they want."""

    requests: tuple[Ended, ...]
    ttft: float = 10.0
    tbt: float = 0.1
    seconds: float = 4.0


FATES = (
    Ended(2.0, 3.0, 0.05, False), Ended(2.0, 3.0, None, False), Ended(0.0, None, None, True),
    Ended(4.0, 5.0, None, True), Ended(2.0, 11.0, 0.05, False), Ended(2.0, 3.0, 0.2, False),
    Ended(1.0, 10.0, 0.1, False), Ended(3.0, 12.0, None, False),
)  # fmt: skip
"""In time, with one token, refused on arrival and after the prefill, late in either way, just in time, one and late."""


def runs() -> Iterator[Run]:
    """Nobody, each fate alone, and every pair of them."""
    yield Run(())
    for count in (1, 2):
        yield from (Run(chosen) for chosen in itertools.combinations(FATES, count))
    yield Run(FATES[:5], seconds=2.0)
    yield Run(FATES[3:], seconds=2.0)


def judge_goodput(answer: Answer, case: Run) -> Trial:
    """Requests a second that ended within both objectives, and the prefill seconds of those refused after it."""
    got = answer([*case.requests], case.ttft, case.tbt, case.seconds)
    if not isinstance(got, tuple | list) or len(got) != 2 or not all(map(_number, got)):
        return Trial(f"Return a pair, requests a second and wasted seconds, not {got!r}.")
    ended = [each for each in case.requests if not each.refused and each.ttft is not None and each.ttft <= case.ttft]
    met = sum(each.tbt is None or each.tbt <= case.tbt for each in ended)
    wasted = sum(each.prefill for each in case.requests if each.refused)
    if not math.isclose(got[0], met / case.seconds, rel_tol=SURE):
        return Trial(f"In time: {met} in {case.seconds:g} s, which is {met / case.seconds:g} a second; your answer "
                     f"says {got[0]:g}.")  # fmt: skip
    if not math.isclose(got[1], wasted, rel_tol=SURE):
        return Trial(f"The goodput is right. Wasted are {wasted:g} s of prefill, your answer says {got[1]:g} s.")
    return Trial()


def _number(value: object) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)


class Held(NamedTuple):
    """A decode instance: requests and tokens there, what it holds at most, and the TBT objective in seconds."""

    requests: int
    tokens: int
    slots: int
    most_tokens: int
    tbt: float


def step(requests: float, tokens: float) -> float:
    """Seconds of a step: 20 ms, a millisecond a request and another each thousand tokens."""
    return 0.02 + 0.001 * requests + 0.000001 * tokens


def instances() -> Iterator[Held]:
    """Idle ones, then those full of requests, of tokens, or slow."""
    for slots, most, tbt in ((8, 100_000, 0.1), (100, 100_000, 0.1), (8, 100_000, 0.03), (8, 20_000, 0.1)):
        for requests, each in itertools.product((0, 1, 4, 8, 12), (100, 5_000)):
            yield Held(requests, requests * each, slots, most, tbt)


def judge_load(answer: Answer, case: Held) -> Trial:
    """0 when idle; else the largest of the step over its objective and both occupancies."""
    got = answer(*case[:4], case.tbt, step)
    room = Room(case.slots, case.most_tokens, step)
    right = room.load(case.requests, case.tokens, case.tbt)
    if not _number(got):
        return Trial(f"Return a number, not {got!r}.")
    if math.isclose(got, right, rel_tol=SURE, abs_tol=SURE):
        return Trial()
    if case.requests == 0:
        return Trial(f"Nobody is there, so the load is 0; your answer says {got:g}.")
    parts = step(case.requests, case.tokens) / case.tbt, case.requests / case.slots, case.tokens / case.most_tokens
    return Trial("A step takes {:.3g} of what it may, {:.3g} of the places are taken and {:.3g} of the tokens: the "
                 "load is {:.3g}, your answer says {:.3g}.".format(*parts, right, got))  # fmt: skip


class Then(NamedTuple):
    """Asked about the time `at`: every decode is taken to last `stay`; `began` are pairs (began, ended or None)."""

    at: float
    stay: float
    began: tuple[tuple[float, float | None], ...]
    ready: tuple[float, ...]


def thens() -> Iterator[Then]:
    """It is 10; one decode of any age, ended or not, one prefill, then both, then several."""
    decodes: tuple[tuple[float, float | None], ...] = (
        (9.0, None), (5.0, None), (1.0, None), (8.0, 9.5), (3.0, 4.0), (7.0, None), (2.0, 9.0),
    )  # fmt: skip
    prefills = (10.5, 12.0, 13.0, 11.0)
    yield Then(12.0, 5.0, (), ())
    yield from (Then(12.0, 5.0, (decode,), ()) for decode in decodes)
    yield from (Then(12.0, 5.0, (), (ready,)) for ready in prefills)
    yield from (Then(12.0, 1.0, (), (ready,)) for ready in prefills)
    yield from (Then(12.0, 5.0, pair, (12.0, 13.0)) for pair in itertools.combinations(decodes, 2))
    yield Then(20.0, 5.0, decodes, prefills)
    yield Then(12.0, 5.0, decodes, prefills)


def judge_count(answer: Answer, case: Then) -> Trial:
    """All whose time has come by then and is not over, ended or not."""
    got = answer(case.at, case.stay, [*case.began], [*case.ready])
    if not _number(got):
        return Trial(f"Return a number of requests, not {got!r}.")
    counted = _counted(case)
    if got == len(counted):
        return Trial()
    return Trial(f"At {case.at:g} s {len(counted)} would decode if each lasted {case.stay:g} s; your answer says "
                 f"{got:g}. {_reason(case, counted)}")  # fmt: skip


def _reason(case: Then, counted: list[tuple[float, float]]) -> str:
    """Who counts, and why: in words for one alone, in numbers for several."""
    starts = [begin for begin, _ in _spans(case)]
    if len(starts) != 1:
        found = ", ".join(f"{begin:g} to {begin + length:g}" for begin, length in counted) or "none"
        return f"Those count whose stay holds {case.at:g}: {found}."
    begin, end, ended = starts[0], starts[0] + case.stay, case.began and case.began[0][1]
    who = f"The {'prefill that is ready' if case.ready else 'one that began'} at {begin:g}"
    if ended:
        return f"{who} has ended at {ended:g}, but counts until {end:g}: here all last equally long, whatever is known."
    last = ", and who ends just then is over" if end == case.at else ""
    return f"{who} counts until {end:g}{f', but not before {begin:g}' if begin > case.at else last}."


def _spans(case: Then) -> list[tuple[float, float]]:
    return [(begin, case.stay) for begin in (*(began for began, _ in case.began), *case.ready)]


def _counted(case: Then) -> list[tuple[float, float]]:
    return [(begin, length) for begin, length in _spans(case) if begin <= case.at < begin + length]


def draw_count(answer: Answer, case: Then) -> go.Figure:
    """The decodes as they are taken to last, and how many the answer counts."""
    from mooncake_edu.pictures import overload

    said = "Yours gives no number"
    with contextlib.suppress(Exception):  # the verdict tells what the answer raised
        said = f"Yours counts {answer(case.at, case.stay, [*case.began], [*case.ready])}"
    return overload.stays(_spans(case), case.at, "Who decodes then, if all last equally long",
                          f"{len(_counted(case))} decode at {case.at:g} s. {said}.")  # fmt: skip


class Outlast(NamedTuple):
    """How long decodes `lasted`, one that decodes for `age` seconds, and `ahead` more that are asked about."""

    lasted: tuple[float, ...]
    age: float
    ahead: float


def outlasts() -> Iterator[Outlast]:
    """One, then a few of any length, at every age; nobody last, so that a wrong share shows before a division by 0."""
    for lasted in ((3.0,), (1.0, 4.0), (1.0, 2.0, 3.0, 10.0), (5.0, 5.0, 1.0, 9.0, 20.0), ()):
        for age, ahead in itertools.product((0.0, 1.0, 2.5, 5.0, 30.0), (0.0, 1.0, 4.0)):
            yield Outlast(lasted, age, ahead)


def judge_outlast(answer: Answer, case: Outlast) -> Trial:
    """Of those that lasted longer than the age, the share that lasted longer than what is ahead, too."""
    got = answer([*case.lasted], case.age, case.ahead)
    if not _number(got):
        return Trial(f"Return a share from 0 to 1, not {got!r}.")
    older = [each for each in case.lasted if each > case.age]
    still = sum(each > case.age + case.ahead for each in older)
    right = still / len(older) if older else 0.0
    if math.isclose(got, right, rel_tol=SURE, abs_tol=SURE):
        return Trial()
    if not older:
        return Trial(f"None of them lasted longer than {case.age:g} s: return 0, not {got:g}.")
    said = (f"{len(older)} lasted longer than {case.age:g} s, and {still} of these longer than "
            f"{case.age + case.ahead:g} s: the share is {right:.3g}, your answer says {got:.3g}.")  # fmt: skip
    if math.isclose(got, still / len(case.lasted), rel_tol=SURE, abs_tol=SURE):
        said += f" Who did not last longer than {case.age:g} s is not asked about: divide by {len(older)}, not by all."
    elif {case.age, case.age + case.ahead} & {*case.lasted}:
        said += " Who lasted just so long did not last longer."
    return Trial(said)


class Moment(NamedTuple):
    """What an answer is given: seconds ahead, until prefills are ready, ages of decodes, and how long some lasted."""

    ahead: float
    ready: tuple[float, ...]
    ages: tuple[float, ...]
    lasted: tuple[float, ...]


def moments() -> Iterator[Moment]:
    """Nothing yet, nobody who ended, nobody there, and a usual one."""
    for lasted in ((), (3.0, 4.0, 5.0)):
        for ready, ages in itertools.product(((), (0.0, 2.0, 6.0)), ((), (0.5, 3.5, 9.0))):
            yield Moment(4.0, ready, ages, lasted)


def judge_forecast(answer: Answer, case: Moment) -> Trial:
    """A number of requests, no more than there are, and the lists left as they were."""
    given: tuple[Sequence[float], ...] = ([*case.ready], [*case.ages], [*case.lasted])
    got = answer(case.ahead, *given)
    try:
        shedding.checked(got)
    except ValueError as error:
        return Trial(f"{error}.")
    same = given == tuple(map(list, case[1:]))
    return Trial(None if same else "A list was changed: leave what you are given as it is.")


def draw_forecast(answer: Answer, _case: Moment) -> go.Figure:
    """Goodput of the answer, if it gives numbers, and of policies of the package on the slices of the score."""
    from mooncake_edu.pictures import overload

    reached = shedding.of_policies(("early", "early-predicted", "survival"), shedding.HELD_OUT)
    with contextlib.suppress(Exception):  # the verdict tells what the answer raised
        reached["yours"] = shedding.scored(answer, shedding.HELD_OUT)
    return overload.scores(reached, "yours", ASKED, HARDER)


def why_not(answer: Answer) -> str:
    """Whether it admitted too few to reach what is asked, or enough, of whom too many were late."""
    runs = shedding.replayed(answer, shedding.HELD_OUT)
    came = sum((run.stage.size - run.refused()) / run.duration for run in runs) / len(runs)
    if came < ASKED:
        return (f"It admits {came:.2f} a second. Were all of them in time, that would still be less than asked: too "
                "few are admitted, so the count is too high.")  # fmt: skip
    return (f"It admits {came:.2f} a second, but too few of these are in time: too many are admitted, at least at some "
            "moments, so the count is too low there.")  # fmt: skip


EXERCISES = (
    Exercise("7.1", "Goodput", runs, judge_goodput, lambda: (Result, Result.met, Result.goodput)),
    Exercise("7.2", "The load of a decode instance", instances, judge_load, lambda: (Room, Room.load)),
    Exercise("7.3", "Who decodes later", thens, judge_count, lambda: (EarlyPredicted, EarlyPredicted.expect),
             draw_count),
    Exercise("7.4", "Who outlasts", outlasts, judge_outlast, lambda: (Lifetimes, Lifetimes.left)),
    Exercise(
        "7.5", "A forecast of your own", moments, judge_forecast,
        lambda: (*ADMISSIONS.values(), Admission, Survival.expect, shedding.decoding_now), draw_forecast,
        Score(lambda answer: shedding.scored(answer, shedding.HELD_OUT), ASKED, "requests/s in time", True,
              lambda: shedding.scored(shedding.decoding_now, shedding.HELD_OUT), why_not),
    ),
)  # fmt: skip
