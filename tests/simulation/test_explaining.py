"""`mooncake-edu explain` shows the candidates of a request and what every policy would have done, or says why not."""

from __future__ import annotations

from importlib import resources
from pathlib import Path

import pytest

from mooncake_edu.cli import main
from mooncake_edu.conductor import POLICIES
from mooncake_edu.config import Config
from mooncake_edu.simulation import simulate
from mooncake_edu.simulation.explain import Journal
from mooncake_edu.traces.trace import Row, Trace, write
from tests.simulation.clusters import workload


def run(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], *arguments: str) -> tuple[int, str, str]:
    """The command's status, and what it wrote on both streams."""
    monkeypatch.setattr("sys.argv", ["mooncake-edu", "explain", *arguments])
    with pytest.raises(SystemExit) as end:
        main()
    out, err = capsys.readouterr()
    return int(end.value.code or 0), out, err


def without(folder: Path, count: int, kind: str, start: float, stop: float) -> str:
    """A file of the cluster whose first `count` instances are missing for a while."""
    text = (resources.files("mooncake_edu") / "configs" / "cluster.toml").read_text(encoding="utf-8")
    for number in range(count):
        text += f'[[simulation.outages]]\ninstance = {number}\nstart = {start}\nstop = {stop}\nkind = "{kind}"\n'
    (folder / "outages.toml").write_text(text)
    return str(folder / "outages.toml")


@pytest.fixture
def trace(tmp_path: Path) -> str:
    """A file of 40 requests."""
    write(workload(40, 5.0, 1), tmp_path / "trace.jsonl")
    return str(tmp_path / "trace.jsonl")


@pytest.mark.parametrize("placement", POLICIES)
def test_every_instance_and_every_policy_has_a_line_and_one_instance_was_chosen(
    placement: str, trace: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    status, out, err = run(monkeypatch, capsys, "39", "--trace", trace, "--placement", placement)
    assert status == 0, err
    lines = [line.split() for line in out.splitlines()]
    assert [line[0] for line in lines if line and line[0].isdigit()] == [str(number) for number in range(8)]
    assert out.count("chosen") == 1
    told = {line[0]: line for line in lines if line and line[0] in POLICIES}
    assert set(told) == set(POLICIES)
    chosen = next(line[0] for line in lines if line and line[-1] == "chosen")
    assert told[placement][1] == chosen


def test_a_request_that_is_not_in_the_trace_is_refused(
    trace: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    status, _, err = run(monkeypatch, capsys, "40", "--trace", trace)
    assert status == 2
    assert "request 40 is not in trace: use a number from 0 to 39" in err


def test_the_request_named_is_shown_though_earlier_ones_were_placed_again(
    trace: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    rows = workload(40, 5.0, 1)
    # what instances 0 to 5 hold is placed anew in between
    missing = without(tmp_path, 6, "down", rows.arrival[20] + 0.001, rows.arrival[-1])
    journal = Journal()
    simulate(Config.named(missing), rows, journal=journal)
    assert journal.placed[39].arguments[0].arrival < rows.arrival[39]  # that placement is another request's
    status, out, err = run(monkeypatch, capsys, "39", "--trace", trace, "--config", missing)
    assert status == 0, err
    assert f"A prompt of {rows.input_length[39]:,} tokens at {rows.arrival[39]:.3f} s." in out
    assert "refused" not in out


def test_of_a_request_that_is_refused_the_reason_is_told(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    size = 40_000_000  # tokens: no instance has room for them
    write(Trace.of([Row(0.0, 512, 1, [0]), Row(1.0, size, 1, range(size // 512))]), tmp_path / "trace.jsonl")
    status, out, err = run(monkeypatch, capsys, "1", "--trace", str(tmp_path / "trace.jsonl"))
    assert status == 0, err
    assert out.endswith("In the end it was refused (arrival: too large).\n")


def test_a_request_that_nobody_could_take_has_no_candidates_to_show(
    trace: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    missing = without(tmp_path, 8, "draining", 0.0, 1000.0)
    status, _, err = run(monkeypatch, capsys, "3", "--trace", trace, "--config", missing)
    assert status == 2
    assert "request 3 of trace was not placed: it was refused (arrival: down)" in err
