"""Transfers between instances, which share the bandwidth of the instances they leave and reach.

The shares are max-min fair: a transfer's rate cannot rise without taking from one that has no more. A transfer may
have a limit of its own, as one that sends KVCache as fast as it is computed. When a transfer begins or ends, only
those that share a link with it, directly or through others, are given new rates.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import NamedTuple

from mooncake_edu.simulation.agenda import Agenda, Rank


class Link(NamedTuple):
    """What an instance sends, or what it receives."""

    instance: int
    sends: bool


class Flow:
    """A transfer under way: bytes `left` at time `since`, its `rate` since then and the time it is due to end."""

    __slots__ = ("done", "due", "left", "limit", "links", "lost", "number", "rate", "since")

    def __init__(
        self, number: int, links: tuple[Link, Link], size: float, limit: float, now: float,
        done: Callable[[float], None], lost: Callable[[float], None] | None = None,
    ) -> None:  # fmt: skip
        self.number, self.links, self.left, self.limit, self.since, self.done = number, links, size, limit, now, done
        self.lost = lost
        self.rate, self.due = 0.0, float("inf")


class Network:
    """`bandwidth` gives each instance's bytes/s, the same for sending and for receiving."""

    def __init__(self, agenda: Agenda, bandwidth: dict[int, float]) -> None:
        self._agenda = agenda
        self._bandwidth = bandwidth
        self._flows: dict[Link, dict[int, Flow]] = {}

    def send(
        self, now: float, number: int, source: int, target: int, size: float, done: Callable[[float], None],
        limit: float = float("inf"), lost: Callable[[float], None] | None = None,
    ) -> None:  # fmt: skip
        """Move `size` bytes, at `limit` bytes/s at most; `done` is called with the time when all of it is there.

        If one of the instances goes down before, `lost` is called instead. `number` tells the transfer from all others
        under way, and orders those that end together.
        """
        links = Link(source, True), Link(target, False)
        limit = min(limit, self._bandwidth[source], self._bandwidth[target])  # so that who is alone runs at its limit
        flow = Flow(number, links, size, limit, now, done, lost)
        for link in links:
            self._flows.setdefault(link, {})[number] = flow
        if self._easy(links):
            self._set(flow, limit, now)
        else:
            self._share(now, links)

    def drop(self, instance: int, now: float) -> None:
        """An instance is down: nothing moves there or from there any more."""
        links = Link(instance, True), Link(instance, False)
        for flow in [flow for link in links for flow in self._flows.get(link, {}).values()]:
            self._remove(flow, now)
            if flow.lost is not None:
                flow.lost(now)

    def _end(self, flow: Flow, now: float) -> None:
        if now == flow.due:
            self._remove(flow, now)
            flow.done(now)

    def _remove(self, flow: Flow, now: float) -> None:
        flow.due = float("inf")
        easy = self._easy(flow.links)
        for link in flow.links:
            del self._flows[link][flow.number]
        if not easy:
            self._share(now, flow.links)

    def _easy(self, links: tuple[Link, ...]) -> bool:
        """Whether all transfers on these links can run at their limits, so that none of them takes from another."""
        for link in links:
            room = self._bandwidth[link.instance]
            for flow in self._flows[link].values():
                room -= flow.limit
            if room < 0:
                return False
        return True

    def _share(self, now: float, links: tuple[Link, ...]) -> None:
        """Give new rates to all that are connected with these links."""
        flows = self._connected(links)
        rates = max_min(flows, self._bandwidth)
        for flow in flows:
            self._set(flow, rates[flow.number], now)

    def _set(self, flow: Flow, rate: float, now: float) -> None:
        if rate != flow.rate:
            flow.left = max(flow.left - (now - flow.since) * flow.rate, 0.0)
            flow.since, flow.rate = now, rate
            flow.due = now + flow.left / rate
            self._agenda.put(flow.due, Rank.MOVED, flow.number, partial(self._end, flow))

    def _connected(self, links: tuple[Link, ...]) -> list[Flow]:
        found: dict[int, Flow] = {}
        seen, open_ = set(links), list(links)
        while open_:
            for flow in self._flows.get(open_.pop(), {}).values():
                found[flow.number] = flow
                new = [link for link in flow.links if link not in seen]
                seen.update(new)
                open_ += new
        return [found[number] for number in sorted(found)]


def max_min(flows: list[Flow], bandwidth: dict[int, float]) -> dict[int, float]:
    """The max-min fair rate of each flow by its number.

    Again and again the link with the least to give to each flow without a rate settles its flows, or a limit below
    that settles its flow.
    """
    room = {link: bandwidth[link.instance] for flow in flows for link in flow.links}
    rates: dict[int, float] = {}
    waiting = flows
    while waiting:
        count: dict[Link, int] = {}
        for flow in waiting:
            for link in flow.links:
                count[link] = count.get(link, 0) + 1
        fair = {link: room[link] / number for link, number in count.items()}
        least = min(fair.values())
        limited = [flow for flow in waiting if flow.limit <= least]
        for flow in limited or [flow for flow in waiting if min(fair[link] for link in flow.links) == least]:
            rates[flow.number] = rate = min(flow.limit, least)
            for link in flow.links:
                room[link] = max(room[link] - rate, 0.0)
        waiting = [flow for flow in waiting if flow.number not in rates]
    return rates
