"""Pictures of the paged KVCache show what tables, pools and layouts say, and name it in words."""

from __future__ import annotations

import json
from collections.abc import Callable
from itertools import pairwise

import plotly.graph_objects as go
import pytest
import torch

from mooncake_edu.kvcache import BlockLayout, BlockPool, BlockTable, PageTensors
from mooncake_edu.pictures.frames import animate
from mooncake_edu.pictures.kvcache import (
    EMPTY,
    FILLED,
    MOST_FRAMES,
    RESERVED,
    Extent,
    Moment,
    block_bytes,
    block_sizes,
    memories,
    memory_map,
    most_inside,
    paged_moment,
    wasted,
)
from mooncake_edu.pictures.sharing import COPIED, OWN, SHARED, UNUSED, Scene, scene, sharing

SLOTS = 24


def tables() -> dict[str, BlockTable]:
    """Three tables over 6 blocks of 4, taken in turns, so that none lies in one piece."""
    pool = BlockPool(6)
    made = {name: BlockTable(pool, 4) for name in "ABC"}
    for tokens in (4, 3):
        for table in made.values():
            table.extend(tokens)
    return made


def contiguous(tokens: int, waiting: int = 1) -> Moment:
    return Moment((Extent("A", (range(2, 12),), tokens),), waiting)


def story(steps: int = 3) -> go.Figure:
    return memories([contiguous(step + 1) for step in range(steps)], [paged_moment(tables())], SLOTS, 4)


def scenes() -> list[Scene]:
    pool = BlockPool(4)
    tables = {"A": BlockTable(pool, 2)}
    texts = {"A": [*"abcd"], "B": [*"abce"]}
    tables["A"].extend(3)
    told = [scene("alone", tables, texts)]
    tables["B"] = tables["A"].fork()
    told.append(scene("forked", tables, texts))
    copies = tables["B"].extend(1)
    return [*told, scene("written", tables, texts, copies)]


MAKERS: dict[str, Callable[[], go.Figure]] = {
    "memory": lambda: memory_map(contiguous(3), SLOTS, 4),
    "memories": story,
    "sizes": lambda: block_sizes({1: (0.0, 30.0), 16: (0.25, 2.0)}, 16),
    "bytes": lambda: block_bytes(BlockLayout(2, 3, 4, 8)),
    "sharing": lambda: sharing(scenes(), ("A", "B"), 2),
}


@pytest.mark.parametrize("make", MAKERS.values(), ids=MAKERS)
def test_every_figure_names_its_finding_and_suits_any_background(make: Callable[[], go.Figure]) -> None:
    figure = make()
    assert figure.layout.meta["finding"] in figure.layout.meta["alt"] and len(figure.layout.meta["finding"]) > 40
    assert figure.layout.paper_bgcolor == figure.layout.plot_bgcolor == "rgba(0,0,0,0)"
    json.loads(figure.to_json())


def test_a_slot_shows_whose_token_it_holds_and_what_is_only_reserved() -> None:
    grid = memory_map(contiguous(3), SLOTS, 4).data[0]
    assert [list(row) for row in grid.text[:3]] == [["", "", "A", "A"], ["A", "·", "·", "·"], ["·"] * 4]
    assert [list(row) for row in grid.z[:2]] == [[EMPTY, EMPTY, FILLED, FILLED], [FILLED, *[RESERVED] * 3]]


def test_the_table_names_the_rows_in_which_a_request_lies() -> None:
    _, entries, grid = story().frames[0].data
    for name, blocks in zip(entries.y, entries.text, strict=True):
        rows = {number for number, row in enumerate(grid.text) if name in row}
        assert {int(block) for block in blocks if block} == rows
    assert [list(row) for row in entries.text] == [["0", "3"], ["1", "4"], ["2", "5"]]
    assert entries.customdata[0][1] == "its block 1 is block 3 of the memory"


def test_the_run_that_ends_first_stays_and_the_first_frame_is_shown() -> None:
    figure = story()
    assert [frame.name for frame in figure.frames] == ["0", "1", "2"]
    assert [frame.data[2].text for frame in figure.frames] == [figure.data[2].text] * 3
    assert [sum(row.count("A") for row in frame.data[0].text) for frame in figure.frames] == [1, 2, 3]
    assert figure.frames[0].data[0].text == figure.data[0].text


def test_long_runs_are_shown_in_few_frames_evenly_spread_and_to_their_end() -> None:
    *names, last = [int(frame.name) for frame in story(500).frames]
    assert len(names) < MOST_FRAMES and {b - a for a, b in pairwise(names)} == {11}
    assert last == 499


