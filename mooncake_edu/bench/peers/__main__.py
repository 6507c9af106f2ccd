"""`python -m mooncake_edu.bench.peers [NAME ...]`: install the peers that are not installed yet."""

from __future__ import annotations

import sys

from mooncake_edu.bench.peers.install import FOLDER, PEERS, find
from mooncake_edu.errors import UserError


def main(names: list[str]) -> int:
    """Install the named peers, or all; the exit status."""
    try:
        for peer in find(names or list(PEERS)):
            if peer.installed(FOLDER):
                print(f"{peer.name}: installed in {FOLDER / peer.name}")
            else:
                print(f"{peer.name}: installing into {FOLDER / peer.name}", flush=True)
                peer.install(FOLDER)
    except UserError as error:
        print(error, file=sys.stderr)
        return 2
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
