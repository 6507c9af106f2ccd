"""The weave of chapters and layer files: every line of a layer file stands in one listing of its chapter.

The package is the only source: listings are rewritten from it, never the other way.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterator
from difflib import SequenceMatcher
from pathlib import Path

from mooncake_edu import layers
from mooncake_edu.course.cells import Cell, Chapter, ChapterError, Listing, setup_text, source, write_source

MOST_LINES = 40
"""Lines of a listing, so that it fits on a screen."""


def check(chapter: Chapter) -> list[str]:
    """What is wrong with the weave of a chapter, one line a finding."""
    return [f"{chapter.path.name}, {finding}" for finding in _findings(chapter)]


def _findings(chapter: Chapter) -> Iterator[str]:
    if chapter.layer is None:
        yield from (f"{listing}: name its layer in the set-up cell" for listing in chapter.listings)
        return
    text = layers.read(layers.path(chapter.layer))
    if source(chapter.setup or {"source": ""}) != setup_text(chapter.layer, layers.digest(text)):
        yield f"set-up cell: it is not of this {chapter.layer}.py: run `mooncake-edu course weave fix`"
    lines, starts = text.removesuffix("\n").split("\n"), layers.starts(text)
    before = dict(zip((id(cell) for cell in chapter.cells[1:]), chapter.cells, strict=False))
    done = 0
    for listing in chapter.listings:
        yield from (f"{listing}: {finding}" for finding in _listing_findings(listing, chapter.layer, lines, starts))
        if listing.start <= done:
            yield f"{listing}: it begins before line {done} is over, where the listing before it ends"
        yield from _uncovered(lines, done, listing.start - 1)
        if not is_prose(before.get(id(listing.cell))):
            yield f"{listing}: no prose leads it: write a markdown cell before it"
        done = max(done, listing.stop)
    yield from _uncovered(lines, done, len(lines))


def _listing_findings(listing: Listing, layer: str, lines: list[str], starts: set[int]) -> Iterator[str]:
    if listing.layer != layer:
        yield f"this chapter prints {layer}"
    if source(listing.cell) != listing.text or listing.lines != lines[listing.start - 1 : listing.stop]:
        yield f"its text is not that of {layer}.py: run `mooncake-edu course weave fix`"
    if listing.start not in starts:
        yield "it does not begin where a statement does"
    if len(listing.lines) > MOST_LINES:
        yield f"it has {len(listing.lines)} lines, at most {MOST_LINES} fit: split it"


def _uncovered(lines: list[str], first: int, last: int) -> Iterator[str]:
    """A finding for the lines from `first` (from 0) up to `last` that are not blank though no listing prints them."""
    missed = [number for number in range(first + 1, last + 1) if lines[number - 1]]
    if missed:
        yield f"lines {missed[0]}-{missed[-1]}: they stand in no listing"


def is_prose(cell: Cell | None) -> bool:
    """Whether a cell says something in words; a heading alone does not."""
    if cell is None or cell["cell_type"] != "markdown":
        return False
    return any(line.strip() and not line.startswith("#") for line in source(cell).split("\n"))


def fix(chapter: Chapter) -> bool:
    """Rewrite listings and set-up cell from the package; returns whether that changes anything.

    If the package's text is another than was printed, borders move with it. Raises ChapterError, and changes
    nothing, if a listing would have no line left.
    """
    before = [source(cell) for cell in chapter.cells]
    if chapter.layer is not None:
        text = layers.read(layers.path(chapter.layer))
        digest = layers.digest(text)
        lines = text.removesuffix("\n").split("\n")
        borders = [(listing.start, listing.stop) for listing in chapter.listings]
        if chapter.digest not in (None, digest):
            borders = move(chapter.listings, lines, sorted(layers.starts(text)))
        for listing, (start, stop) in zip(chapter.listings, borders, strict=True):
            if listing.layer != chapter.layer:
                raise ChapterError(
                    f"{chapter.path.name}, {listing}: this chapter prints {chapter.layer}: mend its header"
                )
            if not 1 <= start <= stop <= len(lines):
                raise ChapterError(f"{chapter.path.name}, {listing}: {chapter.layer}.py has lines 1-{len(lines)}")
            listing.start, listing.stop, listing.lines = start, stop, lines[start - 1 : stop]
            write_source(listing.cell, listing.text)
        chapter.store_setup(digest)
    return before != [source(cell) for cell in chapter.cells]


def move(listings: list[Listing], lines: list[str], starts: list[int]) -> list[tuple[int, int]]:
    """Where the listings stand after their text became `lines`, whose statements begin at `starts`.

    A listing begins with the statement that holds its first line, and ends before the next listing; so what is new,
    be it a whole function, joins the listing before it: whoever wants a cell of its own for it adds one, with the
    numbers of its lines, and prose. Raises ChapterError if that leaves a listing without lines.
    """
    numbers = [number for number, line in enumerate(lines, 1) if line.strip()]
    old: list[str] = []
    firsts: list[int] = []
    for listing in listings:
        firsts.append(len(old))
        old += [line for line in listing.lines if line.strip()]
    matcher = SequenceMatcher(None, old, [lines[number - 1] for number in numbers], autojunk=False)
    begins = [_moved(first, matcher) for first in firsts]
    first_lines = [nearest(starts, numbers[begin]) if begin < len(numbers) else len(lines) + 1 for begin in begins]
    first_lines = [numbers[0], *first_lines[1:], len(lines) + 1]
    borders = []
    for listing, start, end in zip(listings, first_lines, first_lines[1:], strict=False):
        inside = [number for number in numbers if start <= number < end]
        if not inside:
            raise ChapterError(f"{listing} would be empty, its lines are gone: remove the cell or change its lines")
        borders.append((start, inside[-1]))
    return borders


def _moved(index: int, matcher: SequenceMatcher[str]) -> int:
    """Where the old line `index` is among the new ones, or what took its place."""
    for tag, old_start, old_end, new_start, new_end in matcher.get_opcodes():
        if old_start <= index < old_end:
            return new_start + index - old_start if tag == "equal" else min(new_start + index - old_start, new_end)
    raise AssertionError(f"line {index} is none of the old ones")


def nearest(starts: list[int], line: int) -> int:
    """The start of a statement that is nearest to a line, the earlier one of two."""
    place = bisect_left(starts, line)
    return min(starts[max(place - 1, 0) : place + 1], key=lambda start: (abs(start - line), start))


def tangle(listings: list[Listing]) -> str:
    """The text of a layer file from its listings alone, as they stand, edited or not."""
    text, done = "", 0
    for listing in listings:
        if listing.start <= done:
            raise ChapterError(f"{listing} begins before line {done} is over: run `mooncake-edu course weave check`")
        text += "\n" * (listing.start - done - 1) + "\n".join(listing.lines) + "\n"
        done = listing.stop
    return text


def write_layers(found: list[Chapter], out: Path) -> list[Path]:
    """Write the layer files of chapters into a folder; raises ChapterError, and writes nothing, if one is there."""
    files = {out / f"{chapter.layer}.py": tangle(chapter.listings) for chapter in found if chapter.layer}
    if not files:
        raise ChapterError("no chapter here prints a layer: name the folder of the chapters with --from FOLDER")
    for file in files:
        if file.exists():
            raise ChapterError(f"{file} is there already: name another folder, or move it away")
    out.mkdir(parents=True, exist_ok=True)
    for file, text in files.items():
        with file.open("x", encoding="utf-8", newline="\n") as stream:
            stream.write(text)
    return list(files)
