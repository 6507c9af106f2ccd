"""Instances that are missing for a while: what happens to their requests and their KVCache when they go.

One that is draining is asked for nothing new. Of one that goes down, everything is lost: whose prompt was there, or
whose KVCache, is placed again at once, and computes its prompt and the tokens that it has made anew; whose KVCache was
on its way there is sent elsewhere; what others fetched from there they compute themselves. The Conductor sees all this
with the age of its view. Until then it may choose an instance that takes nothing, and hears that at once: it is told so
by one that drains, and one that does not answer some times in a row is down for it. Then it is asked again.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import TYPE_CHECKING

from mooncake_edu.config import Outage
from mooncake_edu.events import Kind
from mooncake_edu.simulation.agenda import Rank
from mooncake_edu.simulation.job import Job

if TYPE_CHECKING:
    from mooncake_edu.simulation.cluster import Cluster


class Outages:
    """Which instances are `out` now, and of which kind; what was `lost`, in requests and in tokens of KVCache."""

    def __init__(self, cluster: Cluster, outages: Sequence[Outage]) -> None:
        self.out: dict[int, str] = {}
        self.lost = {"requests": 0, "tokens": 0}
        self._cluster = cluster
        for each in sorted(outages, key=lambda outage: outage.start):  # so that one ends before the next one begins
            cluster.agenda.put(each.start, Rank.CHANGED, each.instance, partial(self._go, each))
            cluster.agenda.put(each.stop, Rank.CHANGED, each.instance, partial(self._back, each))

    def refuse(self, *numbers: int) -> bool:
        """Whether one of these instances takes nothing, which the Conductor then knows."""
        found = [number for number in numbers if number in self.out]
        for number in found:
            down = self.out[number] == "down"
            (self._cluster.sight.failed if down else self._cluster.sight.drains)(number)
        return bool(found)

    def _go(self, outage: Outage, now: float) -> None:
        number, sight = outage.instance, self._cluster.sight
        self.out[number] = outage.kind
        sight.report(now, sight.lost if outage.kind == "down" else sight.drains, number)
        if outage.kind == "down":
            self._fail(number, now)

    def _back(self, outage: Outage, now: float) -> None:
        del self.out[outage.instance]
        self._cluster.fetches.down.discard(outage.instance)
        self._cluster.sight.report(now, self._cluster.sight.back, outage.instance)

    def _fail(self, number: int, now: float) -> None:
        cluster, alive = self._cluster, [*self._cluster.alive.values()]
        instance = cluster.prefill.get(number) or cluster.decode[number]
        held = instance.fail(now)
        if cluster.watch is not None:
            cluster.watch(now, number, (), held)
        if number in cluster.prefill:
            lost, aimed = [job for job in alive if job.prefill == number and not job.came], []
        else:
            there = [job for job in alive if job.decode == number]
            lost = [job for job in there if job.came or job.prefill == number]
            aimed = [job for job in there if not job.came and job.reserved and job.prefill != number]
        for job in lost:
            self._lose(job, number, now)
        for job in aimed:
            job.reserved = False
            if job.send is not None:
                job.tries += 1
                cluster.agenda.put(now, Rank.AGAIN, job.number, partial(self._send, job, job.tries))
        cluster.fetches.down.add(number)
        cluster.network.drop(number, now)

    def _send(self, job: Job, tries: int, now: float) -> None:
        """Let its KVCache move elsewhere, if it was not lost as well meanwhile."""
        if job.tries == tries and job.send is not None:
            job.send(now)

    def _lose(self, job: Job, number: int, now: float) -> None:
        """A request has nothing any more but the tokens that it has made."""
        cluster = self._cluster
        if not job.left:  # the last of which was made just now
            cluster.ended(job, now)
            return
        self.lost["requests"] += 1
        self.lost["tokens"] += job.stored
        cluster.recorder.at(Kind.PREEMPTED, job, number, now, now, tokens=job.stored)
        if job.reserved and job.decode != number:
            cluster.reserve(job, -1, now)
        cluster.gate.lost(job, now)
        if not job.made:
            job.hits = {}
        job.reserved = job.begun = job.swapped = job.fetching = False
        job.stored = job.borrowed = job.private = 0
        job.pinned, job.send = (), None
        job.since, job.tries = now, job.tries + 1
        del cluster.alive[job.number]
        cluster.agenda.put(now, Rank.AGAIN, job.number, partial(cluster.place, job))
