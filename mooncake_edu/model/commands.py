"""`mooncake-edu models`: what there is, what is here, and how to get the rest."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import typer

from mooncake_edu.model import hub
from mooncake_edu.model.sources import Progress

app = typer.Typer(
    no_args_is_help=True, rich_markup_mode=None, add_completion=False, help="List, fetch and find models."
)


@app.command("list")
def show_list() -> None:
    """List the models that go by a name, and those in the cache."""
    from rich.console import Console
    from rich.table import Table

    table = Table("name", "here", "download", "licence", "what it is", box=None, header_style="bold")
    for entry in [*hub.CATALOGUE.values(), *_others()]:
        here = "always" if entry.shape else "yes" if hub.cached(entry) else "no"
        table.add_row(entry.name, here, f"{entry.size / 1e6:,.0f} MB" if entry.size else "-", entry.licence, entry.note)
    console = Console()
    console.print(table)
    console.print(f"Cache: {hub.models_folder()}", highlight=False, soft_wrap=True)
    console.print("Any other Llama, Mistral, Qwen2 or Qwen3 model at the Hugging Face hub goes by organisation/model.")


@app.command()
def fetch(
    name: str = typer.Argument(help="A name from `models list`, or organisation/model."),
    again: bool = typer.Option(False, "--again", help="Replace what is in the cache."),
) -> None:
    """Bring a model into the cache and print its folder."""
    entry = hub.find(name)
    if entry.shape:
        print(f"{entry.name} needs no files: its random weights are made when it is used")
        return
    with progress_bar() as progress:
        folder = hub.fetch(name, progress, again=again)
    print(folder)


@app.command()
def path(name: str = typer.Argument(help="A name from `models list`, or organisation/model.")) -> None:
    """Print the folder of a model in the cache."""
    print(hub.path(name))


@contextmanager
def progress_bar() -> Iterator[Progress]:
    """A bar on standard error, made when there is something to report; without a terminal one line a step."""
    from rich.console import Console
    from rich.progress import BarColumn, DownloadColumn, TextColumn, TimeElapsedColumn
    from rich.progress import Progress as Bar

    columns = (TextColumn("{task.description}"), BarColumn(), DownloadColumn(), TimeElapsedColumn())
    console = Console(stderr=True)
    with Bar(*columns, console=console, disable=not console.is_terminal) as bar:
        tasks: dict[str, int] = {}

        def report(what: str, done: int, total: int) -> None:
            if what not in tasks:
                tasks[what] = int(bar.add_task(what, total=total or None))
                if not console.is_terminal:
                    console.print(what, highlight=False, soft_wrap=True)
            bar.update(bar.task_ids[tasks[what]], completed=done)

        yield report


def _others() -> Iterator[hub.Entry]:
    """Models in the cache that were fetched by their repository."""
    for config in sorted(hub.models_folder().glob("*--*/config.json")):
        yield hub.find(config.parent.name.replace("--", "/", 1))
