"""Layer 6, Conductor: which prefill and which decode instance serve a request.

A policy decides from what it is shown alone: the request without its answer's length, and the view of the cluster. It
reads no clock and moves nothing, so the same object serves a simulation and a real cluster. Keys are opaque and times
come from a cost function that is handed in, so whatever is costly to make and can be reused is placed by it, not only
KVCache. Instances alike in what a policy looks at are told apart by a random number that its seed decides, so equal
inputs give equal placements.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Hashable, Iterable, Sequence
from dataclasses import dataclass, field, replace
from random import Random
from typing import NamedTuple, Protocol

from mooncake_edu.errors import UserError
from mooncake_edu.prefix import PrefixIndex


class PlacementError(UserError):
    """No instance can take a request."""


class Costs(Protocol):
    """Estimates of times, in seconds."""

    def prefill(self, prompt: int, prefix: int = 0) -> float:
        """Computing a prompt of which the first `prefix` tokens are reused."""

    def decode_step(self, batch: int, context: int) -> float:
        """One token for each of `batch` requests that hold `context` tokens together."""

    def fetch(self, tokens: int) -> float:
        """Moving the KVCache of so many tokens from one instance to another, with the network to itself."""


@dataclass(frozen=True, slots=True)
class Query:
    """What a policy may know of a request: `prompt` tokens, the keys of its blocks in order, `arrival` in seconds."""

    prompt: int
    keys: Sequence[Hashable]
    arrival: float
    priority: int = 0
    block_size: int = 512


@dataclass(slots=True)
class Pool:
    """The instances of one role in columns, one entry an instance; to be read only.

    An instance of several `stages` computes a prompt so many times as fast. `queue` is the work waiting and in
    progress, in seconds; `cached` how many tokens of the request's prompt the instance can give, none if it is down;
    `requests` those placed there and not ended, with `context` tokens; `usable` is false for an instance that is
    down, draining or full; `sending` is what it has to send to others, in seconds of its network (none if not given).
    """

    number: Sequence[int]
    stages: Sequence[int]
    queue: Sequence[float]
    cached: Sequence[int]
    requests: Sequence[int]
    context: Sequence[int]
    usable: Sequence[bool]
    sending: Sequence[float] = ()

    def __post_init__(self) -> None:
        if not self.sending:
            self.sending = [0.0] * len(self.number)

    def choices(self) -> list[int]:
        """The places of the usable instances; raises PlacementError if there is none."""
        found = [place for place, usable in enumerate(self.usable) if usable]
        if not found:
            raise PlacementError(f"none of the {len(self.number)} instances is usable: add one, or wait for a probe")
        return found

    def least(self, random: Random, *columns: Sequence[float]) -> int:
        """A usable instance that is least in the columns, the first of which counts most; any of those alike."""
        choices = self.choices()
        keys = columns[0] if len(columns) == 1 else list(zip(*columns, strict=True))
        low = min([keys[place] for place in choices])
        ties = [place for place in choices if keys[place] == low]
        return ties[0] if len(ties) == 1 else random.choice(ties)


@dataclass(slots=True)
class ClusterView:
    """What is known of the cluster, `age` seconds old; coupled instances stand in one pool, which is both."""

    prefill: Pool
    decode: Pool
    age: float = 0.0


class Placement(NamedTuple):
    """Where a request goes, and what is forecast: tokens reused there, seconds of work there, of TTFT and of TBT.

    `fetched` of the reused tokens come from the instance `source` first, which takes `transfer` seconds.
    """

    prefill: int
    decode: int
    cached: int
    work: float
    ttft: float
    tbt: float
    source: int | None = None
    fetched: int = 0
    transfer: float = 0.0


class Reuse(NamedTuple):
    """What an instance could do with a prefix: reuse `tokens`, the `fetched` ones of them from the place `source`.

    `transfer` and `work` are the seconds of fetching, and of computing the rest in one stage.
    """

    tokens: int
    work: float
    transfer: float = 0.0
    source: int | None = None
    fetched: int = 0


class Table:
    """What to expect of each prefill instance for one request; the same for all that hold equally much of it.

    An instance reuses what it holds; or, with a `threshold`, fetches what the instance with the longest prefix has
    more, if that prefix is more than `threshold` times as long as its own. Without an own prefix it fetches whatever
    there is. Of several with the longest prefix, the one gives that has the least to send. Paper: arXiv algorithm 1.
    """

    def __init__(self, query: Query, pool: Pool, costs: Costs, random: Random, threshold: float | None = None) -> None:
        self.pool, self._query, self._costs = pool, query, costs
        self._threshold, self._random = threshold, random
        self._known: dict[int, Reuse] = {}
        self._longest = max(pool.cached) if threshold is not None else 0
        self._source: int | None = None

    def reuse(self, own: int) -> Reuse:
        """For an instance that holds `own` tokens of the prompt."""
        if own not in self._known:
            fetch = self._threshold is not None and self._longest > self._threshold * own
            self._known[own] = self._fetch(own) if fetch else Reuse(own, self._costs.prefill(self._query.prompt, own))
        return self._known[own]

    def ttft(self) -> list[float]:
        """Seconds to the first token at each place: in the queue, of fetching and of computing."""
        pool = self.pool
        known = {own: self.reuse(own) for own in dict.fromkeys(pool.cached)}
        return [
            queue + (found := known[own]).transfer + found.work / stages
            for queue, own, stages in zip(pool.queue, pool.cached, pool.stages, strict=True)
        ]

    def _fetch(self, own: int) -> Reuse:
        pool, longest = self.pool, self._longest
        if self._source is None:
            holders = [place for place, cached in enumerate(pool.cached) if cached == longest]
            low = min(pool.sending[place] for place in holders)
            idle = [place for place in holders if pool.sending[place] == low]
            self._source = idle[0] if len(idle) == 1 else self._random.choice(idle)
        transfer = pool.sending[self._source] + self._costs.fetch(longest - own)
        return Reuse(longest, self._costs.prefill(self._query.prompt, longest), transfer, self._source, longest - own)


class Policy(ABC):
    """Chooses instances; every policy reuses what the instance it chose holds."""

    fetches = False
    """Whether prefixes are fetched from other instances."""

    def __init__(self, costs: Costs, seed: int = 0, threshold: float = 2.0) -> None:
        self.costs, self.random = costs, Random(seed)
        self.threshold = threshold if self.fetches else None

    def place(self, query: Query, view: ClusterView) -> Placement:
        """Where the request goes; raises PlacementError if no instance is usable."""
        fill = view.prefill
        table = Table(query, fill, self.costs, self.random, self.threshold)
        first = self.choose_prefill(fill, table)
        second = first if view.decode is fill else self.choose_decode(query, view.decode)
        reuse = table.reuse(fill.cached[first])
        work, source = reuse.work / fill.stages[first], reuse.source
        return Placement(
            fill.number[first], view.decode.number[second], reuse.tokens, work,
            fill.queue[first] + reuse.transfer + work, self.tbt(query, view.decode, second),
            None if source is None else fill.number[source], reuse.fetched, reuse.transfer,
        )  # fmt: skip

    def tbt(self, query: Query, pool: Pool, place: int) -> float:
        """Seconds of a step of the batch there, with the request in it."""
        return self.costs.decode_step(pool.requests[place] + 1, pool.context[place] + query.prompt)

    @abstractmethod
    def choose_prefill(self, pool: Pool, table: Table) -> int:
        """The place in its pool of the instance that computes the prompt."""

    @abstractmethod
    def choose_decode(self, query: Query, pool: Pool) -> int:
        """The place in its pool of the instance that makes the other tokens."""


class RandomChoice(Policy):
    """Any usable instance, each as likely."""

    def choose_prefill(self, pool: Pool, table: Table) -> int:
        """Any."""
        return self.random.choice(pool.choices())

    def choose_decode(self, query: Query, pool: Pool) -> int:
        """Any."""
        return self.random.choice(pool.choices())


class RoundRobin(Policy):
    """One instance after the other, in the order of the pool; those that are not usable are passed over."""

    def __init__(self, costs: Costs, seed: int = 0, threshold: float = 2.0) -> None:
        super().__init__(costs, seed, threshold)
        self._last = {"prefill": -1, "decode": -1}

    def choose_prefill(self, pool: Pool, table: Table) -> int:
        """The next."""
        return self._next("prefill", pool)

    def choose_decode(self, query: Query, pool: Pool) -> int:
        """The next."""
        return self._next("decode", pool)

    def _next(self, role: str, pool: Pool) -> int:
        choices, last = pool.choices(), self._last[role]
        self._last[role] = next((place for place in choices if place > last), choices[0])
        return self._last[role]


class LoadBalance(Policy):
    """The prefill instance with the shortest queue in seconds; the decode instance with the fewest requests.

    Among decode instances with equally many, the one with the fewest tokens.
    """

    def choose_prefill(self, pool: Pool, table: Table) -> int:
        """The shortest queue."""
        return pool.least(self.random, pool.queue)

    def choose_decode(self, query: Query, pool: Pool) -> int:
        """The fewest requests."""
        return pool.least(self.random, pool.requests, pool.context)


class CacheAware(Policy):
    """The prefill instance with the first token soonest, from what it holds itself; the decode instance least loaded.

    That is the one whose steps are forecast to be the shortest.
    """

    def choose_prefill(self, pool: Pool, table: Table) -> int:
        """The shortest TTFT."""
        return pool.least(self.random, table.ttft())

    def choose_decode(self, query: Query, pool: Pool) -> int:
        """The shortest TBT."""
        return pool.least(self.random, [self.tbt(query, pool, place) for place in range(len(pool.number))])


class KvcacheCentric(CacheAware):
    """Cache-aware, where prefixes may come from other instances too, which spreads hot ones. Paper: arXiv alg. 1."""

    fetches = True


POLICIES: dict[str, type[Policy]] = {
    "random": RandomChoice,
    "round-robin": RoundRobin,
    "load-balancing": LoadBalance,
    "cache-aware": CacheAware,
    "kvcache-centric": KvcacheCentric,
}
"""The policies by the names that a configuration uses."""


class Pending(NamedTuple):
    """What a placement adds to a view: work at a prefill instance, and a request of so many tokens at a decode one.

    `sending` seconds are added to what `source` has to send.
    """

    since: float
    prefill: int | None
    work: float
    decode: int | None
    tokens: int
    source: int | None = None
    sending: float = 0.0


class Ledger:
    """Placements that no view shows yet, so that a burst does not all go where an old view shows room.

    Each counts until it is confirmed, which is when the view shows it, or withdrawn; and for `patience` seconds at
    most, since a confirmation may be lost.
    """

    def __init__(self, patience: float = 60.0) -> None:
        self.patience = patience
        self._open: dict[Hashable, Pending] = {}

    def __len__(self) -> int:
        return len(self._open)

    def note(self, name: Hashable, pending: Pending) -> None:
        """Count a placement under a name of its own; a second of that name takes the place of the first."""
        self._open.pop(name, None)
        self._open[name] = pending

    def confirm(self, name: Hashable) -> None:
        """Count it no more; one that is not known, or was confirmed before, changes nothing."""
        self._open.pop(name, None)

    def shown(self, view: ClusterView, now: float) -> ClusterView:
        """The view as it is now, if all went as forecast: time has passed, and the open placements are in it."""
        while self._open and (first := next(iter(self._open.items())))[1].since + self.patience <= now:
            del self._open[first[0]]
        if not self._open and not view.age:
            return view
        prefill = _with(view.prefill, self._open.values(), view.age)
        decode = prefill if view.decode is view.prefill else _with(view.decode, self._open.values(), 0.0)
        return ClusterView(prefill, decode, 0.0)


def _with(pool: Pool, pending: Iterable[Pending], age: float) -> Pool:
    """A copy of a pool `age` seconds later, with what is pending in it."""
    places = {number: place for place, number in enumerate(pool.number)}
    queue, sending = ([max(each - age, 0.0) for each in column] for column in (pool.queue, pool.sending))
    requests, context = list(pool.requests), list(pool.context)
    for each in pending:
        if each.prefill in places:
            queue[places[each.prefill]] += each.work
        if each.decode in places:
            requests[places[each.decode]] += 1
            context[places[each.decode]] += each.tokens
        if each.source in places:
            sending[places[each.source]] += each.sending
    return replace(pool, queue=queue, sending=sending, requests=requests, context=context)


class Roster:
    """Which instances may be chosen: those that answer, are not draining and are not full.

    An instance that failed `errors` times in a row is down until a probe succeeds; no request is the probe.
    """

    def __init__(self, errors: int = 3) -> None:
        self.errors = errors
        self._failed: dict[int, int] = {}
        self.draining: set[int] = set()
        self.full: set[int] = set()

    def failed(self, number: int) -> None:
        """A request failed there, by the instance's fault."""
        self._failed[number] = self._failed.get(number, 0) + 1

    def succeeded(self, number: int) -> None:
        """A request succeeded there, which may have begun before others failed: it brings back none that is down."""
        if self.up(number):
            self._failed.pop(number, None)

    def probed(self, number: int, well: bool) -> None:
        """A probe came back."""
        if well:
            self._failed.pop(number, None)
        else:
            self._failed[number] = self.errors

    def up(self, number: int) -> bool:
        """Whether an instance answers, so that it can give what it holds."""
        return self._failed.get(number, 0) < self.errors

    def usable(self, number: int) -> bool:
        """Whether an instance may be chosen."""
        return self.up(number) and number not in self.draining and number not in self.full


