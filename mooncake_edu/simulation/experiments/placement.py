"""Placement policies against each other: figure 8 of the first paper, and whether their order holds everywhere."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import pairwise, product
from typing import NamedTuple

import numpy as np
import plotly.graph_objects as go
from pydantic import Field

from mooncake_edu.config import Config, Section, Size
from mooncake_edu.pictures.figures import bar_marker, finish
from mooncake_edu.pictures.palette import INK, SERIES
from mooncake_edu.simulation.cluster import simulate
from mooncake_edu.simulation.experiments import Experiment, Outcome, Progress, Row
from mooncake_edu.simulation.experiments.serving import Count, Seconds, divided
from mooncake_edu.traces.profiles import load_any
from mooncake_edu.traces.trace import Trace

PAPER = {"random": 92.07, "load-balancing": 60.41, "cache-aware": 14.36, "kvcache-centric": 6.26}
"""Mean TTFT in seconds of 8 prefill and 8 decode instances; arXiv 2407.00079, fig. 8."""


class Replay(Section):
    """A trace by its name or file, at several speeds, whole or in as many `slices`, each on an empty cluster."""

    trace: str = Field(min_length=1)
    speeds: tuple[float, ...] = Field(min_length=1, strict=False)
    slices: int = Field(default=1, ge=1, le=1000)

    def read(self) -> list[Trace]:
        """The slices."""
        whole = load_any(self.trace)
        borders = np.linspace(0, len(whole), self.slices + 1).astype(int).tolist()
        return [whole.slice(start, stop) for start, stop in pairwise(borders)]


class Sight(Section):
    """How well the Conductor sees: the view's age in seconds, and the sigma of its estimates."""

    age: float = Field(default=0.0, ge=0, le=3600)
    noise: float = Field(default=0.0, ge=0, le=3)


class Settings(Section):
    """Every replay is served under every policy, for each size of an instance's DRAM, each sight and each seed.

    `threshold` is the ratio of prefixes above which KVCache is fetched; `limit` is the mean TTFT, of the best policy,
    above which a cluster counts as saturated, and the order of the policies as of no interest.
    """

    cluster: str = Field(default="cluster", min_length=1)
    prefill: Count = 8
    decode: Count = 8
    policies: tuple[str, ...] = Field(min_length=1, strict=False)
    dram: tuple[Size, ...] = Field(min_length=1, strict=False)
    seeds: int = Field(default=1, ge=1, le=1000)
    threshold: float = Field(default=2.0, ge=1, le=1000)
    limit: Seconds = 30.0
    replays: tuple[Replay, ...] = Field(min_length=1, strict=False)
    sights: tuple[Sight, ...] = Field(default=(Sight(),), min_length=1, strict=False)

    def config(self, dram: int, sight: Sight, policy: str, seed: int) -> Config:
        """The cluster of one run."""
        base = Config.named(self.cluster)
        policies = {"placement": policy, "kvcache_balancing_threshold": self.threshold}
        simulation = {"view_age": sight.age, "estimate_noise": sight.noise, "seed": seed}
        return base.model_copy(update={
            "instances": divided(base, self.prefill, self.decode),
            "policies": base.policies.model_copy(update=policies),
            "tiers": base.tiers.model_copy(update={"dram": dram}),
            "simulation": base.simulation.model_copy(update=simulation),
        })  # fmt: skip


class Where(NamedTuple):
    """What runs have in common that differ in slice and seed only."""

    trace: str
    speed: float
    dram: int
    sight: Sight

    def __str__(self) -> str:
        age, noise = self.sight.age, self.sight.noise
        sight = f", view {age:g} s old, noise {noise:g}" if age or noise else ""
        return f"{self.trace} x {self.speed:g}, {self.dram / 1e12:.3g} TB{sight}"


Means = dict[str, list[float]]
"""Mean TTFT in seconds by policy, one for each slice and seed."""


def run(settings: Settings, progress: Progress) -> Outcome:
    """Serve everything by every policy."""
    found = serve(settings, progress)
    rows = [row for where, means in found.items() for row in _rows(where, means, len(settings.policies) > 1)]
    if set(PAPER) <= set(settings.policies) and all(replay.slices == 1 for replay in settings.replays):
        rows += nearest(found)
    return Outcome(rows, [_figure(found)], _remarks(found, settings))


