"""`mooncake-edu simulate` from a file to tables, a report and traces; what it cannot do is refused in one line."""

from __future__ import annotations

import json
import re
from importlib import resources
from pathlib import Path

import pytest

from mooncake_edu.cli import main
from mooncake_edu.events import EventLog
from mooncake_edu.traces.trace import Row, Trace, write
from tests.simulation.clusters import workload


@pytest.fixture
def trace(tmp_path: Path) -> str:
    """A file of 60 requests."""
    write(workload(60, 2.0, 1), tmp_path / "trace.jsonl")
    return str(tmp_path / "trace.jsonl")


def run(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], *arguments: str) -> tuple[int, str, str]:
    """The command's status, and what it wrote on both streams."""
    monkeypatch.setattr("sys.argv", ["mooncake-edu", "simulate", *arguments])
    monkeypatch.setenv("COLUMNS", "200")
    with pytest.raises(SystemExit) as end:
        main()
    out, err = capsys.readouterr()
    return int(end.value.code or 0), out, err


def test_policies_are_compared_side_by_side_and_written_out(
    trace: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    files = {option: tmp_path / option for option in ("html", "perfetto", "events", "json")}
    written = [text for option, file in files.items() for text in (f"--{option}", str(file))]
    status, out, err = run(monkeypatch, capsys, "--trace", trace, "--compare", "random", "round-robin", *written)
    assert status == 0, err
    assert re.search(r"random +round-robin", out)
    assert re.search(r"requests served +60 +60", out)
    for line in ("TTFT P90 (s)", "TBT P90 (ms)", "goodput", "hits in dram", "moved: stream", "prefill busy"):
        assert line in out
    page = files["html"].read_text(encoding="utf-8")
    what = "60 requests of trace at 1 x their speed"
    assert what in page and "placement random, admission all, objectives TTFT 30 s" in page
    assert page.count("<figure>") == 5
    figures = json.loads(files["json"].read_text())
    assert what in figures["what"] and figures["runs"].keys() == {"random", "round-robin"}
    assert figures["runs"]["random"]["requests served"] == 60
    drawn = json.loads(files["perfetto"].read_text())["traceEvents"]
    assert {"prefill 0", "decode 8"} <= {event["args"]["name"] for event in drawn if event["ph"] == "M"}
    names = {event["name"] for event in drawn}
    assert {"chunk", "decode", "load", "stream", "step", "queued"} <= names
    assert len(EventLog.load(files["events"]).requests()) == 60
    assert "[60/60] round-robin" in err


def test_a_trace_of_other_blocks_is_read_by_the_configuration_s_size(
    trace: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    text = (resources.files("mooncake_edu") / "configs" / "cluster.toml").read_text(encoding="utf-8")
    (tmp_path / "fine.toml").write_text(text.replace("block_size = 512", "block_size = 16"))
    write(Trace.of([Row(0.0, 40, 2, [1, 2, 3])], block_size=16), tmp_path / "fine.jsonl")
    given = ("--trace", str(tmp_path / "fine.jsonl"), "--config", str(tmp_path / "fine.toml"))
    status, out, err = run(monkeypatch, capsys, *given)
    assert status == 0 and re.search(r"requests served +1 ", out), err
    status, _, err = run(monkeypatch, capsys, "--trace", str(tmp_path / "fine.jsonl"))
    assert status == 2 and "3 hash_ids do not fit input_length 40" in err and "engine.block_size" in err


def test_a_faster_replay_makes_requests_wait_longer(
    trace: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    waits = []
    for speed in ("1", "20"):
        status, out, _ = run(monkeypatch, capsys, "--trace", trace, "--speed", speed, "--requests", "50")
        assert status == 0
        waits.append(float(re.search(r"TTFT mean \(s\) +([\d.]+)", out)[1]))  # type: ignore[index]
    assert waits[1] > waits[0]


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["--config", "no.toml"], "configuration 'no.toml' is no file, nor a size: give a TOML file, or a size"),
        (["--config", "tiny"], "tiny: simulation.costs is missing for model.name 'tiny'"),
        (["--compare", "best"], "policies.placement 'best' is not simulated: use one of random"),
        (["best"], "'best' stands alone"),
        (["--compare", "random", "random"], "--compare random: stands twice: name each once"),
        (["--html", "/no/such/folder/x"], "--html /no/such/folder/x"),
        (["--trace", "no.jsonl"], "trace 'no.jsonl' is no file, nor a name: give a file, or one of conversation"),
        (["--trace", "conversatoin"], "did you mean 'conversation'?"),
        (["--config", "clustre"], "did you mean 'cluster'?"),
    ],
)
def test_what_cannot_be_done_is_refused_in_one_line(
    arguments: list[str], said: str, trace: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    status, _, err = run(monkeypatch, capsys, "--trace", trace, *arguments)
    assert status == 2
    assert said in err
    assert len(err.strip().splitlines()) == 1


def test_no_file_is_written_over_the_trace_or_another_output(
    trace: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    before, both = Path(trace).read_bytes(), str(tmp_path / "both")
    for outputs in (["--events", trace], ["--html", both, "--perfetto", both]):
        status, _, err = run(monkeypatch, capsys, "--trace", trace, *outputs)
        assert status == 2 and "is the trace or another option's file: choose another" in err
    assert Path(trace).read_bytes() == before and not Path(both).exists()


def test_a_prompt_that_fits_nowhere_is_counted_as_refused(
    trace: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    write(Trace.of([Row(0.0, 512, 1, [0]), Row(0.0, 512 * 10_000, 1, range(1, 10_001))]), tmp_path / "long.jsonl")
    _, out, _ = run(monkeypatch, capsys, "--trace", str(tmp_path / "long.jsonl"))
    assert re.search(r"requests served +1 *\n requests refused +1 *\n refused: too large +1 *\n", out)
    assert "requests refused" not in run(monkeypatch, capsys, "--trace", trace)[1]


def test_hardware_that_is_too_slow_and_what_it_has_no_times_for_are_refused_by_name(
    trace: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    text = (resources.files("mooncake_edu") / "configs" / "cluster.toml").read_text(encoding="utf-8")
    (tmp_path / "wide.toml").write_text(text.replace('"bfloat16"', '"float32"'))
    status, _, err = run(monkeypatch, capsys, "--trace", trace, "--config", str(tmp_path / "wide.toml"))
    assert status == 2 and "wide.toml: model.dtype 'float32' is not simulated from [hardware]: use bfloat16" in err
    (tmp_path / "slow.toml").write_text(text.replace('"2496 TFLOP/s"', '"1 FLOP/s"'))
    status, _, err = run(monkeypatch, capsys, "--trace", trace, "--config", str(tmp_path / "slow.toml"))
    assert status == 2 and re.search(r"slow.toml: hardware is too slow to simulate .*: give more compute", err)
    status, _, err = run(monkeypatch, capsys, "--trace", trace, "--compare", "random", str(tmp_path / "slow.toml"))
    assert status == 2 and f"{tmp_path / 'slow.toml'}: hardware is too slow" in err
