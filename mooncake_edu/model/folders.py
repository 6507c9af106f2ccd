"""Folders of a user, folders that appear whole or not at all, free space asked for first, JSON read with a limit."""

from __future__ import annotations

import json
import os
import shutil
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from mooncake_edu.errors import ModelError

AGAIN = "fetch the model again (`mooncake-edu models fetch NAME --again`)"
"""The remedy for files that are not what they were."""

JSON_LIMIT = 64 << 20
"""Bytes; the index of a checkpoint of several hundred shards stays well below."""


def read_json(path: Path, limit: int = JSON_LIMIT) -> dict[str, Any]:
    """The object in a JSON file of at most `limit` bytes; raises ModelError naming the file if there is none."""
    try:
        with path.open("rb") as file:
            text = file.read(limit + 1)
    except OSError as error:
        raise ModelError(f"{path} cannot be read ({error.strerror}): {AGAIN}") from error
    if len(text) > limit:
        raise ModelError(f"{path} is longer than {limit} bytes, too long for a model: {AGAIN}")
    try:
        value = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise ModelError(f"{path} is not valid JSON: {AGAIN}") from error
    if not isinstance(value, dict):
        raise ModelError(f"{path} holds a {type(value).__name__}, not an object: {AGAIN}")
    return value


CACHE_VARIABLE = "MOONCAKE_EDU_CACHE"
"""The environment variable that moves the cache."""


def cache_folder() -> Path:
    """The user's cache, of models, traces and kernels; raises ModelError if the variable names no user's home."""
    from platformdirs import user_cache_path

    return user_folder(CACHE_VARIABLE, user_cache_path)


def user_folder(variable: str, default: Callable[[str], Path]) -> Path:
    """The folder that an environment variable names, else the project's own in the user's `default` place.

    Raises ModelError if the variable begins with the home of a user who is not there.
    """
    chosen = os.environ.get(variable)
    try:
        return Path(chosen).expanduser() if chosen else default("mooncake_edu")
    except RuntimeError as error:
        raise ModelError(f"{variable} {chosen} is in no user's home: set it to a whole path") from error


@contextmanager
def whole_folder(target: Path, *, replace: bool = False) -> Iterator[Path]:
    """An empty folder that becomes `target` at the end in one rename, or is removed if anything goes wrong.

    It lies in a temporary folder of its own beside `target`, where scratch files may be put next to it. Raises
    ModelError if `target` is not empty (unless it is to be replaced), or the place cannot be written or is full.
    """
    if not replace and target.exists() and (not target.is_dir() or any(target.iterdir())):
        raise ModelError(f"{target} exists already: remove it or choose another folder")
    try:
        target.parent.mkdir(parents=True, exist_ok=True)
        outer = Path(tempfile.mkdtemp(prefix=_part_prefix(target), dir=target.parent))
    except OSError as error:
        raise ModelError(f"{target.parent} cannot be written ({error.strerror}): choose another folder") from error
    try:
        new = outer / "new"
        new.mkdir()
        yield new
        _flush(new)
        if replace and target.exists():
            target.rename(outer / "old")
        new.rename(target)
    except OSError as error:
        if error.errno is None:  # not from the file system
            raise
        raise ModelError(
            f"{target} cannot be written ({error.strerror}): free space or choose another folder"
        ) from error
    finally:
        shutil.rmtree(outer, ignore_errors=True)


def sweep(target: Path) -> None:
    """Removes what killed processes left beside `target`; only for whoever holds the lock on it."""
    for outer in target.parent.glob(f"{_part_prefix(target)}*"):
        shutil.rmtree(outer, ignore_errors=True)


def require_space(folder: Path, needed: int) -> None:
    """Raises ModelError unless the disk of `folder` has `needed` bytes free."""
    free = shutil.disk_usage(folder).free
    if free < needed:
        need, have = f"{needed / 1e6:,.0f} MB", f"{free / 1e6:,.0f} MB"
        raise ModelError(f"{need} are needed in {folder.parent.parent}, {have} are free: free space, or set "
                         f"{CACHE_VARIABLE} to a folder on another disk")  # fmt: skip


def size_of(folder: Path) -> int:
    """Bytes of all files in a folder, which others may be changing."""
    total = 0
    for place, _, names in os.walk(folder):
        for name in names:
            try:
                total += os.lstat(os.path.join(place, name)).st_size
            except OSError:
                continue  # moved or removed meanwhile
    return total


def _part_prefix(target: Path) -> str:
    return f".{target.name}.part-"


def _flush(folder: Path) -> None:
    """Forces the files of a folder to the disk, so that a rename that survives a power cut names whole files."""
    for path in [*folder.rglob("*"), folder]:
        descriptor = os.open(path, os.O_RDONLY)
        try:
            os.fsync(descriptor)
        finally:
            os.close(descriptor)
