"""The exercises of chapter 06: when a first token comes, algorithm 1, where to decode, an index, a policy."""

from __future__ import annotations

import contextlib
import itertools
import math
from collections.abc import Iterable, Iterator
from random import Random
from typing import TYPE_CHECKING, NamedTuple

from mooncake_edu.conductor import (
    POLICIES,
    CacheAware,
    Change,
    Conductor,
    Index,
    KvcacheCentric,
    Ledger,
    Policy,
    Pool,
    Query,
    Table,
)
from mooncake_edu.course.check import Answer, Exercise, Score, Trial
from mooncake_edu.course.checks import placing
from mooncake_edu.model.costs import PRESETS
from mooncake_edu.prefix import PrefixIndex
from mooncake_edu.simulation.explain import Candidate, candidates

if TYPE_CHECKING:
    import plotly.graph_objects as go

ASKED = 2.2
"""Seconds of mean TTFT that must be reached; the shortest queue gives more than three times as many."""

SURE = 1e-9  # relative: sums in another order differ by less


class Small:
    """Costs in seconds that are easily added up in the head; a prefill takes two at least."""

    def prefill(self, prompt: int, prefix: int = 0) -> float:
        """A second for each token that is not reused, and a tenth for each token that it looks back at."""
        return max(2.0, prompt - prefix + (prompt**2 - prefix**2) / 20)

    def decode_step(self, batch: int, context: int) -> float:
        """Ten seconds, one for each request, and one for each ten tokens."""
        return 10 + batch + context / 10

    def fetch(self, tokens: int) -> float:
        """Half a second a token."""
        return tokens / 2


SMALL = Small()


class Busy(NamedTuple):
    """An instance: `waiting` prompts as (tokens, reused of them), and `left` seconds of the one that is computed.

    The request asks for `prompt` tokens, `own` of which the instance holds.
    """

    waiting: tuple[tuple[int, int], ...]
    left: float
    prompt: int
    own: int


def queues() -> Iterator[Busy]:
    """An idle instance, one that computes, prompts that wait, with and without something to reuse."""
    rows = ((), ((4, 0),), ((4, 2),), ((4, 0), (6, 5)), ((8, 8), (2, 0), (5, 1)))
    for waiting, left, own in itertools.product(rows, (0.0, 3.0), (0, 4, 8)):
        yield Busy(waiting, left, 8, own)


def judge_first_token(answer: Answer, case: Busy) -> Trial:
    """The rest of what is computed, then what waits, then the prompt itself, each without what is reused."""
    got = answer([*case.waiting], case.left, case.prompt, case.own, SMALL.prefill)
    waiting = sum(SMALL.prefill(*each) for each in case.waiting)
    mine = SMALL.prefill(case.prompt, case.own)
    if isinstance(got, bool) or not isinstance(got, int | float):
        return Trial(f"Return seconds, not {got!r}.")
    if math.isclose(got, case.left + waiting + mine, rel_tol=SURE):
        return Trial()
    return Trial(
        f"The first token comes after {case.left + waiting + mine:g} s: {case.left:g} s are left of the prompt that is "
        f"being computed, {waiting:g} s wait, {mine:g} s are the prompt's own. Your answer says {got:g} s."
    )


class Ask(NamedTuple):
    """A request of `prompt` tokens; for each instance its queue in seconds, and how many of the tokens it holds."""

    prompt: int
    queue: tuple[float, ...]
    cached: tuple[int, ...]
    threshold: float


def asks() -> Iterator[Ask]:
    """One instance, then two and three with every mixture of queues and prefixes; last the one that is drawn."""
    for alone in (0, 4, 8):
        yield Ask(8, (3.0,), (alone,), 2)
    held = (0, 2, 4, 8)
    for threshold, two, queue in itertools.product(
        (2, 1), itertools.product(held, repeat=2), itertools.product((0.0, 4.0), repeat=2)
    ):
        yield Ask(8, queue, two, threshold)
    for three in itertools.product(held, repeat=3):
        yield Ask(8, (3.0, 9.0, 0.0), three, 2)
    yield Ask(8, (9.0, 1.0, 0.0), (8, 4, 0), 2)  # who holds most, the border, and nothing, which fetches and wins


def offers(case: Ask) -> list[Candidate]:
    """What the package expects of each instance."""
    return candidates(Query(case.prompt, (), 0.0), _pool(case.queue, case.cached), SMALL, case.threshold)


def _pool(queue: tuple[float, ...], cached: tuple[int, ...], usable: tuple[bool, ...] = ()) -> Pool:
    count = len(queue)
    return Pool(range(count), [1] * count, [*queue], [*cached], [0] * count, [0] * count, [*usable] or [True] * count)


