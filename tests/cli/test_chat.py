"""A chat sends its whole history each turn, reuses what is cached, and outlives Ctrl-C."""

from __future__ import annotations

import io
import os
import pty
import re
import select
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import pytest

from tests.cli.conftest import PROGRAM, Ended, Run

TINY = ("chat", "--model", "tiny", "--ignore-eos")
Talk = Callable[..., Ended]
TURN = re.compile(r"\[turn (\d+): (\d+) prompt tokens, (\d+) of them cached; (\d+) tokens out")


def turns(text: str) -> list[tuple[int, ...]]:
    """Per turn: its number, its prompt, cached and output tokens."""
    return [tuple(map(int, match.groups())) for match in TURN.finditer(text)]


@pytest.fixture
def talk(run: Run, monkeypatch: pytest.MonkeyPatch) -> Callable[..., Ended]:
    """A chat in this process with some lines on standard input."""

    def talk(lines: str, *options: str) -> Ended:
        monkeypatch.setattr(sys, "stdin", io.StringIO(lines))
        return run(*TINY, *options)

    return talk


def test_the_second_turn_reuses_every_full_block_of_the_first(talk: Talk) -> None:
    ended = talk("tell me of the moon\nand of the lake\n", "--max-tokens", "20", "--block-size", "4")
    assert (ended.status, ended.err) == (0, "")
    first, second = turns(ended.out)
    assert first[2] == 0
    # The history of the second turn begins with the first turn's prompt, all of it but its last tokens in full blocks.
    assert second[2] >= first[1] // 4 * 4
    assert second[1] > first[1] + len("and of the lake")


def test_clear_begins_a_new_conversation(talk: Talk) -> None:
    ended = talk("tell me of the moon\n/clear\nof the lake\n/exit\nnever read\n", "--max-tokens", "4")
    first, second = turns(ended.out)
    assert first[1] - len("tell me of the moon") == second[1] - len("of the lake")


def test_a_system_prompt_stands_before_every_turn(talk: Talk) -> None:
    plain = talk("hi\n", "--max-tokens", "4")
    told = talk("hi\n", "--max-tokens", "4", "--system", "Be brief.")
    assert turns(told.out)[0][1] == turns(plain.out)[0][1] + len("Be brief.") + 2  # the marks around it


def test_a_turn_too_long_is_refused_and_the_chat_goes_on(talk: Talk) -> None:
    ended = talk("x" * 4090 + "\nhi\n/unknown\n", "--max-tokens", "8")
    assert ended.status == 0
    assert "4096 positions" in ended.out
    assert [turn[3] for turn in turns(ended.out)] == [8]
    assert "/unknown is no command" in ended.out


class Terminal:
    """A program on a terminal of its own: what it prints, and keys to press."""

    def __init__(self, descriptor: int) -> None:
        self.descriptor = descriptor
        self.seen = ""

    def wait_for(self, pattern: str, seconds: float = 240.0) -> str:
        """All output up to the first place where the pattern matches; fails if that does not come in time."""
        end = time.monotonic() + seconds
        while not (match := re.search(pattern, self.seen)):
            assert time.monotonic() < end, f"no {pattern!r} in {self.seen!r}"
            if select.select([self.descriptor], [], [], 0.1)[0]:
                self.seen += os.read(self.descriptor, 4096).decode(errors="replace")
        text, self.seen = self.seen[: match.end()], self.seen[match.end() :]
        return text

    def press(self, keys: str) -> None:
        """Keys as the user would press them."""
        os.write(self.descriptor, keys.encode())


@contextmanager
def terminal(*options: str) -> Iterator[tuple[Terminal, subprocess.Popen[bytes]]]:
    """A chat on a pseudo-terminal; killed at the end if it still runs."""
    master, slave = pty.openpty()
    environment = os.environ | {"OMP_NUM_THREADS": "1", "TERM": "dumb"}
    process = subprocess.Popen(
        [*PROGRAM, *TINY, *options], stdin=slave, stdout=slave, stderr=slave, env=environment,
        start_new_session=True, preexec_fn=lambda: take_terminal(slave),
    )  # fmt: skip
    os.close(slave)
    try:
        yield Terminal(master), process
    finally:
        process.kill()
        process.wait()
        os.close(master)


def take_terminal(descriptor: int) -> None:
    """Make the terminal the controlling one of this new session, so that Ctrl-C on it sends SIGINT."""
    import fcntl
    import termios

    fcntl.ioctl(descriptor, termios.TIOCSCTTY, 0)


@pytest.mark.slow
def test_ctrl_c_stops_the_answer_and_not_the_chat() -> None:
    with terminal("--max-tokens", "4000") as (screen, process):
        screen.wait_for("you> ")
        screen.press("hello\n")
        screen.wait_for("hello\r\n.*?[^\r\n]")
        time.sleep(1.0)
        screen.press("\x03")
        number, _, _, output = turns(screen.wait_for(r"\[turn 1: [^\]]*\]"))[0]
        assert number == 1
        assert 0 < output < 4000
        screen.wait_for("you> ")
        screen.press("half a line")
        screen.wait_for("half a line")
        time.sleep(0.5)  # readline misses a Ctrl-C that comes while it is not waiting for a key
        screen.press("\x03")
        screen.wait_for("/exit or Ctrl-D leaves")
        screen.wait_for("you> ")
        screen.press("/exit\n")
        assert process.wait(timeout=120) == 0


@pytest.mark.slow
def test_ctrl_d_leaves_and_a_terminal_gets_no_control_characters() -> None:
    with terminal("--max-tokens", "400") as (screen, process):
        screen.wait_for("you> ")
        screen.press("hello\n")
        shown = screen.wait_for(r"\[turn 1: [^\]]*\]")
        assert not re.search(r"[\x00-\x08\x0b\x0c\x0e-\x1f\x7f]", shown.split("hello\r\n", 1)[1])
        screen.wait_for("you> ")
        screen.press("\x04")
        assert process.wait(timeout=120) == 0


def test_without_standard_input_a_chat_ends_at_once(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "stdin", None)
    ended = run(*TINY)
    assert (ended.status, ended.err) == (0, "")