class Change(NamedTuple):
    """Blocks that an instance stored, then blocks that went: its change number `sequence`, from 1, since it started.

    `epoch` tells its starts apart and grows with each.
    """

    epoch: int
    sequence: int
    stored: Sequence[Hashable] = ()
    removed: Sequence[Hashable] = ()


@dataclass(slots=True)
class _Stream:
    """How far an instance's changes were taken in, and those that came before one that is missing."""

    epoch: int = -1
    taken: int = 0
    early: dict[int, Change] = field(default_factory=dict)


class Index(PrefixIndex):
    """Which instance holds which block, as far as its changes tell.

    They may come twice, late, in any order, or not at all, and an instance may start again with nothing. Where one
    is missing, those after it wait, at most `most` of an instance, until it comes or all blocks are told anew.
    """

    def __init__(self, most: int = 10_000) -> None:
        super().__init__()
        self.most = most
        self._streams: dict[int, _Stream] = {}

    def take(self, number: int, change: Change) -> bool:
        """Take in a change of an instance; returns whether all is known of it, else ask it for all its blocks."""
        stream = self._streams.setdefault(number, _Stream())
        if change.epoch > stream.epoch:
            stream = self._restart(number, change.epoch, 0)
        if change.epoch == stream.epoch and change.sequence > stream.taken:
            if len(stream.early) >= self.most:
                stream.early.clear()
            stream.early[change.sequence] = change
        self._drain(number, stream)
        return not stream.early

    def resynchronise(self, number: int, epoch: int, sequence: int, keys: Iterable[Hashable]) -> bool:
        """Take in all blocks that an instance held after a change; an older state than is known changes nothing."""
        stream = self._streams.setdefault(number, _Stream())
        if (epoch, sequence) >= (stream.epoch, stream.taken):
            early = stream.early if epoch == stream.epoch else {}
            stream = self._restart(number, epoch, sequence)
            stream.early = {each: change for each, change in early.items() if each > sequence}
            self.add(number, keys)
            self._drain(number, stream)
        return not stream.early

    def cached(self, query: Query, numbers: Iterable[int]) -> list[int]:
        """How many tokens of a request's prompt each of these instances has, from the first on."""
        blocks = self.lengths(query.keys)
        return [min(blocks.get(number, 0) * query.block_size, query.prompt) for number in numbers]

    def _drain(self, number: int, stream: _Stream) -> None:
        while (change := stream.early.pop(stream.taken + 1, None)) is not None:
            stream.taken += 1
            self.add(number, change.stored)
            self.remove(number, change.removed)

    def _restart(self, number: int, epoch: int, sequence: int) -> _Stream:
        if self._streams[number].epoch >= 0:
            self.forget(number)
        self._streams[number] = _Stream(epoch, sequence)
        return self._streams[number]


