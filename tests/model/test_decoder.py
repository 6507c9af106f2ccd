"""The decoder gives the same numbers however its tokens come: at once, in chunks, among others, in two parts."""

from __future__ import annotations

import dataclasses
import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from mooncake_edu.model.attention import Span, attention_for
from mooncake_edu.model.config import ModelConfig, Rope
from mooncake_edu.model.decoder import Decoder, rope_frequencies
from mooncake_edu.model.ops import Ops
from mooncake_edu.model.parallel import Cut, whole
from mooncake_edu.model.weights import random_weights
from tests.model.plain import DenseAttention, double

BLOCK = 4
FAMILIES = [
    ModelConfig("llama", "llama", 3, 24, 4, 2, 8, 40, 100, 512, rope=Rope("llama3", 1e4, 8.0, 1.0, 4.0, 64)),
    ModelConfig("mha", "llama", 2, 24, 3, 3, 8, 40, 100, 512, rope=Rope("linear", 1e4, 2.0)),
    ModelConfig("mqa", "mistral", 2, 24, 4, 1, 6, 40, 100, 512),
    ModelConfig("qwen2", "qwen2", 2, 24, 4, 2, 8, 40, 100, 512, qkv_bias=True, tied=True),
    ModelConfig("qwen3", "qwen3", 2, 24, 4, 2, 16, 40, 100, 512, qk_norm=True),
]
families = pytest.mark.parametrize("config", FAMILIES, ids=lambda config: config.name)


def decoder_of(config: ModelConfig, cut: Cut | None = None) -> Decoder:
    """The model, or a part of it, in float64."""
    cut = cut or whole(config.layers)
    return Decoder(config, double(random_weights(config, cut)), cut)


def pages_of(config: ModelConfig, blocks: int, layers: int | None = None) -> Tensor:
    shape = (blocks, layers or config.layers, 2, config.kv_heads, BLOCK, config.head_dim)
    return torch.zeros(shape, dtype=torch.float64)


def tokens_of(config: ModelConfig, count: int, seed: int = 0) -> Tensor:
    return torch.randint(config.vocab, (count,), generator=torch.Generator().manual_seed(seed))


def close(ours: Tensor, theirs: Tensor) -> None:
    torch.testing.assert_close(ours, theirs, rtol=1e-9, atol=1e-9)


