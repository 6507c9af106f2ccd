"""Reading: what is a trace is read as it stands, and everything else is refused with row, reason and remedy."""

from __future__ import annotations

import gzip
import json
import random
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from mooncake_edu.traces import trace as module
from mooncake_edu.traces.trace import BLOCK_SIZE, MOST_LINE, Row, Trace, TraceError, check, read, write

GOOD = {"timestamp": 1000, "input_length": 700, "output_length": 3, "hash_ids": [5, 6]}


def lines(path: Path, *rows: dict[str, Any] | str, end: str = "\n") -> Path:
    """A file of rows, each an object or the text of a line."""
    path.write_bytes("".join((row if isinstance(row, str) else json.dumps(row)) + end for row in rows).encode())
    return path


@pytest.fixture
def file(tmp_path: Path) -> Path:
    return tmp_path / "some.jsonl"


def refused(path: Path) -> str:
    """The one line in which a file is refused."""
    with pytest.raises(TraceError) as caught:
        read(path)
    said = str(caught.value)
    assert "\n" not in said and said.startswith(f"{path}: ")
    return said.removeprefix(f"{path}: ")


def test_columns_hold_what_the_rows_say(file: Path) -> None:
    trace = read(lines(file, GOOD, GOOD | {"timestamp": 2500.5, "input_length": 1024, "hash_ids": [5, 9]}))
    assert (trace.arrival.tolist(), trace.input_length.tolist()) == ([1.0, 2.5005], [700, 1024])
    assert [trace.ids_of(i).tolist() for i in range(len(trace))] == [[5, 6], [5, 9]]
    assert (trace.sizes().tolist(), trace.positions().tolist()) == ([512, 188, 512, 512], [0, 1, 0, 1])
    assert (trace.name, trace.block_size) == ("some", BLOCK_SIZE)


@pytest.mark.parametrize("end", ["\n", "\r\n", "\n\n", " \r\n \r\n"])
def test_line_ends_of_any_system_and_blank_lines_change_nothing(file: Path, end: str) -> None:
    trace = read(lines(file, GOOD, GOOD, end=end))
    assert trace.input_length.tolist() == [700, 700]


def test_a_file_may_end_without_a_line_end(file: Path) -> None:
    file.write_text(json.dumps(GOOD))
    assert len(read(file)) == 1


def test_ids_keep_all_64_bits(file: Path) -> None:
    ids = [2**64 - 1, 2**63]
    trace = read(lines(file, GOOD | {"hash_ids": ids}))
    assert trace.ids.dtype == np.int64
    assert next(trace.rows()).ids == ids


