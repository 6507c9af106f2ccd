"""The checks of chapter 07 pass right answers and refuse plausible wrong ones, each for its own reason."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import takewhile
from typing import Any, ClassVar

import numpy as np
import pytest

from mooncake_edu.admission import ADMISSIONS, Asked, EarlyPredicted, Load
from mooncake_edu.conductor import Placement
from mooncake_edu.course.check import Answer
from mooncake_edu.course.checks import shedding
from mooncake_edu.course.checks.chapter07 import ASKED, HARDER, Ended, Outlast, Then, outlasts, runs, thens
from tests.course.wrong_answers import Checks, Wrong

Step = Callable[[float, float], float]
Times = Sequence[float]
Begun = Sequence[tuple[float, float | None]]


def goodput(requests: Sequence[Ended], ttft: float, tbt: float, seconds: float) -> tuple[float, float]:
    served = [each for each in requests if not each.refused]
    met = [each for each in served if (each.ttft or 0) <= ttft and (each.tbt or 0) <= tbt]
    return len(met) / seconds, sum(each.prefill for each in requests if each.refused)


def counting(met: Callable[[Ended, float, float], bool], wasted: Callable[[Ended], bool]) -> Answer:
    """Goodput with another idea of what is in time, and of what is wasted."""

    def answer(requests: Sequence[Ended], ttft: float, tbt: float, seconds: float) -> tuple[float, float]:
        return (sum(met(each, ttft, tbt) for each in requests) / seconds,
                sum(each.prefill for each in requests if wasted(each)))  # fmt: skip

    return answer


def in_time(each: Ended, ttft: float, tbt: float) -> bool:
    return not each.refused and each.ttft is not None and each.ttft <= ttft and (each.tbt or 0) <= tbt


def refused(each: Ended) -> bool:
    return each.refused


one_token_misses = counting(lambda each, ttft, tbt: in_time(each, ttft, tbt) and each.tbt is not None, refused)
one_token_forgives = counting(lambda each, ttft, tbt: in_time(each, ttft, tbt) or each.tbt is None, refused)
whoever_has_a_first_token = counting(
    lambda each, ttft, tbt: each.ttft is not None and in_time(each._replace(refused=False), ttft, tbt), refused
)
one_objective_is_enough = counting(lambda each, ttft, tbt: not each.refused and (each.ttft or 0) <= ttft, refused)
just_in_time_is_late = counting(
    lambda each, ttft, tbt: in_time(each, ttft, tbt) and (each.ttft or 0) < ttft and (each.tbt or 0) < tbt, refused
)
late_is_wasted_too = counting(in_time, lambda each: not in_time(each, 10.0, 0.1))


def compares_nothing(requests: Sequence[Ended], ttft: float, tbt: float, seconds: float) -> tuple[float, float]:
    met = [each for each in requests if each.ttft <= ttft and each.tbt <= tbt]  # type: ignore[operator]
    return len(met) / seconds, 0.0


def load(requests: float, tokens: float, slots: int, most: int, tbt: float, step: Step) -> float:
    return max(step(requests, tokens) / tbt, requests / slots, tokens / most) if requests else 0.0


def idle_is_not_idle(requests: float, tokens: float, slots: int, most: int, tbt: float, step: Step) -> float:
    return max(step(requests, tokens) / tbt, requests / slots, tokens / most)


def the_step_alone(requests: float, tokens: float, slots: int, most: int, tbt: float, step: Step) -> float:
    return step(requests, tokens) / tbt if requests else 0.0


def forgets_the_memory(requests: float, tokens: float, slots: int, most: int, tbt: float, step: Step) -> float:
    return max(step(requests, tokens) / tbt, requests / slots) if requests else 0.0


def adds_up(requests: float, tokens: float, slots: int, most: int, tbt: float, step: Step) -> float:
    return step(requests, tokens) / tbt + requests / slots + tokens / most if requests else 0.0


def at_most_full(requests: float, tokens: float, slots: int, most: int, tbt: float, step: Step) -> float:
    return min(load(requests, tokens, slots, most, tbt, step), 1.0)


def decode_at(at: float, stay: float, began: Begun, ready: Times) -> int:
    return sum(start <= at < start + stay for start in [*(start for start, _ in began), *ready])


def vanish_twice(at: float, stay: float, began: Begun, ready: Times) -> int:
    return decode_at(at, stay, [each for each in began if each[1] is None], ready)


def forgets_the_prefills(at: float, stay: float, began: Begun, ready: Times) -> int:
    return decode_at(at, stay, began, ())


def counts_all_prefills(at: float, stay: float, began: Begun, ready: Times) -> int:
    return decode_at(at, stay, began, ()) + len(ready)


def never_ends(at: float, stay: float, began: Begun, ready: Times) -> int:
    return sum(start <= at for start in [*(start for start, ended in began if ended is None), *ready])


def ends_a_moment_later(at: float, stay: float, began: Begun, ready: Times) -> int:
    return sum(start <= at <= start + stay for start in [*(start for start, _ in began), *ready])


def stops_at_the_first_that_is_over(at: float, stay: float, began: Begun, ready: Times) -> int:
    starts = [*(start for start, _ in began), *ready]
    return len([*takewhile(lambda start: start <= at < start + stay, starts)])


def share(lasted: Times, age: float, ahead: float) -> float:
    older = [each for each in lasted if each > age]
    return sum(each > age + ahead for each in older) / len(older) if older else 0.0


def as_if_new(lasted: Times, age: float, ahead: float) -> float:
    return share(lasted, 0.0, ahead)


def of_all(lasted: Times, age: float, ahead: float) -> float:
    return sum(each > age + ahead for each in lasted) / len(lasted) if lasted else 0.0


def divides_by_all(lasted: Times, age: float, ahead: float) -> float:
    return sum(each > age + ahead for each in lasted) / len(lasted)


def divides_by_nobody(lasted: Times, age: float, ahead: float) -> float:
    older = [each for each in lasted if each > age]
    return sum(each > age + ahead for each in older) / len(older)


def a_mean_less_the_age(lasted: Times, age: float, ahead: float) -> float:
    return float(bool(lasted) and sum(lasted) / len(lasted) - age > ahead)


def at_least_as_long(lasted: Times, age: float, ahead: float) -> float:
    older = [each for each in lasted if each >= age]
    return sum(each >= age + ahead for each in older) / len(older) if older else 0.0


def weighed(ahead: float, ready: Times, ages: Times, lasted: Times) -> float:
    known = lasted or [2.0, 3.0, 4.0, 5.0, 6.0]
    come = sum(share(known, 0.0, ahead - seconds) for seconds in ready if seconds <= ahead)
    return 1.1 * (sum(share(known, age, ahead) for age in ages) + come)


def now(ahead: float, ready: Times, ages: Times, lasted: Times) -> float:
    return float(len(ages))


def everybody(ahead: float, ready: Times, ages: Times, lasted: Times) -> float:
    return 0.0


def all_under_way(ahead: float, ready: Times, ages: Times, lasted: Times) -> float:
    return len(ages) + len(ready)


def twice_as_many(ahead: float, ready: Times, ages: Times, lasted: Times) -> float:
    return 2 * weighed(ahead, ready, ages, lasted)


def vanishing(ahead: float, ready: Times, ages: Times, lasted: Times) -> float:
    stay = sum(lasted) / len(lasted) if lasted else 4.0
    return sum(age + ahead < stay for age in ages) + sum(0 <= ahead - seconds < stay for seconds in ready)


def sorts(ahead: float, ready: Times, ages: Times, lasted: Times) -> float:
    ages.sort(reverse=True)  # type: ignore[attr-defined]
    return float(len(ages))


def needs_somebody(ahead: float, ready: Times, ages: Times, lasted: Times) -> float:
    return len(ages) * sum(lasted) / len(lasted)


RIGHT: dict[str, Answer] = {"7.1": goodput, "7.2": load, "7.3": decode_at, "7.4": share, "7.5": weighed}


class TestChapter07(Checks):
    chapter = 7
    right = RIGHT
    wrong: ClassVar = {
        "7.1": (
            Wrong("a one-token answer misses", one_token_misses, "In time: 1 in 4 s"),
            Wrong("a one-token answer is always met", one_token_forgives, "In time: 0 in 4 s"),
            Wrong("whoever has a first token", whoever_has_a_first_token, "In time: 0 in 4 s"),
            Wrong("one objective is enough", one_objective_is_enough, "In time: 0 in 4 s"),
            Wrong("just in time is late", just_in_time_is_late, "In time: 1 in 4 s"),
            Wrong("what is late is wasted too", late_is_wasted_too, "Wasted are 0 s of prefill"),
            Wrong("compares nothing", compares_nothing, "raised TypeError"),
            Wrong("gives one number", lambda *asked: 1.0, "Return a pair"),
        ),
        "7.2": (
            Wrong("idle is not idle", idle_is_not_idle, "Nobody is there, so the load is 0"),
            Wrong("the step alone", the_step_alone, "of the places are taken"),
            Wrong("forgets the memory", forgets_the_memory, "of the tokens"),
            Wrong("adds up", adds_up, "of the places are taken"),
            Wrong("at most full", at_most_full, "your answer says 1"),
            Wrong("gives nothing", lambda *asked: None, "Return a number"),
        ),
        "7.3": (
            Wrong("long answers vanish twice", vanish_twice, "began at 8 has ended at 9.5, but counts until 13: here",
                  repr(Then(12.0, 5.0, ((8.0, 9.5),), ()))),
            Wrong("forgets the prefills", forgets_the_prefills, "ready at 10.5 counts until 15.5."),
            Wrong("counts all prefills", counts_all_prefills, "ready at 13 counts until 18, but not before 13."),
            Wrong("nobody ever ends", never_ends, "The one that began at 5 counts until 10."),
            Wrong("ends a moment later", ends_a_moment_later, "until 12, and who ends just then is over"),
            Wrong("stops at the first that is over", stops_at_the_first_that_is_over, "Those count whose stay"),
            Wrong("gives a list", lambda *asked: [], "Return a number of requests"),
        ),
        "7.4": (
            Wrong("as if it had just begun", as_if_new, "your answer says"),
            Wrong("of all", of_all, "is not asked about: divide by 1, not by all"),
            Wrong("divides by all", divides_by_all, "is not asked about: divide by 1, not by all",
                  repr(Outlast((1.0, 4.0), 1.0, 0.0))),
            Wrong("divides by nobody", divides_by_nobody, "raised ZeroDivisionError"),
            Wrong("a mean less the age", a_mean_less_the_age, "your answer says"),
            Wrong("at least as long", at_least_as_long, "Who lasted just so long did not last longer"),
        ),
        "7.5": (
            Wrong("who decodes now", now, "too many are admitted"),
            Wrong("everybody is admitted", everybody, "too many are admitted"),
            Wrong("all under way", all_under_way, "too few are admitted"),
            Wrong("twice as many as will", twice_as_many, "too few are admitted"),
            Wrong("a mean stay, both errors", vanishing, "too many are admitted"),
            Wrong("changes a list", sorts, "A list was changed"),
            Wrong("needs somebody who ended", needs_somebody, "raised ZeroDivisionError"),
            Wrong("gives nothing", lambda *asked: None, "None is no number of requests"),
        ),
    }  # fmt: skip


@pytest.mark.parametrize("then", [then for then in thens() if then.at > 10], ids=repr)
def test_the_count_of_the_exercise_is_that_of_the_package(then: Then) -> None:
    """Told as the exercise tells it: decodes that began before 10, and prefills that will be ready."""
    policy = EarlyPredicted(shedding.room(), stay=then.stay)
    told: list[tuple[float, Callable[[], Any]]] = []
    for number, (began, _) in enumerate(then.began):
        asked = Asked(10, 30.0, 0.1)
        policy.placed(number, asked, Placement(0, 1, 0, 1.0, 1.0, 0.1), 0.0)
        told.append((began, lambda number=number, began=began: policy.began(number, began)))  # type: ignore[misc]
    for _, tell in sorted(told, key=lambda each: each[0]):
        tell()
    for number, ready in enumerate(then.ready):
        policy.placed(100 + number, Asked(10, 30.0, 0.1), Placement(0, 1, 0, 1.0, ready - 10.0, 0.1), 10.0)
    assert len(policy.expect(then.at, now=10.0)) == decode_at(then.at, then.stay, then.began, then.ready)


def test_the_cases_hold_every_fate_and_every_age() -> None:
    requests = [each for run in runs() for each in run.requests]
    fates = {(each.refused, each.prefill > 0, each.ttft is None, each.tbt is None) for each in requests}
    assert fates == {(False, True, False, False), (False, True, False, True), (True, False, True, True),
                     (True, True, False, True)}  # fmt: skip
    assert {share(case.lasted, case.age, case.ahead) for case in outlasts()} >= {0.0, 0.5, 1.0}


def test_the_threshold_lies_between_what_is_naive_and_what_the_package_reaches() -> None:
    reached = shedding.of_policies([*ADMISSIONS], shedding.HELD_OUT)
    naive = shedding.scored(shedding.decoding_now, shedding.HELD_OUT)
    assert max(naive, reached["all"], reached["early"]) * 1.3 < ASKED <= reached["early-predicted"]
    assert max(reached.values()) < HARDER <= shedding.scored(weighed, shedding.HELD_OUT)
    assert not set(shedding.HELD_OUT) & set(shedding.PRACTICE)
    assert {seed % len(shedding.ANSWERS) for seed in shedding.HELD_OUT} == {*range(len(shedding.ANSWERS))}


def test_an_answer_is_given_who_is_on_the_way_who_decodes_and_how_long_others_did() -> None:
    given: list[tuple[float, Times, Times, Times]] = []

    def count(ahead: float, ready: Times, ages: Times, lasted: Times) -> float:
        given.append((ahead, ready, ages, lasted))
        return 3.0

    policy = shedding.Own(count, shedding.room())
    asked, placement = Asked(30_000, 10.0, 0.1), Placement(0, 1, 0, 4.0, 5.0, 0.03)
    for number in range(3):
        policy.placed(number, asked, placement, float(number))
        policy.began(number, number + 5.0) if number < 2 else None
    policy.ended(0, 100, 6.5)
    seen = policy.foresee(asked, placement, Load(0.5, 0.25), 6.75)
    assert given == [(5.0, [0.25], [0.75], [1.5])]
    assert seen == Load(0.5, shedding.room().load(4, 120_000, 0.1))


def test_short_prompts_of_the_mixed_service_get_longer_answers() -> None:
    trace = shedding.mixed(1, 600)
    short = trace.input_length < 8_000
    assert 0.1 < short.mean() < 0.9
    assert np.median(trace.output_length[short]) > 3 * np.median(trace.output_length[~short])
