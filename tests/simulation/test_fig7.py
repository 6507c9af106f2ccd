"""Figure 7: storing layer by layer is hidden by computing, storing at the end is not."""

from __future__ import annotations

from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mooncake_edu.model.costs import PRESETS
from mooncake_edu.simulation.experiments import settings_of
from mooncake_edu.simulation.experiments.fig7 import SERIALISED, extra_latency, implied, run
from mooncake_edu.simulation.prefill import by_layer, in_turn

A800 = PRESETS["A800x8"]


@given(prompt=st.integers(1, 200_000), bandwidth=st.floats(1e8, 1e12), layers=st.integers(1, 100))
def test_layer_by_layer_at_least_the_last_layer_is_waited_for_and_at_most_all_of_them(
    prompt: int, bandwidth: float, layers: int
) -> None:
    whole = prompt * A800.token_bytes / bandwidth
    extra = extra_latency(by_layer, A800, prompt, layers, bandwidth)
    assert extra_latency(in_turn, A800, prompt, layers, bandwidth) == pytest.approx(whole, abs=1e-9)
    assert extra == pytest.approx(max(whole / layers, whole - A800.prefill(prompt) * (1 - 1 / layers)), abs=1e-9)


def test_the_rate_that_the_paper_s_serialised_times_say_meets_them_about() -> None:
    rate, constant = implied(A800.token_bytes)
    for tokens, seconds in SERIALISED.items():
        assert tokens * A800.token_bytes / rate + constant == pytest.approx(seconds, rel=0.2)


def test_the_experiment_shows_the_papers_shape() -> None:
    outcome = run(settings_of("fig7"), lambda what, done, of: None)
    lines = {name: [row.ours for row in outcome.rows if row.what.startswith(f"{name}, link as specified")]
             for name in ("serialised", "layer-wise")}  # fmt: skip
    assert all(later > sooner for sooner, later in pairwise(lines["serialised"]))
    assert max(lines["layer-wise"]) < 0.1 * min(0.1, max(lines["serialised"]))
    assert len(outcome.rows) == 21 and len(outcome.figures) == 1 and outcome.remarks
