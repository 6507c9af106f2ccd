"""Commands are found by name and loaded when called; a refusal is one line; nothing surprises a shell."""

from __future__ import annotations

import signal
import subprocess
import sys
import time
from typing import Any

import pytest

from mooncake_edu import __version__, cli
from mooncake_edu.errors import UserError
from tests.cli.conftest import PROGRAM, Run

SLOW = ("torch", "transformers", "plotly", "pandas")  # half a second and more each
HEAVY = (*SLOW, "pydantic", "numpy", "rich")


def helped(watched: tuple[str, ...], *command: str) -> tuple[str, str]:
    """The help of a command, and which of the modules it imported."""
    script = (
        f"import sys\nfrom mooncake_edu.cli import main\nsys.argv = {['mooncake-edu', *command, '--help']}\n"
        f"try:\n    main()\nfinally:\n    print([name for name in {watched} if name in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    shown, loaded = done.stdout.rstrip("\n").rsplit("\n", 1)
    return shown, loaded


def test_help_lists_every_command_and_imports_nothing_heavy() -> None:
    shown, loaded = helped(HEAVY)
    assert loaded == "[]"
    for command in cli.COMMANDS:
        assert f"  {command.name} " in shown
        assert command.help in shown


@pytest.mark.parametrize("name", [command.name for command in cli.COMMANDS])
def test_a_command_s_help_waits_for_no_library_of_models_or_figures(name: str) -> None:
    assert helped(SLOW, name)[1] == "[]"


def test_help_answers_within_half_a_second_of_a_free_processor() -> None:
    def seconds() -> float:
        start = time.perf_counter()
        subprocess.run([*PROGRAM, "--help"], capture_output=True, check=True)
        return time.perf_counter() - start

    assert any(seconds() < 0.5 for _ in range(12))  # other work on the machine slows some of them


@pytest.mark.parametrize("name", [command.name for command in cli.COMMANDS])
def test_every_command_of_the_table_has_a_help_of_its_own(run: Run, name: str) -> None:
    ended = run(name, "--help")
    assert ended.status == 0
    assert f"Usage: mooncake-edu {name}" in ended.out


def test_a_later_part_adds_a_command_by_one_line(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cli, "COMMANDS", [cli.Command("twice", f"{__name__}:print_twice", "Print a word twice.")])
    assert run("twice", "ha").out == "haha\n"
    assert "Print a word twice." in run("--help").out


def print_twice(word: str) -> None:
    """The command that the test above adds."""
    print(word * 2)


def test_the_version_is_the_package_s(run: Run) -> None:
    assert run("--version").out == f"mooncake-edu {__version__}\n"


@pytest.mark.parametrize(
    ("arguments", "word"),
    [
        (["demoo"], "'demo'"),
        (["--nope"], "--nope"),
        (["generate", "x", "--top-k", "many"], "--top-k"),
        (["demo", "--turns", "0"], "--turns"),
        (["models", "fetch"], "mooncake-edu models fetch --help"),
    ],
)
def test_wrong_usage_is_one_line_that_names_what_is_wrong_and_exits_with_2(
    run: Run, arguments: list[str], word: str
) -> None:
    ended = run(*arguments)
    assert (ended.status, ended.out) == (2, "")
    assert word in ended.err and ended.err.count("\n") == 1


@pytest.mark.parametrize("arguments", [[], ["models"], ["bench"]])
def test_where_no_command_is_named_the_help_lists_them_and_the_status_is_2(run: Run, arguments: list[str]) -> None:
    ended = run(*arguments)
    assert ended.status == 2
    assert "Usage: mooncake-edu" in ended.err and "Commands:" in ended.err


def refuse() -> None:
    """A command that is refused."""
    raise UserError("the thing 3\nis too large: use 2")


def divide() -> None:
    """A command with a mistake in it."""
    _ = 1 / 0


def test_a_refusal_is_one_line_on_standard_error_and_exits_with_2(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cli, "COMMANDS", [cli.Command("refuse", f"{__name__}:refuse", "")])
    ended = run("refuse")
    assert (ended.status, ended.out, ended.err) == (2, "", "mooncake-edu: the thing 3 is too large: use 2\n")


def test_a_mistake_in_the_program_shows_its_traceback(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cli, "COMMANDS", [cli.Command("divide", f"{__name__}:divide", "")])
    monkeypatch.setattr(sys, "argv", ["mooncake-edu", "divide"])
    with pytest.raises(ZeroDivisionError):
        cli.main()


def test_ctrl_c_while_the_command_line_loads_ends_quietly_with_130() -> None:
    script = (
        "import runpy, sys\nclass Interrupt:\n    def find_spec(name, *rest):\n"
        "        if name == 'mooncake_edu.cli':\n            raise KeyboardInterrupt\n"
        "sys.meta_path.insert(0, Interrupt)\nrunpy.run_module('mooncake_edu', run_name='__main__')"
    )
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout, done.stderr) == (130, "", "")


