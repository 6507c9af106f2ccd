"""Experiments of overload: loads as a log tells them, mixes of requests, and what is compared."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from mooncake_edu.admission import Room
from mooncake_edu.config import Config
from mooncake_edu.errors import ConfigError
from mooncake_edu.events import EventLog, Kind
from mooncake_edu.simulation import simulate
from mooncake_edu.simulation.experiments import find, settings_of
from mooncake_edu.simulation.experiments.fig9 import MEASURES as SWINGS
from mooncake_edu.simulation.experiments.fig9 import measures, run_of
from mooncake_edu.simulation.experiments.overload import LONG, MEASURES, SHORT, Case, Variant, less, mixed
from mooncake_edu.simulation.loads import lagged, loads, period
from mooncake_edu.simulation.result import Stage
from mooncake_edu.traces.trace import write
from tests.simulation.clusters import config, workload

ROOM = Room(10, 1_000_000, lambda requests, tokens: 0.001)
NAMES = ["table3", "table3-sweeps", "overload"]


def silent(what: str, done: int, total: int) -> None:
    """Tells nobody."""


@pytest.fixture
def file(tmp_path: Path) -> str:
    """A trace of 120 requests."""
    write(workload(120, 4.0, 1, tick=3.0), tmp_path / "trace.jsonl")
    return str(tmp_path / "trace.jsonl")


def one_request() -> EventLog:
    """A log: a prompt of 100 tokens is computed from 2 to 6 s, and is at instance 1 from 7 to 9 s."""
    log = EventLog()
    log.add(Kind.ARRIVED, request="r", start=1.0, prompt=100)
    log.add(Kind.CHUNK, request="r", start=2.0, end=6.0, tokens=100, position=0, cached=0)
    log.add(Kind.STREAM, request="r", instance=1, start=5.0, end=7.0, layer=-1, bytes=1)
    log.add(Kind.FINISHED, request="r", instance=1, start=9.0, output=2, reason=1)
    return log


def test_the_prefill_load_is_the_work_that_came_and_is_not_done() -> None:
    seen = loads(one_request(), ROOM, 8.0, 0.1, np.array([0.5, 1.0, 2.0, 3.0, 5.0, 6.0, 10.0]))
    np.testing.assert_allclose(8 * seen.prefill, [0, 4, 4, 3, 1, 0, 0])


def test_the_decode_load_is_that_of_those_whose_kvcache_is_there() -> None:
    seen = loads(one_request(), ROOM, 8.0, 0.1, np.array([6.9, 7.0, 8.9, 9.0]))
    np.testing.assert_allclose(seen.decode, [0, 0.1, 0.1, 0])


def test_loads_of_a_run_are_those_of_its_table() -> None:
    """Counted from when each request came and went."""
    log, trace = EventLog(500_000), workload(200, 3.0, 2)
    result = simulate(config(), trace, log)
    times = np.linspace(0, float(trace.arrival[-1]), 50)
    seen = loads(log, Room(1, 10**12, lambda requests, tokens: 0.0), 1.0, 1.0, times)
    streams = log.select(Kind.STREAM)
    came = streams.end
    ends = np.sort((result.table.arrival + result.table.e2e)[result.table.output > 1])
    inside = np.searchsorted(np.sort(came), times, "right") - np.searchsorted(
        np.sort((result.table.arrival + result.table.e2e)[streams.request]), times, "right"
    )
    assert len(ends) <= len(came)
    np.testing.assert_allclose(2 * seen.decode, inside, atol=1e-9)


@given(st.integers(0, 15), st.floats(0.1, 5))
def test_a_series_against_itself_turned_round_and_shifted_correlates_by_minus_one_at_that_lag(
    lag: int, scale: float
) -> None:
    wave = np.random.default_rng(lag).normal(size=300)
    shifted = -scale * np.roll(wave, lag)
    found, value = lagged(wave, shifted, 20)
    assert found == lag and value == pytest.approx(-1.0)


@pytest.mark.parametrize("length", [17, 40, 75])
def test_the_period_of_a_wave_is_found_in_noise(length: int) -> None:
    noise = np.random.default_rng(length).normal(size=600)
    assert period(np.sin(2 * np.pi * np.arange(600) / length) + 0.2 * noise) == pytest.approx(length, abs=2)


def test_what_never_swings_has_no_period() -> None:
    assert np.isnan(period(np.arange(100.0)))


def test_mixes_hold_the_requests_of_their_kind_when_they_came() -> None:
    trace = workload(300, 2.0, 4, longest=40_000)
    long, short, bursts = (mixed(trace, mix) for mix in ("long", "short", "bursts"))
    assert 0 < len(long) < 300 and (long.input_length >= LONG).all()
    assert 0 < len(short) < 300 and (short.input_length <= SHORT).all()
    np.testing.assert_array_equal(long.arrival, trace.arrival[trace.input_length >= LONG])
    assert (bursts.arrival % 60 <= 10).all() and (np.diff(bursts.arrival) >= 0).all()
    assert (bursts.arrival // 60 == trace.arrival // 60).all()


@pytest.mark.parametrize("name", NAMES)
def test_every_measure_of_every_case_and_variant_is_given(name: str, file: str) -> None:
    settings = settings_of(name)
    cases = tuple(each.model_copy(update={"trace": file, "mix": "all"}) for each in settings.cases[:2])
    chosen = settings.model_copy(update={"cases": cases, "slices": 2, "seeds": 1})
    outcome = find(name).run(chosen, silent)
    runs = len(cases) * len(settings.variants)
    assert sum(row.low is not None for row in outcome.rows) == runs * len(MEASURES)
    assert len(outcome.figures) == 1


@pytest.mark.parametrize("name", NAMES)
def test_refusals_of_all_stages_add_up(name: str, file: str) -> None:
    settings = settings_of(name)
    case = settings.cases[0].model_copy(update={"trace": file, "slots": 1, "speed": 4.0})
    for variant in settings.variants:
        result = simulate(settings.config(case, variant, 0), case.read(1, 1200)[0])
        parts = [MEASURES[each].read(result) for each in ("arrival", "turn", "decode")]
        assert sum(parts) == pytest.approx(MEASURES["refused"].read(result)) and sum(parts) > 0
        assert MEASURES["met"].read(result) + sum(parts) <= 1 + 1e-12
        assert (MEASURES["wasted"].read(result) > 0) == (result.refused(Stage.DECODE) > 0)


def test_a_case_changes_what_it_names() -> None:
    base = Config.size("cluster")
    case = Case(name="c", trace="x", prefill=5, decode=6, slots=7, memory="45 GiB", tbt=0.03, stay=4.0, reserved=True)
    made = Variant(name="v", policy="early", factor=2.0, second_look=True).config(case.config(base))
    assert [group.count for group in made.instances] == [5, 6]
    assert (made.engine.max_batch, made.engine.memory) == (7, 45 * 2**30)
    assert (made.slo.tbt.value, made.slo.ttft) == (0.03, base.slo.ttft)
    assert (made.policies.decode, made.policies.admission) == ("reserved", "early")
    assert (made.admission.stay, made.admission.factor, made.admission.second_look) == (4.0, 2.0, True)
    assert made.tiers == base.tiers and made.hardware == base.hardware


def test_less_is_counted_case_by_case() -> None:
    assert less({"a": {"m": [1, 2, 3, 3]}, "b": {"m": [2, 2, 2, 4]}}, "a", "b", "m") == 0.5


def test_a_policy_that_does_not_exist_is_refused_by_its_name(file: str) -> None:
    with pytest.raises(ConfigError, match=r"^some.toml: variants\[1\].policy 'best' is not allowed: use one of all, "):
        find("overload").settings.from_toml(written(file, "early", "best"), "some.toml")
    with pytest.raises(ConfigError, match=r"^some.toml: policies\[0\] 'best' is not allowed: use .* one of all, "):
        find("fig9").settings.from_toml('policies = ["best"]\ncases = []', "some.toml")


def written(trace: str, *policies: str, **case: Any) -> str:
    """A configuration of overload with one case, and a variant for each policy."""
    more = "".join(f", {key} = {value!r}" for key, value in case.items())
    variants = [f'{{ name = "{number}", policy = "{policy}" }}' for number, policy in enumerate(policies)]
    return (f'title = "t"\nslices = 1\nseeds = 1\ncases = [{{ name = "c", trace = "{trace}"{more} }}]\n'
            f"variants = [{', '.join(variants)}]")  # fmt: skip


@pytest.mark.parametrize(("name", "policies", "said"), [
    ("overload", ["all", "bet"], "variants: none has policy 'early', with which others are compared: add one"),
    ("table3", ["early"], "variants: none has policy 'decode-refuses', with which others are compared: add one"),
])  # fmt: skip
def test_what_others_are_compared_with_must_be_there(name: str, policies: list[str], said: str, file: str) -> None:
    settings = find(name).settings.from_toml(written(file, *policies))
    with pytest.raises(ConfigError, match=said):
        find(name).run(settings, silent)


def test_names_that_results_are_told_apart_by_are_given_once(file: str) -> None:
    text = written(file, "early", "all").replace('"1"', '"0"')
    with pytest.raises(ConfigError, match=r"variants\[1\].name '0' is taken: give another"):
        find("overload").settings.from_toml(text)


def test_more_slices_than_requests_are_refused(file: str) -> None:
    with pytest.raises(ConfigError, match="slices 121 are more than the 120 requests of case 'c': use fewer"):
        Case(name="c", trace=file).read(121, 10)


def test_where_nobody_is_served_what_is_not_known_has_no_row(file: str) -> None:
    outcome = find("overload").run(find("overload").settings.from_toml(written(file, "early", tbt=0.001)), silent)
    said = {row.what: row.ours for row in outcome.rows}
    assert said["c, 0: refused"] == 1.0 and "c, 0: wait before the prefill over decoding" not in said


def swinging(policy: str, **changes: Any) -> list[float]:
    """What is measured of a short run of figure 9's first case."""
    settings = settings_of("fig9")
    case = settings.cases[0].model_copy(update=changes)
    made = case.config(Config.named(settings.cluster), policy)
    return measures(run_of(made, case.data.trace(800, 0).faster(case.rate), settings.settle), settings.lag)


