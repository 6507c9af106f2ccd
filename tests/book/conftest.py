"""Books that are really built: a small one of one chapter, and that of the course."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import pytest

from tests.conftest import Once
from tests.notebooks import small
from tests.notebooks.running import CHAPTERS, run_shared

ROOT = Path(__file__).parents[2]
BUILD_S = 1500

FIGURE = """
from mooncake_edu.pictures.map import course_map
course_map()
"""
TABLE = """
from IPython.display import Markdown
Markdown("| a | b |\\n|---|---|\\n| one | two |")
"""
TURN = """
import ipywidgets
from mooncake_edu.course.knobs import turning
turning(lambda number: course_map(), number=ipywidgets.IntSlider(value=3, max=9))
"""


@dataclass(frozen=True)
class Book:
    """A build: its exit status, what it said, and the folder of its pages."""

    status: int
    said: str
    pages: Path


def build(notebooks: Path, out: Path, *options: str) -> Book:
    """Run the command behind `make book`."""
    script = str(ROOT / "book" / "build.py")
    command = [sys.executable, script, "--notebooks", str(notebooks), "--out", str(out), *options]
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=BUILD_S)
    return Book(done.returncode, done.stdout + done.stderr, out / "html")


def write_small(folder: Path, prose: str = "With $a$ and $b$,\n\n$$a \\le \\frac{b}{2} .$$") -> Path:
    """A folder with one chapter that holds one of everything that a page must show."""
    notebook = small.chapter("%load_ext mooncake_edu.course\n%chapter", [], layer=None, number=0)
    first = (ROOT / "mooncake_edu" / "kvcache.py").read_text(encoding="utf-8").split("\n")[0]
    notebook["cells"] += [
        small.markdown("formula", prose),
        small.code("figure", FIGURE.strip()),
        small.code("table", TABLE.strip()),
        small.code("listing", f"%%layer kvcache 1-1\n{first}", "listing"),
        small.code("turn-it", TURN.strip(), "widget"),
        *small.exercise("0.1", "answer", "return value", "naive-count")[:2],
    ]
    small.write(notebook, folder, "00-start-here.ipynb")
    return folder


def built_once(once: Once, name: str, make: Callable[[Path], Book]) -> Book:
    """A book that all processes of the session share."""

    def fill(folder: Path) -> None:
        book = make(folder)
        (folder / "book.json").write_text(json.dumps([book.status, book.said, str(book.pages)]), encoding="utf-8")

    status, said, pages = json.loads((once(name, fill) / "book.json").read_text(encoding="utf-8"))
    return Book(status, said, Path(pages))


@pytest.fixture(scope="session")
def small_book(once: Once) -> Book:
    """The book of one small chapter, run by the build as `make book` does."""
    return built_once(once, "small-book", lambda folder: build(write_small(folder / "notebooks"), folder / "out"))


@pytest.fixture(scope="session")
def whole_book(once: Once) -> Book:
    """The book of the course, from the chapters' one run at tiny in this session."""

    def make(folder: Path) -> Book:
        (folder / "executed").mkdir()
        for path in CHAPTERS:
            ran = run_shared(path, once)
            assert ran.passed, ran.said
            (folder / "executed" / path.name).write_text(json.dumps(ran.notebook), encoding="utf-8")
        return build(ROOT / "notebooks", folder / "out", "--executed", str(folder / "executed"))

    return built_once(once, "whole-book", make)
