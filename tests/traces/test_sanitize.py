"""Sanitising: the reuse stays as it was, and nothing else of the content does."""

from __future__ import annotations

import itertools
import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mooncake_edu.traces.sanitize import sanitize, utf8
from mooncake_edu.traces.trace import Trace, TraceError, check, read
from tests.cli.conftest import Run

KEY = bytes(range(32))
BLOCK = 2
PROMPTS = st.lists(st.lists(st.integers(0, 2), min_size=1, max_size=7), min_size=1, max_size=10)


def log(path: Path, *rows: dict[str, Any]) -> Path:
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return path


def of_tokens(path: Path, prompts: list[list[int]], **more: Any) -> Path:
    """A log of these prompts, one every second."""
    rows = [{"timestamp": 1000 * n, "tokens": prompt, "output_length": 1, **more} for n, prompt in enumerate(prompts)]
    return log(path, *rows)


def cleaned(path: Path, key: bytes = KEY, **options: Any) -> Trace:
    return sanitize(path, key, utf8, block_size=BLOCK, **options)


def common(one: list[int], two: list[int]) -> int:
    return sum(1 for _ in itertools.takewhile(lambda pair: pair[0] == pair[1], zip(one, two, strict=False)))


def blocks(prompt: list[int]) -> list[tuple[int, ...]]:
    return [tuple(prompt[at : at + BLOCK]) for at in range(0, len(prompt), BLOCK)]


@given(prompts=PROMPTS)
def test_any_two_prompts_share_as_many_blocks_as_before(
    tmp_path_factory: pytest.TempPathFactory, prompts: list[list[int]]
) -> None:
    trace = cleaned(of_tokens(tmp_path_factory.getbasetemp() / "log.jsonl", prompts))
    check(trace)
    assert trace.input_length.tolist() == [len(prompt) for prompt in prompts]
    for one, two in itertools.combinations(range(len(prompts)), 2):
        shared = common(blocks(prompts[one]), blocks(prompts[two]))  # type: ignore[arg-type]
        assert common(trace.ids_of(one).tolist(), trace.ids_of(two).tolist()) == shared


@given(prompts=PROMPTS, meaning=st.permutations(range(3)), key=st.binary(min_size=16, max_size=64))
def test_another_content_of_the_same_shape_gives_the_same_trace(
    tmp_path_factory: pytest.TempPathFactory, prompts: list[list[int]], meaning: list[int], key: bytes
) -> None:
    """So neither the content nor a hash of it can be in there, and ids of two exports tell nothing of each other."""
    folder = tmp_path_factory.getbasetemp()
    others = [[50_000 + meaning[token] for token in prompt] for prompt in prompts]
    one = cleaned(of_tokens(folder / "one.jsonl", prompts))
    other = cleaned(of_tokens(folder / "other.jsonl", others), key)
    assert list(one.rows()) == list(other.rows())


def test_numbers_come_in_the_order_of_first_use_even_if_the_log_is_not_in_order(tmp_path: Path) -> None:
    rows = [{"timestamp": time, "tokens": [time, 1, 2], "output_length": 1} for time in (5, 1, 3)]
    trace = cleaned(log(tmp_path / "log", *rows))
    assert trace.arrival.tolist() == [0.001, 0.003, 0.005]
    assert trace.ids.tolist() == list(range(6))


def test_tenants_with_different_salts_share_nothing(tmp_path: Path) -> None:
    row = {"timestamp": 0, "prompt": "abcd", "output_length": 1}
    trace = cleaned(log(tmp_path / "log", row | {"salt": "a"}, row | {"salt": "b"}, row | {"salt": "a"}, row))
    assert [trace.ids_of(i).tolist() for i in range(4)] == [[0, 1], [2, 3], [0, 1], [4, 5]]


def test_texts_are_counted_in_tokens_and_other_fields_are_left_out(tmp_path: Path) -> None:
    row = {"timestamp": 7, "prompt": "secret", "output": "told", "user": "someone"}
    trace = sanitize(log(tmp_path / "log", row), KEY, lambda text: [1] * (len(text) - 1), block_size=BLOCK)
    assert (trace.input_length.tolist(), trace.output_length.tolist()) == ([5], [3])


def test_times_are_kept_rebased_and_cut_as_asked(tmp_path: Path) -> None:
    row = {"prompt": "x", "output_length": 0}
    file = log(tmp_path / "log", *[row | {"timestamp": time} for time in (10_500, 12_900, 14_000)])
    assert cleaned(file).arrival.tolist() == [10.5, 12.9, 14.0]
    assert cleaned(file, rebase=True).arrival.tolist() == pytest.approx([0, 2.4, 3.5])
    assert cleaned(file, tick=1e-320).arrival.tolist() == [10.5, 12.9, 14.0]
    assert cleaned(file, tick=3).arrival.tolist() == [9, 12, 12]
    assert cleaned(file, rebase=True, tick=3).arrival.tolist() == [0, 0, 3]


