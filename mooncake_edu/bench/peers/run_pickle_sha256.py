"""Block keys as the best-known engine makes them by default: SHA-256 over the pickle of parent, tokens and extras.

Nothing is ever unpickled: only what the way of hashing costs is measured.
"""

import hashlib
import pickle
import platform
import time
from array import array
from typing import Any

from serve import serve

ROOT = bytes(32)


def start() -> dict[str, Any]:
    """What it runs on."""
    return {"versions": {"pickle": pickle.format_version, "python": platform.python_version()}}


def chain(tokens: "array[int] | list[int]", block_size: int) -> list[bytes]:
    """The chained key of every full block."""
    keys: list[bytes] = []
    parent = ROOT
    for begin in range(0, len(tokens) - block_size + 1, block_size):
        block = (parent, tuple(tokens[begin : begin + block_size]), None)
        parent = hashlib.sha256(pickle.dumps(block, protocol=pickle.HIGHEST_PROTOCOL)).digest()
        keys.append(parent)
    return keys


def keys(tokens: list[int], block_size: int, source: str, repeats: int) -> dict[str, Any]:
    """Seconds of the fastest of `repeats` chains over `tokens` from "array" or "list", and how many keys it has."""
    given = array("I", tokens) if source == "array" else tokens
    seconds = []
    for _ in range(repeats):
        begin = time.perf_counter()
        made = chain(given, block_size)
        seconds.append(time.perf_counter() - begin)
    return {"seconds": min(seconds), "keys": len(made)}


if __name__ == "__main__":
    serve({"start": start, "keys": keys})