def test_a_prefill_takes_as_long_as_a_decode_stays_where_loads_are_to_swing() -> None:
    settings = settings_of("fig9")
    for case in settings.cases:
        made = case.config(Config.named(settings.cluster), "early")
        found = run_of(made, case.data.trace(100, 0).faster(case.rate), settings.settle)
        assert found.prefill >= found.stay and case.rate * found.prefill > case.prefill
        assert found.result.refused(Stage.DECODE) == 0


def test_under_early_rejection_the_loads_swing_against_each_other_and_prediction_flattens_them() -> None:
    early, predicted = (dict(zip(SWINGS, swinging(policy), strict=True)) for policy in ("early", "early-predicted"))
    assert early["correlation of the loads, lagged"] <= -0.6
    spread = "decode load, standard deviation"
    assert predicted[spread] <= early[spread] / 2
    assert predicted["within both objectives"] > early["within both objectives"]


def test_the_swing_takes_longer_where_a_prefill_does() -> None:
    settings = settings_of("fig9")
    periods = {}
    for case in settings.cases:
        if case.prefill == 16:
            found = swinging("early", **{name: getattr(case, name) for name in ("data", "rate", "slots", "stay")})
            periods[case.data.prompt] = dict(zip(SWINGS, found, strict=True))["period"]
    assert periods[32768] < periods[65536] < periods[98304]


