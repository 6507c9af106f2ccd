"""`mooncake-edu generate` and `mooncake-edu chat`: one prompt, or a conversation, on an engine of this process."""

from __future__ import annotations

import contextlib
import math
import re
import signal
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated

import typer

from mooncake_edu.engine.options import Options, with_options
from mooncake_edu.errors import UserError
from mooncake_edu.request import FinishReason, Request, SamplingParams, as_tokens

if TYPE_CHECKING:
    from mooncake_edu.engine import Engine
    from mooncake_edu.model import Model
    from mooncake_edu.model.tokenizer import Message

CONTROL = re.compile(r"[\x00-\x08\x0b-\x1f\x7f-\x9f]")
"""Control characters but tab and newline."""


@with_options()
def generate(
    options: Options,
    prompt: Annotated[str | None, typer.Argument(help="The text to continue; without it, standard input.")] = None,
    as_chat: Annotated[bool, typer.Option("--chat", help="Put the prompt as a user's turn to the model.")] = False,
    stream: Annotated[bool, typer.Option("--stream/--no-stream", help="Print text as it arrives, or whole.")] = True,
    stats: Annotated[bool, typer.Option("--stats", help="Tell tokens and times on standard error.")] = False,
) -> None:
    """Continue one prompt; the text goes to standard output."""
    sampling = options.sampling()
    text = read_prompt(prompt)
    engine = options.engine()
    tokenizer = engine.model.tokenizer
    tokens = tokenizer.chat([{"role": "user", "content": text}]) if as_chat else tokenizer.encode(text)
    pieces: list[str] = []
    answer(engine, Request("prompt", as_tokens(tokens), sampling), write if stream else pieces.append)
    write("".join(pieces) + "\n")
    if stats:
        print(Measures.of(engine, "prompt"), file=sys.stderr)


@with_options(max_tokens=256)
def chat(
    options: Options,
    system: Annotated[str, typer.Option("--system", help="What the model is told before the first turn.")] = "",
) -> None:
    """Talk with a model. The whole conversation is sent again each turn; its KVCache need not be computed again."""
    sampling = options.sampling()
    engine = options.engine()
    conversation = Conversation(engine, sampling, system)
    write(f"{engine.model.name}. /clear begins anew, /exit or Ctrl-D leaves, Ctrl-C stops an answer.\n")
    for line in read_lines("you> "):
        if line == "/clear":
            conversation.clear()
        elif line.startswith("/") and " " not in line:
            write(f"{line} is no command: use /clear or /exit\n")
        elif line:
            try:
                write(f"\n[{conversation.say(line, write)}]\n")
            except UserError as error:
                write(f"{error}\n/clear begins anew\n")


class Conversation:
    """A conversation of several turns on one engine; every turn sends the whole history again."""

    def __init__(self, engine: Engine, sampling: SamplingParams, system: str = "") -> None:
        self.engine = engine
        self.sampling = sampling
        self.system: list[Message] = [{"role": "system", "content": system}] if system else []
        self.messages = list(self.system)
        self.turns = 0

    def clear(self) -> None:
        """Forget every turn; what is cached stays cached."""
        self.messages = list(self.system)

    def say(self, text: str, show: Callable[[str], None]) -> Measures:
        """One turn: `show` gets the answer piece by piece. A stopped answer counts as far as it went.

        Raises RequestError, and forgets the turn, if the conversation no longer fits.
        """
        asked = [*self.messages, {"role": "user", "content": text}]
        self.turns += 1
        name = f"turn {self.turns}"
        tokens = as_tokens(self.engine.model.tokenizer.chat(asked))
        pieces: list[str] = []
        with interruptible() as interrupted:
            answer(self.engine, Request(name, tokens, self.sampling), both(pieces.append, show), interrupted)
        if pieces:
            self.messages = [*asked, {"role": "assistant", "content": "".join(pieces)}]
        return Measures.of(self.engine, name)


