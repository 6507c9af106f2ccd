"""The demo, on the tiny model: what it shows is true, comes from the log, and is written whole or refused."""

from __future__ import annotations

import io
import json
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from rich.console import Console

from mooncake_edu.demo import SYSTEM, TOPICS, WITH, WITHOUT, Run, conversations, serve, serve_both
from mooncake_edu.errors import UserError
from mooncake_edu.events import EventLog, Kind
from mooncake_edu.model import Model, load
from mooncake_edu.pictures.demo import change, print_tables, request_rows, same_answers, totals
from mooncake_edu.request import SamplingParams


@pytest.fixture(scope="module")
def model() -> Model:
    return load("tiny")


@pytest.fixture(scope="module")
def runs(model: Model) -> dict[str, Run]:
    return serve_both(model, 2, 3, 0, SamplingParams(max_tokens=6), Console(file=io.StringIO()))


def test_both_runs_give_the_same_answers_to_every_question(runs: dict[str, Run]) -> None:
    assert runs[WITHOUT].tokens == runs[WITH].tokens
    assert set(runs[WITH].tokens) == {f"chat {chat}, turn {turn}" for chat in (1, 2) for turn in (1, 2, 3)}
    assert all(1 <= len(tokens) <= 6 for tokens in runs[WITH].tokens.values())
    assert "the same 6 answers" in same_answers(runs)


def test_with_sharing_every_prompt_token_is_either_reused_or_computed_and_without_all_are(runs: dict[str, Run]) -> None:
    for name, run in runs.items():
        table = run.log.requests()
        computed = int(run.log.select(Kind.CHUNK).field(Kind.CHUNK, "tokens").sum())
        assert computed + int(table.cached.sum()) == int(table.prompt.sum())
        assert (int(table.cached.sum()) > 0) == (name == WITH)
        assert len(run.log.select(Kind.PREEMPTED)) == 0


def test_a_turn_finds_the_turn_before_it_in_the_cache(runs: dict[str, Run]) -> None:
    table = runs[WITH].log.requests()
    line = {name: number for number, name in enumerate(table.id)}
    for chat in (1, 2):
        for turn in (2, 3):
            now, before = line[f"chat {chat}, turn {turn}"], line[f"chat {chat}, turn {turn - 1}"]
            assert table.prompt[before] // 16 * 16 <= table.cached[now] < table.prompt[now]


def test_the_log_knows_what_the_engine_gave_out(runs: dict[str, Run]) -> None:
    for run in runs.values():
        table = run.log.requests()
        assert table.complete.all() and not np.isnan(table.ttft).any()
        for name, output in zip(table.id, table.output, strict=True):
            assert output == len(run.tokens[name]) == len(run.log.token_times(name))


def test_a_block_is_used_cached_or_free_at_every_step(runs: dict[str, Run]) -> None:
    for run in runs.values():
        steps = run.log.select(Kind.STEP)
        blocks = sum(steps.field(Kind.STEP, name) for name in ("used", "cached", "free"))
        assert len(set(np.asarray(blocks).tolist())) == 1


def test_a_turn_waits_for_the_answer_before_it(model: Model, runs: dict[str, Run]) -> None:
    table = runs[WITH].log.requests()
    arrival = dict(zip(table.id, table.arrival, strict=True))
    ended = dict(zip(table.id, table.arrival + table.e2e, strict=True))
    assert all(arrival[f"chat {c}, turn {t + 1}"] >= ended[f"chat {c}, turn {t}"] for c in (1, 2) for t in (1, 2))
    for talk in runs[WITH].conversations:
        assert [message["role"] for message in talk.messages] == ["system"] + ["user", "assistant"] * 3


def test_the_seed_alone_orders_the_topics() -> None:
    def questions(seed: int) -> list[list[str]]:
        return [talk.questions for talk in conversations(4, 5, seed)]

    assert questions(3) == questions(3)
    assert len({str(questions(seed)) for seed in range(10)}) > 3
    assert sorted(questions(3)) == sorted(list(topic) for topic in TOPICS)


