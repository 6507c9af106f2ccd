"""What simulated runs came to, side by side: one line of figures for each thing that is compared."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from mooncake_edu.events import Refusal
from mooncake_edu.simulation.result import Result, Stage

Line = list[str | int | float]
"""A name, then a value a run."""

NAMES = {"ttft": "TTFT", "tbt": "TBT"}


def summary(results: Sequence[Result]) -> list[Line]:
    """The lines of a table; times are of the requests that were served."""
    lines: dict[str, Sequence[int | float]] = {
        "requests served": [int(np.sum(~np.isnan(result.table.ttft))) for result in results]
    }
    if any(result.refused() for result in results):
        lines["requests refused"] = [result.refused() for result in results]
    for reason in Refusal:
        counts = [int(np.sum(result.refusal == reason)) for result in results]
        if any(counts):
            lines[f"refused: {reason.text}"] = counts
    if any(result.refused(Stage.DECODE) for result in results):
        lines["refused after the prefill"] = [result.refused(Stage.DECODE) for result in results]
        lines["prefill wasted (s)"] = [result.wasted for result in results]
    for column, short in NAMES.items():
        unit, scale = ("s", 1.0) if column == "ttft" else ("ms", 1e3)
        lines[f"{short} mean ({unit})"] = [scale * result.table.mean(column) for result in results]
        for percent in (50, 90, 99):
            name = f"{short} P{percent} ({unit})"
            lines[name] = [scale * result.table.percentile(column, percent) for result in results]
    lines["within both objectives (%)"] = [100 * float(result.met.mean()) for result in results]
    lines["goodput (requests/s)"] = [result.goodput for result in results]
    for tier in dict.fromkeys(tier for result in results for tier in result.hits):
        shares = [result.hits.get(tier, 0) / max(result.prompt_tokens, 1) for result in results]
        lines[f"hits in {tier} (% of prompt tokens)"] = [100 * share for share in shares]
    for what in dict.fromkeys(what for result in results for what in result.moved):
        lines[f"moved: {what} (GB)"] = [result.moved.get(what, 0.0) / 1e9 for result in results]
    for role in dict.fromkeys(role for result in results for role in result.busy):
        lines[f"{role} busy (%)"] = [
            100 * result.utilisation(role) if role in result.busy else float("nan") for result in results
        ]
    return [[name, *values] for name, values in lines.items()]
