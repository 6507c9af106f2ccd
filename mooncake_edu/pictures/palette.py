"""One meaning, one colour and one pattern everywhere; told apart in light, in dark, in grey and by the colour-blind."""

from __future__ import annotations

from typing import NamedTuple


class Paint(NamedTuple):
    """How something is drawn: its name in legends, a colour, and a pattern that tells it without the colour."""

    label: str
    colour: str
    pattern: str


COMPUTED = Paint("computed", "#1F77C9", "")
REUSED = Paint("reused", "#0B9A6F", "/")
FREE = Paint("free", "#868B94", ".")
MOVING = Paint("moving", "#C27A00", "x")
EVICTED = Paint("evicted", "#D4500C", "\\")
WAITING = Paint("waiting", "#868B94", "-")
DECODED = Paint("decoding", "#A85BC0", "|")
SERIES = (COMPUTED, REUSED, MOVING, DECODED, EVICTED)
"""For things that only need to differ, such as runs, in this order."""

PAINTS = (COMPUTED, REUSED, FREE, MOVING, EVICTED, WAITING, DECODED)

LIGHT, DARK = "#FFFFFF", "#14171C"
"""The backgrounds on which everything must be legible."""

INK = "#757B85"
"""Text and axes of a figure that does not know its background; a report sets its own."""

GRID = "rgba(128, 134, 145, 0.28)"
