"""What the tests of the command line share: running it, in this process and in one of its own."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable
from dataclasses import dataclass

import pytest

from mooncake_edu import cli

PROGRAM = (sys.executable, "-m", "mooncake_edu")


@dataclass(frozen=True)
class Ended:
    """How a run of the command line ended."""

    status: int
    out: str
    err: str


Run = Callable[..., Ended]


@pytest.fixture
def run(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Run:
    """Runs the command line in this process."""

    def run(*arguments: str) -> Ended:
        monkeypatch.setattr(sys, "argv", ["mooncake-edu", *arguments])
        with pytest.raises(SystemExit) as end:
            cli.main()
        return Ended(int(end.value.code or 0), *capsys.readouterr())

    return run


@pytest.fixture
def spawn() -> Callable[..., subprocess.Popen[bytes]]:
    """Starts the command line in a process of its own, with pipes."""

    def spawn(*arguments: str, **options: object) -> subprocess.Popen[bytes]:
        pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
        environment = os.environ | {"OMP_NUM_THREADS": "1"}
        return subprocess.Popen([*PROGRAM, *arguments], env=environment, **(pipes | options))  # type: ignore[call-overload]

    return spawn