def serve(settings: Settings, progress: Progress) -> dict[Where, Means]:
    """The mean TTFT of every run."""
    found: dict[Where, Means] = {}
    cases = list(_cases(settings))
    for done, (where, trace, seed) in enumerate(cases):
        progress(str(where), done, len(cases))
        means = found.setdefault(where, {policy: [] for policy in settings.policies})
        for policy in settings.policies:
            table = simulate(settings.config(where.dram, where.sight, policy, seed), trace).table
            means[policy].append(table.mean("ttft"))
    return found


def _cases(settings: Settings) -> Iterator[tuple[Where, Trace, int]]:
    for replay in settings.replays:
        slices = replay.read()
        for speed, dram, sight in product(replay.speeds, settings.dram, settings.sights):
            for trace, seed in product(slices, range(settings.seeds)):
                yield Where(trace.name, speed, dram, sight), trace.faster(speed), seed


def holds(means: Means) -> list[bool]:
    """For each slice and seed, whether every policy has a smaller mean TTFT than the one named before it."""
    return [all(after < before for before, after in pairwise(each)) for each in zip(*means.values(), strict=True)]


def _rows(where: Where, means: Means, several: bool) -> list[Row]:
    rows = [Row(what=f"{where}: mean TTFT, {policy}", unit="s", ours=float(np.mean(values)), low=min(values),
                high=max(values)) for policy, values in means.items()]  # fmt: skip
    if several:
        said = " > ".join(means)
        rows.append(Row(what=f"{where}: {said}", unit="of cases", ours=float(np.mean(holds(means)))))
    return rows


def nearest(found: dict[Where, Means]) -> list[Row]:
    """Where the four means are nearest to the paper's, by the largest factor between any of them."""

    def off(means: Means) -> float:
        return max(abs(float(np.log(np.mean(means[policy]) / paper))) for policy, paper in PAPER.items())

    where, means = min(found.items(), key=lambda item: off(item[1]))
    rows = [Row(what=f"nearest, {where}: {policy}", unit="s", ours=float(np.mean(means[policy])), paper=paper)
            for policy, paper in PAPER.items()]  # fmt: skip
    factor = float(np.exp(off(means)))
    return [*rows, Row(what="largest factor between ours and the paper's there", unit="x", ours=factor)]


def _remarks(found: dict[Where, Means], settings: Settings) -> list[str]:
    told = []
    for where, means in found.items():
        best = float(np.mean(means[settings.policies[-1]]))
        broken = [place for place, whole in enumerate(holds(means)) if not whole]
        if best > settings.limit:
            told.append(f"{where}: saturated, mean TTFT {best:.0f} s under {settings.policies[-1]}.")
        if broken and len(settings.policies) > 1:
            place = broken[0]
            values = ", ".join(f"{policy} {each[place]:.3g} s" for policy, each in means.items())
            told.append(f"{where}: the order does not hold in {len(broken)} cases, first in number {place}: {values}.")
    return [
        "Slices are consecutive parts of the trace, each served by a cluster whose caches are empty at first; what "
        "each instance's DRAM holds is named, 1 TB being about 3 million tokens.",
        "The paper names neither the speed of its replay nor the cache's size for figure 8, and its trace was replaced "
        "after the paper. Where random and load balancing are as slow as the paper's, they are saturated, and their "
        "mean TTFT grows with the length of the replay; the policies that reuse more are not, so that theirs rests on "
        "how much of the trace can be reused, and how soon queues form.",
        *told,
    ]


def _figure(found: dict[Where, Means]) -> go.Figure:
    figure = go.Figure()
    places = [str(where) for where in found]
    policies = list(next(iter(found.values())))
    for number, policy in enumerate(policies):
        values = [float(np.mean(means[policy])) for means in found.values()]
        figure.add_bar(x=places, y=values, name=policy, marker=bar_marker(SERIES[number % len(SERIES)]),
                       hovertemplate=policy + ", %{x}: %{y:.3g} s<extra></extra>")  # fmt: skip
        if policy in PAPER:
            figure.add_hline(y=PAPER[policy], line={"color": INK, "dash": "dot", "width": 1},
                             annotation_text=f"paper, {policy}", annotation_font_color=INK)  # fmt: skip
    figure.update_layout(barmode="group", height=520)
    figure.update_yaxes(title="mean TTFT (s)", type="log")
    figure.update_xaxes(type="category")
    last = [f"{where}: {np.mean(means[policies[-1]]):.3g} s" for where, means in found.items()]
    return finish(figure, "Mean TTFT by placement policy", f"{policies[-1]}: {'; '.join(last)}.")


PLACEMENT = Experiment(Settings, run)
