"""The checks of chapter 06 pass right answers and refuse plausible wrong ones, each for its own reason."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, ClassVar

import pytest

from mooncake_edu.conductor import POLICIES, Change, ClusterView, Pool, Query, Table
from mooncake_edu.course.check import Answer
from mooncake_edu.course.checks import placing
from mooncake_edu.course.checks.chapter06 import ASKED, SMALL, asks, batches, offers
from mooncake_edu.traces.profiles import make
from tests.course.wrong_answers import Checks, Wrong

Prefill = Callable[..., float]
Fetch = Callable[[int], float]
Waiting = Sequence[tuple[int, int]]
Held = tuple[set[Any], bool]


def first_token(waiting: Waiting, left: float, prompt: int, own: int, prefill: Prefill) -> float:
    return left + sum(prefill(*each) for each in waiting) + prefill(prompt, own)


def forgets_what_is_computed(waiting: Waiting, left: float, prompt: int, own: int, prefill: Prefill) -> float:
    return first_token(waiting, 0, prompt, own, prefill)


def forgets_reuse_in_the_queue(waiting: Waiting, left: float, prompt: int, own: int, prefill: Prefill) -> float:
    return first_token([(tokens, 0) for tokens, _ in waiting], left, prompt, own, prefill)


def forgets_itself(waiting: Waiting, left: float, prompt: int, own: int, prefill: Prefill) -> float:
    return left + sum(prefill(*each) for each in waiting)


def takes_a_difference(waiting: Waiting, left: float, prompt: int, own: int, prefill: Prefill) -> float:
    return left + sum(prefill(*each) for each in waiting) + prefill(prompt) - prefill(own)


def computes_side_by_side(waiting: Waiting, left: float, prompt: int, own: int, prefill: Prefill) -> float:
    return left + max([prefill(*each) for each in waiting], default=0) + prefill(prompt, own)


def algorithm(
    prompt: int, queue: list[float], cached: list[int], threshold: float, prefill: Prefill, fetch: Fetch
) -> tuple[int, int]:
    best, offered = max(cached), []
    for place, own in enumerate(cached):
        if best > threshold * own:
            offered.append((queue[place] + fetch(best - own) + prefill(prompt, best), place, best - own))
        else:
            offered.append((queue[place] + prefill(prompt, own), place, 0))
    return min(offered)[1:]


def divides(prompt: int, queue: list[float], cached: list[int], threshold: float, prefill: Prefill, fetch: Fetch):  # type: ignore[no-untyped-def]
    best, offered = max(cached), []
    for place, own in enumerate(cached):
        lacking = best - own if best / own > threshold else 0
        offered.append((queue[place] + fetch(lacking) * (lacking > 0) + prefill(prompt, own + lacking), place, lacking))
    return min(offered)[1:]


def varied(ask: Answer, rule: Callable[[int, int, float], bool]) -> Answer:
    """Algorithm 1 with another rule of when to fetch."""

    def answer(  # type: ignore[no-untyped-def]
        prompt: int, queue: list[float], cached: list[int], threshold: float, prefill: Prefill, fetch: Fetch
    ):
        best, offered = max(cached), []
        for place, own in enumerate(cached):
            lacking = best - own if rule(best, own, threshold) else 0
            seconds = queue[place] + fetch(lacking) + prefill(prompt, own + lacking)
            offered.append((seconds, place, lacking))
        return min(offered)[1:]

    return answer


at_the_border = varied(algorithm, lambda best, own, threshold: best >= threshold * own and best > own)
never_from_nothing = varied(algorithm, lambda best, own, threshold: own > 0 and best > threshold * own)
always_fetches = varied(algorithm, lambda best, own, threshold: best > own)
never_fetches = varied(algorithm, lambda best, own, threshold: False)


def forgets_the_queue(  # type: ignore[no-untyped-def]
    prompt: int, queue: list[float], cached: list[int], threshold: float, prefill: Prefill, fetch: Fetch
):
    return algorithm(prompt, [0.0] * len(queue), cached, threshold, prefill, fetch)


def fetches_all_of_it(  # type: ignore[no-untyped-def]
    prompt: int, queue: list[float], cached: list[int], threshold: float, prefill: Prefill, fetch: Fetch
):
    best, offered = max(cached), []
    for place, own in enumerate(cached):
        far = best > threshold * own
        seconds = queue[place] + (fetch(best) + prefill(prompt, best) if far else prefill(prompt, own))
        offered.append((seconds, place, best if far else 0))
    return min(offered)[1:]


def only_the_instance(*asked: Any) -> int:
    return algorithm(*asked)[0]


def decode_at(
    prompt: int, requests: list[int], context: list[int], usable: list[bool], pending: Waiting,
    step: Callable[[int, int], float],
) -> int | None:  # fmt: skip
    batch, tokens = [*requests], [*context]
    for place, more in pending:
        batch[place] += 1
        tokens[place] += more
    there = [place for place, free in enumerate(usable) if free]
    return min(there, key=lambda place: step(batch[place] + 1, tokens[place] + prompt), default=None)


def without_the_ledger(prompt, requests, context, usable, pending, step):  # type: ignore[no-untyped-def]
    return decode_at(prompt, requests, context, usable, [], step)


def fewest_requests(prompt, requests, context, usable, pending, step):  # type: ignore[no-untyped-def]
    return decode_at(prompt, requests, context, usable, pending, lambda batch, tokens: batch)


def takes_anybody(prompt, requests, context, usable, pending, step):  # type: ignore[no-untyped-def]
    return decode_at(prompt, requests, context, [True] * len(usable), pending, step)


def raises_if_nobody(prompt, requests, context, usable, pending, step):  # type: ignore[no-untyped-def]
    return min((n for n, free in enumerate(usable) if free), key=lambda n: step(requests[n], context[n]))


def counts_no_tokens(prompt, requests, context, usable, pending, step):  # type: ignore[no-untyped-def]
    return decode_at(prompt, requests, context, usable, [(place, 0) for place, _ in pending], step)


def held_by(changes: list[Change]) -> Held:
    epoch = max((change.epoch for change in changes), default=0)
    mine = {change.sequence: change for change in changes if change.epoch == epoch}
    held: set[Any] = set()
    done = 0
    while done + 1 in mine:
        done += 1
        held |= {*mine[done].stored}
        held -= {*mine[done].removed}
    return held, done == max(mine, default=0)


def as_it_comes(changes: list[Change]) -> Held:
    held: set[Any] = set()
    for change in changes:
        held |= {*change.stored}
        held -= {*change.removed}
    return held, True


def steps_over_gaps(changes: list[Change]) -> Held:
    epoch = max((change.epoch for change in changes), default=0)
    unique = {change.sequence: change for change in changes if change.epoch == epoch}
    return as_it_comes([unique[number] for number in sorted(unique)])[0], held_by(changes)[1]


def forgets_the_restart(changes: list[Change]) -> Held:
    unique = {(change.epoch, change.sequence): change for change in changes}
    return as_it_comes([unique[number] for number in sorted(unique)])[0], held_by(changes)[1]


def drops_what_is_early(changes: list[Change]) -> Held:
    epoch = done = 0
    held: set[Any] = set()
    for change in changes:
        if change.epoch > epoch:
            epoch, done, held = change.epoch, 0, set()
        if change.epoch == epoch and change.sequence == done + 1:
            done += 1
            held |= {*change.stored}
            held -= {*change.removed}
    return held, held_by(changes)[1]


def never_tells_of_gaps(changes: list[Change]) -> Held:
    return held_by(changes)[0], True


def as_a_list(changes: list[Change]) -> Any:
    return sorted(held_by(changes)[0]), held_by(changes)[1]


def least_ttft(pool: Pool, table: Table) -> int:
    return min(pool.choices(), key=lambda n: pool.queue[n] + table.reuse(pool.cached[n]).work / pool.stages[n])


def shortest(pool: Pool, table: Table) -> int:
    return min(pool.choices(), key=lambda place: (pool.queue[place], -pool.cached[place]))


def longest(pool: Pool, table: Table) -> int:
    return max(pool.choices(), key=lambda place: pool.cached[place])


def longest_then_shortest(pool: Pool, table: Table) -> int:
    return min(pool.choices(), key=lambda place: (-pool.cached[place], pool.queue[place]))


def whoever(pool: Pool, table: Table) -> int:
    return min(range(len(pool.queue)), key=lambda place: pool.queue[place])


def empties_the_queue(pool: Pool, table: Table) -> int:
    chosen = pool.choices()[0]
    pool.queue[chosen] += 1.0  # type: ignore[index]
    return chosen


RIGHT: dict[str, Answer] = {
    "6.1": first_token, "6.2": algorithm, "6.3": decode_at, "6.4": held_by, "6.5": least_ttft,
}  # fmt: skip


class TestChapter06(Checks):
    chapter = 6
    right = RIGHT
    wrong: ClassVar = {
        "6.1": (
            Wrong("forgets what is computed", forgets_what_is_computed, "3 s are left of the prompt"),
            Wrong("forgets reuse in the queue", forgets_reuse_in_the_queue, "s wait",
                  "Busy(waiting=((4, 2),), left=0.0, prompt=8, own=0)"),
            Wrong("forgets itself", forgets_itself, "s are the prompt's own"),
            Wrong("takes a difference", takes_a_difference, "s are the prompt's own"),
            Wrong("computes side by side", computes_side_by_side, "s wait"),
            Wrong("gives nothing", lambda *asked: None, "Return seconds"),
        ),
        "6.2": (
            Wrong("divides by nothing", divides, "raised ZeroDivisionError"),
            Wrong("fetches at the border", at_the_border, "the threshold is 2: it fetches 0"),
            Wrong("fetches nothing from nothing", never_from_nothing, "it fetches 2, your answer says 0"),
            Wrong("always fetches", always_fetches, "it fetches 0"),
            Wrong("never fetches", never_fetches, "it fetches 2, your answer says 0"),
            Wrong("forgets the queue", forgets_the_queue, "(queue, transfer, prefill)"),
            Wrong("fetches all of it", fetches_all_of_it, "it fetches"),
            Wrong("gives the instance only", only_the_instance, "Return a pair"),
        ),
        "6.3": (
            Wrong("has no ledger", without_the_ledger, "those that are pending"),
            Wrong("takes the fewest requests", fewest_requests, "a step of instance"),
            Wrong("takes anybody", takes_anybody, "No instance may be chosen"),
            Wrong("raises if nobody is usable", raises_if_nobody, "raised ValueError"),
            Wrong("counts no tokens of what is pending", counts_no_tokens, "a step of instance"),
        ),
        "6.4": (
            Wrong("does as each message says", as_it_comes, "known to hold", "(0, 2, +b, -a)"),
            Wrong("steps over gaps", steps_over_gaps, "known to hold nothing"),
            Wrong("forgets the restart", forgets_the_restart, "known to hold"),
            Wrong("drops what is early", drops_what_is_early, "known to hold", "(0, 2, +b, -a) then (0, 1, +a, --)"),
            Wrong("never tells of gaps", never_tells_of_gaps, "a change before one that arrived is missing"),
            Wrong("gives a list", as_a_list, "Return a pair, the set of keys"),
        ),
        "6.5": (
            Wrong("the shortest queue", shortest, "not well enough"),
            Wrong("the longest prefix", longest, "not well enough"),
            Wrong("the longest prefix, then the shortest queue", longest_then_shortest, "not well enough"),
            Wrong("whoever it is", whoever, "no place of a usable instance"),
            Wrong("writes into the pool", empties_the_queue, "The pool was changed"),
            Wrong("gives nothing", lambda pool, table: None, "None is no place of a usable instance"),
        ),
    }  # fmt: skip


def test_algorithm_1_written_anew_chooses_as_the_package_s_policy() -> None:
    """Where no two instances promise the same: there the policy draws, and the exercise takes the lower number."""
    alone = 0
    for ask in asks():
        times = [each.ttft for each in offers(ask)]
        if times.count(min(times)) == 1:
            count = len(times)
            pool = Pool(range(count), [1] * count, ask.queue, ask.cached, [0] * count, [0] * count, [True] * count)
            policy = POLICIES["kvcache-centric"](SMALL, threshold=ask.threshold)
            placed = policy.place(Query(ask.prompt, (), 0.0), ClusterView(pool, pool))
            found = algorithm(ask.prompt, [*ask.queue], [*ask.cached], ask.threshold, SMALL.prefill, SMALL.fetch)
            assert found == (placed.prefill, placed.fetched)
            alone += 1
    assert alone > 50


def test_the_cases_hold_both_sides_of_every_border() -> None:
    ratios = {(max(ask.cached) > ask.threshold * own, max(ask.cached) == ask.threshold * own, own == 0)
              for ask in asks() for own in ask.cached}  # fmt: skip
    assert ratios == {(True, False, True), (True, False, False), (False, True, False), (False, False, False),
                      (False, True, True)}  # fmt: skip
    assert {(any(case.usable), bool(case.pending)) for case in batches()} == {
        (some, more) for some in (True, False) for more in (True, False)
    }


def test_the_last_case_which_a_right_answer_sees_drawn_has_a_fetch_that_wins_the_border_and_nothing_held() -> None:
    *_, last = asks()
    found = offers(last)
    assert min(found, key=lambda each: each.ttft).fetched > 0
    assert 0 in last.cached
    assert any(max(last.cached) == last.threshold * own for own in last.cached)


def test_the_harder_goal_of_the_chapter_needs_work_to_be_weighed_more_than_waiting() -> None:
    def weighed(pool: Pool, table: Table) -> int:
        return min(pool.choices(), key=lambda n: pool.queue[n] + 2 * table.reuse(pool.cached[n]).work)

    policies = [placing.scored(least_ttft, placing.HELD_OUT),
                sum(placing.of_the_five(seed)["cache-aware"] for seed in placing.HELD_OUT) / 2]  # fmt: skip
    assert placing.scored(weighed, placing.HELD_OUT) * 1.05 < 1.45 < min(policies) / 1.05


def test_the_threshold_lies_between_what_is_naive_and_what_is_good() -> None:
    each = [placing.of_the_five(seed) for seed in placing.HELD_OUT]
    reached = {name: sum(five[name] for five in each) / len(each) for name in POLICIES}
    naive = placing.scored(placing.shortest_queue, placing.HELD_OUT)
    assert max(reached["cache-aware"], reached["kvcache-centric"]) * 1.2 < ASKED
    assert min(naive, *(reached[name] for name in ("random", "round-robin", "load-balancing"))) > ASKED * 1.5
    assert not set(placing.HELD_OUT) & set(placing.PRACTICE)


@pytest.mark.parametrize("load", [0.5, 0.95])
def test_a_trace_at_a_load_brings_that_load(load: float) -> None:
    trace = placing.at_load(make("conversation", 1, 300), load)
    assert placing.load_of(trace, placing.costs_of(placing.cluster())) == pytest.approx(load)


def test_a_function_that_does_as_the_policy_does_reaches_what_the_policy_reaches() -> None:
    """But for ties, which the policy draws."""
    for seed in placing.PRACTICE:
        policy = placing.of_the_five(seed)["cache-aware"]
        assert placing.scored(least_ttft, [seed]) == pytest.approx(policy, rel=0.15)
