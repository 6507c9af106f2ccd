"""A fit finds the costs that made the times; the published points predict each other; the real engine is predicted."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from mooncake_edu.bench import calibrate as bench
from mooncake_edu.bench.calibrate import CHECKED_PREFIXES, CHECKED_PROMPTS, Meter, measure
from mooncake_edu.config import EngineConfig
from mooncake_edu.engine import Engine
from mooncake_edu.errors import UserError
from mooncake_edu.events import Kind
from mooncake_edu.model import load
from mooncake_edu.model.calibrate import Decode, Prefill, fit, published
from mooncake_edu.model.costs import CostModel

CHUNK = 512
TERM = st.floats(1e-6, 1e-3)
PREFILLS = [(rows + prefix, prefix) for rows in (64, 200, 500) for prefix in (0, 512, 2048)]
DECODES = [(1, 100), (1, 4000), (8, 800), (16, 16000)]


def made(**terms: float) -> CostModel:
    """A cost model of such terms, all others nothing."""
    values = {"per_token": 0.0, "per_pair": 0.0, "per_sequence": 0.0, "per_context": 0.0, "floor": 0.0} | terms
    rates: dict[str, Any] = {"host": 1e9, "network": 1e9, "wire": 1.0, "node_rate": 1e9}
    return CostModel(name="made", token_bytes=1024, **values, **rates)


def timed(costs: CostModel) -> tuple[list[Prefill], list[Decode]]:
    """What a machine of those costs would show."""
    prefills = [Prefill(prompt, prefix, CHUNK, costs.prefill(prompt, prefix)) for prompt, prefix in PREFILLS]
    return prefills, [Decode(batch, context, costs.decode_step(batch, context)) for batch, context in DECODES]


def fitted(prefills: list[Prefill], decodes: list[Decode]) -> CostModel:
    return fit("made", prefills, decodes, token_bytes=1024, copy_rate=1e9)


@given(per_token=TERM, per_pair=st.floats(1e-9, 1e-6), overhead=TERM, floor=TERM, per_sequence=TERM, per_context=TERM)
def test_a_fit_finds_the_costs_that_made_the_times(
    per_token: float, per_pair: float, overhead: float, floor: float, per_sequence: float, per_context: float
) -> None:
    costs = made(
        per_token=per_token, per_pair=per_pair, overhead=overhead, floor=floor, per_sequence=per_sequence,
        per_context=per_context,
    )  # fmt: skip
    prefills, decodes = timed(costs.model_copy(update={"floor": 0.0}))[0], timed(costs)[1]  # floors hide small prompts
    found = fitted(prefills, decodes)
    for name in ("per_token", "per_pair", "overhead", "floor", "per_sequence", "per_context"):
        assert getattr(found, name) == pytest.approx(getattr(costs, name), rel=1e-3, abs=1e-9)


@given(noise=st.lists(st.floats(0.7, 1.4), min_size=13, max_size=13))
def test_no_term_of_a_fit_is_negative_whatever_the_noise(noise: list[float]) -> None:
    prefills, decodes = timed(made(per_token=1e-3, per_sequence=1e-3, floor=0.02))
    noisy = [Prefill(p.prompt, p.prefix, p.chunk, p.seconds * by) for p, by in zip(prefills, noise, strict=False)]
    loads = [Decode(d.batch, d.context, d.seconds * by) for d, by in zip(decodes, noise[len(noisy) :], strict=True)]
    found = fitted(noisy, loads)
    assert min(found.per_token, found.per_pair, found.overhead, found.per_sequence, found.per_context, found.floor) >= 0


def test_points_that_cannot_tell_the_terms_apart_are_refused() -> None:
    prefills, decodes = timed(made(per_token=1e-3, floor=0.02))
    with pytest.raises(UserError, match="1 measured points cannot tell 3 terms apart: measure more"):
        fitted(prefills[:1], decodes)
    with pytest.raises(UserError, match="3 measured points cannot tell 3 terms apart"):
        fitted(prefills, [Decode(batch, 100 * batch, 0.1) for batch in (1, 2, 3)])


def test_a_prefill_of_several_steps_is_not_fitted_to() -> None:
    prefills, decodes = timed(made(per_token=1e-3, floor=0.02))
    with pytest.raises(ValueError, match="fit to prompts that are computed in one"):
        fitted([*prefills, Prefill(CHUNK + 1, 0, CHUNK, 1.0)], decodes)


def test_every_published_point_is_met_by_a_model_that_has_not_seen_it() -> None:
    points = published()
    assert len(points) == 8
    assert max(abs(each.error) for each in points) < 0.05
    held_out = [each.held_out for each in points if each.held_out is not None]
    assert len(held_out) == 7  # without the only short context, nothing tells reading from the rest
    assert max(map(abs, held_out)) < 0.05


@pytest.fixture
def engine() -> Engine:
    """The tiny model with room for every prompt that is measured."""
    return Engine(load("tiny"), EngineConfig(blocks=1024, token_budget=CHUNK, max_batch=16))


def test_what_is_timed_is_what_is_named(engine: Engine) -> None:
    meter = Meter(engine)
    point = meter.point(1000, 700.5)
    assert (point.prompt, point.prefix, point.chunk) == (1000, 688, CHUNK)
    for _ in range(2):  # the second time its prefix is in the cache already, and its other tokens are new
        seconds = meter.prefill(point)
        table = engine.log.requests()
        assert (table.prompt[-1], table.cached[-1], table.ttft[-1]) == (1000, 688, seconds)
    before = len(engine.log.select(Kind.STEP))
    assert meter.decode(3, 40) > 0
    steps = engine.log.columns().of(Kind.STEP).field(Kind.STEP, "decode")[before:]
    assert np.count_nonzero(steps == 3) == bench.DECODE_STEPS


@pytest.mark.timeout(600)
def test_calibrate_writes_a_model_of_the_engine_and_says_how_far_it_is_off(
    engine: Engine, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(bench, "COPY", 1 << 20)
    found = measure(engine, 2, lambda what, done, of: None)
    assert len(found.prefills) == len(CHECKED_PROMPTS) * len(CHECKED_PREFIXES)
    assert found.worst == max(abs(point.error(found.costs)) for point in found.prefills)
    assert found.costs.token_bytes == 2 * 8 * 4 * 32 * 4
    # other work on the machine may disturb single times; a model of the wrong terms would be off by a factor
    assert np.median([abs(point.error(found.costs)) for point in found.prefills]) < 0.5
    bench.show(found)
    assert f"worst error of a prefill: {found.worst:.1%}" in capsys.readouterr().out
    (tmp_path / "costs.toml").write_text(found.costs.to_toml(), encoding="utf-8")
    assert CostModel.named(str(tmp_path / "costs.toml")) == found.costs


def test_the_command_shows_the_published_points(capsys: pytest.CaptureFixture[str]) -> None:
    bench.calibrate(preset=True)
    out = capsys.readouterr().out
    assert "prefill of 131072 tokens" in out and "held out" in out


def test_of_each_work_the_median_round_counts_and_every_work_has_as_many() -> None:
    done = [0, 0, 0]

    def work(place: int) -> float:
        """Three rounds of five as usual, one in a calm moment, one beside other work."""
        done[place] += 1
        return (place + 1) * {2: 0.5, 4: 9.0}.get(done[place], 1.0)

    told: list[int] = []
    works = [lambda place=place: work(place) for place in range(3)]
    assert bench.typical(works, 5, told.append) == [1.0, 2.0, 3.0]
    assert done == [5, 5, 5] and told == [0, 1, 2, 3, 4]
