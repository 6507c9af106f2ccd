"""What every bench reports, as a table to read and as JSON to keep."""

from __future__ import annotations

import os
import platform
from pathlib import Path
from typing import TYPE_CHECKING, Any

import psutil
from pydantic import BaseModel, ConfigDict, Field, ValidationError

from mooncake_edu.errors import UserError
from mooncake_edu.events import write_whole

if TYPE_CHECKING:
    from rich.console import Console
    from rich.table import Table


PAGE = 132
"""Characters a line where no terminal says how many."""


class BenchError(UserError):
    """A bench cannot be run as asked, or its results cannot be kept."""


class Row(BaseModel):
    """One measured figure in `unit`, the peers' figures, and `limit`, the best that `limit_is` would allow."""

    model_config = ConfigDict(extra="forbid", frozen=True, strict=True, allow_inf_nan=False)

    what: str = Field(min_length=1)
    unit: str = Field(min_length=1)
    ours: float = Field(gt=0)
    peers: dict[str, float] = {}
    limit: float | None = Field(default=None, gt=0)
    limit_is: str = ""
    higher_is_better: bool

    def advantage(self, peer: str) -> float:
        """How many times better ours is than the peer; below 1 it is worse."""
        return self._better(self.ours, self.peers[peer])

    def share(self) -> float | None:
        """How good ours is beside the limit: below 1 it falls short of it, above 1 it is better."""
        return None if self.limit is None else self._better(self.ours, self.limit)

    def _better(self, ours: float, other: float) -> float:
        return ours / other if self.higher_is_better else other / ours


class Report(BaseModel):
    """All rows of one bench on one machine; `notes` says what the figures rest on."""

    model_config = ConfigDict(extra="forbid", frozen=True, strict=True, allow_inf_nan=False)

    bench: str = Field(min_length=1)
    machine: dict[str, Any]
    rows: list[Row]
    notes: list[str] = []

    @classmethod
    def load(cls, path: Path) -> Report:
        """Read a report; raises BenchError if the file cannot be read or is none."""
        try:
            return cls.model_validate_json(path.read_bytes())
        except OSError as error:
            raise BenchError(f"{path}: cannot be read ({error.strerror}): give a file written by --json") from None
        except ValidationError as error:
            first = error.errors()[0]
            key = ".".join(map(str, first["loc"]))
            raise BenchError(f"{path}: {key}: {first['msg']}: give a file written by --json") from None

    def save(self, path: Path) -> None:
        """Write the whole report at once; raises UserError if it cannot be written."""
        write_whole(path, (self.model_dump_json(indent=2) + "\n").encode())

    def table(self) -> Table:
        """The rows to print: ours, the peers and how many times better ours is, and how good it is beside the limit."""
        from rich.table import Table

        peers = sorted({peer for row in self.rows for peer in row.peers})
        table = Table(title=f"bench {self.bench}", header_style="bold", box=None)
        table.add_column("")
        table.add_column("unit", no_wrap=True)
        for name in ["ours", *peers, "limit", "as good as limit"]:
            table.add_column(name, justify="right", no_wrap=True)
        for row in self.rows:
            share = row.share()
            figures = [_compared(row, peer) for peer in peers]
            limit = ["", ""] if row.limit is None or share is None else [figure(row.limit), f"{share:.0%}"]
            table.add_row(row.what, row.unit, figure(row.ours), *figures, *limit)
        return table

    def show(self) -> None:
        """Print the table and the remarks, in a width of its own where there is no terminal."""
        console = page()
        console.print(self.table())
        for remark in self.remarks():
            console.print(remark, highlight=False)

    def remarks(self) -> list[str]:
        """What to print below the table: what each limit is, and the notes."""
        meanings: dict[str, list[str]] = {}
        for row in self.rows:
            meanings.setdefault(row.limit_is, []).append(row.what)
        limits = [f"limit of {'; '.join(what)}: {limit_is}" for limit_is, what in meanings.items() if limit_is]
        return [*limits, *self.notes]


def require_writable(path: Path | None, option: str = "--json") -> None:
    """Refuse, before anything is measured, a file that could not be written in the end; raises BenchError."""
    if path is None:
        return
    other = path.exists() and not path.is_file()  # a folder or a device
    if other or not path.parent.is_dir() or not os.access(path.parent, os.W_OK):
        raise BenchError(f"{option} {path}: is no file that can be written: make its folder, or choose another")


def machine(threads: int, versions: dict[str, str]) -> dict[str, Any]:
    """What the figures depend on: processor, cores, threads used, bytes of memory, load by others, versions."""
    return {
        "cpu": cpu_name(),
        "cores": psutil.cpu_count(logical=False) or psutil.cpu_count() or 1,
        "threads": threads,
        "memory": psutil.virtual_memory().total,
        "load": psutil.getloadavg()[0],
        "system": f"{platform.system()} {platform.release()}",
        "versions": {"python": platform.python_version(), **versions},
    }


def cpu_name() -> str:
    """The processor's name as the system gives it."""
    try:
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines()
    except OSError:
        lines = []
    names = [line.split(":", 1)[1].strip() for line in lines if line.startswith("model name")]
    return names[0] if names else platform.processor() or platform.machine()


def usable_cores() -> int:
    """How many cores this process may use: the number of threads that benches give to everybody."""
    physical = psutil.cpu_count(logical=False) or 1
    allowed = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else physical
    return min(physical, allowed)


def _compared(row: Row, peer: str) -> str:
    if peer not in row.peers:
        return "-"
    advantage = row.advantage(peer)
    colour = "green" if advantage >= 1 else "red"
    return f"{figure(row.peers[peer])} [{colour}]({advantage:.2f} x)[/{colour}]"


def page() -> Console:
    """Where tables are printed: on the terminal, or in a width of its own where there is none."""
    from rich.console import Console

    console = Console()
    return console if console.is_terminal else Console(width=PAGE)


def figure(value: float | None) -> str:
    """A number in a table, to three digits or as a whole one; a dash where there is none."""
    if value is None or value != value:
        return "-"
    return f"{value:,.0f}" if isinstance(value, int) or abs(value) >= 1000 else f"{value:.3g}"
