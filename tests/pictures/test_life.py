"""The life of a request shows what was recorded, and greys what is not built yet."""

from __future__ import annotations

import plotly.graph_objects as go
import pytest

from mooncake_edu.events import EventLog, Kind, Refusal
from mooncake_edu.pictures.life import WAY, life


def story() -> EventLog:
    """A request that waits, finds 32 of 40 tokens, is preempted and comes back, beside another one."""
    log = EventLog()
    for name, at in (("other", 0.0), ("mine", 10.0)):
        log.add(Kind.ARRIVED, request=name, start=at, prompt=40)
        log.add(Kind.QUEUED, request=name, start=at, end=at + 1)
        log.add(Kind.CHUNK, request=name, start=at + 1, end=at + 2, tokens=8, position=32, cached=32)
        log.add(Kind.PREEMPTED, request=name, start=at + 3, tokens=40)
        log.add(Kind.CHUNK, request=name, start=at + 4, end=at + 5, tokens=41, position=0, cached=0)
        log.add(Kind.STEP, start=at + 5, end=at + 6, prefill=0, decode=1, used=1, cached=0, free=1)
        log.add(Kind.DECODE, request=name, start=at + 5, end=at + 6, tokens=1)
        log.add(Kind.FINISHED, request=name, start=at + 6, output=3, reason=1)
    return log


def lanes(figure: go.Figure, name: str) -> set[str]:
    """The rows in which something of that name is drawn."""
    return {lane for trace in figure.data if (trace.name or "").startswith(name) for lane in trace.y}


def grey(figure: go.Figure) -> set[str]:
    """The chapters that grey rows wait for."""
    return {text for trace in figure.data if trace.type == "bar" and trace.text for text in trace.text}


@pytest.mark.parametrize("lit", range(8))
def test_rows_of_later_layers_are_grey_and_name_their_chapter(lit: int) -> None:
    assert grey(life(story(), "mine", lit)) == {f"chapter {number}" for number in range(lit + 1, 8)}


def test_a_long_life_is_told_in_seconds() -> None:
    assert "(ms)" in life(story(), "mine").layout.xaxis.title.text
    log = story()
    log.add(Kind.WAIT, request="mine", start=10.0, end=25.0, tokens=1)
    assert "(s)" in life(log, "mine").layout.xaxis.title.text


def test_every_row_stands_in_the_order_of_the_way_from_top_to_bottom() -> None:
    axis = life(story(), "mine", 2).layout.yaxis
    assert list(axis.categoryarray) == [row.label for row in WAY]
    assert axis.range[0] > axis.range[1]
    assert sorted(row.layer for row in WAY if row.layer) == [1, 2, 3, 4, 5, 6, 7]


def test_blocks_are_held_from_the_first_chunk_until_preemption_and_again_until_the_end() -> None:
    [held] = [trace for trace in life(story(), "mine", 1).data if trace.name and trace.name.startswith("blocks held")]
    assert list(held.base) == [1000, 4000]  # ms
    assert list(held.x) == [2000, 2000]


def test_the_finding_tells_from_when_to_when_blocks_were_held() -> None:
    said = "held blocks from 1,000 to 3,000 ms and from 4,000 to 6,000 ms."
    assert said in life(story(), "mine", 1).layout.meta["alt"]
    assert "held blocks" not in life(story(), "mine", 0).layout.meta["alt"]


def test_only_the_spans_of_the_request_are_drawn_from_its_arrival_on() -> None:
    figure = life(story(), "mine", 0)
    [waiting] = [trace for trace in figure.data if trace.name == "waiting"]
    assert (list(waiting.base), list(waiting.x)) == ([0], [1000])
    assert lanes(figure, "prefill") == {"Model in the engine"}
    assert not lanes(figure, "tokens found")


def test_the_newest_layer_is_told_apart() -> None:
    texts = life(story(), "mine", 2).layout.yaxis.ticktext
    assert [text for text in texts if "<b>" in text] == ["<b>Prefix hashing (2)</b>"]


