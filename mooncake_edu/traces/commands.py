"""`mooncake-edu trace`: check, sum up, make, sanitise and fetch traces."""

from __future__ import annotations

import dataclasses
import json
from typing import Annotated, Any

import typer

app = typer.Typer(
    no_args_is_help=True,
    rich_markup_mode=None,
    add_completion=False,
    help="Check, sum up, make, sanitise and fetch traces.",
)

FileArgument = Annotated[str, typer.Argument(metavar="FILE", help="JSON lines, or a name such as conversation.")]
JsonOption = Annotated[bool, typer.Option("--json", help="Print JSON.")]


@app.command()
def stats(
    file: FileArgument,
    json_: JsonOption = False,
    policy: Annotated[str, typer.Option(help="Which block goes first where there is no room.")] = "",
    capacity: Annotated[int | None, typer.Option(min=0, max=10**9, help="Blocks of the pool; else no limit.")] = None,
) -> None:
    """Count requests, blocks, and what a cache could give back."""
    from mooncake_edu.traces.places import open_trace
    from mooncake_edu.traces.stats import replay
    from mooncake_edu.traces.stats import stats as count

    trace = open_trace(file)
    found: dict[str, Any] = {"name": trace.name, **dataclasses.asdict(count(trace))}
    if policy or capacity is not None:
        found["pool"] = dataclasses.asdict(replay(trace, policy or "lru", capacity))
    if json_:
        print(json.dumps(found, indent=2))
        return
    pool = found.pop("pool", {})
    for name, value in [*found.items(), *((f"pool {name}", value) for name, value in pool.items())]:
        print(f"{name.replace('_', ' '):24}{f'{value:,.4f}' if isinstance(value, float) else value}")


@app.command()
def validate(file: FileArgument) -> None:
    """Read a trace and say whether it is one, or which row is not."""
    from mooncake_edu.traces.places import open_trace

    trace = open_trace(file)
    print(f"{file}: {len(trace):,} requests of {len(trace.ids):,} blocks are in order")
