"""Pictures of prefix hashing show the keys, hits and evictions that they were given, in data and in words."""

from __future__ import annotations

import json
from collections.abc import Callable

import plotly.graph_objects as go
import pytest

from mooncake_edu.pictures.palette import COMPUTED, EVICTED, FREE, REUSED
from mooncake_edu.pictures.prefix import (
    Chain,
    Kept,
    beginnings,
    common_length,
    costs,
    evictions,
    found_over_time,
    hash_chain,
    reuse_by_block_size,
)
from mooncake_edu.pictures.tree import prefix_tree
from mooncake_edu.prefix import block_keys

ROOT = b"root"


def keys(tokens: str) -> list[bytes]:
    """A block a letter."""
    return block_keys(list(tokens.encode()), 1, ROOT)


def chains() -> list[Chain]:
    versions = {"nothing": "abcd", "block 1": "aBcd", "last block": "abcD"}
    return [Chain(change, list(text), keys(text)) for change, text in versions.items()]


def losing() -> dict[str, list[Kept]]:
    tails = [Kept({"A": [number < left for number in range(3)]}, {"A": left}) for left in (3, 2, 1, 0)]
    heads = [Kept({"A": [number >= gone for number in range(3)]}, {"A": 0 if gone else 3}) for gone in range(4)]
    return {"heads": heads, "tails": tails}


PROMPTS = {"A": "abc", "B": "abd", "A on": "abcef", "late": "xbc"}

MAKERS: dict[str, Callable[[], go.Figure]] = {
    "beginnings": lambda: beginnings({"one": [1, 2, 3], "two": [1, 2, 4]}),
    "costs": lambda: costs([10, 100], {"naive": [1, 100], "chained": [1, 10]}, "milliseconds"),
    "chain": lambda: hash_chain(chains()),
    "tree": lambda: prefix_tree({name: keys(text) for name, text in PROMPTS.items()}),
    "evictions": lambda: evictions(losing()),
    "sizes": lambda: reuse_by_block_size({1: 90, 16: 80, 512: 0}, shared=95, total=100),
    "found": lambda: found_over_time({"yours": [0, 3, 5], "naive": [0, 1, 1]}, total=9),
}
ANIMATED = ("chain", "tree", "evictions")


@pytest.mark.parametrize("make", MAKERS.values(), ids=MAKERS)
def test_every_figure_says_in_words_what_it_shows(make: Callable[[], go.Figure]) -> None:
    figure = make()
    alt = figure.layout.meta["alt"]
    assert figure.layout.title.text in alt and figure.layout.meta["finding"] in alt and len(alt) > 60
    assert figure.layout.paper_bgcolor == figure.layout.plot_bgcolor == "rgba(0,0,0,0)"
    json.loads(figure.to_json())


@pytest.mark.parametrize("name", ANIMATED)
def test_frames_have_the_traces_of_the_figure_and_a_place_on_the_slider(name: str) -> None:
    figure = MAKERS[name]()
    assert len(figure.frames) > 1
    for frame in figure.frames:
        assert [trace.name for trace in frame.data] == [trace.name for trace in figure.data]
        assert all(len(trace.x) for trace in frame.data), "a trace without points loses its place in the legend"
    steps = figure.layout.sliders[0].steps
    assert [step.label for step in steps] == [frame.name for frame in figure.frames]
    assert [trace.to_plotly_json() for trace in figure.frames[0].data] == [t.to_plotly_json() for t in figure.data]


@pytest.mark.parametrize("name", ["chain", "tree", "evictions", "found"])
def test_things_that_differ_in_colour_also_differ_in_pattern_form_or_sign(name: str) -> None:
    looks = set()
    traces = [trace for trace in MAKERS[name]().data if trace.showlegend is not False]
    for trace in traces:
        marker = trace.marker
        looks.add((marker.pattern.shape if trace.type == "bar" else marker.symbol, str(trace.line.dash)
                   if trace.type == "scatter" else ""))  # fmt: skip
    assert len(looks) >= len(traces) - 1  # plain is a look too; and only "tokens as before" shares it


def test_a_prompt_shows_what_it_has_in_common_with_the_best_of_the_earlier_ones() -> None:
    figure = beginnings({"one": [1, 2, 3], "two": [1, 9], "three": [1, 2, 4, 5], "four": [7]})
    assert {trace.name.split()[0]: list(trace.x) for trace in figure.data} == {"an": [0, 1, 2, 0], "new": [3, 1, 2, 1]}
    assert "Of 10 prompt tokens 3 (30 %)" in figure.layout.meta["finding"]


@pytest.mark.parametrize(
    ("one", "other", "common"), [([], [], 0), ([1], [1, 2], 1), ([1, 2], [1, 3], 1), ([2], [1], 0), ([1, 2], [1, 2], 2)]
)
def test_common_length_counts_the_tokens_before_the_first_difference(
    one: list[int], other: list[int], common: int
) -> None:
    assert common_length(one, other) == common_length(other, one) == common


