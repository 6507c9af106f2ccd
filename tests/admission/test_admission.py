"""Who is served: each policy by what it looks at, and what all of them keep to."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from itertools import pairwise
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from mooncake_edu.admission import (
    ADMISSIONS,
    LONGEST,
    SHORTEST,
    Admission,
    Admit,
    Asked,
    Bet,
    Classes,
    EarlyPredicted,
    EarlyPredictedLengths,
    Lifetimes,
    Load,
    Refuse,
    Room,
    Served,
    Survival,
    all_busy,
)
from mooncake_edu.conductor import Placement
from mooncake_edu.events import Refusal

ROOM = Room(10, 100_000, lambda requests, tokens: 0.02 + 0.001 * requests)
JUDGES = [name for name in ADMISSIONS if name != "all"]
NAMES = list(ADMISSIONS)


def asked(prompt: int = 1000, **more: Any) -> Asked:
    """A request with objectives of 10 s and 100 ms."""
    return Asked(prompt, 10.0, 0.1, **more)


def placement(wait: float = 0.0, work: float = 1.0) -> Placement:
    """One that waits, then is computed."""
    return Placement(0, 1, 0, work, wait + work, 0.02)


def filled(policy: Admission, count: int, *, began: float = 0.0, prompt: int = 1000) -> Admission:
    """A policy that was told of so many that decode."""
    for name in range(count):
        policy.placed(name, asked(prompt), placement(), began - 1)
        policy.began(name, began)
    return policy


times = st.floats(0, 1e6)


@given(times, times, st.builds(Load, times, times))
def test_accepting_all_admits_whatever_the_load(wait: float, work: float, load: Load) -> None:
    assert isinstance(ADMISSIONS["all"](ROOM).decide(asked(), placement(wait, work), load, 0.0), Admit)


@pytest.mark.parametrize("name", NAMES)
@given(st.integers(1, 99_999), st.floats(0.001, 10.0))
def test_a_cluster_that_rests_admits_every_feasible_request(name: str, prompt: int, work: float) -> None:
    policy = ADMISSIONS[name](ROOM, keep=0.5)
    policy.classes.note(5, True)  # a higher class was here
    assert isinstance(policy.decide(asked(prompt), placement(0.0, work), Load(work / 10.0, 0.0), 0.0), Admit)


@pytest.mark.parametrize("name", NAMES)
def test_a_cluster_that_rests_again_admits_at_once_however_long_a_decode_is_taken_to_last(name: str) -> None:
    policy = ADMISSIONS[name](Room(1, 100_000, ROOM.step), stay=3600.0)
    for start in (0.0, 2.0, 4.0):
        assert isinstance(policy.decide(asked(), placement(), Load(0.1, 0.0), start), Admit)
        policy.placed(start, asked(), placement(), start)
        policy.began(start, start + 1.0)
        policy.ended(start, 2, start + 1.1)


@pytest.mark.parametrize("name", JUDGES)
@pytest.mark.parametrize(
    ("request_", "work"), [(asked(100_000), 1.0), (asked(), 10.5), (Asked(10, 10.0, 0.02), 1.0)],
    ids=["too many tokens", "too long a prefill", "too fast a TBT"],
)  # fmt: skip
def test_what_can_never_be_served_is_told_apart_from_overload(name: str, request_: Asked, work: float) -> None:
    decision = ADMISSIONS[name](ROOM).decide(request_, placement(0.0, work), Load(0.1, 0.0), 0.0)
    assert isinstance(decision, Refuse) and decision.reason == Refusal.TOO_LARGE


@pytest.mark.parametrize("name", JUDGES)
def test_who_would_wait_too_long_is_refused_by_every_policy_for_that_reason(name: str) -> None:
    decision = ADMISSIONS[name](ROOM).decide(asked(), placement(9.5), Load(1.05, 0.0), 0.0)
    assert isinstance(decision, Refuse)
    assert decision.reason == Refusal.TTFT and decision.ttft == 10.5


def test_a_full_decode_instance_stops_early_rejection_but_not_the_baseline() -> None:
    load, decided = Load(0.5, 1.1), {}
    for name in ("decode-refuses", "early"):
        decided[name] = ADMISSIONS[name](ROOM).decide(asked(), placement(4.0), load, 0.0)
    assert isinstance(decided["decode-refuses"], Admit)
    assert isinstance(decided["early"], Refuse) and decided["early"].reason == Refusal.LOAD


def test_an_idle_instance_has_no_load_and_a_busy_one_that_of_what_is_scarcest() -> None:
    assert ROOM.load(0, 0, 0.1) == 0.0
    assert ROOM.load(1, 10, 0.042) == pytest.approx(0.5)  # its step
    assert ROOM.load(8, 10, 0.1) == pytest.approx(0.8)  # slots
    assert ROOM.load(1, 90_000, 0.1) == pytest.approx(0.9)  # pages


def test_prediction_refuses_for_those_who_are_still_in_prefill() -> None:
    policy = EarlyPredicted(ROOM)
    for name in range(10):
        policy.placed(name, asked(), placement(), 0.0)
    assert isinstance(policy.decide(asked(), placement(0.5), Load(0.1, 0.0), 0.0), Refuse)


def test_prediction_admits_where_those_who_decode_now_will_have_ended() -> None:
    policy = filled(EarlyPredicted(ROOM, stay=5.0), 10)
    assert isinstance(policy.decide(asked(), placement(0.5), Load(0.1, 1.1), 1.0), Refuse)
    assert isinstance(policy.decide(asked(), placement(4.5), Load(0.5, 1.1), 1.0), Admit)


def test_prediction_spreads_requests_evenly_over_all_instances() -> None:
    policy = filled(EarlyPredicted(ROOM), 15)
    seen = policy.foresee(asked(), placement(), Load(0.1, 1.5, 2), 0.0)
    assert seen.decode == pytest.approx((15 + 1) / 2 / 10)


def test_the_long_do_not_vanish_twice() -> None:
    """A hundred a second decode for 1 or 19 s, so 1,000 decode at any time (Little); the foretold number is near it."""
    policy = EarlyPredicted(ROOM, stay=10.0)
    ends: list[tuple[float, int]] = []
    for number in range(6000):
        now = number / 100
        for end, name in [each for each in ends if each[0] <= now]:
            policy.ended(name, 10, end)
            ends.remove((end, name))
        policy.placed(number, asked(), placement(0.0, 0.0), now)
        policy.began(number, now)
        ends.append((now + (1.0 if number % 2 else 19.0), number))
    assert policy.decoding == len(ends) == pytest.approx(1000, rel=0.02)
    assert len(policy.expect(60.0, 60.0)) == pytest.approx(1000, rel=0.1)
    naive = [each for each in policy.served.values() if each.began is not None and each.began > 60 - policy.stay.value]
    assert len(naive) < 700  # had those been left out who ended, and those who are older


def test_the_prior_of_a_stay_gives_way_to_what_is_seen() -> None:
    policy = filled(EarlyPredicted(ROOM, stay=100.0), 500)
    assert policy.stay.value == 100.0
    for name in range(500):
        policy.ended(name, 5, 2.0)
    assert policy.stay.value == pytest.approx(2.0, rel=1.0)


def test_a_wrong_factor_makes_prediction_wrong_by_it() -> None:
    right, wrong = (filled(EarlyPredicted(ROOM, stay=5.0, factor=factor), 10) for factor in (1.0, 3.0))
    assert len(right.expect(10.0, 1.0)) == 0 and len(wrong.expect(10.0, 1.0)) == 10  # type: ignore[attr-defined]


@given(st.lists(st.floats(0.01, 1000), min_size=1, max_size=200))
def test_the_share_that_lasts_longer_falls_from_one_with_age(values: list[float]) -> None:
    lives = Lifetimes(10.0, 0.1)
    for value in values:
        lives.note(value, values[:5])
    shares = [lives.left(age) for age in (0.0, 0.05, 0.1, 1, 5, 25, 125, 625, 1e5)]
    assert shares[0] == 1.0 and all(0 <= after <= before for before, after in pairwise(shares))


def test_the_share_that_lasts_longer_is_that_of_what_was_seen() -> None:
    lives = Lifetimes(10.0, 0.1)
    for number in range(1000):
        lives.note(float(number % 100), ())
    for age in (10, 30, 50, 70, 90):
        assert lives.left(age) == pytest.approx(1 - age / 100, abs=0.04)


def test_those_who_have_not_ended_make_long_lives_likelier() -> None:
    ended, censored = Lifetimes(10.0, 0.1), Lifetimes(10.0, 0.1)
    for _ in range(50):
        ended.note(1.0, ())
        censored.note(1.0, [20.0] * 50)
    assert censored.left(15.0) > ended.left(15.0) + 0.3


def test_places_are_all_taken_as_often_as_erlang_says() -> None:
    assert all_busy(1, 1.0) == pytest.approx(1 / 2)
    assert all_busy(2, 1.0) == pytest.approx(1 / 5)
    assert all_busy(10, 5.0) == pytest.approx(0.0184, abs=5e-5)  # every table of the formula
    assert all_busy(100, 1.0) < 1e-8


def test_a_bet_is_taken_while_prefill_is_cheap_and_left_when_it_is_not() -> None:
    policy = filled(Bet(ROOM, stay=1000.0), 20)
    assert isinstance(policy.decide(asked(), placement(0.1), Load(0.2, 2.1), 0.0), Admit)
    assert isinstance(policy.decide(asked(), placement(8.5), Load(0.95, 2.1), 0.0), Refuse)
    assert isinstance(Bet(ROOM).decide(asked(), placement(8.5), Load(0.95, 0.1), 0.0), Admit)


@pytest.mark.parametrize("kind", [Survival, EarlyPredictedLengths])
def test_by_survival_places_are_left_free_for_chance(kind: type[Survival]) -> None:
    """Of eight, each decodes then with some chance: their variance is left free, which is none when all surely do."""
    policy = filled(kind(ROOM, stay=10.0), 8)
    sure, unsure = (policy.expect(at, 0.0) for at in (0.0, 8.0))  # type: ignore[attr-defined]
    assert sure == (pytest.approx(8.0), pytest.approx(8000.0), pytest.approx(0.0))
    assert 0 < unsure.requests < 8 and 0 < unsure.variance <= 2
    seen = policy.foresee(asked(), placement(7.0), Load(0.8, 0.9), 0.0)
    assert seen.decode == pytest.approx((unsure.requests + unsure.variance**0.5 + 1) / 10)


@pytest.mark.parametrize("kind", [Survival, EarlyPredictedLengths])
def test_only_who_has_a_place_reserved_there_counts_against_an_instance(kind: type[Survival]) -> None:
    policy = kind(ROOM)
    for name in range(12):
        policy.placed(name, asked(decode="left" if name < 10 else "right"), placement(), 0.0)
    assert policy.expect(1.0, 0.0, "left").requests == pytest.approx(10.0)
    assert policy.expect(1.0, 0.0, "right") == pytest.approx((2.0, 2000.0, 0.0))
    assert policy.expect(1.0, 0.0) == (0.0, 0.0, 0.0)


def test_lengths_are_learnt_by_what_is_known_when_a_request_comes() -> None:
    policy = EarlyPredictedLengths(ROOM)
    for number in range(400):
        prompt, output = (500, 10) if number % 2 else (20_000, 500)
        policy.placed(number, asked(prompt), placement(), float(number))
        policy.began(number, float(number))
        policy.ended(number, output, number + 0.5)
    short, long = (policy.lives_of(asked(prompt)) for prompt in (700, 18_000))
    assert short.left(50) < 0.1 and long.left(50) > 0.9
    assert sum(policy.calibration) == 400


def test_foretold_lengths_are_calibrated_where_they_do_not_change() -> None:
    """Equally many answers lie in each tenth of what was foretold for them."""
    policy, lengths = EarlyPredictedLengths(ROOM), [round(10 * 1.01**number) for number in range(500)]
    for number in range(5000):
        policy.placed(number, asked(), placement(), 0.0)
        policy.ended(number, lengths[number * 321 % 500], 1.0)
    assert min(policy.calibration) > 0.06 * 5000 and max(policy.calibration) < 0.14 * 5000


def test_the_lower_class_is_shed_first_and_never_starves() -> None:
    policy = ADMISSIONS["early"](ROOM, keep=0.2)
    admitted = {0: 0, 1: 0}
    for _ in range(200):
        for priority in (1, 0):
            decision = policy.decide(asked(priority=priority), placement(1.0), Load(0.5, 0.9), 0.0)
            admitted[priority] += isinstance(decision, Admit)
    assert admitted[1] == 200
    assert 0.05 * 200 < admitted[0] < 0.5 * 200


def test_no_class_starves_however_many_there_are() -> None:
    classes = Classes(keep=0.5)
    for priority in range(100, 100 + Classes.MOST):
        classes.note(priority, True)
    turns = []
    for _ in range(1000):
        turns.append(classes.limit(5) == 1.0)
        classes.note(5, turns[-1])
    assert sum(turns) > 50


def test_without_a_share_kept_all_classes_are_alike() -> None:
    classes = Classes(0.0)
    classes.note(7, True)
    assert classes.limit(0) == classes.limit(7) == 1.0


Step = tuple[str, int, float, int]
steps = st.lists(
    st.tuples(
        st.sampled_from(["ask", "began", "ended", "dropped"]), st.integers(0, 15), st.floats(0, 20), st.integers(1, 900)
    ),
    max_size=120,
)


def run(policy: Admission, told: list[Step], check: Callable[[Admission], None] = lambda policy: None) -> list[object]:
    """Ask and tell a policy at times that only grow; returns its decisions."""
    now, decisions = 0.0, []
    for what, name, value, output in told:
        now += value
        if what == "ask":
            query = asked(100 * (name + 1), cached=50 * name, priority=name % 2)
            forecast, load = placement(value, 0.5), Load((value + 0.5) / 10, policy.decoding / 10, 1)
            decisions.append(policy.decide(query, forecast, load, now))
            if isinstance(decisions[-1], Admit):
                policy.placed(name, query, forecast, now)
        elif what == "ended":
            policy.ended(name, output, now)
        else:
            getattr(policy, what)(name, now)
        check(policy)
    return decisions


@pytest.mark.parametrize("name", NAMES)
@given(steps)
def test_the_same_questions_in_the_same_order_get_the_same_answers(name: str, told: list[Step]) -> None:
    first, second = (run(ADMISSIONS[name](ROOM, keep=0.1), told) for _ in range(2))
    assert repr(first) == repr(second)


@pytest.mark.parametrize("name", NAMES)
@given(steps)
def test_being_told_something_twice_changes_nothing(name: str, told: list[Step]) -> None:
    twice = [each for step in told for each in ((step,) if step[0] == "ask" else (step, (step[0], step[1], 0.0, 7)))]
    assert repr(run(ADMISSIONS[name](ROOM), told)) == repr(run(ADMISSIONS[name](ROOM), twice))


@pytest.mark.parametrize("name", NAMES)
@given(steps)
def test_what_is_remembered_is_who_was_admitted_and_has_not_ended(name: str, told: list[Step]) -> None:
    def check(policy: Admission) -> None:
        running = [each for each in policy.served.values() if each.began is not None]
        assert policy.decoding == len(running) <= len(policy.served) <= 16
        assert policy.tokens == sum(each.asked.prompt for each in running)

    run(ADMISSIONS[name](ROOM), told, check)


@pytest.mark.parametrize("name", JUDGES)
@given(steps)
def test_every_refusal_says_when_to_ask_again_and_what_was_foretold(name: str, told: list[Step]) -> None:
    for decision in run(ADMISSIONS[name](ROOM, keep=0.1), told):
        if isinstance(decision, Refuse):
            assert SHORTEST <= decision.retry_after <= LONGEST
            assert decision.ttft > 0 and decision.load.prefill > 0


@pytest.mark.parametrize("name", NAMES)
@settings(max_examples=30)
@given(steps, st.integers(0, 119))
def test_lengths_to_come_change_no_earlier_decision(name: str, told: list[Step], cut: int) -> None:
    changed = [*told[:cut], *((what, who, value, output * 7 + 3) for what, who, value, output in told[cut:])]
    before = sum(what == "ask" for what, *_ in told[:cut])
    answers = [repr(run(ADMISSIONS[name](ROOM), each)[:before]) for each in (told, changed)]
    assert answers[0] == answers[1]


@pytest.mark.parametrize("name", NAMES)
def test_a_flood_of_names_that_never_end_is_forgotten(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("mooncake_edu.admission.MOST", 50)
    policy = ADMISSIONS[name](ROOM)
    for number in range(200):
        policy.placed(number, asked(priority=number), placement(), float(number))
        policy.classes.note(number, True)
        policy.began(number, float(number))
    assert len(policy.served) == policy.decoding == 50
    assert len(policy.classes._admitted) <= Classes.MOST
    assert len(getattr(policy, "groups", ())) <= EarlyPredictedLengths.GROUPS


@pytest.mark.parametrize("kind", [Asked, Served, Load, Placement])
def test_no_type_that_a_policy_sees_holds_the_length_of_an_answer(kind: type) -> None:
    names = [field.name for field in dataclasses.fields(kind)] if dataclasses.is_dataclass(kind) else kind._fields  # type: ignore[attr-defined]
    assert not {"output", "output_length", "max_tokens", "left", "length"} & set(names)
