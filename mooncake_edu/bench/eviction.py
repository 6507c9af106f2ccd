"""Eviction policies: what each finds in a trace beside the best that is possible, and what a block costs it."""

from __future__ import annotations

import gc
import itertools
import statistics
import time
from collections import OrderedDict
from collections.abc import Callable
from dataclasses import dataclass

from mooncake_edu import __version__
from mooncake_edu.bench.results import Report, Row, machine
from mooncake_edu.store import POLICIES, ChainCache, Eviction
from mooncake_edu.traces.profiles import load
from mooncake_edu.traces.stats import BELADY, prefix_hits
from mooncake_edu.traces.trace import Trace

Progress = Callable[[str, int, int], None]
CHAIN = 25
"""Blocks of a prompt: the mean of the conversation trace is 24."""


@dataclass(frozen=True)
class Size:
    """How much is measured: rows of the trace, capacities in blocks, keys that are kept, blocks that are timed."""

    rows: int
    capacities: tuple[int, ...]
    keys: int
    timed: int


FULL = Size(1_000_000, (100_000, 50_000, 30_000, 10_000, 1_000), 1_000_000, 250_000)
QUICK = Size(300, (1_000, 300), 10_000, 5_000)


def run(rounds: int, size: Size, progress: Progress) -> Report:
    """Hits of every policy at every capacity, and a block's processor time, the median of `rounds` rounds."""
    trace = load("conversation").slice(0, size.rows)
    done = itertools.count()
    total = (len(size.capacities) + rounds) * (len(POLICIES) + 1)

    def tell(what: str) -> None:
        progress(what, next(done), total)

    rows = [row for capacity in size.capacities for row in _hits(trace, capacity, tell)]
    times: dict[str, list[tuple[float, float]]] = {}
    for _ in range(rounds):
        tell("times of an OrderedDict")
        times.setdefault("", []).append(_plain(size))
        for name, policy in POLICIES.items():
            tell(f"times of {name}")
            times.setdefault(name, []).append(_times(policy, size))
    rows += [row for name in POLICIES for row in _costs(name, times[name], times[""])]
    notes = [
        f"hits: {trace.name}, {len(trace):,} requests, blocks of the longest kept prefix in one pool",
        f"times: {size.keys:,} keys kept, chains of {CHAIN} blocks; the median of {rounds} rounds",
    ]
    return Report(bench="eviction", machine=machine(1, {"mooncake_edu": __version__}), rows=rows, notes=notes)


def _hits(trace: Trace, capacity: int, tell: Callable[[str], None]) -> list[Row]:
    shares = {}
    for policy in [BELADY, *POLICIES]:
        tell(f"{policy}, {capacity:,} blocks")
        shares[policy] = prefix_hits(trace, policy, capacity)[0] / len(trace.ids)
    return [
        Row(what=f"hits, {policy}, {capacity:,} blocks", unit="of blocks", ours=shares[policy], limit=shares[BELADY],
            limit_is="Belady: the block used farthest in the future goes", higher_is_better=True)
        for policy in POLICIES
    ]  # fmt: skip


def _costs(name: str, ours: list[tuple[float, float]], plain: list[tuple[float, float]]) -> list[Row]:
    return [
        Row(what=f"{what}, {name}", unit="ns/block", ours=statistics.median(each[place] for each in ours),
            limit=statistics.median(each[place] for each in plain),
            limit_is="an OrderedDict of the same keys: LRU without chains", higher_is_better=False)
        for place, what in enumerate(("use what is kept", "store and make room"))
    ]  # fmt: skip


def _times(policy: Callable[[], Eviction], size: Size) -> tuple[float, float]:
    """Nanoseconds a block of chains that are kept, and of chains that are new and push others out."""
    cache = ChainCache(size.keys, policy())
    chains = _chains(0, size.keys)
    for chain in chains:
        cache.use(chain)
    kept = chains[:: max(1, size.keys // size.timed)]
    return _clock(cache.use, kept), _clock(cache.use, _chains(size.keys, size.timed))


def _plain(size: Size) -> tuple[float, float]:
    kept: OrderedDict[int, None] = OrderedDict.fromkeys(range(size.keys))

    def use(chain: range) -> None:
        for key in chain:
            if key in kept:
                kept.move_to_end(key)
            else:
                kept.popitem(last=False)
                kept[key] = None

    again = _chains(0, size.keys)[:: max(1, size.keys // size.timed)]
    return _clock(use, again), _clock(use, _chains(size.keys, size.timed))


def _chains(start: int, blocks: int) -> list[range]:
    return [range(at, at + CHAIN) for at in range(start, start + blocks - CHAIN + 1, CHAIN)]


def _clock(use: Callable[[range], object], chains: list[range]) -> float:
    """Nanoseconds of processor time a block, as `timeit` takes them: without the garbage collector."""
    gc.collect()
    gc.disable()
    try:
        start = time.process_time()
        for chain in chains:
            use(chain)
        return 1e9 * (time.process_time() - start) / (CHAIN * len(chains))
    finally:
        gc.enable()