def judge_algorithm(answer: Answer, case: Ask) -> Trial:
    """The smallest sum of queue, transfer and prefill, the lower number among equals, and what is fetched there."""
    got = answer(case.prompt, [*case.queue], [*case.cached], case.threshold, SMALL.prefill, SMALL.fetch)
    if not isinstance(got, tuple | list) or len(got) != 2 or any(isinstance(each, bool) for each in got):
        return Trial(f"Return a pair, the instance and the tokens that it fetches, not {got!r}.")
    place, fetched = got
    if place not in range(len(case.queue)):
        return Trial(f"{place!r} is no instance: there are {len(case.queue)}, from 0 on.")
    found = offers(case)
    best, yours = min(found, key=lambda each: (each.ttft, each.instance)), found[place]
    if place == best.instance and fetched == best.fetched:
        return Trial()
    if place == best.instance:
        return Trial(f"Instance {place} holds {yours.cached} of {max(case.cached)} tokens and the threshold is "
                     f"{case.threshold}: it fetches {best.fetched}, your answer says {fetched!r}.")  # fmt: skip
    same = ", and has the lower number" if yours.ttft == best.ttft else ""
    return Trial(f"Instance {best.instance} gives the first token after {_sum(best)}{same}; instance {place}, which "
                 f"your answer chooses, after {_sum(yours)}.")  # fmt: skip


def _sum(each: Candidate) -> str:
    return f"{each.queue:g} + {each.transfer:g} + {each.prefill:g} = {each.ttft:g} s (queue, transfer, prefill)"


def draw_algorithm(answer: Answer, case: Ask) -> go.Figure:
    """The candidates, and the answer's own choice among them, if it made one."""
    from mooncake_edu.pictures import conductor

    place = -1
    with contextlib.suppress(Exception):  # the verdict tells what the answer raised
        place, _ = answer(case.prompt, [*case.queue], [*case.cached], case.threshold, SMALL.prefill, SMALL.fetch)
    return conductor.candidates(offers(case), place, f"A prompt of {case.prompt} tokens; chosen is what you chose")


class Batches(NamedTuple):
    """Decode instances: requests and tokens there, whether each may be chosen, and what was placed and is not seen yet.

    `pending` are pairs of an instance and a request's tokens.
    """

    prompt: int
    requests: tuple[int, ...]
    context: tuple[int, ...]
    usable: tuple[bool, ...]
    pending: tuple[tuple[int, int], ...] = ()


def batches() -> Iterator[Batches]:
    """None usable, one, two with every small difference, with and without placements that are not seen yet."""
    yield Batches(100, (0,), (0,), (False,))
    yield Batches(100, (3,), (400,), (True,))
    for requests, context in itertools.product(((0, 0), (1, 0), (1, 2), (2, 1)), ((0, 0), (300, 50), (50, 300))):
        there = tuple(tokens * (count > 0) for tokens, count in zip(context, requests, strict=True))
        for usable in ((True, True), (False, True), (False, False)):
            for pending in ((), ((0, 100),), ((0, 20), (1, 400), (0, 20))):
                yield Batches(100, requests, there, usable, pending)
    yield Batches(200, (4, 4, 1), (900, 100, 2000), (True, True, True), ((1, 500), (1, 500)))


def judge_decode(answer: Answer, case: Batches) -> Trial:
    """The shortest step with the request in it, and what is pending; among equals the lower number."""
    given = ([*case.requests], [*case.context], [*case.usable], [*case.pending])
    got = answer(case.prompt, *given, SMALL.decode_step)
    steps = {}
    for place in itertools.compress(range(len(case.requests)), case.usable):
        there = [tokens for instance, tokens in case.pending if instance == place]
        steps[place] = SMALL.decode_step(case.requests[place] + len(there) + 1,
                                         case.context[place] + sum(there) + case.prompt)  # fmt: skip
    if not steps:
        return Trial(None if got is None else f"No instance may be chosen: return None, not {got!r}.")
    best = min(steps, key=lambda place: (steps[place], place))
    if isinstance(got, bool) or got not in steps:
        return Trial(f"Return the number of an instance that may be chosen, one of {list(steps)}, not {got!r}.")
    if got != best:
        return Trial(f"With this request, and those that are pending, a step of instance {best} takes {steps[best]:g} "
                     f"s and one of instance {got} takes {steps[got]:g} s.")  # fmt: skip
    return Trial()


