"""The paper's experiments: a table of names, and what every one of them takes and gives.

An experiment is a configuration file in configs/reproduce and a function in one of the modules beside this one.
"""

from __future__ import annotations

import importlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from importlib import resources
from pathlib import Path
from typing import TYPE_CHECKING, Any, Generic, NamedTuple, TypeVar

from pydantic import BaseModel, ConfigDict, Field

from mooncake_edu.config import Section
from mooncake_edu.errors import ConfigError, near

if TYPE_CHECKING:
    import plotly.graph_objects as go

Progress = Callable[[str, int, int], None]
"""Told what is under way, and how many of how many parts are done."""

Settings = TypeVar("Settings", bound=Section)


class Row(BaseModel):
    """One figure: ours, within `low` to `high` where it was found several times, and the paper's where it has one."""

    model_config = ConfigDict(extra="forbid", frozen=True, strict=True, allow_inf_nan=False)

    what: str = Field(min_length=1)
    unit: str = Field(min_length=1)
    ours: float
    low: float | None = None
    high: float | None = None
    paper: float | None = None


@dataclass(frozen=True)
class Outcome:
    """What an experiment found; `remarks` tell what it rests on, and each deviation from the paper with its cause."""

    rows: Sequence[Row]
    figures: Sequence[go.Figure]
    remarks: Sequence[str] = field(default=())


@dataclass(frozen=True)
class Experiment(Generic[Settings]):
    """The table that its configuration is read by, and the function that runs it."""

    settings: type[Settings]
    run: Callable[[Settings, Progress], Outcome]


class Entry(NamedTuple):
    """Where the `Experiment` of a name is, "module:attribute" beside this file, and what it shows."""

    target: str
    help: str


EXPERIMENTS = {
    "table1": Entry("table1:TABLE1", "Hits of one global pool by eviction policy and capacity (arXiv table 1)."),
    "reuse": Entry("reuse:REUSE", "How much of each workload's KVCache could be reused at best."),
    "fig7": Entry("fig7:FIG7", "What storing the KVCache adds to a prefill, layer by layer or not (arXiv fig. 7)."),
    "fig11": Entry("capacity:FIG11", "Requests a second within objectives, on two data sets (arXiv fig. 11)."),
    "fig12": Entry("capacity:FIG12", "Requests a second within objectives, by the prompt's length (arXiv fig. 12)."),
    "fig13": Entry("fig13:FIG13", "TTFT and TBT of real traces, separate against coupled (arXiv fig. 13)."),
    "fast1": Entry("fast1:FAST1", "Requests within TTFT and TBT, separate against coupled (FAST fig. 1)."),
    "fast7": Entry("fast1:FAST7", "The same on the synthetic trace (FAST fig. 7)."),
    "fig8": Entry("placement:PLACEMENT", "Mean TTFT by placement policy, speed and cache (arXiv fig. 8)."),
    "order": Entry("placement:PLACEMENT", "Whether each placement policy beats the one before it everywhere."),
    "fast5": Entry("sweeps:SWEEP", "Placement policies on 16 nodes (FAST fig. 5)."),
    "fast10": Entry("sweeps:SWEEP", "A cache in each node against one of all nodes (FAST fig. 10)."),
    "fast11": Entry("replicas:REPLICAS", "Replicas of the hottest blocks over time (FAST fig. 11)."),
    "fast13": Entry("sweeps:SWEEP", "The network's bandwidth (FAST fig. 13)."),
    "fast15": Entry("sweeps:SWEEP", "Division of the nodes into prefill and decode (FAST fig. 15)."),
    "replication": Entry("replicas:REPLICAS", "Popular documents without and with replication, and ahead of demand."),
    "table3": Entry("overload:TABLE3", "Requests refused by policy of admission, and where (arXiv table 3)."),
    "table3-sweeps": Entry("overload:TABLE3", "The same by stay, places, division of nodes, TBT limit and speed."),
    "fig9": Entry("fig9:FIG9", "How the loads of both pools swing under early rejection (arXiv fig. 9)."),
    "overload": Entry("overload:OVERLOAD", "Policies of admission beyond the paper, on mixes of requests."),
    "embedding": Entry("embedding:EMBEDDING", "A pipeline of documents, not a language model, under each policy."),
}
"""Every experiment by its name; a later one is added by one line."""


def find(name: str) -> Experiment[Any]:
    """The experiment of a name, imported; raises ConfigError if there is none."""
    if name not in EXPERIMENTS:
        raise ConfigError(f"experiment {name!r} is not known: {near(name, EXPERIMENTS)}")
    module, attribute = EXPERIMENTS[name].target.split(":")
    found: Experiment[Any] = getattr(importlib.import_module(f"{__name__}.{module}"), attribute)
    return found


def settings_of(name: str, file: Path | None = None) -> Any:
    """Its settings, from the file that comes with the package or another; raises ConfigError if they cannot work."""
    kind, place = find(name).settings, str(file or f"reproduce/{name}.toml")
    if file is not None:
        found = kind.load(file)
    else:
        text = (resources.files("mooncake_edu") / "configs" / "reproduce" / f"{name}.toml").read_text(encoding="utf-8")
        found = kind.from_toml(text, place)
    for key, value in found:
        names = [getattr(each, "name", each) for each in value] if isinstance(value, tuple) else []
        twice = next((each for number, each in enumerate(names) if each in names[:number]), None)
        if twice is not None:  # results are kept by name: one would stand in for the other
            raise ConfigError(f"{place}: {key}: {twice!r} is there twice: name each once")
    return found