def test_ctrl_c_ends_a_generation_quietly_with_130(spawn: Any) -> None:
    with spawn("generate", "hello", "--model", "tiny", "--max-tokens", "4000", "--ignore-eos") as process:
        assert process.stdout.read(1)
        process.send_signal(signal.SIGINT)
        _, err = process.communicate(timeout=240)
    assert process.returncode == 130
    assert err == b""


def test_a_closed_pipe_ends_a_generation_quietly(spawn: Any) -> None:
    with spawn("generate", "hello", "--model", "tiny", "--max-tokens", "4000", "--ignore-eos") as process:
        assert process.stdout.read(1)
        process.stdout.close()
        err = process.stderr.read()
        process.wait(timeout=240)
    assert process.returncode == 1
    assert err == b""


@pytest.mark.parametrize("arguments", [["models", "list"], ["generate", "hi", "--model", "tiny", "--max-tokens", "2"]])
def test_full_or_closed_output_is_no_traceback(arguments: list[str]) -> None:
    command = [sys.executable, "-m", "mooncake_edu", *arguments]
    with open("/dev/full", "w") as full:
        ended = subprocess.run(command, stdout=full, stderr=subprocess.PIPE, text=True, check=False)
    assert (ended.returncode, ended.stderr.count("\n")) == (2, 1)
    assert "output cannot be written" in ended.stderr
    closed = ["sh", "-c", 'exec "$@" >&-', "sh", *command]
    ended = subprocess.run(closed, stderr=subprocess.PIPE, text=True, check=False)
    assert (ended.returncode, ended.stderr) == (0, "")


@pytest.mark.parametrize(
    "arguments",
    [["generate", "hi", "--model", "PLACE"], ["bench", "hash", "--quick", "--json", "PLACE"],
     ["bench", "engine", "--quick", "--peers", "none", "--logs", "PLACE"]],
)  # fmt: skip
def test_a_place_that_no_system_can_have_is_refused_in_one_line(run: Run, arguments: list[str]) -> None:
    place = "/tmp/" + "n" * 5000
    ended = run(*(place if word == "PLACE" else word for word in arguments))
    assert (ended.status, ended.err.count("\n")) == (2, 1)
    assert "nnn" in ended.err and "choose another" in ended.err


@pytest.mark.parametrize("cache", ["/tmp/" + "n" * 5000, "~nobody-of-that-name/models"])
@pytest.mark.parametrize("arguments", [["models", "list"], ["models", "path", "smollm2-135m"], ["doctor"]])
def test_a_cache_that_cannot_be_is_refused_in_one_line(
    run: Run, monkeypatch: pytest.MonkeyPatch, cache: str, arguments: list[str]
) -> None:
    monkeypatch.setenv("MOONCAKE_EDU_CACHE", cache)
    ended = run(*arguments)
    assert (ended.status, ended.err.count("\n")) == (2, 1)
    assert cache[:20] in ended.err
