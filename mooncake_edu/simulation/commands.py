"""`mooncake-edu simulate`: a trace served by a simulated cluster, or by several to compare."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from mooncake_edu import __version__
from mooncake_edu.errors import ConfigError, UserError

if TYPE_CHECKING:
    from mooncake_edu.config import Config
    from mooncake_edu.events import EventLog
    from mooncake_edu.simulation.result import Result

MOST_DRAWN = 200_000
"""Events in a Perfetto trace: 100 MB, about what a browser opens."""


def simulate(
    config: Annotated[str, typer.Option(help="A TOML file, or a size such as cluster.")] = "cluster",
    trace: Annotated[str, typer.Option(help="A file of JSON lines, or a name such as conversation.")] = "conversation",
    speed: Annotated[float, typer.Option(min=0.001, max=1000, help="How many times as fast requests come.")] = 1.0,
    requests: Annotated[int | None, typer.Option(min=1, help="Only so many, the first.")] = None,
    compare: Annotated[list[str] | None, typer.Option(help="Placement policies or TOML files.")] = None,
    html: Annotated[Path | None, typer.Option(help="A file for the report.")] = None,
    perfetto: Annotated[Path | None, typer.Option(help="A file for ui.perfetto.dev, of the first run.")] = None,
    events: Annotated[Path | None, typer.Option(help="A file for the event log of the first run (npz).")] = None,
    json: Annotated[Path | None, typer.Option(help="A file for the figures of the table.")] = None,
    more: Annotated[list[str] | None, typer.Argument(metavar="POLICY", help="What else --compare compares.")] = None,
) -> None:
    """Serve a trace by a simulated cluster, and show what came of it."""
    from mooncake_edu.bench.commands import progress_bar
    from mooncake_edu.bench.results import require_writable
    from mooncake_edu.events import EventLog
    from mooncake_edu.simulation.cluster import check
    from mooncake_edu.simulation.cluster import simulate as run
    from mooncake_edu.simulation.parts import costs_of
    from mooncake_edu.traces.places import open_trace

    if more and not compare:
        raise UserError(f"{more[0]!r} stands alone: name what is compared behind --compare")
    taken = {Path(trace).resolve()}
    for path, option in ((html, "--html"), (perfetto, "--perfetto"), (events, "--events"), (json, "--json")):
        require_writable(path, option)
        if path is not None and path.resolve() in taken:
            raise UserError(f"{option} {path}: is the trace or another option's file: choose another")
        taken.add((path or Path(trace)).resolve())
    compared = [*(compare or []), *(more or [])]
    chosen = configurations(config, compared)
    files = [f"{name}.toml" if f"{name}.toml" in compared else config for name in chosen]
    for file, each in zip(files, chosen.values(), strict=True):
        with naming(file):
            costs_of(each)  # before the trace is read: its blocks are as large as the configuration says
    asked = open_trace(trace, next(iter(chosen.values())).engine.block_size).faster(speed)
    asked = asked if requests is None else asked.slice(0, requests)
    for file, each in zip(files, chosen.values(), strict=True):
        with naming(file):
            check(each, asked)
    log = EventLog(50_000_000 if events else MOST_DRAWN) if events or perfetto else None
    results: list[Result] = []
    with progress_bar() as progress:
        for name, each in chosen.items():
            told = partial(progress, name)
            results.append(run(each, asked, None if results else log, progress=told, name=name))
    show(results)
    runs = "; ".join(map(told_of, chosen.items()))
    lead = f"{len(asked):,} requests of {asked.name} at {speed:g} x their speed, mooncake_edu {__version__}. {runs}."
    write(lead, results, next(iter(chosen.values())), log, html, perfetto, events, json)


def told_of(named: tuple[str, Config]) -> str:
    """What a run was of: its name, then its instances, policies and objectives."""
    name, config = named
    instances = " + ".join(f"{group.count} {group.role}" for group in config.instances)
    policies, slo = config.policies, config.slo
    return (f"{name}: {instances}, placement {policies.placement}, admission {policies.admission}, objectives TTFT "
            f"{slo.ttft} and TBT {slo.tbt}, seed {config.simulation.seed}")  # fmt: skip


@contextmanager
def naming(file: str) -> Iterator[None]:
    """Name the file whose configuration is refused."""
    try:
        yield
    except ConfigError as error:
        raise ConfigError(f"{file}: {error}") from None


def configurations(given: str, compare: Sequence[str]) -> dict[str, Config]:
    """The configurations to run by their names; raises ConfigError for one that cannot be read."""
    from mooncake_edu.config import Config

    base = Config.named(given)
    if not compare:
        return {base.policies.placement: base}
    found: dict[str, Config] = {}
    for name in compare:
        if name.removesuffix(".toml") in found:
            raise UserError(f"--compare {name}: stands twice: name each once")
        if name.endswith(".toml"):
            found[name.removesuffix(".toml")] = Config.load(name)
        else:
            policies = base.policies.model_copy(update={"placement": name})
            found[name] = base.model_copy(update={"policies": policies})
    return found


def show(results: Sequence[Result]) -> None:
    """Print the runs side by side."""
    from rich.table import Table

    from mooncake_edu.bench.results import figure, page
    from mooncake_edu.simulation.summary import summary

    lines = [[cell if isinstance(cell, str) else figure(cell) for cell in line] for line in summary(results)]
    names, *runs = zip(["", *(result.name for result in results)], *lines, strict=True)
    console = page()
    widest = max(len(cell) for run in runs for cell in run) + 2
    at_once = max((console.width - max(map(len, names)) - 2) // widest, 1)
    for first in range(0, len(runs), at_once):
        table = Table(header_style="bold", box=None)
        table.add_column("", no_wrap=True)
        for run in runs[first : first + at_once]:
            table.add_column(run[0], justify="right", no_wrap=True)
        for row in zip(names[1:], *(run[1:] for run in runs[first : first + at_once]), strict=True):
            table.add_row(*row)
        console.print(table)
    console.print("A TBT is the mean of a request's slowest tenth of intervals.", style="dim", highlight=False)


def write(
    lead: str, results: Sequence[Result], first: Config, log: EventLog | None, html: Path | None,
    perfetto: Path | None, events: Path | None, json: Path | None,
) -> None:  # fmt: skip
    """Write what was asked for; raises UserError if that cannot be done."""
    from mooncake_edu.events import write_whole
    from mooncake_edu.pictures.perfetto import write_perfetto
    from mooncake_edu.pictures.simulation import write_simulation_report
    from mooncake_edu.simulation.parts import numbered

    if html is not None:
        write_simulation_report(html, lead, results)
    if log is not None and perfetto is not None:
        write_perfetto(log, perfetto, {number: f"{group.role} {number}" for number, group in numbered(first)})
        if log.dropped:
            begin = float(log.columns().start[0])
            print(f"{perfetto} holds the last {len(log):,} events, from {begin:,.1f} s; {log.dropped:,} came before: "
                  "use --requests")  # fmt: skip
    if log is not None and events is not None:
        log.save(events)
    if json is not None:
        write_whole(json, figures(lead, results).encode())
    for path in (html, perfetto, events, json):
        if path is not None:
            print(f"written to {path}")


def figures(lead: str, results: Sequence[Result]) -> str:
    """The lines of the table as JSON, by run; null is what is not known."""
    from json import dumps

    from mooncake_edu.simulation.summary import summary

    runs = {
        result.name: {str(name): None if value != value else value for name, value in summary([result])}
        for result in results
    }
    return dumps({"what": lead, "runs": runs}, indent=2) + "\n"
