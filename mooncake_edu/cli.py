"""The command line: a table of commands, each loaded only when it is called."""

from __future__ import annotations

import errno
import importlib
import io
import os
import sys
from typing import Any, NamedTuple

import typer
from typer.core import TyperCommand, TyperGroup

from mooncake_edu import __version__
from mooncake_edu.errors import UserError


class Command(NamedTuple):
    """A command's name, where its function or typer application is ("module:attribute"), and its line of help."""

    name: str
    target: str
    help: str


COMMANDS = [
    Command("doctor", "mooncake_edu.doctor:main", "Check this machine, and say how to mend it."),
    Command("models", "mooncake_edu.model.commands:app", "List, fetch and find models."),
    Command("generate", "mooncake_edu.engine.commands:generate", "Continue one prompt."),
    Command("chat", "mooncake_edu.engine.commands:chat", "Talk with a model, and see what its cache saves."),
    Command("demo", "mooncake_edu.demo:main", "Serve conversations without and with sharing."),
    Command("course", "mooncake_edu.course.commands:app", "Weave, check and hand out the chapters."),
    Command("trace", "mooncake_edu.traces.commands:app", "Check, sum up, make, sanitise and fetch traces."),
    Command("simulate", "mooncake_edu.simulation.commands:simulate", "Serve a trace by a simulated cluster."),
    Command("explain", "mooncake_edu.simulation.explaining:explain", "Why a request went where it went."),
    Command("reproduce", "mooncake_edu.simulation.reproduce:reproduce", "Run the paper's experiments."),
    Command("calibrate", "mooncake_edu.bench.calibrate:calibrate", "Fit a cost model to this machine."),
    Command("bench", "mooncake_edu.bench.commands:app", "Measure against peers and hardware limits."),
]
"""Every command in the order of the help; a later part adds its own by one line."""

INTERRUPTED = 130
"""Exit status after Ctrl-C, as shells report it."""


class LazyGroup(TyperGroup):
    """A group that lists its commands from the table and imports only the one that is called."""

    def list_commands(self, ctx: Any) -> list[str]:
        """The names, in the order of the table."""
        return [command.name for command in COMMANDS]

    def get_command(self, ctx: Any, cmd_name: str) -> Any:
        """A command with its help line only; None if there is none of that name."""
        for command in COMMANDS:
            if command.name == cmd_name:
                return TyperCommand(name=command.name, help=command.help)
        return None

    def resolve_command(self, ctx: Any, args: list[str]) -> Any:
        """The command that `args` begin with, loaded."""
        # typer looks here for names like a mistyped one
        self.commands = {name: self.get_command(ctx, name) for name in self.list_commands(ctx)}
        name, command, rest = super().resolve_command(ctx, args)
        return name, command and load(name or ""), rest


def load(name: str) -> Any:
    """The command `name` of the table, imported and ready to be run."""
    row = next(command for command in COMMANDS if command.name == name)
    module, attribute = row.target.split(":")
    found = getattr(importlib.import_module(module), attribute)
    if not isinstance(found, typer.Typer):
        function, found = found, typer.Typer(add_completion=False, rich_markup_mode=None)
        found.command(name, help=row.help)(function)
    command = typer.main.get_command(found)
    command.name = name
    return command


app = typer.Typer(
    cls=LazyGroup,
    no_args_is_help=True,
    add_completion=False,
    rich_markup_mode=None,  # drawing the boxes of its help costs a third of a second
    pretty_exceptions_enable=False,
    help="Mooncake, the KVCache-centric serving system: a course that is also a working system.",
)


def _print_version(wanted: bool) -> None:
    if wanted:
        print(f"mooncake-edu {__version__}")
        raise typer.Exit


@app.callback()
def options(
    version: bool = typer.Option(False, "--version", callback=_print_version, is_eager=True, help="Print the version."),
) -> None:
    """Options that stand before any command."""


def main() -> None:
    """Run the command line and exit: 2 after a refusal of one line, 130 after Ctrl-C, silently into a closed pipe."""
    if sys.stdout is None:  # closed before the start: what is said goes nowhere
        sys.stdout = open(os.devnull, "w", encoding="utf-8")  # noqa: SIM115  # open until the end
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="replace")  # a terminal that lacks a character shows a question mark
    try:
        status = _run()
        sys.stdout.flush()
    except BrokenPipeError:
        status = 1
        _drop_output()
    except OSError as error:
        if error.filename is None and error.errno not in (errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.EIO):
            raise  # neither a place nor a full disk
        place = "output" if error.filename is None else str(error.filename)
        _refuse(f"{place[:200]} cannot be written or read ({error.strerror}): free space or choose another place")
        status = 2
        if error.filename is None:
            _drop_output()
    sys.exit(status)


UsageError: Any = typer.BadParameter.__base__
"""What the parser raises; typer shows no other name for it."""


def _run() -> int:
    try:
        status = app(prog_name="mooncake-edu", standalone_mode=False)
        return status if isinstance(status, int) else 0
    except UsageError as error:
        asked, message = error.ctx.command_path if error.ctx else "mooncake-edu", error.format_message()
        if message.startswith("Usage:"):  # no command was named: the whole help
            print(message, file=sys.stderr)
        else:
            _refuse(f"{message} (see `{asked} --help`)")
        return 2
    except UserError as error:
        _refuse(str(error))
        return 2
    except KeyboardInterrupt:
        return INTERRUPTED
    except SystemExit as end:
        return end.code if isinstance(end.code, int) else int(end.code is not None)


def _refuse(text: str) -> None:
    print("mooncake-edu: " + " ".join(text.split()), file=sys.stderr)


def _drop_output() -> None:
    """Python flushes standard output once more at exit, which must not meet the closed pipe or full disk again."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), 1)
