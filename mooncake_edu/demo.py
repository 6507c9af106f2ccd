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
from mooncake_edu.request import FinishReason, Request, SamplingParams, as_tokens

if TYPE_CHECKING:
    from rich.console import Console

    from mooncake_edu.model import Model

WITHOUT, WITH = "without sharing", "with sharing"
ROOM = 3  # an answer of broken characters can take this many times its tokens when it comes back in the next turn
BLOCK = 16  # tokens
QUICK = (2, 2, 12)  # conversations, turns, tokens an answer

SYSTEM = """\
You are the kitchen helper of a small cooking school, and you talk with people who cook for the first time. You \
answer every question in one or two friendly sentences. You always remind people to wash their hands before they \
begin and after touching raw meat, fish or eggs, and to use one cutting board for raw meat and another one for \
vegetables and bread. You know that rice needs two cups of water for one cup of rice and cooks for fifteen \
minutes on a low heat under a lid. You know that water for pasta should taste a little salty, that chicken is \
done when no part of it is pink, that a soft egg boils for six minutes and a hard one for ten. You know that \
bread dough rests in a warm place until it is twice as large, and that an oven needs ten minutes to become hot. \
You know that leftovers go into the fridge within two hours and are eaten within three days, and that soup can \
be frozen for two months. When somebody names an allergy, you say which ingredients to leave out and what to use \
instead. When you do not know an answer, you say so and suggest asking the teacher. You never recommend food \
that may be spoiled, you are patient, and you praise good ideas."""
"""What every conversation begins with: a few hundred tokens, as services really have them."""

TOPICS = (
    ("How do I cook rice?", "How much water do I need?", "What can I eat with it?",
     "How long can I keep the rest?", "Can I fry it the next day?"),
    ("How do I make a simple tomato soup?", "Can I use tomatoes from a can?", "How do I make it less sour?",
     "What bread goes well with it?", "Can I freeze it?"),
    ("How do I boil an egg?", "How long does a soft one take?", "How do I peel it?",
     "What can I make from two eggs?", "How do I know that an egg is fresh?"),
    ("How do I bake bread?", "Why must the dough rest?", "How hot should the oven be?",
     "How do I know that it is done?", "How do I keep it fresh?"),
)  # fmt: skip
"""Questions of one conversation each, in order."""


@dataclass
class Conversation:
    """A system prompt and turns; the next question waits for the answer to the one before."""

    name: str
    questions: list[str]
    messages: list[dict[str, str]] = field(default_factory=lambda: [{"role": "system", "content": SYSTEM}])
    asked: int = 0

    def blocks(self, model: Model, sampling: SamplingParams) -> int:
        """Blocks that surely hold all of it, so that no run has to evict anything."""
        asked = [{"role": "user", "content": question} for question in self.questions]
        said = [turn for message in asked for turn in (message, {"role": "assistant", "content": "."})]
        longest = len(model.tokenizer.chat([*self.messages[:1], *said])) + ROOM * len(asked) * sampling.max_tokens
        return -(-longest // BLOCK)

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
    """Serves all conversations together in one batch, each turn after the turn before it; `done` is told of each.

    Raises UserError if the model's answer is not numbers.
    """
    from mooncake_edu.config import EngineConfig
    from mooncake_edu.engine import Engine

    run = Run(name, conversations=talks)
    blocks = len(talks) * max(talk.blocks(model, sampling) for talk in talks)
    engine = Engine(model, EngineConfig(blocks=blocks, block_size=BLOCK, prefix_sharing=name == WITH), log=run.log)
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
            if output.finish is FinishReason.FAILED:
                raise UserError(f"{model.name} computed logits that are not numbers: use another model")
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
        console.print("\n[bold]The first conversation[/] (a small model is often wrong; here the work counts)")
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