class Copy(NamedTuple):
    """A prefix of `tokens` that an instance should fetch from another before a request there asks for it."""

    source: int
    target: int
    tokens: int


class Spread:
    """Has hot prefixes copied ahead of demand, where sending them is what their holders are busy with.

    A prefix is known by its first block that a chosen instance lacked. Its demand is the seconds that sending what was
    lacking takes, whether it was fetched or the network was too busy for it; half of it is forgotten every `window`
    seconds. Where it takes more than the share `most` of the time of each holder, the instance with the shortest queue
    among those without it gets a copy, one at a time, of as much as all who lacked it had in common, from the second
    time on. `keep` prefixes are remembered, those asked for last.
    """

    def __init__(self, window: float = 60.0, most: float = 0.005, keep: int = 10_000) -> None:
        self.window, self.most, self.keep = window, most, keep
        self._demand: dict[Hashable, tuple[float, float, float, int]] = {}  # since when, seconds, next copy, tokens

    def copy(self, query: Query, pool: Pool, placement: Placement, costs: Costs) -> Copy | None:
        """Count a placement; returns a copy to be made now, if any."""
        longest, chosen, now = max(pool.cached), list(pool.number).index(placement.prefill), query.arrival
        lacking = longest - pool.cached[chosen]
        if not lacking:
            return None
        key, seconds = query.keys[pool.cached[chosen] // query.block_size], costs.fetch(lacking)
        again = key in self._demand
        since, demand, due, shared = self._demand.pop(key, (now, 0.0, now, longest))
        demand, shared = demand * 2.0 ** ((since - now) / self.window) + seconds, min(shared, longest)
        holders = [place for place, cached in enumerate(pool.cached) if cached >= shared]
        wanting = [each for each in pool.choices() if pool.cached[each] < shared and each != chosen]
        found = None
        if again and now >= due and wanting and demand > self.most * self.window * len(holders):
            target = min(wanting, key=lambda place: (pool.queue[place], place))
            source = min(holders, key=lambda place: (pool.sending[place], place))
            due = now + pool.sending[source] + seconds
            found = Copy(pool.number[source], pool.number[target], shared)
        self._demand[key] = now, demand, due, shared
        if len(self._demand) > self.keep:
            del self._demand[next(iter(self._demand))]
        return found


class Conductor:
    """A policy with a ledger of what it placed: `place` decides, `commit` counts, `confirm` leaves it to the view."""

    def __init__(self, policy: Policy, ledger: Ledger | None = None, spread: Spread | None = None) -> None:
        self.policy, self.spread = policy, spread
        self.ledger = Ledger() if ledger is None else ledger  # an empty one is false

    def place(self, query: Query, view: ClusterView) -> Placement:
        """Where the request would go; raises PlacementError if no instance is usable."""
        return self.policy.place(query, self.ledger.shown(view, query.arrival))

    def commit(self, name: Hashable, query: Query, placement: Placement, reserve: bool = True) -> None:
        """It goes there; without `reserve`, its decode instance is chosen at hand-over, and nothing held for it now."""
        decode = placement.decode if reserve else None
        sending = self.policy.costs.fetch(placement.fetched) if placement.fetched else 0.0
        self.ledger.note(name, Pending(query.arrival, placement.prefill, placement.work, decode, query.prompt,
                                       placement.source, sending))  # fmt: skip

    def hand_over(self, name: Hashable, query: Query, view: ClusterView, now: float) -> int:
        """The decode instance of a request whose KVCache begins to move, chosen now, with a place held for it."""
        pool = self.ledger.shown(view, now).decode
        number = pool.number[self.policy.choose_decode(query, pool)]
        self.ledger.note(name, Pending(now, None, 0.0, number, query.prompt))
        return number

    def confirm(self, name: Hashable) -> None:
        """The view shows a placement from now on, or it was given up."""
        self.ledger.confirm(name)

    def copy(self, query: Query, view: ClusterView, placement: Placement) -> Copy | None:
        """A copy of a hot prefix to be made ahead of demand, now that a request was placed so."""
        if self.spread is None:
            return None
        return self.spread.copy(query, view.prefill, placement, self.policy.costs)