@pytest.mark.parametrize(
    ("row", "words"),
    [
        ("[1]", ("is a list", "object")),
        ("{", ("is not JSON",)),
        ("[" * 100_000, ("is not JSON",)),
        ("\x00", ("is not JSON",)),
        ('{"timestamp": 1, "output; use": 2, "output; use": 3}', ("is not JSON (field 'output; use' stands twice)",)),
        ('{"timestamp": ' + "1" * 5000 + "}", ("is not JSON", "value has 5000 digits): give")),
        ({"timestamp": 0}, ("input_length is missing", "hash_ids")),
        (GOOD | {"model": "m"}, ("'model' is no known field",)),
        (GOOD | {"timestamp": -1}, ("timestamp -1",)),
        (GOOD | {"timestamp": 2**53 + 1}, ("timestamp 9007199254740993", "from 0 to 9007199254740992")),
        (GOOD | {"timestamp": float("nan")}, ("timestamp nan",)),
        (GOOD | {"timestamp": float("inf")}, ("timestamp inf",)),
        (GOOD | {"timestamp": True}, ("timestamp True",)),
        (GOOD | {"timestamp": "1"}, ("timestamp '1'", "milliseconds")),
        (GOOD | {"input_length": 0, "hash_ids": []}, ("input_length 0",)),
        (GOOD | {"input_length": 700.0}, ("input_length 700.0",)),
        (GOOD | {"input_length": 2**31}, ("input_length 2147483648",)),
        (GOOD | {"output_length": -3}, ("output_length -3",)),
        (GOOD | {"output_length": None}, ("output_length None",)),
        (GOOD | {"hash_ids": 5}, ("hash_ids 5",)),
        (GOOD | {"hash_ids": [5, -6]}, ("hash id -6",)),
        (GOOD | {"hash_ids": [5, 2**64]}, ("hash id 18446744073709551616", "64 bits")),
        (GOOD | {"hash_ids": [5, 6.0]}, ("hash id 6.0",)),
        (GOOD | {"hash_ids": [5]}, ("1 hash_ids do not fit input_length 700",)),
        (GOOD | {"hash_ids": [5, 6, 7]}, ("3 hash_ids do not fit", "512")),
        (GOOD | {"input_length": 512}, ("2 hash_ids do not fit input_length 512",)),
        (GOOD | {"input_length": 1025}, ("2 hash_ids do not fit input_length 1025",)),
    ],
)  # fmt: skip
def test_a_bad_row_is_refused_with_its_number_the_reason_and_the_remedy(
    file: Path, row: dict[str, Any] | str, words: tuple[str, ...]
) -> None:
    said = refused(lines(file, GOOD, "", row, GOOD))
    assert said.startswith("row 3: ")
    assert said.count(": ") >= 2
    assert all(word in said for word in words)


@pytest.mark.parametrize("length", [513, 1024])
def test_so_many_ids_fit_just_these_lengths(file: Path, length: int) -> None:
    assert read(lines(file, GOOD | {"input_length": length})).input_length.tolist() == [length]


@pytest.mark.parametrize(
    ("first", "second", "words"),
    [
        ([5, 6], {"input_length": 701}, "id 6 has size 189 tokens here and 188 tokens "),
        ([5, 6], {"input_length": 1500, "hash_ids": [5, 6, 7]}, "id 6 has size 512 tokens here and 188 tokens "),
        ([5, 6], {"input_length": 100, "hash_ids": [6]}, "id 6 has position 0 here and 1 in row 1"),
        ([5, 6], {"hash_ids": [7, 6]}, "id 6 has parent 7 here and 5 in row 1"),
        ([2**64 - 1, 6], {"hash_ids": [7, 6]}, "id 6 has parent 7 here and 18446744073709551615 in row 1"),
    ],
)  # fmt: skip
def test_an_id_that_stands_for_two_prefixes_is_refused(
    file: Path, first: list[int], second: dict[str, Any], words: str
) -> None:
    said = refused(lines(file, GOOD | {"hash_ids": first}, GOOD | second))
    assert said.startswith(f"row 2: {words}") and " in row 1: " in said


def test_an_id_twice_in_one_prompt_is_refused(file: Path) -> None:
    said = refused(lines(file, GOOD | {"hash_ids": [5, 5]}))
    assert said.startswith("row 1: id 5 has position 1 here and 0 in row 1: ")


def test_rows_a_little_late_are_sorted_in_and_those_of_one_time_keep_their_order(file: Path) -> None:
    times = [(3000, 1), (1000, 2), (3000, 3), (2000, 4), (3000, 5), (63000, 6), (3000, 7)]
    rows = [GOOD | {"timestamp": time, "output_length": output} for time, output in times]
    assert read(lines(file, *rows)).output_length.tolist() == [2, 4, 1, 3, 5, 7, 6]


def test_a_clock_that_begins_anew_is_refused_at_the_first_row_that_is_too_late(file: Path) -> None:
    rows = [GOOD | {"timestamp": time} for time in (90_000, 30_000, 29_999, 0)]
    assert refused(lines(file, *rows)).startswith("row 3: timestamp lies 60.001 s before an earlier row's")


