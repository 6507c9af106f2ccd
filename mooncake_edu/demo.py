"""`mooncake-edu demo`: the same conversations served twice, without and with prefix sharing, and what it changes."""

from __future__ import annotations

import functools
import random
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

import typer

from mooncake_edu.errors import UserError
from mooncake_edu.events import EventLog
from mooncake_edu.request import Request, SamplingParams, as_tokens

if TYPE_CHECKING:
    from rich.console import Console

    from mooncake_edu.model import Model

WITHOUT, WITH = "without sharing", "with sharing"
CACHE = 256 << 20  # bytes: several conversations of the default model fit, and the picture of it still shows something
QUICK = (2, 2, 12)  # conversations, turns, tokens an answer

SYSTEM = """\
You are the teaching assistant of a course on serving large language models. Answer each question in one or two \
short, plain sentences, and say so when you do not know.
Facts from the course that you can rely on:
- A request has two phases. Prefill computes the whole prompt at once and gives the first token. Decode then makes \
one token after the other.
- For every token the model keeps keys and values of each layer, the KVCache. With it no token is computed twice.
- The KVCache is cut into blocks of a few tokens, kept like pages of a computer's memory. A block table says which \
blocks belong to a request.
- Requests that begin with the same tokens can share the blocks of that beginning. It is then computed only once.
- A block that nobody uses stays cached until its place is needed; the block that was not used for the longest time \
goes first.
- TTFT is the time to the first token: waiting plus prefill. TBT is the time between two tokens: one decode step.
- A long prompt is prefilled in chunks, so that others' decode steps need not wait for all of it.
Never invent numbers. Be kind to beginners, and prefer an example from daily life to a formula."""
"""What every conversation begins with: about 250 tokens, as services really have them."""

TOPICS = (
    ("What is a KVCache?", "Why does it grow with the prompt?", "What is a block table?",
     "What happens when the memory is full?", "Can you compare it with a library?"),
    ("What is the difference between prefill and decode?", "Which of the two makes the first token?",
     "Why is a long prompt cut into chunks?", "Which one uses the memory more?", "Can you give me an example?"),
    ("When can two requests share blocks?", "Why must the beginning be the same?", "What does that save?",
     "Which block is removed first?", "Does sharing change the answers?"),
    ("What does TTFT mean?", "And what is TBT?", "Which one does a reader notice more?",
     "How can a service make TTFT shorter?", "Why not always use bigger batches?"),
)  # fmt: skip
"""Questions of one conversation each, in order."""


@dataclass
class Conversation:
    """A system prompt and turns; the next question waits for the answer to the one before."""

    name: str
    questions: list[str]
    messages: list[dict[str, str]] = field(default_factory=lambda: [{"role": "system", "content": SYSTEM}])
    asked: int = 0

    def ask(self, model: Model, sampling: SamplingParams) -> Request:
        """The request of the next turn: all that was said, and the next question."""
        self.messages.append({"role": "user", "content": self.questions[self.asked]})
        self.asked += 1
        name = f"{self.name}, turn {self.asked}"
        return Request(name, as_tokens(model.tokenizer.chat(self.messages)), sampling)

    def answered(self, text: str) -> bool:
        """Notes the answer; returns whether there is a question left."""
        self.messages.append({"role": "assistant", "content": text})
        return self.asked < len(self.questions)


@dataclass
class Run:
    """One way of serving all conversations: what was made, and the record of it."""

    name: str
    log: EventLog = field(default_factory=EventLog)
    tokens: dict[str, list[int]] = field(default_factory=dict)  # per request
    conversations: list[Conversation] = field(default_factory=list)


def conversations(count: int, turns: int, seed: int) -> list[Conversation]:
    """Conversations on the topics in an order that `seed` gives; topics and questions come round again."""
    order = random.Random(seed).sample(range(len(TOPICS)), len(TOPICS))
    return [
        Conversation(
            f"chat {number + 1}",
            [TOPICS[order[number % len(TOPICS)]][turn % len(TOPICS[0])] for turn in range(turns)],
        )
        for number in range(count)
    ]


def serve(
    model: Model, name: str, talks: list[Conversation], sampling: SamplingParams, done: Callable[[], object]
) -> Run:
    """Serves all conversations together in one batch, each turn after the turn before it; `done` is told of each."""
    from mooncake_edu.config import EngineConfig
    from mooncake_edu.engine import Engine

    run = Run(name, conversations=talks)
    engine = Engine(model, EngineConfig(memory=CACHE, prefix_sharing=name == WITH), log=run.log)
    talking: dict[str, Conversation] = {}
    texts: dict[str, str] = {}

    def submit(talk: Conversation) -> None:
        request = talk.ask(model, sampling)
        talking[request.id], run.tokens[request.id], texts[request.id] = talk, [], ""
        engine.submit(request)

    for talk in talks:
        submit(talk)
    while not engine.idle:
        for output in engine.step():
            run.tokens[output.request_id] += output.tokens
            texts[output.request_id] += output.text
            if output.finish is not None:
                done()
                if talking[output.request_id].answered(texts[output.request_id]):
                    submit(talking[output.request_id])
    return run


