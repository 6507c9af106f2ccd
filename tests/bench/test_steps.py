"""Measured steps do the work that is counted for them."""

from __future__ import annotations

import pytest
import torch

from mooncake_edu import model as models
from mooncake_edu.bench.limits import decode_bytes, prefill_flops
from mooncake_edu.bench.steps import Roof, decode_step, measure_roof, prefill_step
from mooncake_edu.model.config import ModelConfig

SMALL = ModelConfig("small", "llama", layers=2, hidden=16, heads=2, kv_heads=1, head_dim=8, intermediate=32, vocab=264,
                    positions=128)  # fmt: skip


@pytest.fixture(scope="module")
def model() -> models.Model:
    return models.random_model(SMALL)


def test_a_prefill_counts_its_tokens_and_reads_the_weights_once(model: models.Model) -> None:
    step = prefill_step(model, 33)
    assert (step.phase, step.tokens) == ("prefill", 33)
    assert step.flops == prefill_flops(SMALL, 33)
    assert step.nbytes == decode_bytes(SMALL, 1, 33)
    assert 0 < step.seconds < 10
    assert step.rate == step.flops / step.seconds


@pytest.mark.parametrize("context", [0, 15, 16, 40])
def test_a_decode_step_works_for_any_context(model: models.Model, context: int) -> None:
    step = decode_step(model, 3, context)
    assert step.flops == 3 * prefill_flops(SMALL, context + 1, context)
    assert step.nbytes == decode_bytes(SMALL, 3, context)


def test_intensity_grows_with_the_batch_and_falls_with_the_context(model: models.Model) -> None:
    one, many, long = decode_step(model, 1, 16), decode_step(model, 8, 16), decode_step(model, 8, 100)
    assert one.intensity < long.intensity < many.intensity


def test_the_roof_is_measured() -> None:
    roof = measure_roof(torch.float32, "cpu")
    assert isinstance(roof, Roof)
    assert 1e8 < roof.memory < 1e13
    assert 1e8 < roof.compute < 1e16
