"""One meaning, one colour and one pattern everywhere; told apart in light, in dark, in grey and by the colour-blind."""

from __future__ import annotations

from typing import NamedTuple


class Paint(NamedTuple):
    """How something is drawn: its name in legends, a colour, and a pattern that tells it without the colour."""

    label: str
    colour: str
    pattern: str


COMPUTED = Paint("computed", "#1B64EA", "")
REUSED = Paint("reused", "#15A772", "/")
FREE = Paint("free", "#666E7B", ".")
MOVING = Paint("moving", "#C88101", "x")
EVICTED = Paint("evicted", "#C02C2F", "\\")
WAITING = Paint("waiting", "#666E7B", "-")
DECODED = Paint("decoding", "#C054C3", "|")
SERIES = (COMPUTED, REUSED, MOVING, DECODED, EVICTED)
"""For things that only need to differ, such as runs, in this order."""

DASHES = ("solid", "dash", "dot", "dashdot", "longdash")
"""The lines that go with SERIES, so that colour is not all that tells them apart."""

SYMBOLS = ("circle", "square", "diamond", "triangle-up", "cross", "x", "star", "triangle-down", "pentagon", "hexagon")
"""The marks that do so for points."""

PAINTS = (COMPUTED, REUSED, FREE, MOVING, EVICTED, WAITING, DECODED)

LIGHT, DARK = "#FFFFFF", "#14171C"
"""The backgrounds on which everything must be legible."""

INK = "#757B85"
"""Text and axes of a figure that does not know its background; a report sets its own."""

GRID = "rgba(128, 134, 145, 0.28)"
