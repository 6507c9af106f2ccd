"""`bench conductor` places a real trace, and weighs an index that is what it says."""

from __future__ import annotations

from mooncake_edu.bench import conductor


def test_every_figure_is_there_and_placement_stands_beside_its_limit() -> None:
    report = conductor.run(1, 100)
    assert [row.unit for row in report.rows] == ["us", "us", "us", "ms", "MB", "MB"]
    assert [row.limit for row in report.rows if row.limit] == [50.0, 2.0]


def test_an_index_grows_with_its_blocks() -> None:
    few, many = (conductor.weight(16, 2, blocks) * blocks for blocks in (2_000, 20_000))
    assert many > 5 * few