def test_the_row_of_a_wrong_id_is_that_of_the_file_and_not_of_the_sorted_trace(file: Path) -> None:
    late = GOOD | {"timestamp": 0, "hash_ids": [7, 6]}
    assert refused(lines(file, GOOD, "", late)).startswith("row 1: id 6 has parent 5 here and 7 in row 3")


@pytest.mark.parametrize("content", [b"", b"\n \r\n"])
def test_a_file_without_a_request_is_refused(file: Path, content: bytes) -> None:
    file.write_bytes(content)
    assert "holds no request" in refused(file)


def test_a_file_that_cannot_be_read_is_refused(tmp_path: Path) -> None:
    assert "cannot be read (No such file" in refused(tmp_path / "none.jsonl")
    assert "cannot be read (Is a directory)" in refused(tmp_path)


def test_a_compressed_file_is_refused_as_such_however_long_its_lines_are(file: Path) -> None:
    file.write_bytes(gzip.compress(random.Random(0).randbytes(2 * MOST_LINE)))
    assert refused(file) == "is compressed (gzip): unpack it first"


def test_rows_that_came_late_are_counted(file: Path) -> None:
    assert read(lines(file, GOOD, GOOD)).late == 0
    rows = [GOOD | {"timestamp": time} for time in (3000, 1000, 3000, 2999, 4000)]
    assert read(lines(file, *rows)).late == 2


def test_no_line_and_no_file_is_read_beyond_its_limit(file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "MOST_LINE", 200)
    assert refused(lines(file, GOOD, " " * 150 + json.dumps(GOOD))).startswith("row 2: longer than 200 bytes")
    monkeypatch.setattr(module, "MOST_BYTES", 10)
    assert "more than 10: split it" in refused(lines(file, GOOD))


@given(st.binary(max_size=200))
def test_any_bytes_are_read_or_refused_in_one_line(tmp_path_factory: pytest.TempPathFactory, content: bytes) -> None:
    path = tmp_path_factory.getbasetemp() / "any.jsonl"
    path.write_bytes(content)
    try:
        read(path)
    except TraceError as error:
        assert "\n" not in str(error)


@st.composite
def traces(draw: st.DrawFn) -> Trace:
    """Prompts out of a tree of a few tokens a block: every id stands for one prefix."""
    names: dict[tuple[int, ...], int] = {}
    rows = []
    for number in range(draw(st.integers(1, 12))):
        tokens = draw(st.lists(st.integers(0, 1), min_size=1, max_size=9))
        ends = [*range(2, len(tokens) + 1, 2), *([len(tokens)] if len(tokens) % 2 else [])]
        ids = [names.setdefault(tuple(tokens[:end]), len(names)) for end in ends]
        rows.append(Row(number // 2 / 1000, len(tokens), draw(st.integers(0, 9)), ids))
    return Trace.of(rows, 2)


@given(traces())
def test_what_is_written_is_read_back_the_same(tmp_path_factory: pytest.TempPathFactory, trace: Trace) -> None:
    path = tmp_path_factory.getbasetemp() / "again.jsonl"
    write(trace, path)
    again = read(path, trace.block_size)
    assert list(again.rows()) == list(trace.rows())


@given(traces(), st.integers(0, 12), st.integers(0, 12))
def test_a_slice_is_those_rows_and_a_trace_itself(trace: Trace, start: int, stop: int) -> None:
    part = trace.slice(start, stop)
    check(part)
    assert list(part.rows()) == list(trace.rows())[start:stop]


@given(traces(), st.sampled_from([0.5, 1.75, 2.0]))
def test_a_faster_trace_differs_in_its_times_only(trace: Trace, speed: float) -> None:
    faster = trace.faster(speed)
    assert np.allclose(faster.arrival * speed, trace.arrival)
    assert [row[1:] for row in faster.rows()] == [row[1:] for row in trace.rows()]
