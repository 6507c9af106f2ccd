"""The traces that Mooncake publishes, by name, and where on this machine they may be."""

from __future__ import annotations

import os
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from mooncake_edu.errors import near
from mooncake_edu.model.folders import cache_folder, user_folder
from mooncake_edu.traces.trace import BLOCK_SIZE, Trace, TraceError, read

VARIABLE = "MOONCAKE_EDU_TRACES"
"""The environment variable that names a folder of traces."""


@dataclass(frozen=True)
class Published:
    """A file of kvcache-ai/Mooncake (Apache-2.0): its path there, its rows, and its bytes and sha256 where known."""

    name: str
    path: str
    rows: int
    note: str
    size: int | None = None
    sha256: str | None = None

    @property
    def file(self) -> str:
        """The file's name."""
        return self.path.rpartition("/")[2]


PUBLISHED = {
    entry.name: entry
    for entry in [
        Published("conversation", "FAST25-release/traces/conversation_trace.jsonl", 12_031, "one hour of a chatbot",
                  3_029_533, "b8cbb061a85206d729d91cdc2981f43c9e0d99209dce588d3af5f7934408b9df"),
        Published("toolagent", "FAST25-release/traces/toolagent_trace.jsonl", 23_608, "one hour of tools and agents"),
        Published("synthetic", "FAST25-release/traces/synthetic_trace.jsonl", 3_993, "made of public data sets",
                  1_136_313, "bd070915a98fc0ed264d7cfef2ce746002eb3076a695ec31ba2674c0111ec131"),
        Published("arxiv", "FAST25-release/arxiv-trace/mooncake_trace.jsonl", 23_608, "of the first paper"),
    ]
}  # fmt: skip
"""The traces that go by a name."""

FIRST_ROWS = "arxiv-1000"
"""The name of the first 1,000 rows of the arXiv trace, which some folders hold as a file of their own."""

FILES = {entry.name: entry.file for entry in PUBLISHED.values()} | {FIRST_ROWS: "mooncake_trace_1000.jsonl"}
"""The file of each name."""


def folders() -> Iterator[Path]:
    """Where traces are looked for: the folder that $MOONCAKE_EDU_TRACES names, beside a checkout, the user's cache.

    Raises TraceError if the variable names no folder, ModelError if it names no user's home.
    """
    if os.environ.get(VARIABLE):
        named = user_folder(VARIABLE, Path)
        if not os.path.isdir(named):
            raise TraceError(f"{VARIABLE} {named}: is no folder: set it to a folder of traces, or to nothing")
        yield named
    yield Path(__file__).parents[3] / "shared" / "traces"
    yield cache()


def cache() -> Path:
    """Where fetched traces are kept; raises ModelError if the variable names no user's home."""
    return cache_folder() / "traces"


def find(name: str) -> Path | None:
    """The file of a published trace on this machine; None where it is not, or where no such trace is published."""
    if name not in FILES:
        return None
    return next((path for folder in folders() if (path := folder / FILES[name]).is_file()), None)


def here(name: str) -> bool:
    """Whether a published trace can be opened by its name."""
    return find(name) is not None or (name == FIRST_ROWS and find("arxiv") is not None)


def open_trace(given: str, block_size: int = BLOCK_SIZE) -> Trace:
    """The trace of a file, or of a published name; raises TraceError saying how to get it if it is not here."""
    if not Path(given).exists() and given not in FILES:
        otherwise = f"give a file, or one of {', '.join(FILES)}"
        raise TraceError(f"trace {given!r} is no file, nor a name: {near(given, FILES, otherwise)}")
    if given not in FILES or Path(given).is_file():
        return read(given, block_size)
    path = find(given)
    if path is None and given == FIRST_ROWS:
        return open_trace("arxiv", block_size).slice(0, 1000)
    if path is None:
        remedy = f"`mooncake-edu trace fetch {given}`"
        raise TraceError(f"trace {given} is not on this machine: run {remedy}, or set {VARIABLE} to its folder")
    return read(path, block_size)