GOOD = {"timestamp": 0, "prompt": "abc", "output_length": 1}


@pytest.mark.parametrize(
    ("row", "words"),
    [
        (GOOD | {"tokens": [1]}, "both of prompt and tokens"),
        ({"timestamp": 0, "output_length": 1}, "neither of prompt and tokens"),
        (GOOD | {"prompt": ""}, "prompt is empty"),
        (GOOD | {"prompt": 5}, "prompt is a int"),
        ({"timestamp": 0, "tokens": "abc", "output_length": 1}, "tokens is a str"),
        ({"timestamp": 0, "tokens": [1, -1, 2], "output_length": 1}, "tokens are none"),
        ({"timestamp": 0, "tokens": [1, 2.5], "output_length": 1}, "tokens are none"),
        ({"timestamp": 0, "tokens": [], "output_length": 1}, "tokens is empty"),
        ({"timestamp": 0, "tokens": [1, True], "output_length": 1}, "tokens are none"),
        ({"timestamp": 0, "prompt": "abc", "output_tokens": ["a", {}]}, "output_tokens are none"),
        ({"timestamp": 0, "tokens": [2**32], "output_length": 1}, "tokens are none"),
        ({"prompt": "abc", "output_length": 1}, "timestamp is missing"),
        (GOOD | {"output_length": -1}, "output_length -1"),
        ({"timestamp": 0, "prompt": "abc"}, "neither of output and output_tokens"),
        (
            {"timestamp": 0, "prompt": "abc", "output": 3},
            "output is a int: give output (text), output_tokens (ids) or output_length (a number)",
        ),
        (GOOD | {"salt": 5}, "salt 5 is no text"),
    ],
)
def test_a_row_that_is_no_request_is_refused_with_its_number(tmp_path: Path, row: dict[str, Any], words: str) -> None:
    with pytest.raises(TraceError) as caught:
        cleaned(log(tmp_path / "log", GOOD, row))
    assert f"row 2: {words}" in str(caught.value) and "\n" not in str(caught.value)


@pytest.mark.parametrize("length", [0, 15, 65])
def test_a_key_that_could_be_guessed_or_is_too_long_is_refused(tmp_path: Path, length: int) -> None:
    with pytest.raises(ValueError, match="give 16 to 64"):
        cleaned(log(tmp_path / "log", GOOD), bytes(length))


def test_the_command_writes_a_trace_without_the_texts_and_says_what_still_shows(run: Run, tmp_path: Path) -> None:
    file, out = log(tmp_path / "log", *[GOOD | {"prompt": "my secret " * n} for n in (60, 70)]), tmp_path / "out.jsonl"
    said = run("trace", "sanitize", str(file), str(out), "--rebase").out
    assert "2 requests written" in said and "What still shows: when requests came" in said
    assert "secret" not in out.read_text()
    assert "--block-size" not in said
    assert [read(out).ids_of(i).tolist() for i in (0, 1)] == [[0, 1], [0, 2]]


def test_the_command_says_how_to_read_back_blocks_of_another_size(run: Run, tmp_path: Path) -> None:
    file, out = log(tmp_path / "log", GOOD | {"prompt": "a" * 17}), tmp_path / "out.jsonl"
    said = run("trace", "sanitize", str(file), str(out), "--block-size", "8").out
    command = said[said.index("`") + 1 : said.rindex("`")].split()
    assert command == ["mooncake-edu", "trace", "stats", str(out), "--block-size", "8"]
    assert "1 request written" in said and "blocks hold 8 tokens" in said
    assert run(*command[1:]).status == 0


def test_the_command_does_not_write_over_its_log(run: Run, tmp_path: Path) -> None:
    file = log(tmp_path / "log", GOOD)
    before = file.read_bytes()
    (tmp_path / "other").symlink_to(file)
    for out in file, tmp_path / "other":
        ended = run("trace", "sanitize", str(file), str(out))
        assert ended.status == 2 and "is the log itself: choose another file" in ended.err
    assert file.read_bytes() == before


def test_a_place_that_cannot_be_written_is_refused_before_the_work(run: Run, tmp_path: Path) -> None:
    file, out = log(tmp_path / "log", GOOD), str(tmp_path / "no folder" / "out.jsonl")
    for command in (["sanitize", str(file), out, "--model", "no model"], ["generate", "no profile", out]):
        ended = run("trace", *command)  # what is named wrongly besides would be seen later
        assert ended.status == 2 and f"OUT {out}: is no file that can be written" in ended.err
