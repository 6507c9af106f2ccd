"""The experiments on reuse, and the table of experiments: names, rows, refusals, pages."""

from __future__ import annotations

import json
import re
from importlib import resources
from pathlib import Path
from typing import Any

import pytest

from mooncake_edu.errors import ConfigError
from mooncake_edu.simulation.experiments import EXPERIMENTS, Outcome, find, settings_of
from mooncake_edu.simulation.experiments.reuse import REUSE
from mooncake_edu.simulation.experiments.table1 import PAPER, TABLE1
from mooncake_edu.traces import places
from mooncake_edu.traces.stats import block_hits, prefix_hits, stats
from tests.cli.conftest import Run, run
from tests.traces.test_generate import SMALL, generate

__all__ = ["run"]

TRACE = generate(SMALL, 60, 0, "small")


@pytest.fixture(autouse=True)
def small(monkeypatch: pytest.MonkeyPatch) -> None:
    """Every trace is a small one, so that an experiment takes no time."""
    for module in ("table1", "reuse"):
        monkeypatch.setattr(f"mooncake_edu.simulation.experiments.{module}.load", lambda name: TRACE)
    monkeypatch.setattr("mooncake_edu.simulation.experiments.reuse.make", lambda name, seed: generate(SMALL, 60, seed))


def silent(what: str, done: int, total: int) -> None:
    assert 0 <= done < total and what


@pytest.mark.parametrize("name", EXPERIMENTS)
def test_every_experiment_of_the_table_is_there_with_a_configuration_that_it_reads(name: str) -> None:
    assert isinstance(settings_of(name), find(name).settings)
    assert EXPERIMENTS[name].help.endswith(".")


@pytest.mark.parametrize(
    ("name", "old", "new", "said"),
    [
        ("table1", 'policies = ["lru"', 'policies = ["lru", "lru"', "policies: 'lru' is there twice: name each once"),
        (
            "embedding",
            'name = "cheap, slow network"',
            'name = "costly, slow network"',
            "cases: 'costly, slow network' is there twice",
        ),
    ],
)
def test_what_is_compared_is_named_once(name: str, old: str, new: str, said: str, tmp_path: Path) -> None:
    text = (resources.files("mooncake_edu") / "configs" / "reproduce" / f"{name}.toml").read_text(encoding="utf-8")
    assert old in text
    (tmp_path / "own.toml").write_text(text.replace(old, new))
    with pytest.raises(ConfigError, match=re.escape(f"own.toml: {said}")):
        settings_of(name, tmp_path / "own.toml")


def test_table1_counts_what_the_replays_count_and_stands_beside_the_paper() -> None:
    outcome = TABLE1.run(TABLE1.settings(traces=["any"], policies=["lru", "lfu"], capacities=[100, 1000]), silent)
    rows = {row.what: row for row in outcome.rows}
    assert len(rows) == 2 * 2 * 3
    assert rows["small, lru, 100 blocks"].ours == block_hits(TRACE, "lru", 100) / len(TRACE.ids)
    whole = rows["small, lfu, 1,000 blocks, whole prefixes only"]
    assert (whole.ours, whole.paper) == (prefix_hits(TRACE, "lfu", 1000)[0] / len(TRACE.ids), None)
    assert rows["small, lfu, 1,000 blocks"].paper == PAPER["lfu"][1000]
    assert rows["small, lru, no limit"].ours == stats(TRACE).hit_ratio
    assert figures_say_what_they_show(outcome)


