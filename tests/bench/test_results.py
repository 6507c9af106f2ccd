"""Results: read back as written, better means better, and nothing is left behind by what cannot be written."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest
from rich.console import Console

from mooncake_edu.bench.results import BenchError, Report, Row, machine, require_writable
from mooncake_edu.errors import UserError


def row(**changes: object) -> Row:
    values: dict[str, object] = {
        "what": "decode",
        "unit": "tok/s",
        "ours": 20.0,
        "peers": {"other": 10.0},
        "limit": 40.0,
        "limit_is": "reading at 17 GB/s",
        "higher_is_better": True,
    }
    return Row.model_validate(values | changes)


def report(*rows: Row) -> Report:
    return Report(bench="engine", machine=machine(2, {"peer": "1.0"}), rows=list(rows), notes=["a note"])


@pytest.mark.parametrize(("higher", "advantage", "share"), [(True, 2.0, 0.5), (False, 0.5, 2.0)])
def test_better_is_more_or_less_as_the_row_says(higher: bool, advantage: float, share: float) -> None:
    assert row(higher_is_better=higher).advantage("other") == advantage
    assert row(higher_is_better=higher).share() == share


def test_a_report_is_read_back_as_it_was_written_with_the_keys_of_the_schema(tmp_path: Path) -> None:
    written = report(row(), row(limit=None, limit_is="", peers={}))
    written.save(tmp_path / "figures.json")
    assert Report.load(tmp_path / "figures.json") == written
    data = json.loads((tmp_path / "figures.json").read_text())
    assert {"bench", "machine", "rows"} <= data.keys()
    assert set(data["rows"][0]) == {"what", "unit", "ours", "peers", "limit", "limit_is", "higher_is_better"}
    assert list(tmp_path.iterdir()) == [tmp_path / "figures.json"]


def test_the_machine_names_processor_cores_threads_memory_and_versions() -> None:
    described = machine(2, {"peer": "1.0"})
    assert described["cpu"] and described["cores"] >= 1 and described["threads"] == 2
    assert described["memory"] > 1 << 20
    assert {"python", "peer"} <= described["versions"].keys()


@pytest.mark.parametrize(
    ("key", "value"), [("ours", float("nan")), ("ours", -1.0), ("limit", float("inf")), ("surplus", 1), ("what", "")]
)
def test_a_row_that_cannot_be_a_measurement_is_refused_by_its_key(tmp_path: Path, key: str, value: object) -> None:
    data = json.loads(report(row()).model_dump_json())
    data["rows"][0][key] = value
    (tmp_path / "figures.json").write_text(json.dumps(data))
    with pytest.raises(BenchError, match=f"figures.json: (rows.0.{key}|: Invalid JSON)"):
        Report.load(tmp_path / "figures.json")


def test_a_file_that_is_not_there_or_no_json_is_refused(tmp_path: Path) -> None:
    with pytest.raises(BenchError, match="none.json: cannot be read"):
        Report.load(tmp_path / "none.json")
    (tmp_path / "text.json").write_text("{")
    with pytest.raises(BenchError, match="text.json: .*JSON"):
        Report.load(tmp_path / "text.json")


def test_a_place_that_cannot_be_written_is_refused_before_and_after(tmp_path: Path) -> None:
    (folder := tmp_path / "folder").mkdir()
    os.mkfifo(folder / "pipe")
    for place in folder, folder / "missing" / "figures.json", folder / "pipe":
        with pytest.raises(BenchError, match="can be written"):
            require_writable(place)
        with pytest.raises(UserError, match="cannot be written"):
            report(row()).save(place)
    assert list(tmp_path.iterdir()) == [folder] and list(folder.iterdir()) == [folder / "pipe"]
    require_writable(tmp_path / "figures.json")
    require_writable(None)


def test_the_table_shows_every_figure_with_its_ratio_and_share() -> None:
    console = Console(width=120, record=True)
    console.print(report(row(), row(what="hash", peers={}, higher_is_better=False)).table())
    text = console.export_text()
    assert "10 (2.00 x)" in text and "50%" in text and "200%" in text
    assert [line.split()[0] for line in text.splitlines()[-2:]] == ["decode", "hash"]


def test_the_remarks_say_what_each_limit_is_once() -> None:
    remarks = report(row(), row(what="prefill"), row(what="bare", limit=None, limit_is="")).remarks()
    assert remarks == ["limit of decode; prefill: reading at 17 GB/s", "a note"]
