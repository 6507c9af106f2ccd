"""Why a request went where it went: the candidates as the Conductor saw them, and what other policies would have done.

    journal = Journal()
    simulate(config, trace, journal=journal)
    explain(journal, 17, costs_of(config)).candidates
    replay(journal, conductor_of(config))   # raises if a single bit of a decision differs
"""

from __future__ import annotations

from collections.abc import Hashable, Iterable, Sequence
from dataclasses import dataclass, field, replace
from random import Random
from typing import Any, NamedTuple

from mooncake_edu.conductor import (
    POLICIES,
    ClusterView,
    Conductor,
    Copy,
    Costs,
    Placement,
    Policy,
    Pool,
    Query,
    Table,
)
from mooncake_edu.errors import UserError

MOST = 5_000_000
"""Calls that a journal keeps."""


class ReplayError(UserError):
    """A decision differs from the recorded one, or there is none to explain."""


class Call(NamedTuple):
    """What a Conductor was asked or told: the method, its arguments, and what it answered."""

    method: str
    arguments: tuple[Any, ...]
    answer: Any


@dataclass
class Journal:
    """Everything a Conductor was asked and told in one run, in order; views are kept as they were at that moment.

    `shown` holds the view with the open placements in it for every request that was placed, in their order.
    """

    calls: list[Call] = field(default_factory=list)
    shown: list[ClusterView] = field(default_factory=list)
    placed: list[Call] = field(default_factory=list)

    def note(self, method: str, arguments: tuple[Any, ...], answer: Any) -> None:
        """Keep a call; raises ReplayError if there are too many."""
        if len(self.calls) >= MOST:
            raise ReplayError(f"a journal of {MOST:,} calls is full: record fewer requests")
        self.calls.append(Call(method, arguments, answer))


class Recording(Conductor):
    """A Conductor that keeps a journal."""

    def __init__(self, conductor: Conductor, journal: Journal) -> None:
        super().__init__(conductor.policy, conductor.ledger, conductor.spread)
        self.journal = journal

    def place(self, query: Query, view: ClusterView) -> Placement:
        """Where the request would go."""
        view = still(view)
        self.journal.shown.append(still(self.ledger.shown(view, query.arrival)))
        answer = super().place(query, view)
        self.journal.note("place", (query, view), answer)
        self.journal.placed.append(self.journal.calls[-1])
        return answer

    def commit(self, name: Hashable, query: Query, placement: Placement, reserve: bool = True) -> None:
        """It goes there."""
        self.journal.note("commit", (name, query, placement, reserve), None)
        super().commit(name, query, placement, reserve)

    def hand_over(self, name: Hashable, query: Query, view: ClusterView, now: float) -> int:
        """The decode instance of a request whose KVCache begins to move."""
        view = still(view)
        answer = super().hand_over(name, query, view, now)
        self.journal.note("hand_over", (name, query, view, now), answer)
        return answer

    def confirm(self, name: Hashable) -> None:
        """The view shows a placement from now on."""
        self.journal.note("confirm", (name,), None)
        super().confirm(name)

    def copy(self, query: Query, view: ClusterView, placement: Placement) -> Copy | None:
        """A copy of a hot prefix to be made ahead of demand."""
        view = still(view)
        answer = super().copy(query, view, placement)
        self.journal.note("copy", (query, view, placement), answer)
        return answer


def still(view: ClusterView) -> ClusterView:
    """A copy of a view whose columns nobody changes any more."""
    prefill = _still(view.prefill)
    return ClusterView(prefill, prefill if view.decode is view.prefill else _still(view.decode), view.age)


def _still(pool: Pool) -> Pool:
    return replace(
        pool, queue=tuple(pool.queue), cached=tuple(pool.cached), requests=tuple(pool.requests),
        context=tuple(pool.context), usable=tuple(pool.usable), sending=tuple(pool.sending),
    )  # fmt: skip


def replay(journal: Journal, conductor: Conductor) -> int:
    """Ask and tell a new Conductor the same; returns how many answers were compared, all of them equal to the last bit.

    Raises ReplayError with the first that is not.
    """
    for number, call in enumerate(journal.calls):
        answer = getattr(conductor, call.method)(*call.arguments)
        if repr(answer) != repr(call.answer):
            raise ReplayError(f"call {number}, {call.method}: {answer} instead of {call.answer}: give the policy, seed "
                              "and costs of the recorded run")  # fmt: skip
    return len(journal.calls)


