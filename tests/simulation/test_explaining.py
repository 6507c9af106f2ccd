"""`mooncake-edu explain` shows the candidates of a request and what every policy would have done, or says why not."""

from __future__ import annotations

from pathlib import Path

import pytest

from mooncake_edu.cli import main
from mooncake_edu.conductor import POLICIES
from mooncake_edu.traces.trace import write
from tests.simulation.clusters import workload


def run(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], *arguments: str) -> tuple[int, str, str]:
    """The command's status, and what it wrote on both streams."""
    monkeypatch.setattr("sys.argv", ["mooncake-edu", "explain", *arguments])
    with pytest.raises(SystemExit) as end:
        main()
    out, err = capsys.readouterr()
    return int(end.value.code or 0), out, err


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
