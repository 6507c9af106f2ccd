"""Workloads fitted to what is published of real traces, so that everything runs without them."""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path

from mooncake_edu.errors import near
from mooncake_edu.traces.generate import Lengths, Shared, Workload, generate
from mooncake_edu.traces.places import FIRST_ROWS, here, open_trace
from mooncake_edu.traces.stats import block_hits, stats
from mooncake_edu.traces.trace import Trace, TraceError, read

NOTHING = Shared(1, Lengths(1, 0), share=0)
"""No text that is shared."""


@dataclass(frozen=True)
class Profile:
    """A workload, how many requests its trace has, and what is published of it; None where nothing is.

    Means in tokens, `rate` in requests/s, `reuse` as a share of tokens with a cache without limit, `lru` the share of
    block hits by the capacity of one pool.
    """

    workload: Workload
    requests: int
    source: str
    input_mean: float | None = None
    output_mean: float | None = None
    rate: float | None = None
    reuse: float | None = None
    lru: tuple[tuple[int, float], ...] = ()


PROFILES = {
    "conversation": Profile(
        Workload(
            rate=3.40, turns=1.56, pause=224, least_pause=20, tick=3, system=Shared(1, Lengths(600, 0)),
            documents=NOTHING,
            opening=Lengths(9_700, 1.15), question=Lengths(3_480, 1.2, 60_000), output=Lengths(347, 0.8, 2000),
        ),
        requests=12_031, source="counts of the released file",
        input_mean=12_035, output_mean=343, rate=3.40, reuse=0.3736,
        lru=((100_000, 0.364), (50_000, 0.355), (30_000, 0.326), (10_000, 0.211), (1_000, 0.044)),
    ),
    "toolagent": Profile(
        Workload(
            rate=6.56, turns=1.5, pause=60, tick=3, system=Shared(30, Lengths(3_600, 0.2), zipf=1.2),
            documents=NOTHING, opening=Lengths(4_200, 1.3), question=Lengths(1_440, 1, 60_000),
            output=Lengths(192, 1.3, 2000),
        ),
        requests=23_608, source="FAST table 2, with blocks of 256; the rate is taken, 23,608 requests in an hour",
        input_mean=8_596, output_mean=182, reuse=0.59,
    ),
    "synthetic": Profile(
        Workload(
            rate=3.91, turns=2.4, pause=60, system=NOTHING,
            documents=Shared(3_340, Lengths(21_350, 0.7, 60_000), zipf=0.5, share=0.7),
            opening=Lengths(150, 1.5, 20_000), question=Lengths(300, 1.5, 20_000), output=Lengths(165, 1.5, 2000),
        ),
        requests=3_993, source="FAST table 2, with blocks of 256; the rate is the released file's",
        input_mean=15_325, output_mean=149, rate=3.91, reuse=0.66,
    ),
    "papers": Profile(
        Workload(
            rate=4, turns=3, pause=60, system=Shared(1, Lengths(1_000, 0)),
            documents=Shared(396, Lengths(15_000, 0.5, 60_000), zipf=0.8),
            opening=Lengths(60, 0.8, 2000), question=Lengths(60, 0.8, 2000), output=Lengths(300, 0.8, 2000),
        ),
        requests=4_000, source="services that chat with a paper reuse about 90 %; all else is taken", reuse=0.90,
    ),
    FIRST_ROWS: Profile(
        Workload(
            rate=5.65, turns=1.35, pause=60, tick=3, system=Shared(30, Lengths(2_150, 0.2), zipf=1.2),
            documents=NOTHING, opening=Lengths(7_000, 1.2), question=Lengths(1_500, 1, 60_000),
            output=Lengths(204, 1.1, 2000),
        ),
        requests=1_000, source="counts of the first 1,000 rows of the released file",
        input_mean=9_792, output_mean=199, rate=5.65, lru=((100_000, 0.3799),),
    ),
}  # fmt: skip
"""Each profile by the name of what it resembles."""


def profile(name: str) -> Profile:
    """The profile of a name; raises TraceError if there is none."""
    if name not in PROFILES:
        raise TraceError(f"profile {name!r} is not known: {near(name, PROFILES)}")
    return PROFILES[name]


def make(name: str, seed: int = 0, requests: int | None = None) -> Trace:
    """A trace of a profile, in as many requests as what it resembles has, or others."""
    chosen = profile(name)
    return generate(chosen.workload, requests or chosen.requests, seed, f"{name}, generated")


def load(name: str, seed: int = 0) -> Trace:
    """A published trace under its name where it is on this machine, else one of its profile, whose name says so.

    Raises TraceError if there is neither.
    """
    return replace(open_trace(name), name=name) if here(name) else make(name, seed)


def load_any(given: str) -> Trace:
    """The trace of a file, or else what `load` gives for a name; raises TraceError if there is neither."""
    return read(given) if Path(given).is_file() else load(given)


def closeness(name: str, trace: Trace) -> list[tuple[str, float, float]]:
    """What is published of a profile: its name, the trace's value and the published one."""
    chosen, found = profile(name), stats(trace)
    published: list[tuple[str, float | None, float | None]] = [
        ("requests/s", found.rate, chosen.rate),
        ("mean input (tokens)", found.input_mean, chosen.input_mean),
        ("mean output (tokens)", found.output_mean, chosen.output_mean),
        ("reuse without limit (of tokens)", found.token_hit_ratio, chosen.reuse),
    ]
    for capacity, share in chosen.lru:
        hits = block_hits(trace, "lru", capacity) / found.references
        published.append((f"block hits, LRU, {capacity:,} blocks", hits, share))
    return [(what, made, told) for what, made, told in published if made is not None and told is not None]
