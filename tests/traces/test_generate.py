"""Generated traces: equal seeds, whole prefixes, rates as asked, and how close each profile comes."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from mooncake_edu.traces.generate import Lengths, Shared, Workload, generate
from mooncake_edu.traces.profiles import PROFILES, closeness, load, make, profile
from mooncake_edu.traces.stats import stats
from mooncake_edu.traces.trace import Trace, TraceError, check, read, write
from tests.cli.conftest import Run

NOTHING = Shared(1, Lengths(1, 0), share=0)
SMALL = Workload(
    rate=5, turns=2, pause=10, system=Shared(2, Lengths(700, 0.5)), documents=Shared(9, Lengths(3000, 0.5), share=0.5),
    opening=Lengths(100, 1), question=Lengths(100, 1), output=Lengths(50, 1),
)  # fmt: skip


def same(one: Trace, other: Trace) -> bool:
    return list(one.rows()) == list(other.rows())


@given(seed=st.integers(0, 2**63 - 1), requests=st.integers(1, 60), tick=st.sampled_from([0, 3]))
@settings(max_examples=30)
def test_any_seed_gives_a_trace_of_so_many_requests_in_order(seed: int, requests: int, tick: float) -> None:
    trace = generate(Workload(**{**vars(SMALL), "tick": tick}), requests, seed)
    check(trace)
    assert len(trace) == requests
    assert (np.diff(trace.arrival) >= 0).all()
    assert (np.diff(trace.offsets) == -(-trace.input_length // trace.block_size)).all()
    assert not tick or not (trace.arrival % tick).any()


def test_equal_seeds_give_equal_traces_and_others_do_not() -> None:
    assert same(generate(SMALL, 50, 1), generate(SMALL, 50, 1))
    assert not same(generate(SMALL, 50, 1), generate(SMALL, 50, 2))


def test_the_rate_is_the_one_asked_for() -> None:
    assert stats(generate(SMALL, 500, 0)).rate == pytest.approx(SMALL.rate)


def test_a_later_turn_begins_with_all_full_blocks_of_the_one_before() -> None:
    alone = Workload(1, 40, 10, NOTHING, NOTHING, Lengths(900, 0), Lengths(300, 0), Lengths(200, 0))
    trace = generate(alone, 30, 3)
    turns: dict[int, list[int]] = {}
    for row in trace.rows():
        before = turns.get(row.ids[0], [])
        assert list(row.ids[: len(before)]) == before
        if before:
            assert row.input_length >= 900 + 200 + 300
        turns[row.ids[0]] = list(row.ids[: row.input_length // 512])
    assert len(turns) < 30


def test_sessions_share_what_is_shared_and_nothing_else() -> None:
    once = Workload(1, 1, 1, Shared(1, Lengths(1024, 0)), NOTHING, Lengths(600, 0), Lengths(1, 0), Lengths(1, 0))
    trace = generate(once, 10, 0)
    assert stats(trace).distinct == 2 + 10 * 2
    assert trace.ids_of(9)[:2].tolist() == trace.ids_of(0)[:2].tolist()


def test_the_more_popular_a_document_the_more_often_it_is_used() -> None:
    once = Workload(1, 1, 1, NOTHING, Shared(50, Lengths(512, 0), zipf=1), Lengths(5, 0), Lengths(1, 0), Lengths(1, 0))
    trace = generate(once, 5000, 0)
    _, uses = np.unique(trace.ids[trace.positions() == 0], return_counts=True)
    top = np.sort(uses)[::-1] / 5000
    expected = 1 / np.arange(1, 51) / (1 / np.arange(1, 51)).sum()
    assert top[:5] == pytest.approx(expected[:5], rel=0.15)


@pytest.mark.parametrize("requests", [0, -1, 10**6 + 1])
def test_an_impossible_number_of_requests_is_refused(requests: int) -> None:
    with pytest.raises(TraceError, match=f"{requests} requests: give a number from 1 to 1000000"):
        generate(SMALL, requests, 0)


def test_an_unknown_profile_is_refused_with_what_there_is() -> None:
    with pytest.raises(TraceError, match="did you mean 'papers'"):
        profile("paper")
    with pytest.raises(TraceError, match="use one of conversation, toolagent, synthetic, papers"):
        profile("x")


@pytest.mark.slow
@pytest.mark.parametrize("name", PROFILES)
@pytest.mark.parametrize("seed", [11, 12])
def test_each_profile_comes_close_to_what_is_published(name: str, seed: int) -> None:
    """Means and reuse, to which it was fitted, within 8 %; hits of limited pools, which follow, within 25 %."""
    found = closeness(name, make(name, seed))
    assert found
    for what, made, published in found:
        assert made == pytest.approx(published, rel=0.25 if what.startswith("block hits") else 0.08), what


def test_a_trace_that_is_not_here_is_made_and_says_so(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("mooncake_edu.traces.places.folders", lambda: iter([tmp_path]))
    made = load("papers")
    assert made.name == "papers, generated" and len(made) == PROFILES["papers"].requests
    assert load("arxiv-1000").name == "arxiv-1000, generated"
    write(replace(make("toolagent", requests=1200), name="arxiv"), tmp_path / "mooncake_trace.jsonl")
    assert (len(load("arxiv-1000")), load("arxiv-1000").name) == (1000, "arxiv-1000")
    with pytest.raises(TraceError, match="profile 'arxiv-100' is not known: did you mean 'arxiv-1000'"):
        load("arxiv-100")


def test_the_command_writes_a_trace_and_says_how_close_it_comes(run: Run, tmp_path: Path) -> None:
    out = tmp_path / "made.jsonl"
    said = run("trace", "generate", "synthetic", str(out), "--requests", "200", "--seed", "4").out
    assert len(read(out)) == 200
    assert "200 requests written" in said and "FAST table 2" in said
    assert "mean input (tokens)" in said and "published" in said


def test_deviations_are_printed_only_of_as_many_requests_as_are_published(
    run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(PROFILES, "synthetic", replace(PROFILES["synthetic"], requests=50))
    same, fewer, more = (
        run("trace", "generate", "synthetic", str(tmp_path / "made"), "--requests", str(number)).out
        for number in (50, 49, 51)
    )
    assert same.count("%") == same.count("   published ") == 4 and "not compared" not in same
    for said in fewer, more:
        assert "%" not in said and "published of 50 requests, so not compared" in said