class Candidate(NamedTuple):
    """An instance as it was seen: seconds in its queue, of fetching and of computing, and the tokens of each kind.

    `cached` tokens of the prompt are there, `fetched` ones would come from the instance `source`.
    """

    instance: int
    usable: bool
    cached: int
    fetched: int
    source: int | None
    queue: float
    transfer: float
    prefill: float

    @property
    def ttft(self) -> float:
        """Seconds to the first token."""
        return self.queue + self.transfer + self.prefill


class Choice(NamedTuple):
    """Where a policy sends a request, the TTFT to expect there, and how much more than the best that is, in seconds."""

    instance: int
    ttft: float
    regret: float


@dataclass(frozen=True)
class Explanation:
    """A decision: what was placed where, all candidates with and without fetching, and the choice of every policy."""

    query: Query
    placement: Placement
    candidates: Sequence[Candidate]
    local: Sequence[Candidate]
    choices: dict[str, Choice]


def candidates(query: Query, pool: Pool, costs: Costs, threshold: float | None) -> list[Candidate]:
    """What each prefill instance promises, by the costs given; without a threshold, nothing is fetched."""
    table, found = Table(query, pool, costs, Random(0), threshold), []
    for place, own in enumerate(pool.cached):
        reuse = table.reuse(own)
        source = None if reuse.source is None else pool.number[reuse.source]
        found.append(Candidate(
            pool.number[place], pool.usable[place], own, reuse.fetched, source, pool.queue[place], reuse.transfer,
            reuse.work / pool.stages[place],
        ))  # fmt: skip
    return found


def explain(
    journal: Journal, number: int, costs: Costs, shadows: Shadows | None = None, threshold: float = 2.0
) -> Explanation:
    """Decision `number` of a run; raises ReplayError if there is none.

    Without outages that is the request of this number, in the order of arrival; with them, requests that are sent back
    are placed again, and what finds nobody is not placed.

    Estimates are those of `costs`, the recorded ones being as far off as the configuration made them. Without
    `shadows` that were asked for the requests before, every policy chooses as on its first.
    """
    if not 0 <= number < len(journal.placed):
        raise ReplayError(f"request {number} was not placed: use a number from 0 to {len(journal.placed) - 1}")
    (query, _), placement = journal.placed[number].arguments, journal.placed[number].answer
    chosen = (shadows or Shadows(costs, threshold)).choose(query, journal.shown[number])
    pool = journal.shown[number].prefill
    return Explanation(query, placement, candidates(query, pool, costs, threshold),
                       candidates(query, pool, costs, None), chosen)  # fmt: skip


class Shadows:
    """Every policy beside the one that decides: each is asked, none is obeyed."""

    def __init__(self, costs: Costs, threshold: float = 2.0, seed: int = 0, names: Iterable[str] = POLICIES) -> None:
        self.costs, self.threshold = costs, threshold
        self.policies: dict[str, Policy] = {name: POLICIES[name](costs, seed, threshold) for name in names}

    def choose(self, query: Query, view: ClusterView) -> dict[str, Choice]:
        """The choice of each policy; the best TTFT is that of any usable instance, with what it holds or fetching."""
        pool = view.prefill
        tables = [candidates(query, pool, self.costs, threshold) for threshold in (None, self.threshold)]
        best = min(each.ttft for table in tables for each in table if each.usable)
        chosen = {}
        for name, policy in self.policies.items():
            instance = policy.place(query, view).prefill
            there = tables[policy.fetches][list(pool.number).index(instance)]
            chosen[name] = Choice(instance, there.ttft, there.ttft - best)
        return chosen


def regrets(journal: Journal, shadows: Shadows, stop: int | None = None) -> dict[str, float]:
    """The mean regret of each policy over the first `stop` requests of a run, in seconds, had it decided each alone."""
    placed, total = journal.placed[:stop], dict.fromkeys(shadows.policies, 0.0)
    for call, view in zip(placed, journal.shown, strict=False):
        for name, choice in shadows.choose(call.arguments[0], view).items():
            total[name] += choice.regret
    return {name: value / max(len(placed), 1) for name, value in total.items()}