def main(
    model: str = typer.Option("SmolLM2-135M-Instruct", help="A name from `models list`, or a model's folder."),
    conversations_: int = typer.Option(3, "--conversations", min=1, max=64, help="How many at the same time."),
    turns: int = typer.Option(3, min=1, max=20, help="Questions in each conversation."),
    max_tokens: int = typer.Option(48, min=1, max=1024, help="The longest answer, in tokens."),
    out: Path = typer.Option(Path("runs/demo"), help="The folder for the report and the traces."),
    seed: int = typer.Option(0, min=0, max=2**63 - 1, help="Orders the topics, and makes tiny's weights."),
    quick: bool = typer.Option(False, "--quick", help="Only 2 conversations of 2 turns with short answers."),
) -> None:
    """Serve the same conversations without and with prefix sharing, and show what it changes."""
    from rich.console import Console

    if quick:
        conversations_, turns, max_tokens = QUICK
    console = Console()
    require_folder(out)
    loaded = load_model(model, seed, console)
    console.print(
        f"{conversations_} conversations of {turns} turns with [bold]{loaded.name}[/]. All begin with the same system "
        f"prompt of {len(loaded.tokenizer.encode(SYSTEM))} tokens, and every turn sends all that was said before."
    )
    runs = serve_both(loaded, conversations_, turns, seed, SamplingParams(max_tokens=max_tokens), console)
    show(runs, loaded, out, console)


def require_folder(out: Path) -> None:
    """Makes the folder if it is not there. Raises UserError, before any work is done, if nothing can be written."""
    try:
        out.mkdir(parents=True, exist_ok=True)
        probe = out / ".probe"
        probe.write_bytes(b"")
        probe.unlink()
    except OSError as error:
        raise UserError(f"--out {out} cannot be written ({error.strerror}): choose another folder") from None


def load_model(name: str, seed: int, console: Console) -> Model:
    """The model of a folder or name; where it cannot be had now, `tiny`, saying so."""
    from mooncake_edu.model import hub, load
    from mooncake_edu.model.commands import progress_bar

    if not Path(name).is_dir():
        with progress_bar() as progress:
            name = hub.fetch_or_tiny(name, lambda text: console.print(text, style="yellow", highlight=False), progress)
    with console.status(f"Loading {name} ..."):
        return load(name, seed=seed)


def serve_both(
    model: Model, count: int, turns: int, seed: int, sampling: SamplingParams, console: Console
) -> dict[str, Run]:
    """Both runs, after a short one that nobody counts, since a first run also pays for waking everything up."""
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

    silent = not console.is_terminal
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TextColumn("answers"))
    runs = {}
    with Progress(*columns, TimeElapsedColumn(), console=console, disable=silent) as progress:
        for name in (WITHOUT, WITH):
            serve(model, name, conversations(1, 1, seed), SamplingParams(max_tokens=2), lambda: None)
        for name in (WITHOUT, WITH):
            task = progress.add_task(f"Serving {name}", total=count * turns)
            done = functools.partial(progress.advance, task)
            runs[name] = serve(model, name, conversations(count, turns, seed), sampling, done)
    return runs


def show(runs: dict[str, Run], model: Model, out: Path, console: Console) -> None:
    """Prints tables, writes report, traces and logs, and says what to look at; all of it from the event logs."""
    from mooncake_edu.pictures.demo import print_tables, same_answers, write_demo_report
    from mooncake_edu.pictures.perfetto import write_perfetto

    print_tables(runs, console)
    console.print(same_answers(runs))
    if not model.revision.startswith("random"):
        console.print("\n[bold]The first conversation[/]")
        for message in runs[WITH].conversations[0].messages[1:]:
            console.print(f"{message['role']:>9}: {message['content'].strip()}", markup=False, highlight=False)
    written = [out / "report.html"]
    write_demo_report(written[0], runs, model.name)
    for name, run in runs.items():
        stem = name.replace(" ", "-")
        written += [out / f"{stem}.trace.json", out / f"{stem}.npz"]
        write_perfetto(run.log, written[-2])
        run.log.save(written[-1])
    console.print("\n[bold]Written[/]")
    for path in written:
        console.print(f"  {path}", markup=False, highlight=False, soft_wrap=True)
    console.print(
        f"Open {written[0]} in a browser: the pictures with explanations. Drop a .trace.json into ui.perfetto.dev to "
        "look at every step and span. The .npz files are the event logs that all of it was made from.",
        highlight=False,
    )
