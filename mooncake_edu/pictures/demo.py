"""What the demo shows of its two runs: tables in the terminal, and a report in plain words."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from os import PathLike
from typing import TYPE_CHECKING, NamedTuple

import plotly.graph_objects as go

from mooncake_edu.events import EventLog, Kind
from mooncake_edu.outcome import RequestTable
from mooncake_edu.pictures.figures import latency_bars, memory, timeline, tokens_side_by_side
from mooncake_edu.pictures.report import Cell, Section, Table, write_report

if TYPE_CHECKING:
    from rich.console import Console

    from mooncake_edu.demo import Run


class Total(NamedTuple):
    """One line of the comparison: a value per run, and whether less of it is better."""

    what: str
    values: list[float]
    less_is_better: bool


def totals(logs: Sequence[EventLog]) -> list[Total]:
    """What is compared between the runs, times in seconds and milliseconds as named."""
    tables = [log.requests() for log in logs]
    computed = [float(log.select(Kind.CHUNK).field(Kind.CHUNK, "tokens").sum()) for log in logs]
    return [
        Total("prompt tokens computed", computed, True),
        Total("prompt tokens reused (%)", [100 * table.hit_ratio() for table in tables], False),
        Total("total time (s)", [duration(table) for table in tables], True),
        Total("mean TTFT (ms)", [table.mean("ttft") * 1e3 for table in tables], True),
        Total("mean TBT, slowest tenth (ms)", [table.mean("tbt") * 1e3 for table in tables], True),
    ]


def duration(table: RequestTable) -> float:
    """Seconds from the first arrival to the last end."""
    return float((table.arrival + table.e2e).max() - table.arrival.min()) if len(table) else 0.0


def print_tables(runs: Mapping[str, Run], console: Console) -> None:
    """One line per request, then the totals, side by side."""
    from rich import box
    from rich.table import Table as RichTable

    names, logs = list(runs), [run.log for run in runs.values()]
    table = RichTable(box=box.SIMPLE_HEAD, title="Each request: tokens, and times in ms", title_justify="left",
                      title_style="bold", collapse_padding=True, pad_edge=False)  # fmt: skip
    for number, column in enumerate(REQUEST_COLUMNS):
        heading = column.removesuffix(" tokens").replace(" ms ", "\n")
        table.add_column(heading, justify="right" if number else "left", no_wrap=True, vertical="bottom")
    for row in request_rows(logs):
        table.add_row(*(cell if isinstance(cell, str) else _whole(cell) for cell in row))
    console.print(table)
    console.print(
        "reused: prompt tokens that the run with sharing found in its cache. TTFT: time to the first token. TBT: time "
        "between two tokens, the mean of the slowest tenth.",
        style="dim", highlight=False,
    )  # fmt: skip
    console.print()
    table = RichTable(box=box.SIMPLE_HEAD, title="In all", title_justify="left", title_style="bold")
    table.add_column("")
    for name in (*names, "change"):
        table.add_column(name, justify="right")
    for total in totals(logs):
        table.add_row(total.what, *(_plain(value) for value in total.values), change(total))
    console.print(table)


def _whole(value: float) -> str:
    return "-" if value != value else f"{value:,.0f}"


def _plain(value: float) -> str:
    return "-" if value != value else f"{value:,.1f}" if value < 100 else f"{value:,.0f}"


REQUEST_COLUMNS = ("request", "prompt tokens", "reused tokens", "output tokens", "TTFT ms without", "TTFT ms with",
                   "TBT ms without", "TBT ms with")  # fmt: skip


def request_rows(logs: Sequence[EventLog]) -> list[list[Cell]]:
    """Per request the columns of REQUEST_COLUMNS, in order of arrival in the second run."""
    first, second = (log.requests() for log in logs)
    before = {name: line for line, name in enumerate(first.id)}
    rows: list[list[Cell]] = []
    for line, name in enumerate(second.id):
        old = before[name]
        reused = int(second.cached[line] + second.loaded[line])
        times = [1e3 * float(value) for value in (first.ttft[old], second.ttft[line], first.tbt[old], second.tbt[line])]
        rows.append([name, int(second.prompt[line]), reused, int(second.output[line]), *times])
    return rows


def change(total: Total) -> str:
    """How the second run compares with the first, in words."""
    old, new = total.values
    if not old > 0 or not new > 0:
        return ""
    better = (new < old) == total.less_is_better
    ratio = max(old / new, new / old)
    return "the same" if ratio < 1.02 else f"{ratio:.1f} x {'better' if better else 'worse'}"


def same_answers(runs: Mapping[str, Run]) -> str:
    """Whether both runs made the same tokens, and if not where they part."""
    first, second = (run.tokens for run in runs.values())
    different = [name for name in first if first[name] != second.get(name)]
    if not different:
        return (
            f"Both runs gave the same {len(first)} answers, token for token: sharing changes the work, not the words."
        )
    return (
        f"{len(different)} of {len(first)} answers differ, first that of {different[0]}: where two tokens are almost "
        "equally likely, sums in another order can choose the other one."
    )


def write_demo_report(path: str | PathLike[str], runs: Mapping[str, Run], model: str) -> None:
    """Writes the report of two runs as one HTML file. Raises UserError if it cannot be written."""
    logs = {name: run.log for name, run in runs.items()}
    title = "Prefix sharing: what it saves"
    write_report(path, title, _lead(logs, model), [*_findings(logs), *_details(logs), _answers(runs), WORDS])


def _lead(logs: Mapping[str, EventLog], model: str) -> str:
    computed, hit, time, ttft, _ = totals(list(logs.values()))
    return (
        f"The model {model} answered the same questions twice. Without sharing it computed {computed.values[0]:,.0f} "
        f"prompt tokens, with sharing {computed.values[1]:,.0f}: {hit.values[1]:.0f} % of the prompt tokens were in "
        f"the KVCache already. The mean time to the first token went from {ttft.values[0]:,.0f} to "
        f"{ttft.values[1]:,.0f} ms, the total time from {time.values[0]:.1f} to {time.values[1]:.1f} s."
    )


def _findings(logs: Mapping[str, EventLog]) -> list[Section]:
    rows: list[list[Cell]] = [[total.what, *total.values, change(total)] for total in totals(list(logs.values()))]
    return [
        Section(
            "What was computed, and what was not",
            [
                "Every conversation begins with the same system prompt, and every turn sends again all that was said "
                "before. A server without sharing computes all of it each time. With sharing it recognises, block by "
                "block, a beginning that it has computed already, and computes only what is new.",
            ],
            [tokens_side_by_side(logs)],
            [Table("Both runs in numbers", ["", *logs, "change"], rows)],
        ),
        Section(
            "How long the readers waited",
            [
                "TTFT, the time to the first token, is the wait before an answer begins: time in the queue plus the "
                "prefill of the prompt. It is what sharing shortens. TBT, the time between two tokens, says how evenly "
                "the answer then flows: for each request it is the mean of its slowest tenth of intervals. Those are "
                "slow in which the prefill of another prompt came in between, so sharing shortens them too, if not for "
                "every request.",
            ],
            [latency_bars(logs, "ttft"), latency_bars(logs, "tbt")],
        ),
    ]


def _details(logs: Mapping[str, EventLog]) -> list[Section]:
    longest = 1.02 * max(duration(log.requests()) for log in logs.values())  # one scale, so that lengths compare
    return [
        Section(
            "Who did what when",
            [
                "One line per request. All conversations are served together: in each step the model decodes one token "
                "for every answer under way, and computes a chunk of the prompts that are new. A diamond marks where a "
                "prefill began with tokens from the cache.",
            ],
            [_named(timeline(log), name, longest) for name, log in logs.items()],
        ),
        Section(
            "What the KVCache held",
            [
                "Memory is handed out in blocks. When a request ends, its blocks become free without sharing; with "
                "sharing they stay, marked as cached, until a new request needs the space: the next turn finds them "
                "there.",
            ],
            [_named(memory(log), name, longest) for name, log in logs.items()],
        ),
        Section(
            "Each request in numbers",
            tables=[Table("Tokens, and times in milliseconds", REQUEST_COLUMNS, request_rows(list(logs.values())))],
        ),
    ]


def _named(figure: go.Figure, name: str, longest: float) -> go.Figure:
    """The figure of one run, with the run's name in its title and text, over as much time as that of the other."""
    meta = dict(figure.layout.meta)
    title = f"{figure.layout.title.text}, {name}"
    figure.update_xaxes(range=[0, longest])
    return figure.update_layout(title_text=title, meta=meta | {"alt": f"{title}. {meta['finding']}"})


def _answers(runs: Mapping[str, Run]) -> Section:
    rows = []
    for talk in list(runs.values())[-1].conversations:
        said = [message["content"].strip() for message in talk.messages[1:]]
        rows += [[talk.name, question, answer] for question, answer in zip(said[::2], said[1::2], strict=True)]
    note = (
        "A model this small is often wrong, and answers end where their tokens run out. What counts here is the work "
        "of serving it, which is the same for a large one."
    )
    table = Table("What was asked and answered", ["conversation", "question", "answer"], rows)
    return Section("The answers", [same_answers(runs), note], tables=[table])


WORDS = Section(
    "Words",
    [
        "Token: a piece of text, about three quarters of a word. Prompt: all tokens that are sent to the model. "
        "Prefill: computing the prompt. Decode: making the answer, one token at a time.",
        "KVCache: what the model keeps of every token, so that it need not be computed again. Block: the KVCache of a "
        "few tokens, the unit of memory. Hit ratio: the share of prompt tokens that were found and not computed.",
        "The traces beside this file show the same at full detail: open ui.perfetto.dev and drop one there. Each "
        "request has a track of its own; below them stand the steps of the engine, and its blocks.",
    ],
)
