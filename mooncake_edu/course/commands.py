"""`mooncake-edu course`: weave chapters and package, make the editions, show what was checked."""

from __future__ import annotations

from pathlib import Path

import typer

app = typer.Typer(
    no_args_is_help=True, rich_markup_mode=None, add_completion=False, help="Weave, check and hand out the chapters."
)
weaving = typer.Typer(no_args_is_help=True, rich_markup_mode=None, help="Keep chapters and package the same.")
app.add_typer(weaving, name="weave")

NOTEBOOKS = Path(__file__).parents[2] / "notebooks"
FROM = typer.Option(NOTEBOOKS, "--from", metavar="FOLDER", help="The folder of the chapters.", show_default=False)


@weaving.command()
def check(folder: Path = FROM) -> None:
    """Say where listings and layer files differ; exits with 1 if they do."""
    from mooncake_edu.course import cells, weave

    chapters = cells.chapters(folder)
    findings = [finding for chapter in chapters for finding in weave.check(chapter)]
    print(*findings, sep="\n", end="\n" if findings else "")
    if findings:
        raise typer.Exit(1)
    listings = sum(len(chapter.listings) for chapter in chapters)
    print(f"{len(chapters)} chapters and {listings} listings agree with the package")


@weaving.command()
def fix(folder: Path = FROM) -> None:
    """Rewrite listings from the layer files; where these have changed, borders move with their text.

    What is new joins the listing before it. To give a new function a cell of its own, add the cell, with prose before
    it, write `%%layer FILE FIRST-LAST` into it, shorten the listing before, and fix again.
    """
    from mooncake_edu.course import cells, weave

    chapters = cells.chapters(folder)
    changed = [chapter for chapter in chapters if weave.fix(chapter)]
    for chapter in changed:
        chapter.write()
        print(f"{chapter.path} rewritten")
    findings = [finding for chapter in chapters for finding in weave.check(chapter)]
    print(*findings or ["all listings agree with the package"], sep="\n")


@weaving.command()
def tangle(out: Path = typer.Argument(metavar="OUT", help="A folder for the files."), folder: Path = FROM) -> None:
    """Write the layer files from the chapters alone, edits included; never over a file."""
    from mooncake_edu.course import cells, weave

    for file in weave.write_layers(cells.chapters(folder), out):
        print(file)
    print(f"run with them: MOONCAKE_EDU_LAYERS={out} mooncake-edu demo")


OUT = typer.Argument(metavar="OUT", help="A new folder.")


@app.command()
def student(out: Path = OUT, folder: Path = FROM) -> None:
    """Write the chapters without solutions and instructor's notes into a new folder."""
    from mooncake_edu.course import editions

    print(*editions.write_student(folder, out), sep="\n")


@app.command()
def instructor(out: Path = OUT, folder: Path = FROM) -> None:
    """Write the chapters with everything, and an index of exercises and minutes, into a new folder."""
    from mooncake_edu.course import editions

    print(*editions.write_instructor(folder, out), out / "index.md", sep="\n")


@app.command()
def progress() -> None:
    """Show where each exercise stands, and which pass is stale by now."""
    from mooncake_edu.course.progress import print_table

    print_table()
