"""A real IPython shell in a process of its own, so that what its cells do to the package stays there.

Run as a script, it reads cells from standard input and writes what became of each, one JSON value a line.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType

from mooncake_edu import __version__, layers

ROOT = Path(__file__).parents[2]


@dataclass(frozen=True)
class Ran:
    """What became of a cell: what it printed, and the name and text of its error, both empty without one."""

    out: str
    error: str
    said: str


class Shell:
    """The shell, seen from the test; what it needs from its environment may be given."""

    def __init__(self, **environment: str) -> None:
        self._process = subprocess.Popen(
            [sys.executable, __file__],
            cwd=ROOT,
            env=os.environ | {"OMP_NUM_THREADS": "1", "PYTHONPATH": str(ROOT)} | environment,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )

    def __enter__(self) -> Shell:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self._process.communicate()

    def run(self, cell: str) -> Ran:
        """Run one cell."""
        assert self._process.stdin and self._process.stdout
        print(json.dumps(cell), file=self._process.stdin, flush=True)
        return Ran(**json.loads(self._process.stdout.readline()))

    def show(self, expression: str) -> str:
        """What printing an expression prints; fails if it cannot be evaluated."""
        ran = self.run(f"print({expression})")
        assert not ran.error, ran
        return ran.out.rstrip("\n")


def setup(layer: str = "kvcache", version: str = __version__, digest: str = "") -> str:
    """The set-up cell of a chapter, by default of this package's."""
    digest = digest or layers.digest(layers.read(layers.path(layer)))
    return f"%load_ext mooncake_edu.course\n%chapter {layer} {digest} {version}"


@dataclass(frozen=True)
class Printed:
    """A listing of a layer, found by its first line and the first line after it."""

    layer: str
    start: int
    stop: int
    text: str

    @property
    def place(self) -> str:
        """As a header and the notes name it."""
        return f"{self.layer} {self.start}-{self.stop}"

    def cell(self, old: str = "", new: str = "") -> str:
        """The cell, with a piece of its text replaced."""
        assert old in self.text
        return f"%%layer {self.place}\n{self.text.replace(old, new) if old else self.text}"


def printed(first: str, after: str, layer: str = "kvcache") -> Printed:
    """The listing from the line that begins with `first` up to the one that begins with `after`."""
    lines = layers.read(layers.path(layer)).split("\n")
    start = next(number for number, line in enumerate(lines, 1) if line.startswith(first))
    stop = next((n for n, line in enumerate(lines, 1) if n > start and line.startswith(after)), len(lines) + 1) - 1
    while not lines[stop - 1].strip():
        stop -= 1
    return Printed(layer, start, stop, "\n".join(lines[start - 1 : stop]))


def serve() -> None:
    """Run the cells that come in."""
    from IPython.core.interactiveshell import InteractiveShell
    from IPython.utils.capture import capture_output

    shell = InteractiveShell.instance(colors="nocolor")
    for line in sys.stdin:
        with capture_output() as captured:
            result = shell.run_cell(json.loads(line))
        error = result.error_in_exec or result.error_before_exec
        ran = Ran(captured.stdout, type(error).__name__ if error else "", str(error or ""))
        print(json.dumps(vars(ran)), flush=True)


if __name__ == "__main__":
    serve()
