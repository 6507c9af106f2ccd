"""Builds the book: `python book/build.py` runs the chapters and writes a site that opens from disk, offline."""

from __future__ import annotations

import argparse
import json
import shutil
import sys
from pathlib import Path

import nbformat
from sphinx.cmd.build import build_main

sys.path[:0] = [str(Path(__file__).parents[1]), str(Path(__file__).parent)]

import chapters as pages  # noqa: E402

from mooncake_edu.course import SIZES  # noqa: E402
from mooncake_edu.course.cells import Chapter, chapters, notebook_text  # noqa: E402
from mooncake_edu.course.cells import source as cell_text  # noqa: E402
from mooncake_edu.course.editions import for_student, index, tags  # noqa: E402
from mooncake_edu.pictures.map import course_map  # noqa: E402

BOOK = Path(__file__).parent
NOTEBOOKS = BOOK.parent / "notebooks"
CHAPTERS, MAP = "<!-- what the chapters hold -->", "<!-- the map -->"
"""Where pages hold what is made here: what instructors need of the chapters, and the picture of the system."""

MARK = ".book"
"""An empty file in a folder that may be built into again."""


def main() -> int:
    """Build from the command line; returns Sphinx's exit status."""
    reader = argparse.ArgumentParser(description=__doc__)
    reader.add_argument("--notebooks", type=Path, default=NOTEBOOKS, help="the folder of the chapters")
    reader.add_argument("--out", type=Path, default=BOOK.parent / "build" / "book", help="a folder for the book")
    reader.add_argument("--executed", type=Path, help="a folder of the same chapters with outputs: do not run them")
    reader.add_argument("--size", default="tiny", choices=SIZES, help="the size to run the chapters at")
    asked = reader.parse_args()
    if asked.out.exists() and any(asked.out.iterdir()) and not (asked.out / MARK).exists():
        reader.error(f"--out {asked.out} holds something that is no book: name a new folder")
    return build(asked.notebooks, asked.out, asked.size, asked.executed)


def build(notebooks: Path, out: Path, size: str, executed: Path | None = None) -> int:
    """Run the chapters, or take them from `executed`; write the site to `out`/html; returns Sphinx's exit status."""
    source, html = out / "source", out / "html"
    for old in (source, html):
        shutil.rmtree(old, ignore_errors=True)
    out.mkdir(parents=True, exist_ok=True)
    (out / MARK).touch()
    shutil.copytree(BOOK, source, ignore=shutil.ignore_patterns("*.py", "__pycache__", "static"))
    (source / "notebooks").mkdir()
    there = chapters(notebooks)
    for chapter in there:
        name = chapter.path.name
        ran = nbformat.read(executed / name, 4) if executed else pages.run(chapter.path, size, out / "data")
        nbformat.write(pages.to_page(ran), source / "notebooks" / name)
    tables = index([chapter.content for chapter in there]).partition("\n")[2]
    put(source / "instructor.md", CHAPTERS, f"{tables}\n## Notes\n\n{notes(there)}")
    put(source / "index.md", MAP, f"```{{raw}} html\n{pages.figure(json.loads(course_map().to_json()))}\n```")
    status = build_main(["-W", "--keep-going", "-q", "-c", str(BOOK), str(source), str(html)])
    for chapter in there if not status else []:  # what is offered for download is what a student works with
        student = notebook_text(for_student(chapter.content, chapter.path.name))
        (html / "_sources" / "notebooks" / chapter.path.name).write_text(student, encoding="utf-8")
    if not status:
        print(f"open {html / 'index.html'}")
    return status


def notes(there: list[Chapter]) -> str:
    """The instructor's notes of all chapters, each under the chapter's title."""
    told = []
    for chapter in there:
        front = chapter.content["metadata"]["mooncake_edu"]
        texts = [cell_text(cell) for cell in chapter.cells if "instructor" in tags(cell)]
        told += [f"### {front['chapter']:02d} {front['title']}: notes", *texts] if texts else []
    return "\n\n".join(told)


def put(page: Path, place: str, text: str) -> None:
    """Replace the comment that holds a place in a page."""
    page.write_text(page.read_text(encoding="utf-8").replace(place, text), encoding="utf-8")


if __name__ == "__main__":
    sys.exit(main())
