"""`mooncake-edu reproduce`: the paper's experiments, ours beside the paper's figures."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

if TYPE_CHECKING:
    from mooncake_edu.simulation.experiments import Outcome, Row


def reproduce(
    name: Annotated[str, typer.Argument(help="An experiment; without it, all are listed.")] = "",
    json_: Annotated[Path | None, typer.Option("--json", help="A file for the rows.")] = None,
    html: Annotated[Path | None, typer.Option(help="A file for the figures and rows as a page.")] = None,
    config: Annotated[Path | None, typer.Option(help="A TOML file in place of the experiment's own.")] = None,
) -> None:
    """Run one of the paper's experiments, and show ours beside the paper's."""
    from mooncake_edu.bench.commands import progress_bar
    from mooncake_edu.bench.results import require_writable
    from mooncake_edu.simulation.experiments import EXPERIMENTS, find, settings_of

    if not name:
        width = max(map(len, EXPERIMENTS)) + 2
        for each, entry in EXPERIMENTS.items():
            print(f"{each:{width}}{entry.help}")
        return
    require_writable(json_)
    require_writable(html, "--html")
    experiment, settings = find(name), settings_of(name, config)
    with progress_bar() as progress:
        outcome = experiment.run(settings, progress)
    show(name, outcome)
    if json_ is not None:
        save(json_, name, settings.model_dump(mode="json"), outcome)
    if html is not None:
        write_page(html, name, EXPERIMENTS[name].help, outcome)


def show(name: str, outcome: Outcome) -> None:
    """Print the rows as a table, and the remarks below it, in a width of its own where there is no terminal."""
    from rich.table import Table

    from mooncake_edu.bench.results import page

    table = Table(title=f"reproduce {name}", header_style="bold", box=None)
    for column in COLUMNS:
        table.add_column(column, justify="left" if column in COLUMNS[:2] else "right", overflow="fold")
    for row in outcome.rows:
        table.add_row(*_cells(row))
    console = page()
    console.print(table)
    for remark in outcome.remarks:
        console.print(remark, highlight=False, markup=False)


def save(path: Path, name: str, config: dict[str, Any], outcome: Outcome) -> None:
    """Write the rows with the configuration that they rest on; raises UserError if that is not possible."""
    from mooncake_edu.events import write_whole

    config = {**config, "remarks": list(outcome.remarks)}
    content = {"experiment": name, "config": config, "rows": [row.model_dump() for row in outcome.rows]}
    write_whole(path, (json.dumps(content, indent=2) + "\n").encode())
    print(f"written to {path}")


def write_page(path: Path, name: str, lead: str, outcome: Outcome) -> None:
    """Write figures, rows and remarks as one page that needs nothing else; raises UserError if it cannot."""
    from mooncake_edu.pictures.report import Section, Table, write_report

    table = Table("Ours beside the paper's", COLUMNS, [_cells(row) for row in outcome.rows])
    write_report(path, f"reproduce {name}", lead, [Section(name, outcome.remarks, outcome.figures, [table])])
    print(f"written to {path}")


COLUMNS = ("what", "unit", "ours", "from", "to", "paper", "ours / paper")


def _cells(row: Row) -> list[str]:
    from mooncake_edu.bench.results import figure

    ratio = f"{row.ours / row.paper:.2f}" if row.paper else "-"
    return [row.what, row.unit, *map(figure, (row.ours, row.low, row.high, row.paper)), ratio]
