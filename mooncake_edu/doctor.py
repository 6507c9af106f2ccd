"""What this machine has for each part of the project, one line a fact, and the command that mends what is missing."""

from __future__ import annotations

import importlib.util
import json
import os
import platform
import re
import shutil
import sys
import tempfile
from collections.abc import Callable
from dataclasses import asdict, dataclass
from enum import StrEnum
from importlib import metadata
from pathlib import Path

import psutil
import typer
from rich.console import Console
from rich.text import Text

from mooncake_edu import layers

PYTHONS = ((3, 11), (3, 13))
"""Oldest and newest Python that the project declares."""

REQUIRED_MEMORY = 5 * 2**29  # SmolLM2-135M in float32 and laid out for few rows, torch, and 1 GiB of KVCache
REQUIRED_DISK = 2**30

KVCACHE_TOKEN_BYTES = 2 * 30 * 3 * 64 * 4
"""Bytes of KVCache a token of SmolLM2-135M: K and V, 30 layers, 3 KV heads of 64 channels, float32."""

EXTRAS = {
    "gguf": ("gguf", "sentencepiece", "accelerate"),
    "notebooks": ("jupyterlab", "ipywidgets"),
    "book": ("sphinx", "myst_nb", "sphinx_book_theme", "latex2mathml"),
    "serve": ("fastapi", "uvicorn"),
    "cluster": ("ray",),
    "rdma": ("pyverbs",),
    "test": ("pytest", "pytest_timeout", "xdist", "hypothesis", "nbmake", "playwright", "ruff", "mypy"),
}
"""What each extra of the package brings, by the name it is imported under."""


class Status(StrEnum):
    """How a fact stands."""

    OK = "OK"
    MISSING = "missing"  # the project cannot do without
    OPTIONAL = "optional"  # only the part that the fact names needs it


@dataclass(frozen=True, slots=True)
class Fact:
    """One thing looked at: how it stands, what was found, and what to do about it (empty if nothing)."""

    name: str
    status: Status
    found: str
    remedy: str = ""


def main(as_json: bool = typer.Option(False, "--json", help="Print one JSON object instead of lines.")) -> None:
    """Check this machine; exits with 1 if something is missing that the project cannot do without."""
    facts = examine()
    healthy = all(fact.status is not Status.MISSING for fact in facts)
    if as_json:
        print(json.dumps({"healthy": healthy, "facts": [asdict(fact) for fact in facts]}, indent=2))
    else:
        show(facts, Console(highlight=False, soft_wrap=True))
    raise typer.Exit(0 if healthy else 1)


def examine() -> list[Fact]:
    """Every fact about this machine, required ones first."""
    checks: tuple[Callable[[], Fact], ...] = (_python, _torch, _transformers, _layers, _models, _memory, _disk)
    optional: tuple[Callable[[], Fact], ...] = (_kernels, _gpu, _rdma, _ray, _slurm)
    return [
        *(check() for check in checks),
        *(extra(name) for name in EXTRAS),
        *(check() for check in optional),
    ]


def show(facts: list[Fact], console: Console) -> None:
    """Print one line a fact, its status in words as well as in colour."""
    colours = {Status.OK: "green", Status.MISSING: "bold red", Status.OPTIONAL: "yellow"}
    for fact in facts:
        line = Text(f"{fact.status.value:8} ", style=colours[fact.status])
        line.append(f"{fact.name:16} {fact.found}", style="default")
        if fact.remedy:
            line.append(f" -> {fact.remedy}", style="bold default")
        console.print(line)


def extra(name: str) -> Fact:
    """Whether everything that an extra brings can be imported."""
    absent = [module for module in EXTRAS[name] if importlib.util.find_spec(module) is None]
    if not absent:
        return Fact(f"extra {name}", Status.OK, ", ".join(EXTRAS[name]))
    return Fact(f"extra {name}", Status.OPTIONAL, f"without {', '.join(absent)}", install(name))


def install(name: str) -> str:
    """The command that installs an extra."""
    if name == "rdma":
        return "apt-get install python3-pyverbs, or your distribution's build: it must match rdma-core"
    return f"pip install -c constraints.txt -e '.[{name}]'"


def _python() -> Fact:
    found = f"{platform.python_version()}, {platform.system()} {platform.machine()}"
    if PYTHONS[0] <= sys.version_info[:2] <= PYTHONS[1]:
        return Fact("python", Status.OK, found)
    low, high = (".".join(map(str, version)) for version in PYTHONS)
    return Fact("python", Status.MISSING, found, f"make setup PYTHON=python{high} (any from {low} to {high})")


def _torch() -> Fact:
    if importlib.util.find_spec("torch") is None:
        return Fact("torch", Status.MISSING, "not installed", "make setup")
    import torch

    cuda = f"CUDA {torch.version.cuda}" if torch.version.cuda else "no CUDA in this build"
    cores = psutil.cpu_count(logical=False) or os.cpu_count()
    return Fact("torch", Status.OK, f"{torch.__version__}, {torch.get_num_threads()} threads on {cores} cores, {cuda}")


