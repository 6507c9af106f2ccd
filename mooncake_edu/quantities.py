"""Numbers with a unit, and objectives, as people write them: "64 KiB", "800 Gbit/s", "10x"."""

from __future__ import annotations

import math
import re
from dataclasses import dataclass
from typing import Protocol

MAX_BYTES = 2**60
_PREFIXES = {"": 1, "k": 10**3, "K": 10**3, "M": 10**6, "G": 10**9, "T": 10**12, "P": 10**15}
_PREFIXES |= {"Ki": 2**10, "Mi": 2**20, "Gi": 2**30, "Ti": 2**40}
_QUANTITY = re.compile(r"(\d+(?:\.\d+)?)\s*([kKMGTP]?i?)(B|B/s|bit/s|FLOP/s)")


@dataclass(frozen=True, slots=True)
class Slo:
    """A service-level objective: `value` seconds, or with `multiple` that many times what a lone request takes."""

    value: float
    multiple: bool = False

    def seconds(self, unloaded: float) -> float:
        """The objective in seconds, where a request alone on the same hardware takes `unloaded` seconds."""
        return self.value * unloaded if self.multiple else self.value

    def __str__(self) -> str:
        return f"{self.value:g}x" if self.multiple else f"{self.value:g} s"


class Reader(Protocol):
    """Turns what a file says into a value; raises ValueError, in the words of `allowed`, if it cannot."""

    allowed: str

    def __call__(self, given: object) -> object: ...


class SloReader:
    """Reads seconds, or a string such as "10x", into an Slo."""

    allowed = 'seconds above 0 and at most 1000000, or "10x" for a multiple of what a lone request takes'

    def __call__(self, given: object) -> Slo:
        """The objective; raises ValueError if `given` is neither form."""
        if isinstance(given, Slo):
            return given
        multiple = isinstance(given, str) and given.endswith("x")
        value = _number(given[:-1] if isinstance(given, str) and multiple else given)
        if (isinstance(given, str) and not multiple) or not 0 < value <= 1e6:
            raise ValueError(self.allowed)
        return Slo(float(value), multiple)


@dataclass(frozen=True)
class Quantity:
    """Reads a number of `unit`, or a string with that unit such as `example`, within `low` to `high`."""

    unit: str
    example: str
    low: int
    high: int

    @property
    def allowed(self) -> str:
        """What it accepts, in words."""
        return f'{self.low} to {self.high} {self.unit}, as a number or a string such as "{self.example}"'

    def __call__(self, given: object) -> int | float:
        """The plain number of units, whole where the unit is a byte; raises ValueError if `given` is none."""
        value = self._parse(given) if isinstance(given, str) else _number(given)
        if not self.low <= value <= self.high or (self.unit == "B" and value != int(value)):
            raise ValueError(self.allowed)
        return int(value) if self.unit == "B" else float(value)

    def _parse(self, text: str) -> float:
        match = _QUANTITY.fullmatch(text.strip())
        if match is None:
            return math.nan
        number, prefix, unit = match.groups()
        value = float(number) * _PREFIXES.get(prefix, math.nan)
        if unit == "bit/s" and self.unit == "B/s":
            return value / 8
        return value if unit == self.unit else math.nan


def counted(number: int, thing: str) -> str:
    """So many of a thing in words, "1 block" or "2 blocks"."""
    return f"{number:,} {thing}" + "s" * (number != 1)


def _number(given: object) -> int | float:
    """`given` as a number, or not-a-number, which is in no range, where it is none."""
    if isinstance(given, str):
        try:
            return float(given)
        except ValueError:
            return math.nan
    return given if isinstance(given, int | float) and not isinstance(given, bool) else math.nan
