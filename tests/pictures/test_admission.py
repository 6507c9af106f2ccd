"""Pictures of overload say what they were given."""

from __future__ import annotations

import numpy as np
import pytest

from mooncake_edu.pictures.admission import goodput, swings
from mooncake_edu.simulation import simulate
from mooncake_edu.simulation.loads import Loads
from mooncake_edu.simulation.result import Stage
from tests.simulation.clusters import config, workload

TIMES = np.linspace(10.0, 20.0, 11)


def test_both_loads_of_every_run_are_drawn_in_percent() -> None:
    levels = {"a": 0.5, "b": 1.0}
    runs = {name: Loads(TIMES, np.full(11, level), np.linspace(0, level, 11)) for name, level in levels.items()}
    figure = swings(runs)
    lines = [trace for trace in figure.data if trace.mode == "lines"]
    assert [trace.name for trace in lines] == ["prefill load", "decode load"] * 2
    for trace, level in zip(lines[::2], (50, 100), strict=True):
        np.testing.assert_allclose(trace.y, level)
        np.testing.assert_allclose(trace.x, TIMES - 10)
    assert "b: the decode load is 50 ± 32 %" in figure.layout.meta["finding"]


def test_a_tick_stands_for_each_request_that_was_refused_before_and_after_the_prefill() -> None:
    made = config(batch=2)
    policies = made.policies.model_copy(update={"admission": "early"})
    trace = workload(300, 4.0, 5)
    result = simulate(made.model_copy(update={"policies": policies}), trace)
    times = np.array([0.0, float(trace.arrival[-1] + 1000)])
    figure = swings({"run": Loads(times, np.zeros(2), np.zeros(2))}, {"run": result})
    ticks = {trace.name: len(trace.x) for trace in figure.data if trace.mode == "markers"}
    late = result.refused(Stage.DECODE)
    assert ticks == {"refused before the prefill": result.refused() - late, "refused after the prefill": late}
    assert min(ticks.values()) > 0


def test_points_are_means_and_whiskers_reach_from_the_least_to_the_most() -> None:
    shares = {"one": {"a": [0.5, 0.7], "b": [0.9, 0.9]}, "two": {"a": [0.2, 0.4], "b": [0.1, 0.1]}}
    figure = goodput(shares, "Who is served")
    first = figure.data[0]
    assert (first.name, list(first.y)) == ("one", ["a", "b"])
    np.testing.assert_allclose(first.x, [60, 90])
    np.testing.assert_allclose(first.error_x.array, [10, 0], atol=1e-9)
    np.testing.assert_allclose(first.error_x.arrayminus, [10, 0], atol=1e-9)
    assert "one: b 90.0 %" in figure.layout.meta["finding"] and "two: a 30.0 %" in figure.layout.meta["finding"]


def test_no_two_cases_have_one_mark() -> None:
    figure = goodput({str(number): {"a": [0.5]} for number in range(10)}, "Who is served")
    assert len({(trace.marker.symbol, trace.marker.color) for trace in figure.data}) == 10


@pytest.mark.parametrize("count", [1, 3])
def test_every_axis_has_a_title_with_its_unit(count: int) -> None:
    figure = swings({str(number): Loads(TIMES, TIMES, TIMES) for number in range(count)})
    titles = [axis.title.text for axis in figure.select_yaxes()]
    assert titles == ["load (%)"] * count