def test_waste_counts_only_while_somebody_waits() -> None:
    assert wasted([contiguous(6), contiguous(12), contiguous(24, waiting=0)], SLOTS) == 1 - 9 / 24
    assert wasted([contiguous(24, waiting=0)], SLOTS) == 0
    assert (most_inside([]), most_inside([Moment(()), contiguous(1)])) == (0, 1)


def test_the_finding_tells_waste_requests_and_steps_of_both() -> None:
    finding = story().layout.meta["finding"]
    for words in ("92 % of the contiguous", "at most 1 request fit at once, paged 3", "after 3 steps, paged 1"):
        assert words in finding


def test_slider_and_button_stand_below_the_plot_and_reach_every_frame() -> None:
    figure = story()
    (slider,), (buttons,) = figure.layout.sliders, figure.layout.updatemenus
    assert [step.args[0] for step in slider.steps] == [(frame.name,) for frame in figure.frames]
    assert slider.y == buttons.y == 0 and slider.yanchor == buttons.yanchor == "top"
    assert figure.layout.margin.b >= 92 and buttons.buttons[0].args[0] is None


def test_two_frames_of_one_name_are_refused() -> None:
    with pytest.raises(ValueError, match="a name of its own"):
        animate(go.Figure(), [go.Frame(name="1"), go.Frame(name="1")])


def test_the_bytes_of_a_block_are_where_the_pages_have_them() -> None:
    layout = BlockLayout(2, 3, 4, 8)
    pages = PageTensors(torch.empty(layout.nbytes, dtype=torch.uint8), layout)
    grid = block_bytes(layout).data[0]
    rows = [(layer, kv, head) for layer in range(2) for kv in range(2) for head in range(3)]
    assert [list(row) for row in grid.text] == [
        [pages.tensor[0, *row, slot].storage_offset() * 4 for slot in range(4)] for row in rows
    ]
    assert list(grid.y)[3] == "layer 0, values, head 0"


def test_the_order_of_the_bytes_is_told_in_words() -> None:
    order = "keys of head 0 from byte 0, of head 1 from 128, values from 256; layer 1 from 512; slots 32 bytes apart."
    assert f"Layer 0: {order}" in block_bytes(BlockLayout(2, 2, 4, 8)).layout.meta["alt"]
    assert (
        "Layer 0: keys of head 0 from byte 0, values from 4; slots 2"
        in block_bytes(BlockLayout(1, 1, 2, 2, torch.uint8)).layout.meta["alt"]
    )


def test_block_sizes_marks_the_chosen_one_and_tells_the_extremes() -> None:
    figure = block_sizes({1: (0.0, 30.0), 16: (0.25, 2.0)}, 16)
    assert [list(bars.marker.line.width) for bars in figure.data] == [[0, 3], [0, 3]]
    assert [list(bars.y) for bars in figure.data] == [[0, 25], [30, 2]]
    finding = figure.layout.meta["finding"]
    assert (
        "With blocks of 16 tokens 25 %" in finding and "a table has 2.0 entries; with blocks of 1 token 0 %" in finding
    )
    assert block_sizes({1: (0.0, 30.0)}, 1, "Of 300 tokens").layout.meta["alt"].startswith("Of 300 tokens. With")


def test_sharing_colours_blocks_by_who_refers_to_them() -> None:
    figure = sharing(scenes(), ("A", "B"), 2)
    states = [[row[0] for row in frame.data[0].z] for frame in figure.frames]
    assert states == [[OWN, OWN, UNUSED, UNUSED], [SHARED, SHARED, UNUSED, UNUSED], [SHARED, OWN, COPIED, UNUSED]]
    assert [list(row) for row in figure.frames[2].data[0].text[:3]] == [["a", "b"], ["c", ""], ["c", "e"]]


def test_sharing_draws_both_tables_with_the_numbers_of_their_blocks() -> None:
    entries = sharing(scenes(), ("A", "B"), 2).frames[2].data[2]
    left, right = sorted(set(entries.x))
    assert [text for x, text in zip(entries.x, entries.text, strict=True) if x == left] == ["0", "1"]
    assert [text for x, text in zip(entries.x, entries.text, strict=True) if x == right] == ["0", "2"]
    margins = sharing(scenes(), ("A", "B"), 2).frames[1].data[3]
    assert list(margins.text) == ["0", "1", "2", "3", "×2", "×2", "", ""]


def test_sharing_says_what_was_copied_and_saved() -> None:
    assert (
        "share 2 blocks and nothing is copied; their writes copy 1 in all and leave 1 shared. Together they use 3 "
        "blocks, without sharing 4"
    ) in sharing(scenes(), ("A", "B"), 2).layout.meta["finding"]
    assert "nothing is shared" in sharing(scenes()[:1], ("A", "B"), 2).layout.meta["finding"]
