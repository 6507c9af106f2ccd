"""How long block keys take, beside a chain of pickle and SHA-256, and beside SHA-256 alone."""

from __future__ import annotations

import hashlib
import statistics
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np

from mooncake_edu import __version__
from mooncake_edu.bench.process import SCRIPTS, Process
from mooncake_edu.bench.results import Report, Row, machine
from mooncake_edu.prefix import block_keys

PEER = "pickle+sha256"
BLOCK_SIZES = (16, 512)
SOURCES = ("array", "list")
DIGEST = 32  # bytes
RATE_BYTES = 1 << 24


def run(rounds: int, tokens: int = 32_768, repeats: int = 20, seed: int = 0) -> Report:
    """Nanoseconds a token, ours and the peer's in turn, the median of `rounds` rounds."""
    prompt = np.random.default_rng(seed).integers(0, 2**17, tokens, dtype=np.uint32)
    ours: dict[tuple[int, str], list[float]] = {}
    theirs: dict[tuple[int, str], list[float]] = {}
    rates: list[float] = []
    with tempfile.TemporaryDirectory() as folder:
        script = [sys.executable, str(SCRIPTS / "run_pickle_sha256.py")]
        with Process(PEER, script, 1, Path(folder) / "log") as peer:
            versions = peer.ask("start")["versions"]
            for _ in range(rounds):
                rates.append(sha256_rate())
                for case in [(size, source) for size in BLOCK_SIZES for source in SOURCES]:
                    ours.setdefault(case, []).append(_ours(prompt, *case, repeats) / tokens)
                    answer = peer.ask("keys", tokens=prompt.tolist(), block_size=case[0], source=case[1],
                                      repeats=repeats)  # fmt: skip
                    theirs.setdefault(case, []).append(answer["seconds"] / tokens)
    rows = [_row(case, ours[case], theirs[case], max(rates)) for case in ours]
    notes = [f"{tokens} tokens; of {rounds} rounds in turn, each the fastest of {repeats}, the median"]
    return Report(bench="hash", machine=machine(1, {"mooncake_edu": __version__, **versions}), rows=rows, notes=notes)


def sha256_rate() -> float:
    """Bytes/s of SHA-256 over one long run of bytes."""
    data = bytes(RATE_BYTES)
    return RATE_BYTES / fastest(lambda: hashlib.sha256(data).digest(), 3)


def fastest(work: Callable[[], object], repeats: int) -> float:
    """Seconds of the fastest of `repeats` runs."""
    seconds = []
    for _ in range(repeats):
        start = time.perf_counter()
        work()
        seconds.append(time.perf_counter() - start)
    return min(seconds)


def _ours(prompt: np.ndarray, block_size: int, source: str, repeats: int) -> float:
    given = prompt if source == "array" else prompt.tolist()
    return fastest(lambda: block_keys(given, block_size, bytes(DIGEST)), repeats)


def _row(case: tuple[int, str], ours: list[float], theirs: list[float], rate: float) -> Row:
    block_size, source = case
    return Row(
        what=f"block keys, block {block_size}, from {'an array' if source == 'array' else 'a list'}",
        unit="ns/token",
        ours=1e9 * statistics.median(ours),
        peers={PEER: 1e9 * statistics.median(theirs)},
        limit=1e9 * (4 * block_size + DIGEST) / block_size / rate,
        limit_is=f"SHA-256 of the same bytes at {rate / 1e9:.2f} GB/s",
        higher_is_better=False,
    )
