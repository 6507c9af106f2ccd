"""Files of a repository at the hub, which outlive an interruption: the next download goes on where it ended."""

from __future__ import annotations

import hashlib
import importlib
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from mooncake_edu.errors import ModelError
from mooncake_edu.model.folders import size_of

PARTIAL = ".part"


class Unavailable(ModelError):
    """This source does not have the model now; another may."""


def kept_folder(target: Path) -> Path:
    """Where the downloads for the model folder `target` lie until they are complete."""
    return target.with_name(f".{target.name}.download")


@contextmanager
def kept(folder: Path, commit: str) -> Iterator[Path]:
    """A folder in `folder` for the files of a commit, with those that an interrupted download left there.

    It is removed at the end, and by every error but Unavailable: what came from a source that broke off, or until
    somebody pressed Ctrl-C, is good.
    """
    for other in folder.glob("*"):
        if other.name != commit:
            shutil.rmtree(other, ignore_errors=True)
    place = folder / commit
    place.mkdir(parents=True, exist_ok=True)
    try:
        yield place
    except Exception as error:
        if not isinstance(error, Unavailable) or not size_of(folder):
            shutil.rmtree(folder, ignore_errors=True)
        raise
    shutil.rmtree(folder, ignore_errors=True)


def download(url: str, target: Path, size: int, sha256: str | None, headers: dict[str, str] | None = None) -> None:
    """One file of the hub, of `size` bytes, from where an earlier download of it ended.

    Without `headers` they are the hub's, the user's token among them. A connection that breaks is taken up again where
    it broke, several times. Raises Unavailable if what came is not what the hub says it is, and what the hub's library
    raises.
    """
    from huggingface_hub.file_download import http_get

    utils: Any = importlib.import_module("huggingface_hub.utils")  # which does not tell mypy what it exports
    if target.exists():
        return
    part = target.with_name(target.name + PARTIAL)
    with part.open("ab") as file:
        if file.tell() > size:
            file.truncate(0)
        http_get(url, file, resume_size=file.tell(), headers=utils.build_hf_headers() if headers is None else headers,
                 expected_size=size)  # fmt: skip
    if sha256 is not None:
        with part.open("rb") as file:
            found = hashlib.file_digest(file, "sha256").hexdigest()
        if found != sha256:
            part.unlink()
            raise Unavailable(f"{target.name} came with sha256 {found}, the hub says {sha256}: fetch it again")
    part.rename(target)