def test_tokens_go_back_when_they_were_made() -> None:
    [tokens] = [trace for trace in life(story(), "mine", 0).data if trace.name == "a token goes back"]
    assert list(tokens.x) == list(1e3 * (story().token_times("mine") - 10))
    assert len(tokens.x) > 1


def test_the_finding_tells_reuse_only_where_hashing_is_built() -> None:
    assert "found 32 of them" in life(story(), "mine", 2).layout.meta["alt"]
    assert "found" not in life(story(), "mine", 1).layout.meta["alt"]
    assert "layers above 1" in life(story(), "mine", 1).layout.meta["alt"]
    assert "grey" not in life(story(), "mine", 7).layout.meta["alt"]


def test_a_lit_layer_that_the_request_did_not_need_says_so() -> None:
    figure = life(story(), "mine", 4)
    said = {trace.y[0] for trace in figure.data if trace.text and "not needed" in trace.text[0]}
    assert said == {"Tiered store (3)", "RDMA transfer (4)"}


def test_a_refused_request_is_marked() -> None:
    log = EventLog()
    log.add(Kind.ARRIVED, request="r", start=1.0, prompt=4)
    log.add(Kind.REFUSED, request="r", start=1.0, reason=1)
    assert lanes(life(log, "r"), "refused") == {"API and tokenizer"}


def test_an_unknown_request_and_an_impossible_layer_are_refused() -> None:
    with pytest.raises(ValueError, match="'nobody' did not arrive in this log: it knows other, mine"):
        life(story(), "nobody")
    with pytest.raises(ValueError, match="lit 8 is not from 0 to 7"):
        life(story(), "mine", 8)


def test_the_conductor_s_row_says_where_the_request_went_and_what_was_loaded_counts_as_found() -> None:
    log = EventLog()
    log.add(Kind.ARRIVED, request="request 7", instance=3, start=0.0, prompt=40)
    log.add(Kind.LOAD, request="request 7", instance=3, start=1.0, end=2.0, tokens=32, bytes=1)
    log.add(Kind.CHUNK, request="request 7", instance=3, start=1.0, end=3.0, tokens=8, position=32, cached=0)
    log.add(Kind.DECODE, request="request 7", instance=9, start=4.0, end=5.0, tokens=1)
    log.add(Kind.FINISHED, request="request 7", instance=9, start=5.0, output=2, reason=1)
    drawn = life(log, "request 7", 6)
    texts = [trace.text for trace in drawn.data if trace.type == "scatter" and trace.mode == "text"]
    said = " ".join(text for each in texts for text in each)
    assert "instance 3 computes the prompt, 9 makes the other tokens" in said
    assert "32 of 40 tokens found" in said and "found 32 of them" in drawn.layout.meta["finding"]
    assert drawn.layout.title.text == "The life of request 7"


@pytest.mark.parametrize(
    ("kind", "words"),
    [
        (Kind.FINISHED, "admitted"),
        (Kind.REFUSED, "admitted, then refused (LOAD) after its prefill"),
        (None, "refused (LOAD) on arrival"),
    ],
)
def test_early_rejection_s_row_says_whether_and_when_the_request_was_turned_away(kind: Kind | None, words: str) -> None:
    log = EventLog()
    log.add(Kind.ARRIVED, request="mine", start=0.0, prompt=8)
    if kind is not None:
        log.add(Kind.CHUNK, request="mine", start=1.0, end=2.0, tokens=8, position=0, cached=0)
    if kind is Kind.FINISHED:
        log.add(Kind.FINISHED, request="mine", start=3.0, output=1, reason=1)
    else:
        log.add(Kind.REFUSED, request="mine", start=3.0, reason=Refusal.LOAD)
    said = [trace.text[0] for trace in life(log, "mine", 7).data if list(trace.y) == ["Early rejection (7)"]]
    assert [text.strip() for text in said] == [words]
