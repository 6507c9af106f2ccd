"""What a check says: in plain text, and in a notebook with colours and a picture."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from html import escape
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import plotly.graph_objects as go

PASSED, NOT_YET, FAILED = "passed", "not yet", "failed"

LOOKS = {PASSED: ("✓", "#15A772"), NOT_YET: ("…", "#666E7B"), FAILED: ("✗", "#C02C2F")}
"""Sign and colour; the colours are those of the pictures (reused, free, evicted)."""


@dataclass(frozen=True)
class Verdict:
    """What became of one answer.

    `status` is "passed", "not yet" or "failed". `input` is the smallest input found that the answer fails on, `tried`
    how many inputs were given to it, `broken` the rule it breaks, `where` the line of the reader's code that raised,
    `printed` the beginning of what it printed.
    """

    number: str
    title: str
    status: str = NOT_YET
    broken: str = ""
    input: str = ""
    tried: int = 0
    operations: Mapping[str, int] = field(default_factory=dict)
    score: str = ""
    where: str = ""
    printed: str = ""
    note: str = ""
    picture: go.Figure | None = None

    def require(self) -> Verdict:
        """This verdict; raises AssertionError with its text unless the answer passed."""
        if self.status != PASSED:
            raise AssertionError(str(self))
        return self

    def __str__(self) -> str:
        sign, _ = LOOKS[self.status]
        lines = [f"{sign} {self.number} {self.title}: {self.status}. {self._summary()}".rstrip()]
        for name, text, _ in self._facts():
            first, *rest = text.splitlines() or [""]
            lines += [f"    {name + ':':<15} {first}", *(" " * 20 + line for line in rest)]
        return "\n".join(lines)

    __repr__ = __str__

    def _summary(self) -> str:
        inputs = f"{self.tried} input" + "s" * (self.tried != 1)
        if self.status == PASSED and self.score:
            return "It works, and well enough on the unseen inputs."
        if self.status == PASSED:
            return f"Right on all of {inputs}, the smallest first." if self.tried != 1 else f"Right on {inputs}."
        if self.status == NOT_YET:
            return "Write your answer in place of `raise NotImplementedError`, run its cell, then this one again."
        return self.broken

    def _facts(self) -> Iterator[tuple[str, str, bool]]:
        """Name, text, and whether it is code."""
        if self.status == FAILED and self.input:
            yield "smallest input", self.input, True
        if self.where:
            yield "in your code", self.where, True
        if self.operations:
            yield "counted", ", ".join(f"{what}: {count:,}" for what, count in self.operations.items()), False
        if self.score:
            yield "score", self.score, False
        if self.printed:
            yield "it printed", self.printed, True
        if self.note:
            yield "note", self.note, False

    def _repr_html_(self) -> str:
        sign, colour = LOOKS[self.status]
        box = f"border-left:5px solid {colour};padding:.45em .9em;margin:.3em 0;line-height:1.45"
        rows = "".join(
            f'<div style="display:flex;gap:.8em;margin-top:.35em"><span style="flex:0 0 8.5em;opacity:.75">'
            f"{escape(name)}</span>{_cell(text, code)}</div>"
            for name, text, code in self._facts()
        )
        return (
            f'<div role="status" style="{box}">'
            f'<div><strong><span style="color:{colour}">{sign}</span> {self.status}&ensp;{escape(self.number)} '
            f"{escape(self.title)}</strong></div><div>{_ticked(self._summary())}</div>{rows}</div>"
        )

    def _ipython_display_(self) -> None:
        from IPython import display as ipython

        display: Any = ipython.display  # which has no types
        display({"text/plain": str(self), "text/html": self._repr_html_()}, raw=True)
        if self.picture is not None:
            display(self.picture)


def _cell(text: str, code: bool) -> str:
    style = "white-space:pre-wrap;overflow-wrap:anywhere;min-width:0"
    if not code:
        return f'<span style="{style}">{_ticked(text)}</span>'
    return f'<code style="{style};background:rgba(128,134,145,.16);padding:.1em .4em">{escape(text)}</code>'


def _ticked(text: str) -> str:
    """Escaped, with what stands between backticks as code."""
    parts = escape(text).split("`")
    if len(parts) % 2 == 0:
        return escape(text)
    return "".join(f"<code>{part}</code>" if number % 2 else part for number, part in enumerate(parts))


def verdict_from(number: str, title: str, facts: Mapping[str, Any]) -> Verdict:
    """A verdict from what the judging sent; its picture comes as plotly's JSON."""
    facts = dict(facts)
    picture = facts.pop("picture", None)
    if picture is not None:
        import plotly.io as pio

        picture = pio.from_json(picture)
    return Verdict(number, title, picture=picture, **facts)
