"""How long simulating takes: a whole trace on 8 + 8 instances, with and without its events, and step by step."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable
from concurrent.futures import ProcessPoolExecutor
from multiprocessing import get_context
from pathlib import Path
from typing import NamedTuple

from mooncake_edu import __version__
from mooncake_edu.bench.results import Report, Row, machine
from mooncake_edu.config import Config
from mooncake_edu.events import EventLog
from mooncake_edu.simulation import simulate
from mooncake_edu.traces.profiles import load

TRACE = "conversation"
LIMITS = {"seconds": 5.0, "with events": 15.0, "MB": 500.0}
"""What this project allows itself."""

ROWS = 20_000_000
REFERENCE = "per-iteration loop"
Progress = Callable[[str, int, int], None]


class Taken(NamedTuple):
    """Seconds of one simulation, the most memory of its process in bytes, and the events recorded."""

    seconds: float
    memory: float
    events: int


def run(rounds: int, requests: int | None, progress: Progress) -> Report:
    """Each measurement in a process of its own, the median of `rounds`; the reference runs once."""
    total = len(load(TRACE)) if requests is None else requests
    cases = {"plain": (total, False), "events": (total, True), "quarter": (total // 4, False)}
    taken: dict[str, list[Taken]] = {}
    for number in range(rounds):
        for name, (count, events) in cases.items():
            progress(name, number, rounds)
            taken.setdefault(name, []).append(apart(count, events, False))
    progress(REFERENCE, rounds, rounds)
    slow = apart(total, False, True).seconds
    seconds = {name: statistics.median(each.seconds for each in found) for name, found in taken.items()}
    memory = max(each.memory for each in taken["events"]) / 1e6
    growth = seconds["plain"] / total / (seconds["quarter"] / (total // 4))
    whole = requests is None
    allowed = "what the project allows itself for the whole trace on one core" if whole else ""
    limits: dict[str, float | None] = {name: limit if whole else None for name, limit in LIMITS.items()}
    rows = [
        Row(what=f"{total:,} requests", unit="s", ours=seconds["plain"], peers={REFERENCE: slow},
            limit=limits["seconds"], limit_is=allowed, higher_is_better=False),
        Row(what=f"{total:,} requests, events recorded", unit="s", ours=seconds["events"],
            limit=limits["with events"], limit_is=allowed, higher_is_better=False),
        Row(what="most memory, events recorded", unit="MB", ours=memory, limit=limits["MB"], limit_is=allowed,
            higher_is_better=False),
        Row(what="time a request, all against a quarter of them", unit="x", ours=growth, limit=1.0,
            limit_is="a cost linear in requests", higher_is_better=False),
    ]  # fmt: skip
    notes = [
        f"{load(TRACE).name} on the cluster of the configuration `cluster`; processor seconds of one thread, median of "
        f"{rounds}, each in a process of its own; {taken['events'][0].events:,} events",
        f"{REFERENCE}: this simulator's reference, one step, token and layer after the other, once",
        "vidur 0.0.26 can be installed, but without the profiles of GPUs that it predicts times from: no ratio to it",
    ]
    return Report(bench="simulator", machine=machine(1, {"mooncake_edu": __version__}), rows=rows, notes=notes)


def apart(requests: int, events: bool, reference: bool) -> Taken:
    """One simulation in a process of its own."""
    with ProcessPoolExecutor(1, mp_context=get_context("spawn")) as pool:
        return pool.submit(measure, requests, events, reference).result()


def measure(requests: int, events: bool, reference: bool) -> Taken:
    """One simulation in this process."""
    trace, log = load(TRACE).slice(0, requests), EventLog(ROWS) if events else None
    begin = time.process_time()
    simulate(Config.size("cluster"), trace, log, reference=reference)
    return Taken(time.process_time() - begin, peak(), len(log) if log is not None else 0)


def peak() -> float:
    """The most memory that this process ever had, in bytes; 0 where the system does not say."""
    try:
        lines = Path("/proc/self/status").read_text(encoding="ascii").splitlines()
    except OSError:
        return 0.0
    return next(float(line.split()[1]) * 1024 for line in lines if line.startswith("VmHWM"))
