"""A layer file with its edited listings, live: its text, and the objects that follow it."""

from __future__ import annotations

import functools
import importlib
import linecache
import traceback
from pathlib import Path

from mooncake_edu import __version__, layers
from mooncake_edu.course.cells import Listing
from mooncake_edu.course.graft import Graft
from mooncake_edu.errors import UserError

Edits = dict[tuple[int, int], list[str]]
"""Edited listings: the first and the last line that each replaces, and the lines it has instead."""


SHOWN = 300
"""Characters of an error's message that are shown."""


class EditError(UserError):
    """A listing cannot be run as it stands; the layer is as it was."""


class LiveLayer:
    """One layer in this process."""

    def __init__(self, layer: str) -> None:
        own = layers.path(layer)
        module = importlib.import_module(f"mooncake_edu.{layer}")
        self.file = Path(module.__file__ or own)
        self.printed = layers.read(self.file)
        self.edits: Edits = {}
        self._is_own = self.file == own
        self._lines = self.printed.removesuffix("\n").split("\n")
        self._text = self.printed
        self._names = vars(module)
        self._graft = Graft(module)

    def run(self, listing: Listing, wanted: tuple[str, str] | None) -> tuple[dict[str, object], list[str]]:
        """Make the layer what a listing says; returns the names it defines with their objects, and what to tell.

        `wanted` are digest and version of what the chapter was printed from. Raises EditError, and changes nothing,
        if the listing is not as printed and cannot be used.
        """
        edits = {place: lines for place, lines in self.edits.items() if place != (listing.start, listing.stop)}
        for first, last in edits:
            if first <= listing.stop and listing.start <= last:
                raise EditError(f"{listing.place} overlaps the edited lines {first}-{last}: run those as printed first")
        if self._lines[listing.start - 1 : listing.stop] != listing.lines:
            self._refuse_other_version(listing, wanted)
            self._refuse_wrong_lines(listing)
            edits[listing.start, listing.stop] = listing.lines
        was_edited = (listing.start, listing.stop) in self.edits
        notes = self._change(edits, listing) if edits != self.edits else []
        start = listing.start + _shift(edits, listing.start)
        if (listing.start, listing.stop) in edits:
            notes.insert(0, f"{listing.place} differs from the package's, and is live. {self._edited()}")
            notes += [
                f"Line {line - start + 2} of this cell uses {name}, which is defined further down: live it is there"
                f" already, but a {listing.layer}.py with this listing could not be imported."
                for line, name in layers.too_early(self._text)
                if start <= line < start + len(listing.lines)
            ]
        elif was_edited:
            notes.insert(0, f"{listing.place} is the package's again. {self._edited()}")
        names = layers.names(self._text, start, start + len(listing.lines) - 1)
        return {name: self._names[name] for name in names if name in self._names}, notes

    def _refuse_other_version(self, listing: Listing, wanted: tuple[str, str] | None) -> None:
        here = layers.digest(self.printed)
        if wanted is None:
            raise EditError(f"{listing.place} is not as printed: run the set-up cell first, which says of what version")
        if wanted[0] == here:
            return
        if not self._is_own:
            raise EditError(f"{listing.place} is not that of {self.file}: unset MOONCAKE_EDU_LAYERS to edit listings")
        raise EditError(
            f"{listing.place} is not that of this package, {__version__} ({here}); to edit listings, take the one"
            f" that the chapter was printed from, {wanted[1]} ({wanted[0]}): pip install mooncake-edu=={wanted[1]}"
        )

    def _refuse_wrong_lines(self, listing: Listing) -> None:
        start, stop, count = listing.start, listing.stop, len(self._lines)
        if not 1 <= start <= stop <= count:
            raise EditError(f"{listing.place}: the file has lines 1-{count}: write the numbers as they were printed")
        starts = layers.starts(self.printed)
        after = next((number for number in range(stop + 1, count + 1) if self._lines[number - 1].strip()), None)
        if start not in starts or after not in starts | {None}:
            raise EditError(f"{listing.place} cuts a statement: write the numbers as they were printed")

    def _change(self, edits: Edits, listing: Listing) -> list[str]:
        text = compose(self._lines, edits)
        try:
            notes = self._graft.run(self._text, text)
        except Exception as error:
            raise EditError(self._explain(error, listing, edits)) from error
        self._text, self.edits = text, edits
        # no time of change, so that nobody looks into the file again
        lines = [line + "\n" for line in text.removesuffix("\n").split("\n")]
        linecache.cache[str(self.file)] = (len(text), None, lines, str(self.file))
        return notes

    def _edited(self) -> str:
        places = ", ".join(f"{first}-{last}" for first, last in sorted(self.edits))
        return f"Edited listings: {places or 'none'}."

    def _explain(self, error: Exception, listing: Listing, edits: Edits) -> str:
        """One line on an error: in which line of the cell it is, if it is there."""
        frames = traceback.extract_tb(error.__traceback__)
        numbers = [frame.lineno or 0 for frame in frames if frame.filename == str(self.file)]
        if isinstance(error, SyntaxError):
            numbers = [error.lineno or 0]
        what = error.msg if isinstance(error, SyntaxError) else str(error)
        start = listing.start + _shift(edits, listing.start)
        inside = [number for number in numbers if start <= number < start + len(listing.lines)]
        where = f"line {inside[-1] - start + 2} of this cell" if inside else f"line {[0, *numbers][-1]} of the file"
        return f"{type(error).__name__} in {where}: {' '.join(what.split())[:SHOWN]}; {listing.layer}.py is as it was"


@functools.cache
def live_layer(layer: str) -> LiveLayer:
    """The layer in this process, which all shells share as they share its module."""
    return LiveLayer(layer)


def compose(lines: list[str], edits: Edits) -> str:
    """The text of a file whose edited listings stand where the printed ones did."""
    parts: list[str] = []
    done = 0
    for (first, last), new in sorted(edits.items()):
        parts += lines[done : first - 1] + new
        done = last
    return "\n".join(parts + lines[done:]) + "\n"


def _shift(edits: Edits, line: int) -> int:
    """How many lines further down a printed line stands, for the edits above it."""
    return sum(len(new) - (last - first + 1) for (first, last), new in edits.items() if last < line)
