"""A file of events is read as it was written, or refused in one line; nothing in it is trusted."""

from __future__ import annotations

import io
import json
import os
import zipfile
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from mooncake_edu.errors import UserError
from mooncake_edu.events import EventLog, Kind, write_whole


@pytest.fixture
def saved(tmp_path: Path) -> Path:
    log = EventLog(100)
    for number in range(130):
        log.add(Kind.ARRIVED, request=f"request {number} \u00e4", start=float(number), prompt=number + 1)
        log.add(
            Kind.STEP, start=float(number), end=number + 0.5, prefill=1, decode=2, used=3, cached=4, free=5
        )
    path = tmp_path / "log.npz"
    log.save(path)
    return path


def test_a_log_continues_after_being_read(saved: Path) -> None:
    log = EventLog.load(saved)
    log.add(Kind.FINISHED, request="request 129 \u00e4", start=200.0, output=0, reason=1)
    assert (len(log), log.dropped, log.capacity) == (100, 161, 100)
    table = log.requests()
    assert table.id[-1] == "request 129 \u00e4" and table.e2e[-1] == 71.0 and table.complete.all()


@pytest.mark.parametrize("kind", ["folder", "pipe", "nothing"])
def test_what_is_no_file_is_neither_replaced_nor_written(
    tmp_path: Path, kind: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    if kind == "folder":
        (tmp_path / "place").mkdir()
    elif kind == "pipe":
        os.mkfifo(tmp_path / "place")
    before = list(tmp_path.iterdir())
    with pytest.raises(UserError, match=r"cannot be written \(it is no file\): choose another"):
        write_whole("" if kind == "nothing" else "place", b"content")
    assert list(tmp_path.iterdir()) == before and not (tmp_path / "place").is_file()


def test_nothing_is_left_where_a_file_cannot_be_written(tmp_path: Path) -> None:
    (tmp_path / "taken").mkdir()
    with pytest.raises(UserError, match=r"taken cannot be written .*: choose another file or folder"):
        EventLog().save(tmp_path / "taken")
    assert [path.name for path in tmp_path.iterdir()] == ["taken"]


def _rewrite(path: Path, facts: dict[str, Any], change: Any = None) -> None:
    with np.load(path) as old:
        table, known = old["rows"].copy(), json.loads(old["facts"].tobytes())
    if change is not None:
        table = change(table)
    text = json.dumps(known | facts).encode()
    np.savez(path, facts=np.frombuffer(text, np.uint8), rows=table)


def _set(column: str, value: float) -> Any:
    def change(table: Any) -> Any:
        table[column][3] = value
        return table

    return change


@pytest.mark.parametrize(
    ("facts", "change"),
    [
        ({"format": 2}, None),
        ({"capacity": 99}, None),
        ({"capacity": 10**12}, None),
        ({"capacity": "many"}, None),
        ({"dropped": -1}, None),
        ({"names": {}}, None),
        ({"names": []}, None),
        ({"names": {"-5": "x"}}, None),
        ({}, _set("kind", 99)),
        ({}, _set("kind", Kind.QUEUED)),
        ({}, _set("start", float("nan"))),
        ({}, _set("end", -1.0)),
        ({}, _set("request", 10**6)),
        ({}, lambda table: table["a"].copy()),
        ({}, lambda table: table[:50].reshape(2, 25)),
    ],
)
def test_forged_content_is_refused_in_one_line(saved: Path, facts: dict[str, Any], change: Any) -> None:
    _rewrite(saved, facts, change)
    with pytest.raises(UserError, match="no event log that can be read") as refusal:
        EventLog.load(saved)
    assert "\n" not in str(refusal.value)


def test_a_pickle_inside_is_never_run(saved: Path, tmp_path: Path) -> None:
    ran = tmp_path / "ran"

    class Harmful:
        def __reduce__(self) -> tuple[Any, ...]:
            return Path.touch, (ran,)

    np.savez(saved, facts=np.frombuffer(b"{}", np.uint8), rows=np.array([Harmful()], dtype=object))
    with pytest.raises(UserError):
        EventLog.load(saved)
    assert not ran.exists()


def test_a_header_that_claims_more_than_the_file_holds_is_refused(saved: Path) -> None:
    with np.load(saved) as old:
        facts, dtype = old["facts"].tobytes(), old["rows"].dtype
    header = io.BytesIO()
    np.lib.format.write_array_header_1_0(
        header, {"descr": np.lib.format.dtype_to_descr(dtype), "fortran_order": False, "shape": (10**12,)}
    )
    text = io.BytesIO()
    np.save(text, np.frombuffer(facts, np.uint8))
    with zipfile.ZipFile(saved, "w") as archive:
        archive.writestr("facts.npy", text.getvalue())
        archive.writestr("rows.npy", header.getvalue())
    with pytest.raises(UserError, match="rows is"):
        EventLog.load(saved)


def test_any_damaged_byte_is_noticed_or_harmless(saved: Path) -> None:
    whole = saved.read_bytes()
    rng = np.random.default_rng(5)
    refused = 0
    for place in rng.integers(0, len(whole), 300):
        damaged = bytearray(whole)
        damaged[place] ^= 1 << int(rng.integers(8))
        saved.write_bytes(damaged)
        try:
            assert len(EventLog.load(saved)) == 100
        except UserError:
            refused += 1
    assert refused > 200


@pytest.mark.parametrize("content", [b"", b"PK\x03\x04", b"not a zip file"])
def test_a_file_of_another_kind_is_refused(tmp_path: Path, content: bytes) -> None:
    (tmp_path / "x.npz").write_bytes(content)
    with pytest.raises(UserError, match=r"x\.npz is no event log"):
        EventLog.load(tmp_path / "x.npz")
    with pytest.raises(UserError, match="absent"):
        EventLog.load(tmp_path / "absent")