def test_reuse_has_a_range_where_a_trace_was_generated_and_none_where_it_is_real(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    settings = REUSE.settings(traces=["papers"], seeds=3, capacities=[50])
    row, pool = REUSE.run(settings, silent).rows
    shares = [stats(TRACE).token_hit_ratio, *(stats(generate(SMALL, 60, seed)).token_hit_ratio for seed in (1, 2))]
    assert (row.ours, row.low, row.high) == (pytest.approx(sum(shares) / 3), min(shares), max(shares))
    assert row.paper == 0.90
    assert pool.ours == prefix_hits(TRACE, "lru", 50)[1] / TRACE.input_length.sum()
    monkeypatch.setattr("mooncake_edu.simulation.experiments.reuse.here", lambda name: True)
    outcome = REUSE.run(settings, silent)
    assert (outcome.rows[0].ours, outcome.rows[0].low, outcome.rows[0].high) == (shares[0], None, None)
    assert figures_say_what_they_show(outcome)


def figures_say_what_they_show(outcome: Outcome) -> bool:
    return all(figure.data and figure.layout.meta["finding"] for figure in outcome.figures)


@pytest.fixture
def config(tmp_path: Path) -> Path:
    file = tmp_path / "own.toml"
    file.write_text('traces = ["any"]\npolicies = ["lru"]\ncapacities = [100]\n')
    return file


def test_the_command_writes_rows_and_a_page_with_ours_beside_the_paper(run: Run, tmp_path: Path, config: Path) -> None:
    out, page = tmp_path / "out.json", tmp_path / "out.html"
    ended = run("reproduce", "table1", "--config", str(config), "--json", str(out), "--html", str(page))
    assert ended.status == 0 and "reproduce table1" in ended.out and "compare the shapes" in ended.out
    found: dict[str, Any] = json.loads(out.read_text())
    assert list(found) == ["experiment", "config", "rows"]
    assert (found["experiment"], found["config"]["capacities"]) == ("table1", [100])
    assert all(list(row) == ["what", "unit", "ours", "low", "high", "paper"] for row in found["rows"])
    assert "ours / paper" in page.read_text() and "Hits of one global pool" in page.read_text()


def test_without_a_name_all_experiments_are_listed(run: Run) -> None:
    lines = run("reproduce").out.splitlines()
    assert [line.split()[0] for line in lines] == list(EXPERIMENTS)


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["tabel1"], "experiment 'tabel1' is not known: did you mean 'table1'?"),
        (["xyz"], "use one of table1, "),
        (["table1", "--json", "/nowhere/out.json"], "--json /nowhere/out.json"),
        (["table1", "--html", "/nowhere/out.html"], "--html /nowhere/out.html"),
        (["table1", "--config", "/nowhere.toml"], "/nowhere.toml: cannot be read"),
    ],
)
def test_what_cannot_be_run_is_refused_in_one_line(run: Run, arguments: list[str], words: str) -> None:
    ended = run("reproduce", *arguments)
    assert (ended.status, ended.out, ended.err.count("\n")) == (2, "", 1)
    assert words in ended.err


@pytest.mark.parametrize(
    ("line", "words"),
    [
        ("capacities = [0]", "own.toml: capacities[0] 0 is not allowed: use a list of at least one, each a whole"),
        ("policies = []", "own.toml: policies [] is not allowed: use a list of at least one, each text"),
        ("pollcies = []", "pollcies is no known key: did you mean 'policies'?"),
    ],
)
def test_a_configuration_that_cannot_work_is_refused_with_its_key(tmp_path: Path, line: str, words: str) -> None:
    file = tmp_path / "own.toml"
    values = {"traces": '["a"]', "policies": '["lru"]', "capacities": "[5]"}
    values.pop(line.split()[0], None)
    file.write_text("\n".join([line, *(f"{key} = {value}" for key, value in values.items())]))
    with pytest.raises(ConfigError) as caught:
        settings_of("table1", file)
    assert words in str(caught.value) and "\n" not in str(caught.value)


def test_a_real_trace_keeps_its_short_name_in_the_rows(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    from mooncake_edu.traces.profiles import load
    from mooncake_edu.traces.trace import write

    write(TRACE, tmp_path / places.FILES["conversation"])
    monkeypatch.setattr(places, "folders", lambda: iter([tmp_path]))
    assert load("conversation").name == "conversation"