def test_figure_9_tells_every_measure_and_the_reduction(file: str) -> None:
    settings = settings_of("fig9").model_copy(update={"requests": 120, "seeds": 2})
    settings = settings.model_copy(update={"cases": settings.cases[:1]})
    outcome = find("fig9").run(settings, silent)
    said = [row.what for row in outcome.rows]
    assert said[-1].endswith("standard deviation of the decode load, early-predicted over early")
    assert all(row.low is not None and row.low <= row.ours <= row.high for row in outcome.rows)
    assert len(outcome.figures) == 1


def fig9(prompt: int, output: int, rate: float) -> str:
    """A configuration of figure 9 with one small case."""
    data = f'{{ name = "x", prompt = {prompt}, output = {output} }}'
    return (f"requests = 100\nseeds = 1\ncases = [{{ data = {data}, rate = {rate}, prefill = 2, decode = 1, "
            f"slots = 3 }}]")  # fmt: skip


def test_where_nobody_decodes_nothing_swings_less_than_anything() -> None:
    outcome = find("fig9").run(find("fig9").settings.from_toml(fig9(4096, 1, 2.0)), silent)
    assert not any("over early" in row.what for row in outcome.rows)


def test_a_run_too_short_to_look_for_a_lag_in_is_refused() -> None:
    with pytest.raises(ConfigError, match=r"requests 100 of x come within .* too few for a lag of 4: give more"):
        find("fig9").run(find("fig9").settings.from_toml(fig9(65536, 300, 1e6)), silent)
