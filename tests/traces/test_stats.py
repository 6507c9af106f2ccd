"""Counts and hits: those of the published traces to the printed digit, and those of any trace as an oracle counts."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pytest

from mooncake_edu.store import POLICIES
from mooncake_edu.traces.stats import BELADY, block_hits, prefix_hits, replay, stats
from mooncake_edu.traces.trace import Row, Trace, TraceError
from tests.cli.conftest import Run
from tests.traces.published import published


def printed(value: float | None, digits: int) -> str:
    return f"{value:.{digits}f}"


def test_the_conversation_trace_has_the_published_counts() -> None:
    found = stats(published("conversation"))
    assert (found.requests, found.references, found.distinct, found.hits) == (12_031, 288_500, 182_790, 105_710)
    assert (round(found.input_mean), round(found.output_mean), printed(found.rate, 2)) == (12_035, 343, "3.40")
    assert (printed(100 * found.hit_ratio, 2), printed(100 * found.token_hit_ratio, 2)) == ("36.64", "37.36")


def test_the_first_rows_of_the_arxiv_trace_have_the_published_counts() -> None:
    found = stats(published("arxiv-1000"))
    assert (found.requests, round(found.input_mean), round(found.output_mean)) == (1000, 9792, 199)
    assert printed(found.hit_ratio, 4) == "0.3799"


def test_the_synthetic_trace_has_the_published_counts() -> None:
    found = stats(published("synthetic"))
    assert (found.requests, round(found.input_mean), round(found.output_mean)) == (3993, 15_325, 149)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("capacity", "share"), [(100_000, ".364"), (50_000, ".355"), (30_000, ".326"), (10_000, ".211"), (1000, ".044")]
)
def test_a_pool_under_lru_has_the_published_hits(capacity: int, share: str) -> None:
    trace = published("conversation")
    assert printed(block_hits(trace, "lru", capacity) / len(trace.ids), 3) == "0" + share


@pytest.mark.slow
@pytest.mark.parametrize("policy", [*POLICIES, BELADY])
def test_without_a_limit_every_way_of_counting_finds_what_the_trace_repeats(policy: str) -> None:
    trace = published("conversation").slice(0, 3000)
    found, all_ = stats(trace), replay(trace, policy, None)
    assert all_.block_hits == all_.prefix_hits == found.hits
    assert all_.token_hits == found.token_hits


class Oracle:
    """Block hits written down plainly: look at every kept block for the one to go."""

    def __init__(self, trace: Trace, policy: str, capacity: int, closed: bool) -> None:
        self.policy, self.capacity, self.closed = policy, capacity, closed
        self.kept: dict[int, list[float]] = {}  # id: since, used, uses, position
        self.parents: dict[int, int] = {}
        self.hits = self.now = 0
        for number in range(len(trace)):
            ids: list[int] = trace.ids_of(number).tolist()
            self.parents |= dict(zip(ids[1:], ids, strict=False))
            if closed:
                self.hits += next((n for n, each in enumerate(ids) if each not in self.kept), len(ids))
                self.use(list(enumerate(ids)))
            else:
                for place, each in enumerate(ids):
                    self.hits += each in self.kept
                    self.use([(place, each)])

    def use(self, blocks: Sequence[tuple[int, int]]) -> None:
        self.now += 1
        for place, each in blocks:
            entry = self.kept.setdefault(each, [self.now, 0, 0, place])
            entry[1], entry[2] = self.now, entry[2] + 1
        while len(self.kept) > self.capacity:
            del self.kept[min(self.free(), key=self.rank)]

    def free(self) -> set[int]:
        before = {self.parents[each] for each in self.kept if each in self.parents} if self.closed else set()
        return set(self.kept) - before

    def rank(self, each: int) -> tuple[float, ...]:
        since, used, uses, place = self.kept[each]
        ranks = {"lru": (used,), "lfu": (uses, used), "length-aware": (uses, -place, used), "fifo": (since, -place)}
        return ranks[self.policy]


@pytest.mark.parametrize("policy", ["lru", "lfu", "length-aware", "fifo"])
@pytest.mark.parametrize("seed", range(3))
def test_hits_on_random_slices_are_those_of_an_oracle(policy: str, seed: int) -> None:
    random = np.random.default_rng(seed)
    whole = published("conversation" if seed % 2 else "synthetic")
    start = int(random.integers(len(whole) - 40))
    trace, capacity = whole.slice(start, start + 40), int(random.integers(60, 500))
    assert block_hits(trace, policy, capacity) == Oracle(trace, policy, capacity, False).hits
    assert prefix_hits(trace, policy, capacity)[0] == Oracle(trace, policy, capacity, True).hits


@pytest.mark.parametrize("policy", POLICIES)
@pytest.mark.parametrize("seed", range(3))
def test_no_policy_has_more_hits_than_the_limit(policy: str, seed: int) -> None:
    random = np.random.default_rng(seed)
    whole = published("conversation")
    start = int(random.integers(len(whole) - 200))
    trace, capacity = whole.slice(start, start + 200), int(random.integers(60, 2000))
    assert block_hits(trace, policy, capacity) <= block_hits(trace, BELADY, capacity)
    assert prefix_hits(trace, policy, capacity)[0] <= prefix_hits(trace, BELADY, capacity)[0]


def test_a_hit_of_a_partial_block_counts_its_own_tokens() -> None:
    trace = Trace.of([Row(0, 3, 1, [1, 2]), Row(1, 3, 1, [1, 2]), Row(2, 4, 1, [1, 3])], 2)
    found = stats(trace)
    assert (found.hits, found.token_hits) == (3, 2 + 1 + 2)
    assert prefix_hits(trace, "lru", None) == (3, 5)


def written(path: Path, *rows: tuple[int, int, list[int]]) -> str:
    """A file of requests, each a time in milliseconds, the tokens of its prompt and the ids of their blocks."""
    fields = ("timestamp", "input_length", "hash_ids", "output_length")
    path.write_text("".join(json.dumps(dict(zip(fields, (*row, 1), strict=True))) + "\n" for row in rows))
    return str(path)


def test_the_command_prints_one_object_with_the_pool_in_it(run: Run, tmp_path: object) -> None:
    file = f"{tmp_path}/small.jsonl"
    with open(file, "w") as opened:
        for ids in ([1, 2], [1, 3], [1, 2]):
            opened.write(json.dumps({"timestamp": 0, "input_length": 600, "output_length": 1, "hash_ids": ids}) + "\n")
    found = json.loads(run("trace", "stats", file, "--json", "--policy", "lru", "--capacity", "2").out)
    assert (found["requests"], found["references"], found["distinct"], found["rate"]) == (3, 6, 3, None)
    assert (found["pool"]["policy"], found["pool"]["capacity"], found["pool"]["prefix_hits"]) == ("lru", 2, 2)
    shown = run("trace", "stats", file, "--capacity", "2").out
    assert "pool prefix hits        2" in shown
    assert run("trace", "validate", file).out == f"{file}: is a trace: 3 requests of 6 blocks, in order of time\n"


def test_what_is_not_known_or_has_no_limit_is_never_shown_as_none(run: Run, tmp_path: Path) -> None:
    file = written(tmp_path / "one.jsonl", (0, 9, [1]))
    assert run("trace", "validate", file).out == f"{file}: is a trace: 1 request of 1 block, in order of time\n"
    shown = run("trace", "stats", file, "--policy", "lru").out
    assert "None" not in shown and "rate" not in shown
    assert "pool capacity           no limit\n" in shown
    assert json.loads(run("trace", "stats", file, "--json", "--policy", "lru").out)["pool"]["capacity"] is None


def test_a_prompt_longer_than_the_pool_loses_its_head_block_by_block_and_its_tail_as_a_whole(
    run: Run, tmp_path: Path
) -> None:
    file = written(tmp_path / "long.jsonl", *[(0, 4 * 512, [1, 2, 3, 4])] * 2)
    shown = run("trace", "stats", file, "--capacity", "3").out
    assert "pool block hits         0\n" in shown and "pool prefix hits        3\n" in shown
    assert "Prefix hits: a prompt is looked up whole before\n" in shown
    assert "Prefix hits" not in run("trace", "stats", file).out


def test_rows_out_of_order_are_counted_and_said_to_be_numbered_by_time(run: Run, tmp_path: Path) -> None:
    file = written(tmp_path / "late.jsonl", *[(time, 9, [time]) for time in (3000, 1000, 2000, 3000, 4000)])
    assert run("trace", "validate", file).out == (
        f"{file}: is a trace: 5 requests of 5 blocks; 2 rows stood out of order: "
        "requests are numbered in order of time\n"
    )


def test_blocks_of_another_size_are_read_if_it_is_given(run: Run, tmp_path: Path) -> None:
    file = written(tmp_path / "small.jsonl", (0, 17, [1, 2, 3]))
    for command in "validate", "stats":
        ended = run("trace", command, file)
        assert ended.status == 2 and "or say how large the blocks are (--block-size" in ended.err
        assert run("trace", command, file, "--block-size", "8").status == 0
        assert run("trace", command, file, "--block-size", "0").status == 2
    assert json.loads(run("trace", "stats", file, "--block-size", "8", "--json").out)["block_size"] == 8


def test_an_unknown_policy_and_a_bad_row_are_one_line_and_exit_with_2(run: Run, tmp_path: object) -> None:
    file = f"{tmp_path}/bad.jsonl"
    with open(file, "w") as opened:
        opened.write(json.dumps({"timestamp": 0, "input_length": 600, "output_length": 1, "hash_ids": [1]}))
    ended = run("trace", "validate", file)
    assert (ended.status, ended.out, ended.err.count("\n")) == (2, "", 1)
    assert f"{file}: row 1: 1 hash_ids do not fit input_length 600: give one a block" in ended.err
    with pytest.raises(TraceError, match="policy 'mru' is not known: use one of lru, "):
        replay(Trace.of([Row(0, 1, 1, [1])]), "mru", 5)