def test_more_conversations_and_turns_than_topics_and_questions_come_round_again() -> None:
    talks = conversations(len(TOPICS) + 1, len(TOPICS[0]) + 1, 0)
    assert talks[0].questions == talks[-1].questions and talks[0].questions[0] == talks[0].questions[-1]
    assert len({talk.name for talk in talks}) == len(talks)


def test_the_system_prompt_is_longer_than_several_blocks_and_the_same_for_all(model: Model) -> None:
    assert len(model.tokenizer.encode(SYSTEM)) > 10 * 16
    assert {talk.messages[0]["content"] for talk in conversations(4, 1, 0)} == {SYSTEM}


def test_answers_that_differ_are_named(model: Model) -> None:
    done: list[None] = []
    sampling = SamplingParams(max_tokens=2)
    one = serve(model, WITHOUT, conversations(1, 2, 0), sampling, lambda: done.append(None))
    other = Run(WITH, tokens=one.tokens | {"chat 1, turn 2": [1]})
    assert len(done) == 2
    assert "1 of 2 answers differ, first that of chat 1, turn 2" in same_answers({WITHOUT: one, WITH: other})


@pytest.mark.parametrize("width", [80, 120])
def test_tables_fit_a_terminal_and_cut_nothing_off(runs: dict[str, Run], width: int) -> None:
    console = Console(file=io.StringIO(), width=width)
    print_tables(runs, console)
    assert isinstance(console.file, io.StringIO)
    text = console.file.getvalue()
    assert "…" not in text and max(map(len, text.splitlines())) <= width
    for name in runs[WITH].tokens:
        assert name in text


def test_the_tables_are_made_from_the_log_alone(runs: dict[str, Run], tmp_path: Path) -> None:
    logs = [run.log for run in runs.values()]
    again = []
    for number, log in enumerate(logs):
        log.save(tmp_path / f"{number}.npz")
        again.append(EventLog.load(tmp_path / f"{number}.npz"))
    assert request_rows(logs) == request_rows(again) and totals(logs) == totals(again)
    assert len(request_rows(logs)) == 6 and "better" in change(totals(logs)[0])


def demo(*arguments: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "mooncake_edu", "demo", "--model", "tiny", *arguments]
    return subprocess.run(command, capture_output=True, text=True, timeout=250, check=False)


def test_one_command_writes_report_traces_and_logs_and_names_them(tmp_path: Path) -> None:
    out = tmp_path / "new" / "folder"
    result = demo("--quick", "--out", str(out))
    assert result.returncode == 0, result.stderr
    written = {"report.html", "without-sharing.trace.json", "with-sharing.trace.json", "without-sharing.npz",
               "with-sharing.npz"}  # fmt: skip
    assert {path.name for path in out.iterdir()} == written
    assert all(str(out / name) in result.stdout for name in written)
    assert "the same 4 answers" in result.stdout
    html = (out / "report.html").read_text(encoding="utf-8")
    assert html.count('role="img"') == 7 and "the same 4 answers" in html
    assert len(EventLog.load(out / "with-sharing.npz").requests()) == 4
    assert json.loads((out / "with-sharing.trace.json").read_text())["traceEvents"]


def test_a_folder_that_cannot_be_written_is_refused_in_one_line_before_any_work(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    result = demo("--out", str(tmp_path / "file" / "out"))
    assert result.returncode == 2 and result.stdout == ""
    assert result.stderr.count("\n") == 1 and str(tmp_path / "file" / "out") in result.stderr
    assert "choose another folder" in result.stderr


def test_answers_that_are_not_numbers_are_refused() -> None:
    broken = load("tiny")
    assert broken.decoder.weights.norm is not None
    broken.decoder.weights.norm.fill_(float("nan"))
    with pytest.raises(UserError, match="tiny computed logits that are not numbers: use another model"):
        serve(broken, WITH, conversations(1, 1, 0), SamplingParams(max_tokens=2), lambda: None)
