"""Edited listings stand in the text where the printed ones did, in whatever order they were run."""

from __future__ import annotations

import itertools

from hypothesis import given
from hypothesis import strategies as st

from mooncake_edu.course.live import Edits, compose


@given(st.integers(1, 30), st.data())
def test_edits_in_any_order_stand_where_the_printed_lines_did(count: int, data: st.DataObject) -> None:
    printed = [f"line {number}" for number in range(1, count + 1)]
    borders = sorted(data.draw(st.sets(st.integers(1, count + 1), min_size=2, max_size=8)) | {1})
    pieces = [(first, past - 1) for first, past in itertools.pairwise(borders)]
    lines = st.lists(st.sampled_from(["edited", ""]), max_size=4)
    edits: Edits = {piece: data.draw(lines) for piece in data.draw(st.permutations(pieces)) if data.draw(st.booleans())}
    expected: list[str] = []
    for first, last in [*pieces, (borders[-1], count)]:
        expected += edits.get((first, last), printed[first - 1 : last])
    assert compose(printed, edits) == "\n".join(expected) + "\n"
