"""From logits to the next token, with noise that depends on the request alone."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence

import torch
from torch import Tensor

from mooncake_edu.request import SamplingParams

MIN_TEMPERATURE = 1e-30  # below it, dividing by the temperature would leave float32's range


def sample(logits: Tensor, params: Sequence[SamplingParams], positions: Sequence[int]) -> list[int]:
    """The next token of every request of a batch.

    `logits` is [n, vocab]; row i is answered under `params[i]` for token number `positions[i]` of its
    request. A token depends on its logits, seed and position only: neither the batch nor a preemption changes
    it. Of equal logits the lowest id goes first. Raises ValueError if a logit is not finite.
    """
    if not len(logits) == len(params) == len(positions):
        raise ValueError(f"{len(logits)} rows, {len(params)} parameters, {len(positions)} positions: not equal")

    _require_finite(logits)
    tokens = _greedy(logits)
    random = [row for row, each in enumerate(params) if each.temperature > 0]
    if random:
        chosen = [params[row] for row in random]
        noise = [uniform(params[row].seed, positions[row]) for row in random]
        drawn = _inverse_cdf(*_filtered(logits[random], chosen), noise)
        for row, token in zip(random, drawn, strict=True):
            tokens[row] = token
    return tokens


def kept(logits: Tensor, params: Sequence[SamplingParams]) -> Tensor:
    """Which tokens temperature, then top-k, then top-p leave to draw from: [n, vocab] of bool."""
    return _filtered(logits, params)[1]


def uniform(seed: int, position: int) -> float:
    """The number in [0, 1) that belongs to one position of one seed: a hash, so there is no state to keep."""
    digest = hashlib.sha256(seed.to_bytes(8, "little") + position.to_bytes(8, "little")).digest()
    bits = int.from_bytes(digest[:8], "little") >> 12
    return bits * 2.0**-52  # 52 bits, so that even the largest times a total stays below the total


def _require_finite(logits: Tensor) -> None:
    total = logits.sum(-1, dtype=torch.float32)  # a cheap first look: not finite if a logit is not
    if not bool(total.isfinite().all()) and not bool(logits.isfinite().all()):
        row, token = (int(each) for each in (~logits.isfinite()).nonzero()[0])
        value = float(logits[row, token])
        raise ValueError(f"logit {value} of token {token} in row {row} is not finite: check the weights")


def _greedy(logits: Tensor) -> list[int]:
    if logits.is_cuda:
        return [int(token) for token in logits.argmax(-1).tolist()]
    best = logits.detach().float().numpy().argmax(-1)  # nine times as fast as torch's on a CPU
    return [int(token) for token in best]


def _filtered(logits: Tensor, params: Sequence[SamplingParams]) -> tuple[Tensor, Tensor]:
    """Logits below the greatest, over the temperature, and whether each is kept; both [n, vocab]."""
    cold = torch.tensor([max(each.temperature, MIN_TEMPERATURE) for each in params], device=logits.device)
    scores = logits.float()
    scores = (scores - scores.amax(-1, keepdim=True)) / cold[:, None]
    keep = torch.ones_like(scores, dtype=torch.bool)
    limited = [row for row, each in enumerate(params) if each.top_k or each.top_p < 1]
    if limited:
        keep[limited] = _first(scores[limited], [params[row] for row in limited])
    return scores, keep


def _first(scores: Tensor, params: Sequence[SamplingParams]) -> Tensor:
    """Whether each score is among the first that top-k and top-p leave: greatest first, then lowest id."""
    vocab = scores.shape[1]
    top_k = torch.tensor([min(each.top_k or vocab, vocab) for each in params], device=scores.device)[:, None]
    top_p = torch.tensor([each.top_p for each in params], dtype=torch.float64, device=scores.device)[:, None]
    mass = scores.exp().cumsum(-1, dtype=torch.float64)[:, -1:]
    # What weighs less than this weighs, all together, less than top-p drops, so it need not be sorted.
    light = (mass * (1 - top_p) / (2 * vocab)).log()
    ranks = torch.where(top_k < vocab, top_k, (scores >= light).count_nonzero(-1)[:, None])
    greatest = scores.topk(int(ranks.max())).values
    beyond = torch.arange(greatest.shape[1], device=scores.device) >= ranks
    weights = greatest.double().exp().masked_fill(beyond, 0)
    sums = weights.cumsum(-1)
    total = torch.where(top_k < vocab, sums[:, -1:], mass)
    within = ~beyond & ((sums - weights < top_p * total) | (top_p == 1))
    count = within.count_nonzero(-1)[:, None].clamp(min=1)
    last = greatest.gather(-1, count - 1)
    above, equal = scores > last, scores == last
    spare = count - above.count_nonzero(-1)[:, None]
    return above | (equal & (equal.cumsum(-1, dtype=torch.int32) <= spare))


def _inverse_cdf(scores: Tensor, keep: Tensor, noise: Sequence[float]) -> list[int]:
    """The token at which the weights of the kept, added up in order of id, pass `noise` of their sum."""
    sums = scores.exp().masked_fill(~keep, 0).cumsum(-1, dtype=torch.float64)
    marks = torch.tensor(noise, dtype=torch.float64, device=scores.device)[:, None] * sums[:, -1:]
    return [int(token) for token in torch.searchsorted(sums, marks, right=True)[:, 0].tolist()]
