"""How much of a workload's KVCache could be reused: at best, and in one pool of limited size."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated

import plotly.graph_objects as go
from pydantic import Field

from mooncake_edu.config import Section
from mooncake_edu.pictures.figures import bar_marker, finish
from mooncake_edu.pictures.palette import REUSED, SERIES, WAITING
from mooncake_edu.simulation.experiments import Experiment, Outcome, Progress, Row
from mooncake_edu.traces.places import here
from mooncake_edu.traces.profiles import load, make
from mooncake_edu.traces.stats import prefix_hits, stats
from mooncake_edu.traces.trace import Trace

PAPER = {"toolagent": 0.59, "synthetic": 0.66, "arxiv-1000": 0.51, "papers": 0.90}
"""FAST table 2 for toolagent and synthetic, arXiv table 1 without limit, and what is said of chat with a paper."""

UNIT = "of prompt tokens"
Pools = dict[str, dict[int, float]]
"""Share of tokens by trace and capacity."""

REMARKS = (
    "Our share counts tokens with a cache without limit that is empty at the start: a hit is any block seen before, "
    "whoever holds it.",
    "FAST counts in blocks of 256, these traces in blocks of 512: the last half-filled block of a shared text is lost "
    "in more of them.",
    "About 55 % is the paper's bound for Kimi's traces. conversation stays below it: in it most requests are first "
    "turns, which share 512 tokens with the others.",
    "Generated traces stand in for those that are not on this machine, and are fitted to the paper's share without "
    "limit: that they come close to it shows nothing. Mean and range are over seeds, pools are of the first seed.",
    "arxiv-1000 is the first 3 minutes of a trace whose file was replaced after the paper; a longer stretch would "
    "likely find more texts again.",
)


class Settings(Section):
    """Which workloads, how many seeds of those that are generated, and the capacities of the limited pool in blocks."""

    traces: tuple[str, ...] = Field(min_length=1, strict=False)
    seeds: int = Field(ge=1, le=100)
    capacities: tuple[Annotated[int, Field(ge=1, le=10**9)], ...] = Field(min_length=1, strict=False)


def run(settings: Settings, progress: Progress) -> Outcome:
    """Count what every trace repeats, and replay it in pools under LRU."""
    rows: list[Row] = []
    pools: Pools = {}
    for number, name in enumerate(settings.traces):
        progress(name, number, len(settings.traces))
        trace = load(name)
        rows.append(_best(name, trace, settings.seeds))
        for capacity in settings.capacities:
            share = prefix_hits(trace, "lru", capacity)[1] / int(trace.input_length.sum())
            pools.setdefault(trace.name, {})[capacity] = share
            rows.append(Row(what=f"{trace.name}, LRU, {capacity:,} blocks", unit=UNIT, ours=share))
    best = {row.what: row for row in rows if row.what.endswith("without limit")}
    return Outcome(rows, [_bars(best), _curves(pools)], REMARKS)


def _best(name: str, trace: Trace, seeds: int) -> Row:
    """The share without limit; of a generated trace the mean over seeds, and the range."""
    traces = [trace] if here(name) else [trace, *(make(name, seed) for seed in range(1, seeds))]
    shares = [stats(each).token_hit_ratio for each in traces]
    several = len(shares) > 1
    return Row(what=f"{trace.name}, without limit", unit=UNIT, ours=sum(shares) / len(shares), paper=PAPER.get(name),
               low=min(shares) if several else None, high=max(shares) if several else None)  # fmt: skip


def _bars(best: Mapping[str, Row]) -> go.Figure:
    figure = go.Figure()
    names = [what.removesuffix(", without limit") for what in best]
    ours, paper = REUSED._replace(label="ours"), WAITING._replace(label="paper")
    for paint, values in ((ours, [row.ours for row in best.values()]), (paper, [row.paper for row in best.values()])):
        figure.add_bar(
            x=names, y=values, name=paint.label, marker=bar_marker(paint),
            text=["" if value is None else f"{value:.0%}" for value in values], textposition="outside",
            hovertemplate="%{x}, " + paint.label + ": %{y:.1%}<extra></extra>",
        )  # fmt: skip
    figure.update_layout(barmode="group", height=420)
    figure.update_yaxes(title="prompt tokens that could be reused", range=[0, 1], tickformat=".0%")
    figure.update_xaxes(type="category")
    said = "; ".join(
        f"{name} {row.ours:.0%}" + ("" if row.paper is None else f" (paper {row.paper:.0%})")
        for name, row in zip(names, best.values(), strict=True)
    )
    return finish(figure, "What could be reused at best", said + ".")


def _curves(pools: Pools) -> go.Figure:
    figure = go.Figure()
    for (name, shares), paint in zip(pools.items(), [*SERIES, *SERIES], strict=False):
        capacities = sorted(shares)
        figure.add_scatter(
            x=capacities, y=[shares[capacity] for capacity in capacities], name=name, mode="lines+markers",
            line={"color": paint.colour}, marker={"color": paint.colour, "size": 8},
            hovertemplate=name + ", %{x:,} blocks: %{y:.1%}<extra></extra>",
        )  # fmt: skip
    figure.update_layout(height=440)
    figure.update_xaxes(title="capacity of one pool under LRU (blocks of 512 tokens)", type="log")
    figure.update_yaxes(title="prompt tokens reused", rangemode="tozero", tickformat=".0%")
    said = "; ".join(
        f"{name} {shares[min(shares)]:.0%} with {min(shares):,} blocks, {shares[max(shares)]:.0%} with {max(shares):,}"
        for name, shares in pools.items()
    )
    return finish(figure, "What a pool of limited size gives back", said + ".")


REUSE = Experiment(Settings, run)
