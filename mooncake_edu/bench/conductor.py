"""How long a placement takes, and what the index of who holds which block weighs."""

from __future__ import annotations

import gc
import statistics
import time
import tracemalloc
from typing import NamedTuple

import numpy as np

from mooncake_edu import __version__
from mooncake_edu.bench.results import Report, Row, machine
from mooncake_edu.conductor import Change, ClusterView, Conductor, Index, KvcacheCentric, Placement, Pool, Query
from mooncake_edu.model.costs import PRESETS
from mooncake_edu.traces.profiles import load
from mooncake_edu.traces.trace import Trace

TRACE = "conversation"
LIMITS = {16: 50e-6, 1000: 2e-3}
"""Seconds that this project allows itself for a placement, by the number of instances."""

ENDED = 30.0
"""Seconds after which a request of the loop below no longer counts at its decode instance."""


class Taken(NamedTuple):
    """Seconds of each step, medians: finding who holds how much and choosing, noting it, and telling the index."""

    place: float
    commit: float
    change: float


class Cluster:
    """As many prefill as decode instances, kept up by hand: queues get shorter as time passes."""

    def __init__(self, instances: int) -> None:
        self.half = instances // 2
        self.index, self.conductor = Index(), Conductor(KvcacheCentric(PRESETS["A800x8"]))
        self.queue, self.sending = [0.0] * self.half, [0.0] * self.half
        self.requests, self.context = [0] * self.half, [0] * self.half
        self._sequence = [0] * self.half
        self._zeros, self._ones, self._yes = [0] * self.half, [1] * self.half, [True] * self.half

    def place(self, query: Query) -> Placement:
        """Look who holds how much of the prompt, and choose."""
        cached = self.index.cached(query, range(self.half))
        prefill = Pool(range(self.half), self._ones, self.queue, cached, self._zeros, self._zeros, self._yes,
                       self.sending)  # fmt: skip
        decode = Pool(range(self.half, 2 * self.half), self._ones, self._zeros, self._zeros, self.requests,
                      self.context, self._yes)  # fmt: skip
        return self.conductor.place(query, ClusterView(prefill, decode))

    def store(self, number: int, query: Query) -> None:
        """The instance holds all of the prompt."""
        self._sequence[number] += 1
        self.index.take(number, Change(0, self._sequence[number], query.keys))


def run(rounds: int, requests: int | None) -> Report:
    """The median of `rounds` rounds over a trace on 16 instances, then 1,000 instances, then the index alone."""
    trace = load(TRACE) if requests is None else load(TRACE).slice(0, requests)
    taken = [replay(trace) for _ in range(rounds)]
    medians = Taken(*(statistics.median(column) for column in zip(*taken, strict=True)))
    wide = statistics.median(crowd() for _ in range(rounds))
    allowed = "what the project allows itself"
    rows = [
        Row(what="placement, 16 instances, median", unit="us", ours=1e6 * medians.place, limit=1e6 * LIMITS[16],
            limit_is=allowed, higher_is_better=False),
        Row(what="commit, 16 instances, median", unit="us", ours=1e6 * medians.commit, higher_is_better=False),
        Row(what="a prompt's change taken into the index, median", unit="us", ours=1e6 * medians.change,
            higher_is_better=False),
        Row(what="placement, 1,000 instances, 256 blocks, the first held by all", unit="ms", ours=1e3 * wide,
            limit=1e3 * LIMITS[1000], limit_is=allowed, higher_is_better=False),
        *(Row(what=f"index, a million blocks, {holders} of {instances:,} instances hold each", unit="MB",
              ours=weight(instances, holders, 1_000_000 if requests is None else 10_000) / 1e6, higher_is_better=False)
          for instances, holders in ((16, 2), (1000, 2))),
    ]  # fmt: skip
    notes = [
        f"{len(trace):,} requests of {trace.name} on 8 + 8 instances, KVCache-centric, ours alone: nothing else that "
        "places by algorithm 1 is public; a placement finds who holds how much, estimates all candidates and chooses",
        "without the keys themselves, 32 bytes a block and 33 of Python's own, which whoever holds the block has too",
    ]
    return Report(bench="conductor", machine=machine(1, {"mooncake_edu": __version__}), rows=rows, notes=notes)


def replay(trace: Trace) -> Taken:
    """Place a whole trace."""
    cluster, clock = Cluster(16), time.perf_counter
    seconds: tuple[list[float], list[float], list[float]] = ([], [], [])
    ended: list[tuple[float, Placement, int]] = []
    now = 0.0
    for number, row in enumerate(trace.rows()):
        passed, now = row.arrival - now, row.arrival
        cluster.queue = [max(each - passed, 0.0) for each in cluster.queue]
        while ended and ended[0][0] <= now:
            _, old, tokens = ended.pop(0)
            cluster.requests[old.decode - 8] -= 1
            cluster.context[old.decode - 8] -= tokens
        query = Query(row.input_length, row.ids, now, block_size=trace.block_size)
        times = [clock()]
        placement = cluster.place(query)
        times.append(clock())
        cluster.conductor.commit(number, query, placement)
        times.append(clock())
        cluster.conductor.confirm(number)
        cluster.queue[placement.prefill] += placement.work
        cluster.requests[placement.decode - 8] += 1
        cluster.context[placement.decode - 8] += row.input_length
        ended.append((now + ENDED, placement, row.input_length))
        begin = clock()
        cluster.store(placement.prefill, query)
        for column, value in zip(seconds, (*np.diff(times), clock() - begin), strict=True):
            column.append(float(value))
    return Taken(*map(statistics.median, seconds))


def crowd() -> float:
    """Seconds of a placement among 1,000 prefill instances, which all hold the first of 256 blocks."""
    cluster = Cluster(2000)
    query = Query(256 * 512, [b"%32d" % number for number in range(256)], 0.0)
    for number in range(1000):
        cluster.store(number, Query(512, query.keys[:1], 0.0))
    cluster.store(7, query)
    seconds = []
    for _ in range(20):
        begin = time.perf_counter()
        cluster.place(query)
        seconds.append(time.perf_counter() - begin)
    return statistics.median(seconds)


def weight(instances: int, holders: int, blocks: int) -> float:
    """Bytes of an index of a million blocks, taken from that many, besides the keys."""
    keys, index, sequence = [b"%32d" % number for number in range(blocks)], Index(), [0] * instances
    random = np.random.default_rng(0)
    gc.collect()
    tracemalloc.start()
    for _ in range(holders):
        chosen = random.integers(0, instances, blocks // 500)
        for number, start in zip(chosen.tolist(), range(0, blocks, 500), strict=True):
            sequence[number] += 1
            index.take(number, Change(0, sequence[number], keys[start : start + 500]))
    size = tracemalloc.get_traced_memory()[0]
    tracemalloc.stop()
    return size * 1_000_000 / blocks
