"""The record of checks: complete with two kernels at work, bounded, forgiving, and honest about what is stale."""

from __future__ import annotations

import json
import linecache
import subprocess
import sys
from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest
from filelock import FileLock

from mooncake_edu import __version__
from mooncake_edu.course import progress
from mooncake_edu.course.check import Verdict, check
from mooncake_edu.course.progress import Entry, append, note, read, standings
from mooncake_edu.course.verdict import FAILED, NOT_YET, PASSED
from tests.cli.conftest import Run, run

__all__ = ["run"]

NOW = datetime(2026, 8, 1, 12, 30, tzinfo=UTC)


def answer(value: int) -> int:
    return value + 1


def another(value: int) -> int:
    return value + 2


@pytest.fixture
def record(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty record."""
    monkeypatch.setenv("MOONCAKE_EDU_DATA", str(tmp_path / "data"))
    return tmp_path / "data" / "progress.jsonl"


def entry(number: str = "1.1", status: str = PASSED, **parts: str) -> Entry:
    given = {"at": NOW.isoformat(), "version": __version__, "layer": progress.layer_digest(number), "answer": "a"}
    return Entry(exercise=number, status=status, **{**given, **parts})


def test_a_check_is_noted_with_time_version_and_digests(record: Path) -> None:
    assert note(Verdict("1.1", "Count", PASSED), answer, NOW) == ""
    (found,) = read(record)
    assert found == Entry(
        "2026-08-01T12:30:00+00:00", "1.1", PASSED, __version__, progress.layer_digest("1.1"),
        progress.answer_digest(answer),
    )  # fmt: skip
    assert found.layer
    assert found.answer


def test_every_call_of_check_adds_one_line(record: Path) -> None:
    for _ in range(3):
        check("0.1", 3)  # type: ignore[arg-type]
    assert [found.status for found in read(record)] == [FAILED] * 3


def test_the_record_is_in_the_user_s_data_folder(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.delenv("MOONCAKE_EDU_DATA")
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.delenv("XDG_DATA_HOME", raising=False)
    assert progress.record_file().is_relative_to(tmp_path)
    assert progress.record_file().parts[-2:] == ("mooncake_edu", "progress.jsonl")


def test_two_kernels_at_once_lose_no_line(record: Path) -> None:
    script = (
        "import sys\nfrom mooncake_edu.course.check import Verdict\nfrom mooncake_edu.course.progress import note\n"
        "for turn in range(200):\n    assert note(Verdict(sys.argv[1], 'Count'), None) == ''\n"
    )
    both = [subprocess.Popen([sys.executable, "-c", script, number]) for number in ("1.1", "1.2")]
    assert [child.wait(timeout=120) for child in both] == [0, 0]
    found = [entry.exercise for entry in read(record)]
    assert sorted(found) == ["1.1"] * 200 + ["1.2"] * 200


@pytest.mark.parametrize(
    "line",
    [b"not json\n", b"{}\n", b"[]\n", b'"text"\n', b"\xff\xfe\n", b"\n", b"[" * 1900 + b"\n", b"x" * 10_000 + b"\n",
     json.dumps({**dict.fromkeys(Entry.__slots__, "x"), "at": 3}).encode() + b"\n", b'{"at": "2026',
     json.dumps({**dict.fromkeys(Entry.__slots__, "x"), "answer": "x" * 10_000}).encode() + b"\n"],
)  # fmt: skip
def test_a_broken_line_hides_no_other(record: Path, line: bytes) -> None:
    append(record, entry("1.1"))
    with record.open("ab") as file:
        file.write(line)
    append(record, entry("1.2"))
    assert [found.exercise for found in read(record)] == ["1.1", "1.2"]


def test_the_record_is_bounded_and_keeps_last_check_and_last_pass(
    record: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(progress, "LIMIT", 5_000)
    append(record, entry("1.1", PASSED, at="first pass"))
    append(record, entry("1.2", PASSED, at="only pass"))
    append(record, entry("1.1", PASSED, at="last pass"))
    for turn in range(200):
        append(record, entry("1.1", FAILED, at=f"{turn}"))
        assert record.stat().st_size <= 5_000
    found = list(read(record))
    assert [each.at for each in found[:2]] == ["only pass", "last pass"]
    assert found[-1].at == "199"
    assert sorted(path.name for path in record.parent.iterdir()) == ["progress.jsonl", "progress.lock"]


@pytest.mark.parametrize("spoil", [lambda path: path.write_text("a file"), lambda path: path.symlink_to("/dev/null/x")])
def test_a_folder_that_cannot_be_written_breaks_no_check(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, spoil: Callable[[Path], Any]
) -> None:
    spoil(tmp_path / "data")
    monkeypatch.setenv("MOONCAKE_EDU_DATA", str(tmp_path / "data"))
    verdict = check("0.1", 3)  # type: ignore[arg-type]
    assert verdict.status == FAILED
    assert verdict.note.startswith("not recorded for `course progress` (")
    assert verdict.note.endswith("set MOONCAKE_EDU_DATA to a folder that can be written")


def test_a_folder_of_a_user_who_is_not_there_breaks_no_check(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MOONCAKE_EDU_DATA", "~nobody-of-this-name/data")
    assert "is in no user's home" in check("0.1", 3).note  # type: ignore[arg-type]


def test_a_record_that_another_kernel_does_not_let_go_is_waited_for_only_so_long(
    record: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(progress, "LOCK_S", 0.1)
    record.parent.mkdir()
    with FileLock(record.with_suffix(".lock")):
        assert "another kernel is writing" in note(Verdict("1.1", "Count"), answer)


# What is stale


def stale(*entries: Entry) -> str:
    (found,) = standings(entries).values()
    return found.stale


def test_a_pass_with_what_there_is_now_counts() -> None:
    assert stale(entry()) == ""
    assert stale(entry(status=FAILED, answer="b"), entry()) == ""
    assert stale(entry(answer="b"), entry()) == ""


def test_a_pass_of_another_version_of_the_package_is_stale() -> None:
    assert stale(entry(version="0.0.1")) == "passed with version 0.0.1 of the package"


def test_a_pass_with_another_text_of_the_layer_is_stale() -> None:
    assert stale(entry(layer="0123456789abcdef")) == "passed with another text of kvcache.py"


@pytest.mark.parametrize("status", [FAILED, NOT_YET])
def test_a_pass_whose_answer_was_edited_later_is_stale_until_it_passes_again(status: str) -> None:
    edited = entry(status=status, answer="b")
    assert stale(entry(), edited) == f"the answer was edited later: {status}"
    assert stale(entry(), entry(status=status)) == f"checked again later: {status}"
    assert stale(entry(), edited, entry()) == ""


def test_what_never_passed_stands_where_it_was_last() -> None:
    found = standings([entry(status=FAILED), entry(status=NOT_YET)])
    assert found["1.1"] == progress.Standing(entry(status=NOT_YET))


def test_exercises_do_not_touch_each_other() -> None:
    found = standings([entry("1.1"), entry("1.2", FAILED), entry("0.1")])
    assert {number: (each.entry.status, each.stale) for number, each in found.items()} == {
        "1.1": (PASSED, ""), "1.2": (FAILED, ""), "0.1": (PASSED, "")
    }  # fmt: skip


def test_a_listing_edited_in_the_kernel_is_another_text_of_the_layer(monkeypatch: pytest.MonkeyPatch) -> None:
    from mooncake_edu import kvcache

    before = progress.layer_digest("1.1")
    path = str(kvcache.__file__)
    linecache.getlines(path)
    size, time_, lines, name = linecache.cache[path]
    monkeypatch.setitem(linecache.cache, path, (size, time_, [*lines, "x = 1\n"], name))
    assert progress.layer_digest("1.1") != before
    assert progress.layer_digest("2.1") != before
    assert progress.layer_digest("0.1") == progress.layer_digest("8.1") == progress.layer_digest("x") == ""


def test_the_digest_of_an_answer_follows_its_text() -> None:
    class First:
        def call(self) -> int:
            return 1

    assert progress.answer_digest(answer) == progress.answer_digest(answer)
    assert len({progress.answer_digest(each) for each in (answer, another, First, len)}) == 4


def test_a_class_of_a_notebook_has_the_digest_of_its_methods() -> None:
    """Such a class has no file, its functions have."""
    made = {}
    for number in (1, 2):
        text = f"class Answer:\n    def call(self):\n        return {number}\n"
        linecache.cache[f"<cell {number}>"] = (len(text), None, text.splitlines(keepends=True), f"<cell {number}>")
        names: dict[str, Any] = {"__name__": "no_such_module"}
        exec(compile(text, f"<cell {number}>", "exec"), names)
        made[number] = progress.answer_digest(names["Answer"])
    assert "" not in made.values()
    assert made[1] != made[2]


# The table


def test_progress_lists_every_exercise_with_version_and_time(
    record: Path, run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "200")
    monkeypatch.setenv("TZ", "UTC")
    append(record, entry("0.1"))
    append(record, entry("0.2", version="0.0.1"))
    append(record, entry("9.9", FAILED))
    out = run("course", "progress").out
    lines = {line.split()[0]: line for line in out.splitlines() if line.strip()}
    assert "passed" in lines["0.1"]
    assert NOW.astimezone().strftime("%Y-%m-%d %H:%M") in lines["0.1"]
    assert __version__ in lines["0.1"]
    assert "stale" in lines["0.2"]
    assert "passed with version 0.0.1 of the package" in lines["0.2"]
    assert "no exercise of this package" in lines["9.9"]
    assert lines["0.3"].rstrip().endswith("-")
    assert f"Record: {record}" in out


def test_progress_without_a_record_lists_what_there_is_to_do(record: Path, run: Run) -> None:
    ended = run("course", "progress")
    assert ended.status == 0
    assert "0.1" in ended.out
    assert not record.exists()


def test_a_strange_record_cannot_garble_the_table(record: Path, run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "200")
    append(record, entry("0.1", "[red]passed[/red]\x1b[31m", version="[/]"))
    ended = run("course", "progress")
    assert ended.status == 0
    assert "[red]passed[/red]" in ended.out
    assert "\x1b" not in ended.out
