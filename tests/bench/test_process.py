"""A measured process: asked line by line, never waited for without end, and quoted when it fails."""

from __future__ import annotations

import sys
import time
from pathlib import Path

import pytest

from mooncake_edu.bench.peers.serve import Stopwatch
from mooncake_edu.bench.process import SCRIPTS, Process
from mooncake_edu.bench.results import BenchError

SCRIPT = """
import os, sys, time
sys.path.insert(0, {scripts!r})
from serve import serve

def start(**given):
    print("chatter on standard output")
    return {{"given": given, "threads": os.environ["OMP_NUM_THREADS"]}}

def fail():
    raise ValueError("no such model")

def end():
    print("out of memory", file=sys.stderr, flush=True)
    os._exit(1)

def large():
    return {{"text": "x" * 300000}}

serve({{"start": start, "fail": fail, "end": end, "hang": lambda: time.sleep(60), "large": large}})
"""


@pytest.fixture
def process(tmp_path: Path) -> Process:
    script = tmp_path / "peer.py"
    script.write_text(SCRIPT.format(scripts=str(SCRIPTS)))
    return Process("peer", [sys.executable, str(script)], 3, tmp_path / "log")


def test_answers_come_back_whatever_else_the_process_prints(process: Process, tmp_path: Path) -> None:
    with process:
        answer = process.ask("start", model="m", threads=3)
        assert answer == {"given": {"model": "m", "threads": 3}, "threads": "3"}
        assert len(process.ask("large")["text"]) == 300_000
    assert "chatter on standard output" in (tmp_path / "log").read_text()


def test_an_operation_that_fails_is_told_and_the_process_goes_on(process: Process) -> None:
    with process:
        with pytest.raises(BenchError, match="peer failed at 'fail': ValueError: no such model"):
            process.ask("fail")
        with pytest.raises(BenchError, match="peer failed at 'unheard'"):
            process.ask("unheard")
        assert process.ask("start")["given"] == {}


def test_a_process_that_ends_is_quoted(process: Process) -> None:
    with process:
        with pytest.raises(BenchError, match="peer ended at 'end': .*out of memory"):
            process.ask("end")
        with pytest.raises(BenchError, match="peer ended at 'start'"):
            process.ask("start")


def test_a_process_that_hangs_is_ended(process: Process) -> None:
    start = time.monotonic()
    with process, pytest.raises(BenchError, match="peer gave no answer to 'hang' for 0.5 s"):
        process.ask("hang", limit=0.5)
    assert time.monotonic() - start < 30


def test_a_command_that_is_not_there_is_refused(tmp_path: Path) -> None:
    with pytest.raises(BenchError, match="peer cannot be started"):
        Process("peer", [str(tmp_path / "python")], 1, tmp_path / "log")


def test_decode_is_timed_from_the_step_in_which_the_last_prompt_has_its_first_token() -> None:
    times = iter([0.0, 3.0, 7.0])
    watch = Stopwatch(2, lambda: next(times))
    for made in [(0,), (0, 1), (0, 1), (1,)]:
        for prompt in made:
            watch.add(prompt, [prompt])
        watch.step()
    assert watch.result() == {
        "seconds": 7.0,
        "first_seconds": 3.0,
        "decode_seconds": 4.0,
        "decode_tokens": 3,
        "tokens": [[0, 0, 0], [1, 1, 1]],
    }