@families
@settings(max_examples=20, deadline=None)
@given(chunks=st.lists(st.integers(1, 12), min_size=1, max_size=6), seed=st.integers(0, 99))
def test_a_prompt_in_chunks_equals_the_prompt_at_once(config: ModelConfig, chunks: list[int], seed: int) -> None:
    decoder, tokens = decoder_of(config), tokens_of(config, sum(chunks), seed)
    blocks = torch.randperm(-(-len(tokens) // BLOCK), generator=torch.Generator().manual_seed(seed)).tolist()
    pages, start, parts = pages_of(config, len(blocks)), 0, []
    for count in chunks:
        attention = attention_for(pages, [Span(blocks, start, count)])
        parts.append(decoder.forward(tokens[start : start + count], attention))
        start += count
    close(torch.cat(parts), decoder.forward(tokens, DenseAttention(len(tokens))))


@families
def test_a_sequence_among_others_equals_the_sequence_alone(config: ModelConfig) -> None:
    decoder, lengths = decoder_of(config), (5, 1, 9, 4)
    tables = [[0, 3], [1], [6, 2, 4], [5]]
    prompts = [tokens_of(config, length, length) for length in lengths]
    pages = pages_of(config, 7)
    spans = [Span(table, 0, length) for table, length in zip(tables, lengths, strict=True)]
    together = decoder.forward(torch.cat(prompts), attention_for(pages, spans)).split(lengths)
    for prompt, hidden in zip(prompts, together, strict=True):
        close(hidden, decoder.forward(prompt, DenseAttention(len(prompt))))


@families
def test_two_parts_one_after_the_other_equal_the_whole(config: ModelConfig) -> None:
    tokens = tokens_of(config, 11)
    spans = [Span([2, 0], 0, 7), Span([1], 0, 4)]
    complete, pages = decoder_of(config), pages_of(config, 3)
    hidden = complete.forward(tokens, attention_for(pages, spans))
    for border in range(1, config.layers):
        x, written = tokens, []
        for layers in (range(border), range(border, config.layers)):
            part, own = decoder_of(config, Cut(layers, config.layers)), pages_of(config, 3, len(layers))
            x = part.forward(x, attention_for(own, spans))
            written.append(own)
        assert torch.equal(x, hidden)
        assert torch.equal(torch.cat(written, dim=1), pages)  # each part holds the pages of its own layers
        assert torch.equal(part.logits(x), complete.logits(hidden))


@families
@pytest.mark.parametrize("rows", [1, 2, 3, 16, 64, 65, 100])
def test_any_number_of_tokens_in_float32_is_close_to_float64(config: ModelConfig, rows: int) -> None:
    exact, tokens = decoder_of(config), tokens_of(config, rows)
    single = Decoder(config, random_weights(config, whole(config.layers)))
    ours, theirs = (decoder.forward(tokens, DenseAttention(rows)) for decoder in (single, exact))
    assert ours.dtype == torch.float32
    torch.testing.assert_close(ours.double(), theirs, rtol=1e-4, atol=1e-4)
    torch.testing.assert_close(single.logits(ours), exact.logits(theirs), rtol=1e-4, atol=1e-4)


@families
def test_logits_are_float32_and_only_of_the_rows_asked_for(config: ModelConfig) -> None:
    decoder, tokens = decoder_of(config), tokens_of(config, 6)
    hidden = decoder.forward(tokens, DenseAttention(6))
    logits = decoder.logits(hidden)
    assert logits.dtype == torch.float32 and logits.shape == (6, config.vocab)
    torch.testing.assert_close(decoder.logits(hidden[-1:]), logits[-1:], rtol=1e-6, atol=1e-6)


@families
def test_every_ingredient_of_a_layer_shows_in_the_output(config: ModelConfig) -> None:
    decoder, tokens = decoder_of(config), tokens_of(config, 6)
    before = decoder.forward(tokens, DenseAttention(6))
    layer = decoder.weights.layers[0]
    for field in dataclasses.fields(layer):
        value = getattr(layer, field.name)
        if value is None:
            continue
        other = dataclasses.replace(layer, **{field.name: value * 1.5})
        changed = dataclasses.replace(decoder.weights, layers=[other, *decoder.weights.layers[1:]])
        after = Decoder(config, changed).forward(tokens, DenseAttention(6))
        assert (after - before).abs().max() > 1e-3, field.name


def angles(positions: Tensor, frequencies: Tensor) -> tuple[Tensor, Tensor]:
    angle = torch.outer(positions.double(), frequencies.double())
    return angle.cos(), angle.sin()


def test_rotation_keeps_lengths_and_shows_only_the_distance_of_two_tokens() -> None:
    frequencies = rope_frequencies(Rope(), 8)
    q, k = torch.randn(2, 1, 3, 8, dtype=torch.float64, generator=torch.Generator().manual_seed(1))
    close(Ops().rotate(q, angles(torch.tensor([77]), frequencies)).norm(dim=-1), q.norm(dim=-1))

    def score(at: int, to: int) -> Tensor:
        turned = (Ops().rotate(x, angles(torch.tensor([place]), frequencies)) for x, place in ((q, at), (k, to)))
        return torch.einsum("thd,thd->h", *turned)

    close(score(5, 3), score(105, 103))
    assert (score(5, 3) - score(5, 2)).abs().min() > 1e-3


def test_linear_scaling_slows_every_pair_by_the_factor() -> None:
    close(rope_frequencies(Rope("linear", 1e4, 4.0), 64) * 4, rope_frequencies(Rope("default", 1e4), 64))


def test_llama3_scaling_keeps_fast_pairs_slows_slow_ones_and_blends_between() -> None:
    rope = Rope("llama3", 5e5, 8.0, 1.0, 4.0, 8192)
    plain, scaled = rope_frequencies(Rope("default", 5e5), 128), rope_frequencies(rope, 128)
    turns, ratio = 8192 * plain / (2 * math.pi), plain / scaled
    assert (ratio[turns > 4] == 1).all()
    close(ratio[turns < 1], torch.full_like(ratio[turns < 1], 8.0))
    between = ratio[(turns >= 1) & (turns <= 4)]
    assert len(between) > 3 and (between >= 1).all() and (between <= 8).all()
    assert (ratio.diff() >= 0).all()  # pairs turn slower and slower
