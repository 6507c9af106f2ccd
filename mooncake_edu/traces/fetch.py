"""Published traces brought into the user's cache: resumed where a download broke off, and checked when complete."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from mooncake_edu.errors import UserError, near
from mooncake_edu.model.downloads import Unavailable, download, kept, kept_folder
from mooncake_edu.model.folders import require_space
from mooncake_edu.model.hub import LOCK_TIMEOUT, locked
from mooncake_edu.model.sources import DISK, HUB_TIMEOUT, Progress, quiet_hub, watch
from mooncake_edu.traces.places import PUBLISHED, VARIABLE, Published, cache, find
from mooncake_edu.traces.trace import MOST_BYTES, TraceError, read

BASE = "https://raw.githubusercontent.com/kvcache-ai/Mooncake/main/"
"""What the path of a published file is added to."""

STEP = 1 << 18
"""Bytes after which a download is on the disk; the library's own step is larger than a trace."""

PLAIN = {"accept-encoding": "identity"}
"""Headers for GitHub: ranges count bytes of the file itself, and no token of another service is sent."""


def published(name: str) -> Published:
    """The entry of a name; raises TraceError if no such trace is published."""
    if name not in PUBLISHED:
        raise TraceError(f"no trace {name!r} is published: {near(name, PUBLISHED)}")
    return PUBLISHED[name]


def fetch(name: str, progress: Progress = lambda what, done, total: None, *, again: bool = False) -> Path:
    """The file of a published trace, brought into the cache if it is nowhere here; `again` replaces the cache's.

    Raises Unavailable if it cannot be had now, after which the next fetch goes on where this one ended; TraceError if
    what came is not that trace, ModelError if the cache cannot be written.
    """
    entry = published(name)
    if not again and (here := find(name)):
        return here
    target = cache() / entry.file
    with locked(target, progress, LOCK_TIMEOUT) as waited:
        if not target.is_file() or (again and not waited):
            with kept(kept_folder(target), "main") as here:
                _bring(entry, here, progress)
                (here / entry.file).replace(target)
    return target


def _bring(entry: Published, here: Path, progress: Progress) -> None:
    """Download a file into a folder that keeps its parts, and read it."""
    url = BASE + entry.path
    with _errors(entry), quiet_hub(), _small_steps():
        size = entry.size or _size(url)
        require_space(here, size)
        with watch(f"downloading {entry.file}", here, size, progress):
            download(url, here / entry.file, size, entry.sha256, PLAIN)
    if (rows := len(read(here / entry.file))) != entry.rows:
        raise TraceError(f"trace {entry.name} came with {rows} rows, not {entry.rows}: it was changed at its source")


def _size(url: str) -> int:
    """Bytes of a file whose size is not known; raises what the library raises, and ValueError for too many."""
    from huggingface_hub import get_session

    response = get_session().head(url, headers=PLAIN, timeout=HUB_TIMEOUT, follow_redirects=True)
    response.raise_for_status()
    size = int(response.headers["content-length"])
    if not 0 < size <= MOST_BYTES:
        raise ValueError(f"it has {size} bytes")
    return size


@contextmanager
def _errors(entry: Published) -> Iterator[None]:
    """Turn what the library raises into one line that says what to do without a network."""
    try:
        yield
    except UserError:
        raise
    except Exception as error:  # the library passes on what its own libraries raise
        if isinstance(error, OSError) and error.errno in DISK:
            raise
        reason = f"{type(error).__name__}: {' '.join(str(error).split())[:150]}"
        raise Unavailable(
            f"trace {entry.name} cannot be fetched now ({reason}): fetch it again with a network, set {VARIABLE} to a "
            f"folder with {entry.file}, or make one like it with `mooncake-edu trace generate`"
        ) from error


@contextmanager
def _small_steps() -> Iterator[None]:
    from huggingface_hub import constants

    before, constants.DOWNLOAD_CHUNK_SIZE = constants.DOWNLOAD_CHUNK_SIZE, STEP
    try:
        yield
    finally:
        constants.DOWNLOAD_CHUNK_SIZE = before
