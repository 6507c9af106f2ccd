"""A chapter as a file: its cells, the listings among them, and its set-up cell."""

from __future__ import annotations

import json
import os
import re
import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from mooncake_edu import __version__
from mooncake_edu.errors import UserError

EXTENSION = "%load_ext mooncake_edu.course"
HEADER = re.compile(r"%%layer\s+(\w+)\s+(\d+)\s*-\s*(\d+)\s*")

Cell = dict[str, Any]


class ChapterError(UserError):
    """A chapter cannot be read or woven."""


@dataclass
class Listing:
    """A cell that prints the lines `start` to `stop` (from 1, both included) of a layer file."""

    cell: Cell
    layer: str
    start: int
    stop: int
    lines: list[str]

    def __str__(self) -> str:
        return f"cell {self.cell.get('id', '?')} ({self.place})"

    @property
    def place(self) -> str:
        """The layer and the numbers of its lines."""
        return f"{self.layer} {self.start}-{self.stop}"

    @property
    def text(self) -> str:
        """The cell as it should be: its header and its lines."""
        return "\n".join([f"%%layer {self.place}", *self.lines])


class Chapter:
    """A notebook, which keeps every byte of its JSON that nobody changes. Raises ChapterError for what is none."""

    def __init__(self, path: Path) -> None:
        self.path = path
        try:
            self.content = json.loads(path.read_text(encoding="utf-8"))
            self.cells: list[Cell] = list(self.content["cells"])
            self.listings = [listing for cell in self.cells if (listing := find_listing(cell)) is not None]
            self.setup = next((cell for cell in self.cells if source(cell).startswith(EXTENSION)), None)
            self.layer, self.digest, _ = read_setup(source(self.setup) if self.setup else "")
        except ChapterError as error:
            raise ChapterError(f"{path}, {error}") from None
        except (OSError, ValueError, LookupError, TypeError, AttributeError) as error:
            raise ChapterError(f"{path} is no notebook ({error}): write it again with Jupyter") from error

    def store_setup(self, digest: str) -> None:
        """Note in the set-up cell which version of the layer file the listings print."""
        if self.setup is not None and self.layer is not None:
            write_source(self.setup, setup_text(self.layer, digest))

    def write(self) -> None:
        """Replace the file in one step, in the form in which Jupyter writes notebooks."""
        text = notebook_text(self.content)
        with tempfile.NamedTemporaryFile(dir=self.path.parent, delete=False) as file:
            file.write(text.encode())
        os.chmod(file.name, self.path.stat().st_mode)
        os.replace(file.name, self.path)


def notebook_text(content: dict[str, Any]) -> str:
    """A notebook as Jupyter writes it, so that a change of one cell is a small one in the file."""
    return json.dumps(content, indent=1, ensure_ascii=False) + "\n"


def read_setup(text: str) -> tuple[str | None, str | None, str | None]:
    """Layer, digest and version that the line `%chapter ...` of a set-up cell names, each None where it does not."""
    lines = (line.split()[1:] for line in text.split("\n") if line.split()[:1] == ["%chapter"])
    layer, digest, version = [*next(lines, []), None, None, None][:3]
    return layer, digest, version


def setup_text(layer: str, digest: str) -> str:
    """The text of the set-up cell of a chapter that prints a layer file."""
    return f"{EXTENSION}\n%chapter {layer} {digest} {__version__}"


def chapters(folder: Path) -> list[Chapter]:
    """The notebooks in a folder in order; raises ChapterError if there are none, or two print the same layer."""
    found = [Chapter(path) for path in sorted(folder.glob("*.ipynb"))]
    if not found:
        raise ChapterError(f"{folder} has no notebooks: name the folder of the chapters with --from FOLDER")
    first: dict[str, Path] = {}
    for chapter in found:
        if chapter.layer and first.setdefault(chapter.layer, chapter.path) != chapter.path:
            raise ChapterError(f"{first[chapter.layer]} and {chapter.path} both print {chapter.layer}: move one away")
    return found


def source(cell: Cell) -> str:
    """The text of a cell, which notebooks keep as a string or as a list of lines."""
    text = cell["source"]
    return (text if isinstance(text, str) else "".join(text)).replace("\r\n", "\n")


def write_source(cell: Cell, text: str) -> None:
    """Change the text of a cell and keep the form it had."""
    cell["source"] = text if isinstance(cell["source"], str) else re.findall(r".*\n|.+", text)


def find_listing(cell: Cell) -> Listing | None:
    """The listing that a cell holds, if it holds one; raises ChapterError if its first line cannot be read."""
    header, _, body = source(cell).partition("\n")
    if cell["cell_type"] != "code" or not header.startswith("%%layer"):
        return None
    match = HEADER.fullmatch(header)
    if match is None:
        place = f"cell {cell['id']} begins " if "id" in cell else ""
        raise ChapterError(f"{place}{header!r}: write %%layer FILE FIRST-LAST")
    return Listing(cell, match[1], int(match[2]), int(match[3]), body.rstrip("\n").split("\n") if body.strip() else [])
