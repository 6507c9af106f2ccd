"""Folders that appear whole or not at all, and small JSON files read with a limit."""

from __future__ import annotations

import json
import os
import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from mooncake_edu.errors import ModelError

JSON_LIMIT = 64 << 20
"""Bytes; the index of a checkpoint of several hundred shards stays well below."""

PART = ".part-"
"""What the name of a folder contains while it is being written."""


def read_json(path: Path, limit: int = JSON_LIMIT) -> dict[str, Any]:
    """The object in a JSON file of at most `limit` bytes; raises ModelError naming the file if there is none."""
    try:
        with path.open("rb") as file:
            text = file.read(limit + 1)
    except OSError as error:
        raise ModelError(f"{path} cannot be read ({error.strerror}): fetch the model again") from error
    if len(text) > limit:
        raise ModelError(f"{path} is longer than {limit} bytes: it is no file of a model, fetch it again")
    try:
        value = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise ModelError(f"{path} is not valid JSON: fetch the model again") from error
    if not isinstance(value, dict):
        raise ModelError(f"{path} holds a {type(value).__name__}, not an object: fetch the model again")
    return value


@contextmanager
def whole_folder(target: Path) -> Iterator[Path]:
    """A temporary folder beside `target` that is renamed to it at the end, or removed if anything goes wrong.

    Raises ModelError if `target` exists and is not empty, or if the place cannot be written.
    """
    if target.exists() and (not target.is_dir() or any(target.iterdir())):
        raise ModelError(f"{target} exists already: remove it or choose another folder")
    try:
        target.parent.mkdir(parents=True, exist_ok=True)
        part = Path(tempfile.mkdtemp(prefix=f".{target.name}{PART}", dir=target.parent))
    except OSError as error:
        raise ModelError(f"{target.parent} cannot be written ({error.strerror}): choose another folder") from error
    try:
        yield part
        part.chmod(0o755)  # mkdtemp makes it private; a finished model is like any other folder
        flush(part)
        os.replace(part, target)
    finally:
        shutil.rmtree(part, ignore_errors=True)


def flush(folder: Path) -> None:
    """Forces the files of a folder to the disk, so that a rename that survives a power cut names whole files."""
    for path in [*folder.rglob("*"), folder]:
        descriptor = os.open(path, os.O_RDONLY)
        try:
            os.fsync(descriptor)
        finally:
            os.close(descriptor)
