"""The bench of eviction policies: every policy at every capacity, never above the limit."""

from __future__ import annotations

from pathlib import Path

from mooncake_edu.bench.results import Report
from mooncake_edu.cli import app
from mooncake_edu.store import POLICIES


def test_the_eviction_bench_measures_hits_beside_the_limit_and_times(tmp_path: Path) -> None:
    out = tmp_path / "eviction.json"
    app(["bench", "eviction", "--quick", "--json", str(out)], standalone_mode=False)
    rows = Report.load(out).rows
    hits = [row for row in rows if row.what.startswith("hits")]
    assert len(hits) == 2 * len(POLICIES)
    assert all(row.limit is not None and row.ours <= row.limit <= 1 for row in hits)
    times = [row for row in rows if row.unit == "ns/block"]
    assert len(times) == 2 * len(POLICIES) and not any(row.higher_is_better for row in times)