def shown(frame: go.Frame) -> dict[str, list[int]]:
    """Per trace of boxes, the places that are drawn."""
    return {trace.name: [x for x, y in zip(trace.x, trace.y, strict=True) if y] for trace in frame.data}


def test_from_the_changed_block_on_all_keys_are_drawn_as_new() -> None:
    nothing, early, late = (shown(frame) for frame in hash_chain(chains()).frames)
    assert nothing["same key: reused"] == [0, 1, 2, 3] and nothing["new key: computed"] == []
    assert (early["tokens changed"], early["new key: computed"]) == ([1], [1, 2, 3])
    assert (late["tokens changed"], late["same key: reused"]) == ([3], [0, 1, 2])
    said = hash_chain(chains()).layout.meta["finding"]
    assert said == "Block 1: 3 of 4 keys are new; last block: 1 of 4 keys are new."


def test_long_texts_of_blocks_take_two_lines() -> None:
    figure = hash_chain([Chain("nothing", ["short", "a rather long one"], keys("ab"))])
    assert list(figure.data[0].text) == ["short", "a rather <br>long one"]


def nodes(frame: go.Frame) -> dict[str, list[tuple[float, str]]]:
    """Per kind of node its depth and the number in it."""
    return {
        trace.name: sorted((x, text.strip("</b>")) for x, text in zip(trace.x, trace.text, strict=True) if text)
        for trace in frame.data[1:4]
    }


def test_a_prompt_reuses_the_path_that_is_there_and_computes_from_where_it_leaves_it() -> None:
    frames = MAKERS["tree"]().frames
    second, third, late = (nodes(frames[number]) for number in (1, 2, 3))
    assert second["reused by this prompt"] == [(0, "2"), (1, "2")]
    assert second["computed for this prompt"] == [(2, "1")] and second["in the cache"] == [(2, "1")]
    assert third["reused by this prompt"] == [(0, "3"), (1, "3"), (2, "2")]
    assert late["reused by this prompt"] == [] and [x for x, _ in late["computed for this prompt"]] == [0, 1, 2]
    assert late["in the cache"][0] == (0, "3")


def test_no_two_blocks_of_the_tree_lie_on_each_other_and_a_branch_stays_level() -> None:
    last = MAKERS["tree"]().frames[-1]
    places = [(x, y) for trace in last.data[1:4] for x, y in zip(trace.x, trace.y, strict=True) if x == x]
    assert len(set(places)) == len(places) == 9
    assert {y for x, y in places if x >= 3} == {0}, "the first prompt and its next turn go straight on"


def test_names_stand_behind_leaves_and_above_blocks_that_go_on() -> None:
    names = MAKERS["tree"]().frames[-1].data[-1]
    where = dict(zip(names.text, zip(names.x, names.textposition, strict=True), strict=True))
    assert where["A"] == (2, "middle center") and where["A on"] == (4.25, "middle right")


def test_the_tree_s_finding_counts_blocks_that_need_not_be_computed_again() -> None:
    assert (
        "4 prompts have 14 full blocks, but only 9 different ones: 5 (36 %)" in MAKERS["tree"]().layout.meta["finding"]
    )


def test_a_tree_as_deep_as_a_long_prompt_is_drawn_without_recursion() -> None:
    assert len(prefix_tree({"long": block_keys(range(3000), 1, ROOT)}).data[3].x) == 3000


def test_prompts_without_a_full_block_make_a_figure_too() -> None:
    assert "0 different ones" in prefix_tree({"short": []}).layout.meta["finding"]


def cells(frame: go.Frame, row: str) -> str:
    """The blocks of one row: + found, ? out of reach, - evicted."""
    signs = dict.fromkeys(range(3), "")
    for trace, sign in zip(frame.data[:3], "+?-", strict=True):
        for y, base, x in zip(trace.y, trace.base, trace.x, strict=True):
            if y == row and x:
                signs[round(base + 0.46)] += sign
    return "".join(signs.values())


def test_blocks_behind_an_evicted_head_are_drawn_as_out_of_reach() -> None:
    frames = evictions(losing()).frames
    assert [cells(frame, "heads: A") for frame in frames] == ["+++", "-??", "--?", "---"]
    assert [cells(frame, "tails: A") for frame in frames] == ["+++", "++-", "+--", "---"]
    assert list(frames[1].data[3].text) == ["0 of 3 found", "2 of 3 found"]
    assert [trace.marker.color for trace in frames[0].data[:3]] == [REUSED.colour, FREE.colour, EVICTED.colour]


def test_the_size_of_blocks_is_drawn_against_all_prompt_tokens() -> None:
    figure = MAKERS["sizes"]()
    assert list(figure.data[0].y) == [90, 80, 0] and list(figure.layout.yaxis.range) == [0, 100]
    assert "95 of 100 prompt tokens" in figure.layout.meta["finding"]


def test_runs_over_time_are_told_by_their_ends() -> None:
    figure = MAKERS["found"]()
    assert "yours 56 %; naive 11 %" in figure.layout.meta["finding"]
    assert figure.data[0].line.color == COMPUTED.colour
