"""Closed forms agree with step by step, token by token, layer by layer; and what is derived from events agrees too."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from mooncake_edu.config import Config
from mooncake_edu.events import EventLog, Kind
from mooncake_edu.simulation import simulate
from mooncake_edu.traces.trace import Trace
from tests.simulation.clusters import COUPLED, SEPARATE, config, real, workload

GROUP = SEPARATE.replace("count = 2", "count = 2\npipeline_parallel = 4", 1)
CHUNKED = 'coupled = "chunked"'
MODES: dict[str, dict[str, Any]] = {
    "separate": {},
    "pipeline": {"instances": GROUP, "budget": 1024},
    "in turn": {"simulation": "layerwise = false"},
    "in turn, pipeline": {"instances": GROUP, "simulation": "layerwise = false", "budget": 1024},
    "two tiers": {"dram": "100 GB", "tiers": 'ssd = "1 TB"'},
    "few places": {"batch": 6},
    "old view, noise": {"simulation": "view_age = 1.0\nestimate_noise = 0.3"},
    "prefill first": {"instances": COUPLED},
    "prefill first, few pages": {"instances": COUPLED, "memory": "60 GiB"},
    "prefill first, few pages, old view": {"instances": COUPLED, "memory": "60 GiB", "simulation": "view_age = 2.0"},
    "chunked": {"instances": COUPLED, "simulation": CHUNKED, "budget": 512},
    "large chunks": {"instances": COUPLED, "simulation": CHUNKED},
    "chunked, few pages": {"instances": COUPLED, "simulation": CHUNKED, "budget": 512, "memory": "60 GiB"},
}


def require_agreement(chosen: Config, trace: Trace) -> None:
    """Both ways give the same, times within 1e-9 s, and the event log tells exactly what the run did."""
    log = EventLog(2_000_000)
    fast, slow = simulate(chosen, trace, log), simulate(chosen, trace, reference=True)
    for column in ("ttft", "tbt", "e2e"):
        np.testing.assert_allclose(getattr(fast.table, column), getattr(slow.table, column), rtol=0, atol=1e-9)
    for column in ("cached", "loaded", "output", "reason"):
        np.testing.assert_array_equal(getattr(fast.table, column), getattr(slow.table, column))
    assert fast.hits == slow.hits
    told = log.requests()
    assert told.complete.all()
    for column in ("ttft", "tbt", "e2e", "prompt", "cached", "loaded", "output", "reason"):
        np.testing.assert_array_equal(getattr(told, column), getattr(fast.table, column), err_msg=column)


@pytest.mark.slow
@pytest.mark.parametrize("name", ["conversation_trace", "synthetic_trace", "mooncake_trace_1000"])
@pytest.mark.parametrize("mode", MODES)
def test_closed_forms_agree_with_the_reference_on_500_rows(mode: str, name: str) -> None:
    require_agreement(config(**MODES[mode]), real(name).faster(2))


@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize("mode", [{}, {"instances": COUPLED}, {"instances": COUPLED, "simulation": CHUNKED}])
def test_they_agree_where_pages_are_so_few_that_requests_give_way(mode: dict[str, Any], seed: int) -> None:
    trace = workload(150, 6.0, seed, longest=3000)
    chosen = config(memory="3 GiB", dram="20 GB", budget=512, **mode)
    require_agreement(chosen, trace)
    log = EventLog(500_000)
    simulate(chosen, trace, log)
    assert len(log.select(Kind.PREEMPTED))