class Messages(NamedTuple):
    """Changes of one instance in the order in which they arrived."""

    changes: tuple[Change, ...]

    def __repr__(self) -> str:
        """Without words that stand there each time."""
        return " then ".join(
            f"({each.epoch}, {each.sequence}, +{''.join(map(str, each.stored)) or '-'}, "
            f"-{''.join(map(str, each.removed)) or '-'})"
            for each in self.changes
        ) or "no message"  # fmt: skip


SENT = (Change(0, 1, ("a",)), Change(0, 2, ("b",), ("a",)), Change(0, 3, ("a",)), Change(1, 1, ("c",)),
        Change(1, 2, (), ("c",)))  # fmt: skip
"""What an instance sent: three changes, and two after it had started again."""


def messages() -> Iterator[Messages]:
    """Every way in which up to four of these messages can arrive."""
    for count in range(5):
        yield from (Messages(chosen) for chosen in itertools.product(SENT, repeat=count))
    yield Messages((*SENT, *SENT))


def judge_index(answer: Answer, case: Messages) -> Trial:
    """What is held after the last change before a gap, since the newest start; and whether there is a gap."""
    got = answer([*case.changes])
    if not isinstance(got, tuple | list) or len(got) != 2 or not isinstance(got[0], set | frozenset):
        return Trial(f"Return a pair, the set of keys and whether nothing is missing, not {got!r}.")
    index, complete = Index(), True
    for change in case.changes:
        complete = index.take(0, change)
    held = {key for key in "abc" if index.holders(key)}
    if got[0] != held:
        return Trial(f"The instance is known to hold {_keys(held)}, your answer says {_keys(got[0])}.")
    if bool(got[1]) != complete:
        said = "nothing is missing" if complete else "a change before one that arrived is missing"
        return Trial(f"The keys are right, but {said}, and your answer says {got[1]!r}.")
    return Trial()


def _keys(keys: Iterable[object]) -> str:
    return ", ".join(sorted(map(str, keys))) or "nothing"


class Spot(NamedTuple):
    """A request of 8,000 tokens: for each instance its queue in seconds, what it holds, whether it may be chosen."""

    queue: tuple[float, ...]
    cached: tuple[int, ...]
    usable: tuple[bool, ...]


def spots() -> Iterator[Spot]:
    """One instance, two, and eight of which some may not be chosen."""
    yield Spot((0.0,), (0,), (True,))
    for usable in ((True, True), (True, False), (False, True)):
        yield Spot((0.0, 3.0), (0, 7680), usable)
        yield Spot((3.0, 3.0), (512, 512), usable)
    yield Spot(tuple(0.5 * n for n in range(8)), tuple(512 * n for n in range(8)), (False, True) * 4)


def judge_policy(answer: Answer, case: Spot) -> Trial:
    """A usable instance, and the pool left as it was."""
    pool, query = _pool(case.queue, case.cached, case.usable), Query(8000, (), 0.0)
    before = repr(pool)
    try:
        placing.checked(answer(pool, Table(query, pool, PRESETS["A800x8"], Random(0))), pool)
    except ValueError as error:
        return Trial(f"{error}.")
    return Trial(None if repr(pool) == before else "The pool was changed: leave what you are given as it is.")


def draw_policy(answer: Answer, _case: Spot) -> go.Figure:
    """Mean TTFT of the answer, if it places all requests, and of the five policies on a slice to try."""
    from mooncake_edu.pictures import conductor

    seed = placing.PRACTICE[0]
    five = placing.of_the_five(seed)
    reached = {name + " (fetches)" * POLICIES[name].fetches: seconds for name, seconds in five.items()}
    with contextlib.suppress(Exception):  # the verdict tells what the answer raised
        reached["yours"] = placing.scored(answer, [seed])
    return conductor.scores(reached, "yours", ASKED)


def _policies() -> tuple[object, ...]:
    return (*POLICIES.values(), Policy, placing.shortest_queue, Conductor)


EXERCISES = (
    Exercise("6.1", "When the first token comes", queues, judge_first_token, lambda: (Table, Table.ttft)),
    Exercise("6.2", "Algorithm 1", asks, judge_algorithm, lambda: (Table, KvcacheCentric, candidates), draw_algorithm),
    Exercise("6.3", "Where it decodes", batches, judge_decode,
             lambda: (CacheAware, CacheAware.choose_decode, Ledger, Pool.least)),
    Exercise("6.4", "What an instance holds", messages, judge_index, lambda: (Index, Index.take, PrefixIndex)),
    Exercise(
        "6.5", "A policy of your own", spots, judge_policy, _policies, draw_policy,
        Score(lambda answer: placing.scored(answer, placing.HELD_OUT), ASKED, "s of mean TTFT", False,
              lambda: placing.scored(placing.shortest_queue, placing.HELD_OUT)),
    ),
)  # fmt: skip
