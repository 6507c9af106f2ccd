"""`mooncake-edu trace`: check, sum up, make, sanitise and fetch traces."""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from mooncake_edu.quantities import counted

if TYPE_CHECKING:
    from mooncake_edu.traces.sanitize import Encode
    from mooncake_edu.traces.trace import Trace

app = typer.Typer(
    no_args_is_help=True,
    rich_markup_mode=None,
    add_completion=False,
    help="Check, sum up, make, sanitise and fetch traces.",
)

FileArgument = Annotated[str, typer.Argument(metavar="FILE", help="JSON lines, or a name such as conversation.")]
JsonOption = Annotated[bool, typer.Option("--json", help="Print JSON.")]
BlockSizeOption = Annotated[int, typer.Option(min=1, max=65_536, help="Tokens of a block.")]
PUBLISHED_BLOCKS = 512  # trace.BLOCK_SIZE, whose module is loaded only when a command runs


@app.command()
def stats(
    file: FileArgument,
    json_: JsonOption = False,
    policy: Annotated[str, typer.Option(help="Which block goes first where there is no room.")] = "",
    capacity: Annotated[int | None, typer.Option(min=0, max=10**9, help="Blocks of the pool; else no limit.")] = None,
    block_size: BlockSizeOption = PUBLISHED_BLOCKS,
) -> None:
    """Count requests, blocks, and what a cache could give back."""
    from mooncake_edu.traces.places import open_trace
    from mooncake_edu.traces.stats import replay
    from mooncake_edu.traces.stats import stats as count

    trace = open_trace(file, block_size)
    found: dict[str, Any] = {"name": trace.name, **dataclasses.asdict(count(trace))}
    if policy or capacity is not None:
        found["pool"] = dataclasses.asdict(replay(trace, policy or "lru", capacity))
    if json_:
        print(json.dumps(found, indent=2))
        return
    pool = found.pop("pool", {})
    print("Hits are references to a block that came before, as a cache without limit has them; lengths are in tokens.")
    if pool:
        pool["capacity"] = "no limit" if capacity is None else capacity
    for name, value in [*found.items(), *((f"pool {name}", value) for name, value in pool.items())]:
        if value is not None:
            print(f"{name.replace('_', ' '):24}{f'{value:,.4f}' if isinstance(value, float) else value}")
    if pool:
        print(WAYS)


WAYS = (
    "Block hits: each block is looked up and stored before the next. Prefix hits: a prompt is looked up whole before\n"
    "it is stored, and no block is evicted before those behind it; so there can be more of them."
)
"""What tells the two ways to count hits of a pool apart."""


@app.command()
def validate(file: FileArgument, block_size: BlockSizeOption = PUBLISHED_BLOCKS) -> None:
    """Read a trace and say whether it is one, or which row is not."""
    from mooncake_edu.traces.places import open_trace

    trace = open_trace(file, block_size)
    late = f"; {counted(trace.late, 'row')} stood out of order: requests are numbered" if trace.late else ","
    print(f"{file}: is a trace: {_requests(trace)} of {counted(len(trace.ids), 'block')}{late} in order of time")


def _requests(trace: Trace) -> str:
    return counted(len(trace), "request")


@app.command()
def generate(
    profile: Annotated[str, typer.Argument(help="conversation, toolagent, synthetic, papers or arxiv-1000.")],
    out: Annotated[Path, typer.Argument(help="The file to write.")],
    seed: Annotated[int, typer.Option(min=0, max=2**63 - 1, help="Equal seeds give equal traces.")] = 0,
    requests: Annotated[int | None, typer.Option(min=1, max=10**6, help="How many; else as the profile says.")] = None,
) -> None:
    """Make a trace of a profile, and say how close it comes to what is published."""
    from mooncake_edu.bench.results import figure, require_writable
    from mooncake_edu.traces.profiles import closeness, make
    from mooncake_edu.traces.profiles import profile as find
    from mooncake_edu.traces.trace import write

    require_writable(out, "OUT")
    trace = make(profile, seed, requests)
    write(trace, out)
    chosen = find(profile)
    print(f"{_requests(trace)} written to {out}; {profile}: {chosen.source}")
    comparable = len(trace) == chosen.requests
    for what, made, published in closeness(profile, trace):
        apart = f"   {made / published - 1:+.1%}" * comparable
        print(f"{what:36}{figure(made):>12}   published {figure(published):>10}{apart}")
    if not comparable:
        print(f"published of {chosen.requests:,} requests, so not compared: how much is reused depends on the number")


@app.command()
def sanitize(
    log: Annotated[Path, typer.Argument(help="JSON lines with timestamp, prompt or tokens, and output.")],
    out: Annotated[Path, typer.Argument(help="The file to write.")],
    model: Annotated[str, typer.Option(help="Whose tokenizer reads texts; else their bytes are the tokens.")] = "",
    rebase: Annotated[bool, typer.Option("--rebase", help="Let the first request come at 0.")] = False,
    tick: Annotated[float, typer.Option(min=0, max=86_400, help="Cut times to so many seconds.")] = 0.0,
    block_size: BlockSizeOption = PUBLISHED_BLOCKS,
) -> None:
    """Make a trace of a log of requests, without its content."""
    import secrets

    from mooncake_edu.bench.results import require_writable
    from mooncake_edu.traces.sanitize import LEAKS, utf8
    from mooncake_edu.traces.sanitize import sanitize as clean
    from mooncake_edu.traces.trace import TraceError, write

    if log.is_file() and out.exists() and out.samefile(log):
        raise TraceError(f"{out} is the log itself: choose another file")
    require_writable(out, "OUT")
    encode = _tokenizer(model) if model else utf8
    trace = clean(log, secrets.token_bytes(32), encode, rebase=rebase, tick=tick, block_size=block_size)
    write(trace, out)
    print(f"{_requests(trace)} written to {out}, their texts and hashes left out. {LEAKS}")
    if block_size != PUBLISHED_BLOCKS:
        print(f"Its blocks hold {counted(block_size, 'token')}: read it with "
              f"`mooncake-edu trace stats {out} --block-size {block_size}`.")  # fmt: skip


def _tokenizer(model: str) -> Encode:
    from mooncake_edu.model import hub
    from mooncake_edu.model.tokenizer import HubTokenizer

    return HubTokenizer(model if Path(model).is_dir() else hub.path(model)).encode


@app.command()
def fetch(
    name: Annotated[str, typer.Argument(help="A published trace; without it, all are listed.")] = "",
    again: Annotated[bool, typer.Option("--again", help="Bring it anew, and replace what is in the cache.")] = False,
) -> None:
    """Print the file of a published trace, which is brought into the cache if it is nowhere here."""
    from mooncake_edu.model.commands import progress_bar
    from mooncake_edu.traces.fetch import fetch as bring
    from mooncake_edu.traces.places import PUBLISHED, find
    from mooncake_edu.traces.trace import TraceError

    if again and not name:
        raise TraceError(f"--again stands alone: name what is brought again, one of {', '.join(PUBLISHED)}")
    if name:
        with progress_bar() as progress:
            path = bring(name, progress, again=again)
        print(path)
        if (read := find(name)) != path:
            typer.echo(f"but {name} is read from {read}, which is looked for first", err=True)
        return
    for each in PUBLISHED.values():
        print(f"{each.name:14}{each.rows:>8,} requests  {each.note:30}{find(each.name) or 'not here'}")
