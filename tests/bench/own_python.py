"""A folder of peers in which transformers counts as installed, by way of the Python that runs the tests."""

from __future__ import annotations

import stat
import sys
from pathlib import Path

from mooncake_edu.bench.peers.install import PEERS


def own_python(folder: Path) -> Path:
    """Puts a stand-in for transformers' own environment into `folder`."""
    peer = PEERS["transformers"]
    python = peer.python(folder)
    python.parent.mkdir(parents=True)
    python.write_text(f'#!/bin/sh\nexec "{sys.executable}" "$@"\n')
    python.chmod(python.stat().st_mode | stat.S_IXUSR)
    (folder / peer.name / "installed").write_text(peer.fingerprint())
    return folder
