"""The next token: which tokens stay, how often each is drawn, and that nothing but the request decides."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from transformers.generation.logits_process import TemperatureLogitsWarper, TopKLogitsWarper, TopPLogitsWarper

from mooncake_edu.model.sampling import kept, sample, uniform
from mooncake_edu.request import SamplingParams


def logits_of(rows: int, vocab: int = 1000, seed: int = 0) -> torch.Tensor:
    return torch.randn(rows, vocab, generator=torch.Generator().manual_seed(seed)) * 2


def oracle(logits: torch.Tensor, params: SamplingParams) -> torch.Tensor:
    ids = torch.zeros(len(logits), 1, dtype=torch.long)
    scores = TemperatureLogitsWarper(params.temperature)(ids, logits)
    if params.top_k:
        scores = TopKLogitsWarper(params.top_k)(ids, scores)
    if params.top_p < 1:
        scores = TopPLogitsWarper(params.top_p)(ids, scores)
    return scores.isfinite()


@pytest.mark.parametrize("temperature", [0.3, 1.0, 2.5])
@pytest.mark.parametrize("top_k", [0, 1, 7, 50, 5000])
@pytest.mark.parametrize("top_p", [0.01, 0.5, 0.9, 0.999, 1.0])
def test_the_kept_tokens_are_those_transformers_keeps(temperature: float, top_k: int, top_p: float) -> None:
    params = SamplingParams(temperature=temperature, top_k=top_k, top_p=top_p)
    logits = logits_of(40)
    assert torch.equal(kept(logits, [params] * 40), oracle(logits, params))


def test_rows_with_different_filters_in_one_batch_keep_what_each_keeps_alone() -> None:
    logits = logits_of(6)
    params = [
        SamplingParams(temperature=1.0 + row / 4, top_k=[0, 3, 100][row % 3], top_p=[1.0, 0.7][row % 2])
        for row in range(6)
    ]
    together = kept(logits, params)
    for row in range(6):
        assert torch.equal(together[row : row + 1], oracle(logits[row : row + 1], params[row]))


def test_of_equal_logits_the_lowest_id_is_kept_and_greedily_chosen() -> None:
    logits = torch.tensor([[0.0, 1.0, 1.0, 1.0, -2.0]])
    assert sample(logits, [SamplingParams()], [0]) == [1]
    assert kept(logits, [SamplingParams(temperature=1.0, top_k=2)]).tolist() == [
        [False, True, True, False, False]
    ]
    assert kept(logits, [SamplingParams(temperature=1.0, top_p=0.5)]).tolist() == [
        [False, True, True, False, False]
    ]


@pytest.mark.parametrize(
    "params",
    [
        SamplingParams(temperature=1.0),
        SamplingParams(temperature=0.7, top_k=5),
        SamplingParams(temperature=1.5, top_p=0.8),
        SamplingParams(temperature=1.2, top_k=9, top_p=0.9),
    ],
)
def test_tokens_are_drawn_as_often_as_their_probability_says(params: SamplingParams) -> None:
    draws, vocab = 40_000, 12
    logits = logits_of(1, vocab, seed=3) / 2
    scores = (logits / params.temperature).masked_fill(~oracle(logits, params), -torch.inf)
    expected = scores.double().softmax(-1)[0].numpy() * draws
    drawn = sample(logits.expand(draws, -1), [params] * draws, range(draws))
    counts = np.bincount(drawn, minlength=vocab)
    possible = expected > 0
    assert not counts[~possible].any()
    chi_square = float(((counts - expected)[possible] ** 2 / expected[possible]).sum())
    freedom = int(possible.sum()) - 1
    assert chi_square < freedom + 5 * (2 * freedom) ** 0.5


def test_a_token_depends_on_seed_position_and_logits_only() -> None:
    logits = logits_of(8)
    params = [SamplingParams(temperature=1.0, seed=row, top_p=0.9 if row % 2 else 1.0) for row in range(8)]
    together = sample(logits, params, range(8))
    alone = [sample(logits[row : row + 1], params[row : row + 1], [row])[0] for row in range(8)]
    backwards = sample(logits.flip(0), params[::-1], range(7, -1, -1))
    assert together == alone == backwards[::-1]


def test_seeds_and_positions_give_different_noise_up_to_the_largest_seed() -> None:
    numbers = {uniform(seed, position) for seed in (0, 1, 2**64 - 1) for position in range(1000)}
    assert len(numbers) == 3000
    assert 0 <= min(numbers) < max(numbers) < 1


def test_greedy_rows_beside_random_ones_take_the_greatest_logit() -> None:
    logits = logits_of(10)
    params = [SamplingParams(temperature=float(row % 2), seed=row) for row in range(10)]
    drawn = sample(logits, params, [0] * 10)
    assert drawn[::2] == logits.argmax(-1).tolist()[::2]
    assert drawn[1::2] != logits.argmax(-1).tolist()[1::2]


@pytest.mark.parametrize("temperature", [1e-300, 1e-20, 1e-3])
def test_a_temperature_near_zero_is_greedy(temperature: float) -> None:
    logits = logits_of(4)
    params = [SamplingParams(temperature=temperature, top_k=10, top_p=0.9)] * 4
    assert sample(logits, params, [0] * 4) == logits.argmax(-1).tolist()


def test_half_precision_logits_are_accepted() -> None:
    logits = logits_of(3).bfloat16()
    assert sample(logits, [SamplingParams()] * 3, [0] * 3) == logits.float().argmax(-1).tolist()
    assert len(sample(logits, [SamplingParams(temperature=1.0, top_p=0.5)] * 3, [0] * 3)) == 3


@pytest.mark.parametrize("bad", [float("nan"), float("inf"), float("-inf")])
@pytest.mark.parametrize("temperature", [0.0, 1.0])
def test_a_logit_that_is_not_finite_is_named(bad: float, temperature: float) -> None:
    logits = logits_of(3)
    logits[1, 17] = bad
    with pytest.raises(ValueError, match=f"logit {bad} of token 17 in row 1"):
        sample(logits, [SamplingParams(temperature=temperature)] * 3, [0] * 3)


def test_huge_finite_logits_are_no_error() -> None:
    logits = torch.full((1, 8), 3e38)
    assert sample(logits, [SamplingParams()], [0]) == [0]


def test_lengths_that_differ_are_an_error() -> None:
    with pytest.raises(ValueError, match="2 rows, 1 parameters, 2 positions"):
        sample(logits_of(2), [SamplingParams()], [0, 1])


def test_an_empty_batch_gives_no_tokens() -> None:
    assert sample(torch.empty(0, 5), [], []) == []