@dataclass(frozen=True, slots=True)
class Measures:
    """What the event log says of one request: tokens, and seconds."""

    name: str
    prompt: int
    cached: int
    output: int
    ttft: float
    e2e: float

    @classmethod
    def of(cls, engine: Engine, name: str) -> Measures:
        """The measures of the newest request of that name."""
        table = engine.log.requests()
        row = len(table) - 1 - table.id[::-1].index(name)
        prompt, cached, output = (int(column[row]) for column in (table.prompt, table.cached, table.output))
        return cls(name, prompt, cached, output, float(table.ttft[row]), float(table.e2e[row]))

    def __str__(self) -> str:
        text = f"{self.name}: {self.prompt} prompt tokens, {self.cached} of them cached; {self.output} tokens out"
        if math.isnan(self.ttft):
            return f"{text}; stopped before the first"
        rate = f", then {(self.output - 1) / (self.e2e - self.ttft):.1f} tokens/s" if self.e2e > self.ttft else ""
        return f"{text}; TTFT {self.ttft:.3f} s{rate}"


def answer(
    engine: Engine, request: Request, show: Callable[[str], None], interrupted: Callable[[], bool] = lambda: False
) -> FinishReason:
    """Serve one request, giving its text to `show` as it comes; ends early once `interrupted` says so.

    Raises RequestError if it cannot be served, UserError if the model's answer is not numbers.
    """
    engine.submit(request)
    while not engine.idle:
        if interrupted():
            engine.cancel(request.id)
        for output in engine.step():
            if output.text:
                show(output.text)
            if output.finish is FinishReason.FAILED:
                raise UserError(f"{engine.model.name} computed logits that are not numbers: {mend(engine.model)}")
            if output.finish is not None:
                return output.finish
    return FinishReason.CANCELLED


def mend(model: Model) -> str:
    """What to do about a model whose answers are not numbers; in float32 only its weights can be at fault."""
    import torch

    if model.decoder.dtype is not torch.float32:
        return "use --dtype float32"
    return "its weights are damaged, fetch them again (`mooncake-edu models fetch NAME --again`) or take another model"


def read_prompt(given: str | None) -> str:
    """The argument, or all of standard input where it is no terminal; raises UserError if there is neither."""
    if given is not None:
        return given
    if sys.stdin is None or sys.stdin.isatty():
        raise UserError("no prompt: give it as an argument, or on standard input")
    return sys.stdin.buffer.read().decode("utf-8", errors="replace")


def read_lines(ask: str) -> Iterator[str]:
    """The user's lines up to /exit or the end; Ctrl-C while one is typed only drops that line."""
    if sys.stdin is None:  # closed before the start
        return
    terminal = sys.stdin.isatty()
    if terminal:
        with contextlib.suppress(ImportError):
            import readline  # noqa: F401  # gives input() its history and line editing
    while True:
        try:
            line = input(ask if terminal else "").strip()
        except KeyboardInterrupt:
            write("\n/exit or Ctrl-D leaves\n")
            continue
        except EOFError:
            write("\n" if terminal else "")
            return
        if line == "/exit":
            return
        yield line


@contextmanager
def interruptible() -> Iterator[Callable[[], bool]]:
    """Within, the first Ctrl-C only makes what is yielded answer True; a second one interrupts as ever."""
    seen: list[int] = []

    def note(number: int, frame: object) -> None:
        if seen:
            raise KeyboardInterrupt
        seen.append(number)

    before = signal.signal(signal.SIGINT, note)
    try:
        yield lambda: bool(seen)
    finally:
        signal.signal(signal.SIGINT, before)


def both(first: Callable[[str], None], second: Callable[[str], None]) -> Callable[[str], None]:
    """Gives each text to both."""

    def show(text: str) -> None:
        first(text)
        second(text)

    return show


def write(text: str) -> None:
    """Text to standard output, at once; a terminal gets no control characters, which could change its settings."""
    sys.stdout.write(CONTROL.sub("\ufffd", text) if sys.stdout.isatty() else text)
    sys.stdout.flush()