def _transformers() -> Fact:
    try:
        return Fact("transformers", Status.OK, metadata.version("transformers"))
    except metadata.PackageNotFoundError:
        return Fact("transformers", Status.MISSING, "not installed", "make setup")


def _layers() -> Fact:
    try:
        files = layers.replaced()
    except layers.LayerError as error:
        found, _, remedy = str(error).partition(": ")
        return Fact("layers", Status.MISSING, found, f"unset MOONCAKE_EDU_LAYERS, or {remedy}")
    if not files:
        return Fact("layers", Status.OK, "the package's own")
    folder = next(iter(files.values())).parent
    return Fact("layers", Status.OK, f"{', '.join(files)} from {folder} (MOONCAKE_EDU_LAYERS), not the package's own")


def _models() -> Fact:
    from mooncake_edu.model.hub import models_folder

    folder = models_folder()
    if not writable(folder):
        remedy = "export MOONCAKE_EDU_CACHE=FOLDER, one that can be written"
        return Fact("model cache", Status.MISSING, f"{folder} cannot be written", remedy)
    names = sorted(path.parent.name for path in folder.glob("*/config.json"))
    if names:
        return Fact("model cache", Status.OK, f"{folder}: {', '.join(names)}")
    return Fact("model cache", Status.OPTIONAL, f"{folder}: empty", "mooncake-edu models fetch smollm2-135m")


def writable(folder: Path) -> bool:
    """Whether a file can be made in `folder`, or in the nearest parent that is there."""
    while not folder.exists() and folder != folder.parent:
        folder = folder.parent
    try:
        with tempfile.TemporaryFile(dir=folder):
            return True
    except OSError:
        return False


def _memory() -> Fact:
    return room("memory", psutil.virtual_memory().available, REQUIRED_MEMORY, "end other programs")


def _disk() -> Fact:
    from mooncake_edu.model.hub import models_folder

    folder = models_folder()
    while not folder.exists() and folder != folder.parent:
        folder = folder.parent
    return room("disk", shutil.disk_usage(folder).free, REQUIRED_DISK, f"free space where {folder} is")


def room(name: str, free: int, required: int, remedy: str) -> Fact:
    """How many bytes lie idle, and how many tokens of SmolLM2-135M's KVCache they could hold as a cache."""
    tokens = free // KVCACHE_TOKEN_BYTES
    found = f"{free / 2**30:.1f} GiB idle: as a cache {tokens:,} tokens of SmolLM2-135M (float32)"
    if free >= required:
        return Fact(name, Status.OK, found)
    return Fact(name, Status.MISSING, found, f"{remedy}: {required / 2**30:g} GiB are needed")


def _kernels() -> Fact:
    if importlib.util.find_spec("torch") is None:
        return Fact("kernels", Status.OPTIONAL, "torch is not installed", "make setup")
    from mooncake_edu.model import native

    try:
        kernels = native.load(64)
    except native.NotAvailable as error:
        why, remedy = why_no_kernels(str(error))
        return Fact("kernels", Status.OPTIONAL, f"models run slower on the CPU, {why}", remedy)
    unit = " or by its matrix unit" if kernels.matrix_unit else ""
    return Fact("kernels", Status.OK, f"compiled for this CPU, {kernels.lanes} numbers at a time{unit}")


def why_no_kernels(told: str) -> tuple[str, str]:
    """Why there are no kernels, and what to do; what a compiler says of its failure is a reason and no remedy."""
    if re.search(r" (failed: |took longer than )", told):
        return told, "export CC=COMPILER, one that works, such as gcc or clang"
    if "switched off by" in told:
        return told, f"unset {told.rpartition(' ')[2].partition('=')[0]}"
    why, _, remedy = told.partition(": ") if told.startswith("no C compiler") else (told, "", "")
    return why, remedy


def _gpu() -> Fact:
    if importlib.util.find_spec("torch"):
        import torch

        if torch.cuda.is_available():
            card = torch.cuda.get_device_properties(0)
            return Fact("gpu", Status.OK, f"{card.name}, {card.total_memory / 2**30:.0f} GiB")
    if shutil.which("nvidia-smi"):
        return Fact("gpu", Status.OPTIONAL, "a driver, but torch cannot use it", "install a CUDA build of torch")
    return Fact("gpu", Status.OPTIONAL, "none: models run on the CPU")


def _rdma() -> Fact:
    devices = Path("/sys/class/infiniband")
    names = sorted(path.name for path in devices.iterdir()) if devices.is_dir() else []
    if names:
        return Fact("rdma devices", Status.OK, ", ".join(names))
    return Fact("rdma devices", Status.OPTIONAL, "none: needed only to move KVCache by RDMA")


def _ray() -> Fact:
    command = shutil.which("ray")
    if command:
        return Fact("ray", Status.OK, command)
    return Fact("ray", Status.OPTIONAL, "none: needed only to run on several machines", install("cluster"))


def _slurm() -> Fact:
    command = shutil.which("srun")
    if command:
        return Fact("slurm", Status.OK, command)
    return Fact("slurm", Status.OPTIONAL, "none: needed only on a cluster that Slurm manages")
