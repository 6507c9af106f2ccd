"""Hot prefixes spread: replicas are counted as they are, and what is kept or copied shows in what is sent."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from mooncake_edu.config import Config
from mooncake_edu.simulation import simulate
from mooncake_edu.simulation.experiments import find, settings_of
from mooncake_edu.simulation.experiments.replicas import SAMPLES, Documents, watched
from mooncake_edu.traces.profiles import make


def silent(what: str, done: int, total: int) -> None:
    """Tells nobody."""


def base(**policies: Any) -> Config:
    """The paper's cluster under KVCache-centric placement."""
    made = Config.size("cluster")
    return made.model_copy(update={
        "policies": made.policies.model_copy(update={"placement": "kvcache-centric"} | policies)
    })  # fmt: skip


PAPERS = make("papers", 1, 150).faster(3.0)


def test_replicas_are_counted_as_the_index_sees_them() -> None:
    spread = watched(base(), PAPERS, 10)
    holders: dict[int, set[int]] = {}

    def watch(now: float, number: int, new: Any, gone: Any) -> None:
        if now <= spread.times[-1]:
            for id_ in new:
                holders.setdefault(id_, set()).add(number)
            for id_ in gone:
                holders[id_].discard(number)

    simulate(base(), PAPERS, watch=watch)
    ids, uses = np.unique(PAPERS.ids, return_counts=True)
    top = ids[np.argsort(-uses, kind="stable")[:10]].tolist()
    assert np.shape(spread.counts) == (SAMPLES, 10)
    assert spread.counts[-1] == [len(holders.get(id_, ())) for id_ in top]
    assert spread.counts[0] == [0] * 10


def test_what_nobody_keeps_is_sent_again_and_from_fewer_nodes() -> None:
    kept, single = (watched(base(replication=mode), PAPERS, 10) for mode in ("fetched", "none"))
    assert sum(single.result.sent.values()) > sum(kept.result.sent.values()) > 0
    assert np.mean(single.counts) < np.mean(kept.counts)


@pytest.mark.parametrize("name", ["fast11", "replication"])
def test_every_load_and_variant_is_measured_with_every_seed(name: str) -> None:
    settings = settings_of(name)
    loads = (Documents(trace="papers", requests=60, network=settings.loads[-1].network),)
    outcome = find(name).run(settings.model_copy(update={"loads": loads, "seeds": 2}), silent)
    assert len(outcome.rows) == 6 * len(settings.variants)
    assert all(row.low is not None and row.low <= row.ours <= row.high for row in outcome.rows)
    assert len(outcome.figures) == 1
