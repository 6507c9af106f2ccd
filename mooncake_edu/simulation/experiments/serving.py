"""What experiments share that serve traces by several clusters: how they are configured, run and read."""

from __future__ import annotations

from itertools import product
from typing import Annotated, Any, Literal, NamedTuple, get_args

import numpy as np
from pydantic import Field

from mooncake_edu.config import Config, Instances, Policies, Section
from mooncake_edu.outcome import RequestTable
from mooncake_edu.simulation.cluster import simulate
from mooncake_edu.simulation.experiments import Progress, Row
from mooncake_edu.traces.profiles import load_any

Kind = Literal["separate", "prefill first", "chunked"]
Count = Annotated[int, Field(ge=0, le=10_000)]
Seconds = Annotated[float, Field(gt=0, le=1e6)]


class System(Section):
    """A cluster: `prefill` and `decode` instances, or `coupled` ones.

    Coupled instances compute whole prompts first, or with `chunk` at most so many tokens a step beside decoding.
    """

    name: str = Field(min_length=1)
    prefill: Count = 0
    decode: Count = 0
    coupled: Count = 0
    chunk: int | None = Field(default=None, ge=1, le=2**20)

    @property
    def kind(self) -> Kind:
        """Whether prefill and decode are separate, or which of the two baselines it is."""
        return "separate" if not self.coupled else "prefill first" if self.chunk is None else "chunked"

    def check(self) -> None:
        """One kind of cluster, whole."""
        if bool(self.coupled) == bool(self.prefill or self.decode) or bool(self.prefill) != bool(self.decode):
            raise ValueError(f"coupled {self.coupled} beside prefill {self.prefill} and decode {self.decode}: give "
                             "coupled alone, or prefill and decode")  # fmt: skip
        if self.chunk is not None and not self.coupled:
            raise ValueError(f"chunk {self.chunk} is for coupled instances: leave it out")

    def config(self, base: Config, placement: str) -> Config:
        """The base with these instances. Coupled ones take turns, others are placed by a policy; all are admitted."""
        counts = {"prefill": self.prefill, "decode": self.decode, "coupled": self.coupled}
        policies = {"placement": "round-robin" if self.coupled else placement, "admission": "all"}
        groups = [{"role": role, "count": count} for role, count in counts.items() if count]
        changes: dict[str, Any] = {
            "instances": tuple(Instances.model_validate(group) for group in groups),
            "policies": Policies(**base.policies.model_dump() | policies),
        }
        if self.chunk is not None:
            changes["engine"] = base.engine.model_copy(update={"token_budget": self.chunk})
            changes["simulation"] = base.simulation.model_copy(update={"coupled": "chunked"})
        return base.model_copy(update=changes)


def divided(base: Config, prefill: int | None, decode: int | None) -> tuple[Instances, ...]:
    """The groups of a cluster with so many prefill and decode instances in them, or as many as there were."""
    counts = {"prefill": prefill, "decode": decode}
    return tuple(
        group if (count := counts.get(group.role)) is None else Instances(**group.model_dump() | {"count": count})
        for group in base.instances
    )


class Load(Section):
    """A trace by its name or file, replayed `speed` times as fast as it was recorded."""

    trace: str = Field(min_length=1)
    speed: float = Field(default=1.0, gt=0, le=1000)


class Settings(Section):
    """Every load is served by every system, each of them the `cluster` (a size or a file) with other instances.

    `placement` is the policy of separate prefill and decode instances; `ttft` and `tbts` are objectives in seconds.
    """

    cluster: str = Field(default="cluster", min_length=1)
    placement: str = "load-balancing"
    ttft: Seconds
    tbts: tuple[Seconds, ...] = Field(min_length=1, strict=False)
    loads: tuple[Load, ...] = Field(min_length=1, strict=False)
    systems: tuple[System, ...] = Field(min_length=1, strict=False)


class Run(NamedTuple):
    """What became of a load's requests on a system; `trace` is the name of what was replayed."""

    load: Load
    system: System
    trace: str
    table: RequestTable

    @property
    def where(self) -> str:
        """The load in words."""
        return f"{self.trace} x {self.load.speed:g}"

    def share(self, ttft: float, tbt: float) -> float:
        """The share of requests that ended within both objectives."""
        return self.table.goodput(ttft, tbt).share

    def share_in(self, column: str, limit: float) -> float:
        """The share of requests whose `ttft` or `tbt` is within a limit; a single token's TBT is."""
        values = getattr(self.table, column)
        return float(np.mean(np.isnan(values) & (column == "tbt") | (values <= limit)))


def serve(settings: Settings, progress: Progress) -> list[Run]:
    """Serve every load by every system; raises ConfigError or TraceError if something is named that is not there."""
    base = Config.named(settings.cluster)
    configs = [(system, system.config(base, settings.placement)) for system in settings.systems]
    runs: list[Run] = []
    names = dict.fromkeys(replayed.trace for replayed in settings.loads)
    traces = {name: load_any(name) for name in names}
    for replayed in settings.loads:
        trace = traces[replayed.trace]
        for system, config in configs:
            done = len(runs), len(settings.loads) * len(configs)
            progress(f"{trace.name} x {replayed.speed:g}: {system.name}", *done)
            table = simulate(config, trace.faster(replayed.speed)).table
            runs.append(Run(replayed, system, trace.name, table))
    return runs


def best(runs: list[Run], kind: Kind, ttft: float, tbt: float) -> float:
    """The largest share within both objectives among the runs on systems of a kind; 0 if there is none."""
    return max((run.share(ttft, tbt) for run in runs if run.system.kind == kind), default=0.0)


def gains(runs: list[Run], settings: Settings, paper: dict[float, float]) -> list[Row]:
    """How many more requests the best separate system serves than the best of each kind of baseline, by load and TBT.

    `paper` has its gains in percent over prefill first, by TBT.
    """
    rows, kinds = [], get_args(Kind)[1:]
    for group, kind, tbt in product(by_load(runs).values(), kinds, settings.tbts):
        theirs = best(group, kind, settings.ttft, tbt)
        if theirs:
            gain = best(group, "separate", settings.ttft, tbt) / theirs - 1
            rows.append(Row(what=f"{group[0].where}: more than coupled, {kind}, at TBT {tbt * 1e3:g} ms", unit="%",
                            ours=100 * gain, paper=paper.get(tbt) if kind == "prefill first" else None))  # fmt: skip
    return rows


def by_load(runs: list[Run]) -> dict[Load, list[Run]]:
    """The runs of each load."""
    groups: dict[Load, list[Run]] = {}
    for run in runs:
        groups.setdefault(run.load, []).append(run)
    return groups
