"""Table 1 of the first paper: what one global pool of blocks gives back, by policy and capacity."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated

import plotly.graph_objects as go
from pydantic import Field

from mooncake_edu.config import Section
from mooncake_edu.pictures.figures import finish
from mooncake_edu.pictures.palette import SERIES
from mooncake_edu.simulation.experiments import Experiment, Outcome, Progress, Row
from mooncake_edu.traces.profiles import load
from mooncake_edu.traces.stats import block_hits, prefix_hits
from mooncake_edu.traces.trace import Trace

PAPER: dict[str, dict[int | None, float]] = {
    "lru": {None: 0.51, 100_000: 0.51, 50_000: 0.50, 30_000: 0.48, 10_000: 0.40, 1_000: 0.30},
    "lfu": {None: 0.51, 100_000: 0.51, 50_000: 0.49, 30_000: 0.43, 10_000: 0.35, 1_000: 0.30},
    "length-aware": {None: 0.51, 100_000: 0.50, 50_000: 0.48, 30_000: 0.42, 10_000: 0.35, 1_000: 0.30},
}
"""Share of block references that hit; arXiv 2407.00079, table 1."""

UNIT = "of block references"
Shares = dict[tuple[str, str], list[float]]
"""Hits over the capacities, falling, by trace and policy."""


class Settings(Section):
    """Which traces, which policies, and how many blocks."""

    traces: tuple[str, ...] = Field(min_length=1, strict=False)
    policies: tuple[str, ...] = Field(min_length=1, strict=False)
    capacities: tuple[Annotated[int, Field(ge=1, le=10**9)], ...] = Field(min_length=1, strict=False)


def run(settings: Settings, progress: Progress) -> Outcome:
    """Replay every trace under every policy at every capacity, counting blocks and whole prefixes."""
    capacities: list[int | None] = [None, *sorted(settings.capacities, reverse=True)]
    rows: list[Row] = []
    shares: Shares = {}
    total = len(settings.traces) * len(settings.policies) * len(capacities)
    for name in settings.traces:
        trace = load(name)
        for policy in settings.policies:
            for capacity in capacities:
                progress(f"{trace.name}: {policy}", len(rows) // 2, total)
                rows += _rows(trace, policy, capacity)
                shares.setdefault((trace.name, policy), []).append(rows[-2].ours)
    return Outcome(rows, [_figure(shares, capacities)], _remarks(shares, settings.policies, capacities))


def _rows(trace: Trace, policy: str, capacity: int | None) -> list[Row]:
    what = f"{trace.name}, {policy}, {'no limit' if capacity is None else f'{capacity:,} blocks'}"
    blocks = block_hits(trace, policy, capacity) / len(trace.ids)
    prefixes = prefix_hits(trace, policy, capacity)[0] / len(trace.ids)
    paper = PAPER.get(policy, {}).get(capacity)
    return [Row(what=what, unit=UNIT, ours=blocks, paper=paper),
            Row(what=f"{what}, whole prefixes only", unit=UNIT, ours=prefixes)]  # fmt: skip


def _remarks(shares: Shares, policies: tuple[str, ...], capacities: list[int | None]) -> list[str]:
    remarks = [
        "The paper's trace is not published (the file was replaced after the paper), so its digits cannot be had: "
        "compare the shapes. These traces repeat less even without a limit; a small pool keeps the few hot texts, "
        "of which conversation has one block, and the arXiv rows several prompts.",
        "Blocks are looked up and stored one by one. `whole prefixes only`: a block counts if all before it are kept, "
        "and none is kept without those before it; the paper does not say which it means.",
        "length-aware is read as: least often used first, then the block farthest back in its prompt. The paper's one "
        "sentence leaves the rest open, and most blocks here are used once, so that the place decides alone.",
    ]
    for name in dict.fromkeys(trace for trace, _ in shares):
        best = [max((shares[name, policy][n], policy) for policy in policies)[1] for n in range(len(capacities))]
        told = ", ".join(f"{c:,}: {b}" for c, b in zip(capacities, best, strict=True) if c is not None)
        remarks.append(f"Most hits in {name} at a capacity of {told}.")
    return remarks


def _figure(shares: Shares, capacities: list[int | None]) -> go.Figure:
    """Hits over the capacity, ours and the paper's; the pool without limit stands to the right."""
    figure = go.Figure()
    places = ["no limit" if capacity is None else f"{capacity:,}" for capacity in reversed(capacities)]
    paints = dict(zip(dict.fromkeys(policy for _, policy in shares), SERIES, strict=False))
    traces = list(dict.fromkeys(trace for trace, _ in shares))
    for (trace, policy), values in shares.items():
        symbol = ("circle", "square", "diamond")[traces.index(trace) % 3]
        _line(figure, places, values[::-1], f"{trace}, {policy}", paints[policy].colour, symbol, "solid")
    for policy, paint in paints.items():
        if policy in PAPER:
            told = [PAPER[policy].get(capacity) for capacity in reversed(capacities)]
            _line(figure, places, told, f"paper, {policy}", paint.colour, "x", "dash")
    figure.update_layout(height=480)
    figure.update_xaxes(title="capacity of the pool (blocks)", type="category")
    figure.update_yaxes(title="block references that hit", rangemode="tozero", tickformat=".0%")
    ranges = {key: f"from {min(values):.3f} to {max(values):.3f}" for key, values in shares.items()}
    said = "; ".join(f"{trace} under {policy} {told}" for (trace, policy), told in ranges.items())
    return finish(figure, "Hits of one global pool", f"Share of block references that hit: {said}; paper .30 to .51.")


def _line(figure: go.Figure, x: list[str], y: Sequence[float | None], name: str, colour: str, symbol: str,
          dash: str) -> None:  # fmt: skip
    figure.add_scatter(
        x=x, y=y, name=name, mode="lines+markers", line={"color": colour, "dash": dash},
        marker={"symbol": symbol, "size": 9, "color": colour},
        hovertemplate=name + ", %{x} blocks: %{y:.1%}<extra></extra>",
    )  # fmt: skip


TABLE1 = Experiment(Settings, run)
