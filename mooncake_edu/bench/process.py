"""A measured system in a process of its own, asked over its standard input and output."""

from __future__ import annotations

import contextlib
import json
import os
import select
import subprocess
import sys
import time
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from mooncake_edu.bench.results import BenchError

PACKAGE = Path(__file__).resolve().parents[1]
SCRIPTS = PACKAGE / "bench" / "peers"
START_LIMIT = 900.0
"""Seconds until a system must be ready: some compile the model first."""
LIMIT = 600.0
"""Seconds that one measurement may take."""
LAST_WORDS = 300
"""Characters of a failed process's output that go into the error."""


class Process:
    """A process that answers requests line by line; `log` gets whatever it prints besides.

    Its threads are limited to `threads`. Leaving the context ends it.
    """

    def __init__(self, name: str, command: list[str], threads: int, log: Path) -> None:
        self.name = name
        self._log = log
        ours = command[0] == sys.executable
        environment = {key: value for key, value in os.environ.items() if key != "PYTHONPATH" or ours}
        if ours:
            environment["PYTHONPATH"] = os.pathsep.join([str(PACKAGE.parent), *filter(None, [os.getenv("PYTHONPATH")])])
        environment |= {"OMP_NUM_THREADS": str(threads), "PYTHONUNBUFFERED": "1", "TOKENIZERS_PARALLELISM": "false"}
        try:
            with log.open("wb") as errors:
                self._process = subprocess.Popen(
                    command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=errors, env=environment
                )
        except OSError as error:
            raise BenchError(f"{name} cannot be started: {error}: run `make peers`") from None

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def ask(self, op: str, limit: float = LIMIT, **values: Any) -> dict[str, Any]:
        """The answer to one request; raises BenchError if there is none within `limit` seconds, or it is an error."""
        try:
            assert self._process.stdin is not None
            self._process.stdin.write(json.dumps({"op": op, **values}).encode() + b"\n")
            self._process.stdin.flush()
            answer: dict[str, Any] = json.loads(self._line(limit))
        except (BrokenPipeError, ValueError):
            raise BenchError(f"{self.name} ended at {op!r}: {self._last_words()}") from None
        except TimeoutError:
            self.close()
            raise BenchError(f"{self.name} gave no answer to {op!r} for {limit:g} s: close other programs") from None
        if "error" in answer:
            raise BenchError(f"{self.name} failed at {op!r}: {answer['error']}")
        return answer

    def close(self) -> None:
        """End the process, gently first."""
        assert self._process.stdin is not None and self._process.stdout is not None
        with contextlib.suppress(BrokenPipeError):
            self._process.stdin.close()
        try:
            self._process.wait(5)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
        self._process.stdout.close()

    def _line(self, limit: float) -> bytes:
        assert self._process.stdout is not None
        channel, line, end = self._process.stdout.fileno(), b"", time.monotonic() + limit
        while not line.endswith(b"\n"):
            ready, _, _ = select.select([channel], [], [], max(0.0, end - time.monotonic()))
            if not ready:
                raise TimeoutError
            piece = os.read(channel, 1 << 16)
            if not piece:
                break
            line += piece
        return line

    def _last_words(self) -> str:
        text = " ".join(self._log.read_text(encoding="utf-8", errors="replace").split())
        return f"...{text[-LAST_WORDS:]}" if text else "it said nothing"
