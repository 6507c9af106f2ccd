"""Logits against transformers, for every family and ingredient, and the same with each ingredient broken."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from mooncake_edu.model.attention import Span, attention_for
from mooncake_edu.model.config import ModelConfig, Rope
from mooncake_edu.model.decoder import Decoder
from mooncake_edu.model.parallel import whole
from mooncake_edu.model.tokenizer import HubTokenizer
from mooncake_edu.model.weights import LayerWeights, Weights, load_weights, random_weights, save_weights

TOLERANCE = 1e-3
"""Of float32 logits whose standard deviation is about 2."""

VISIBLE = 100 * TOLERANCE
"""What breaking an ingredient must exceed."""

BLOCK = 16
LLAMA3 = Rope("llama3", 10000.0, 8.0, 1.0, 4.0, 64)

BASE = ModelConfig("base", "llama", layers=3, hidden=96, heads=6, kv_heads=2, head_dim=16, intermediate=160,
                   vocab=320, positions=512, norm_eps=0.05, eos=(3,))  # fmt: skip

CASES = {
    "llama": BASE,
    "llama, linear rope": replace(BASE, rope=Rope("linear", 10000.0, 4.0)),
    "llama, llama3 rope, tied": replace(BASE, rope=LLAMA3, tied=True),
    "llama, multi-head": replace(BASE, kv_heads=6),
    "llama, multi-query": replace(BASE, kv_heads=1),
    "mistral": replace(BASE, family="mistral"),
    "mistral, wide heads": replace(BASE, family="mistral", head_dim=32),
    "qwen2": replace(BASE, family="qwen2", qkv_bias=True),
    "qwen2, tied": replace(BASE, family="qwen2", qkv_bias=True, tied=True),
    "qwen3": replace(BASE, family="qwen3", qk_norm=True, head_dim=24),
    "qwen3, tied, multi-query": replace(BASE, family="qwen3", qk_norm=True, kv_heads=1, tied=True),
}

Broken = tuple[ModelConfig, Weights]


def logits(config: ModelConfig, weights: Weights, tokens: list[int]) -> Tensor:
    blocks = list(range(-(-len(tokens) // BLOCK)))
    pages = torch.zeros(len(blocks), config.layers, 2, config.kv_heads, BLOCK, config.head_dim)
    decoder = Decoder(config, weights)
    with torch.inference_mode():
        span = Span(blocks, start=0, count=len(tokens))
        return decoder.logits(decoder.forward(torch.tensor(tokens), attention_for(pages, [span])))


def oracle(folder: Path, prompts: list[list[int]]) -> list[Tensor]:
    from transformers import AutoModelForCausalLM

    options: dict[str, Any] = {"dtype": torch.float32, "attn_implementation": "eager", "local_files_only": True}
    model, notes = AutoModelForCausalLM.from_pretrained(folder, output_loading_info=True, **options)
    assert not notes["missing_keys"] and not notes["unexpected_keys"] and not notes["mismatched_keys"]
    with torch.inference_mode():
        return [model(torch.tensor([tokens])).logits[0] for tokens in prompts]


def difference(ours: Tensor, theirs: Tensor) -> float:
    return float((ours - theirs).abs().max())


def prompt(config: ModelConfig, count: int = 90) -> list[int]:
    generator = torch.Generator().manual_seed(7)
    return torch.randint(0, config.vocab, (count,), generator=generator).tolist()


@pytest.fixture(scope="module")
def saved(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], tuple[ModelConfig, Path, Tensor]]:
    """A case's configuration, its folder on disk, and transformers' logits of the prompt; each made once."""
    made: dict[str, tuple[ModelConfig, Path, Tensor]] = {}

    def get(case: str) -> tuple[ModelConfig, Path, Tensor]:
        if case not in made:
            config = CASES[case]
            folder = tmp_path_factory.mktemp("model") / "m"
            save_weights(folder, config, random_weights(config, whole(config.layers), seed=1))
            made[case] = config, folder, oracle(folder, [prompt(config)])[0]
        return made[case]

    return get


@pytest.mark.parametrize("case", CASES)
def test_logits_equal_those_of_transformers(case: str, saved: Callable[[str], Any]) -> None:
    config, folder, theirs = saved(case)
    assert replace(ModelConfig.from_folder(folder), name=config.name) == config
    ours = logits(config, load_weights(folder, config, whole(config.layers)), prompt(config))
    assert ours.std() >= 1
    assert difference(ours, theirs) <= TOLERANCE


def each_layer(weights: Weights, change: Callable[[LayerWeights], LayerWeights]) -> Weights:
    return replace(weights, layers=[change(layer) for layer in weights.layers])


def without_rope(config: ModelConfig, weights: Weights) -> Broken:
    return replace(config, rope=Rope("linear", 10000.0, 1e6)), weights


def without_rope_scaling(config: ModelConfig, weights: Weights) -> Broken:
    return replace(config, rope=Rope("default", config.rope.theta)), weights


def with_linear_instead_of_llama3(config: ModelConfig, weights: Weights) -> Broken:
    return replace(config, rope=Rope("linear", config.rope.theta, config.rope.factor)), weights


def with_another_rope_theta(config: ModelConfig, weights: Weights) -> Broken:
    return replace(config, rope=replace(config.rope, theta=500.0)), weights


def without_qk_norm(config: ModelConfig, weights: Weights) -> Broken:
    return config, each_layer(weights, lambda layer: replace(layer, q_norm=None, k_norm=None))


def with_q_and_k_norm_swapped(config: ModelConfig, weights: Weights) -> Broken:
    return config, each_layer(weights, lambda layer: replace(layer, q_norm=layer.k_norm, k_norm=layer.q_norm))


def without_bias(config: ModelConfig, weights: Weights) -> Broken:
    return config, each_layer(weights, lambda layer: replace(layer, qkv_bias=None))


def with_wrong_groups(config: ModelConfig, weights: Weights) -> Broken:
    """Query head i uses KV head i % kv_heads, not i // (heads / kv_heads)."""
    heads, dim = config.heads, config.head_dim
    order = torch.arange(heads).view(-1, config.kv_heads).T.flatten()
    channels = (order[:, None] * dim + torch.arange(dim)).flatten()

    def change(layer: LayerWeights) -> LayerWeights:
        qkv = torch.cat([layer.qkv[channels], layer.qkv[heads * dim :]])
        return replace(layer, qkv=qkv, o=layer.o[:, channels])

    return config, each_layer(weights, change)


def with_another_norm_eps(config: ModelConfig, weights: Weights) -> Broken:
    return replace(config, norm_eps=1e-6), weights


def without_norm_weights(config: ModelConfig, weights: Weights) -> Broken:
    def ones(layer: LayerWeights) -> LayerWeights:
        return replace(layer, attn_norm=torch.ones_like(layer.attn_norm), mlp_norm=torch.ones_like(layer.mlp_norm))

    return config, each_layer(weights, ones)


def without_final_norm_weight(config: ModelConfig, weights: Weights) -> Broken:
    assert weights.norm is not None
    return config, replace(weights, norm=torch.ones_like(weights.norm))


def with_gate_and_up_swapped(config: ModelConfig, weights: Weights) -> Broken:
    def swap(layer: LayerWeights) -> LayerWeights:
        return replace(layer, gate_up=layer.gate_up.roll(config.intermediate, 0))

    return config, each_layer(weights, swap)


BREAKS: list[tuple[Callable[[ModelConfig, Weights], Broken], str]] = [
    (without_rope, "llama"),
    (without_rope, "qwen2"),
    (without_rope, "qwen3"),
    (without_rope, "mistral"),
    (with_another_rope_theta, "llama"),
    (without_rope_scaling, "llama, linear rope"),
    (without_rope_scaling, "llama, llama3 rope, tied"),
    (with_linear_instead_of_llama3, "llama, llama3 rope, tied"),
    (without_qk_norm, "qwen3"),
    (without_qk_norm, "qwen3, tied, multi-query"),
    (with_q_and_k_norm_swapped, "qwen3"),
    (without_bias, "qwen2"),
    (without_bias, "qwen2, tied"),
    (with_wrong_groups, "llama"),
    (with_wrong_groups, "mistral, wide heads"),
    (with_wrong_groups, "qwen3"),
    (with_another_norm_eps, "llama"),
    (without_norm_weights, "llama"),
    (without_final_norm_weight, "llama"),
    (with_gate_and_up_swapped, "mistral"),
]


@pytest.mark.parametrize(("broken", "case"), [pytest.param(b, c, id=f"{c}: {b.__name__}") for b, c in BREAKS])
def test_a_broken_ingredient_shows(
    broken: Callable[[ModelConfig, Weights], Broken], case: str, saved: Callable[[str], Any]
) -> None:
    config, folder, theirs = saved(case)
    weights = load_weights(folder, config, whole(config.layers))
    assert difference(logits(*broken(config, weights), prompt(config)), theirs) > VISIBLE


TEXTS = [
    "The capital of France is",
    "In 1969, two astronauts landed on the Moon.\n\nTheir names were",
    "def fibonacci(n: int) -> int:\n    if n < 2:\n        return n\n    return",
    "KVCache-centric serving keeps what was computed once, " * 20,
]


@pytest.mark.slow
def test_logits_of_smollm2_equal_those_of_transformers(smollm2: Path) -> None:
    config = ModelConfig.from_folder(smollm2)
    tokenizer = HubTokenizer(smollm2, config.eos)
    prompts = [tokenizer.encode(text) for text in TEXTS] + [tokenizer.chat([{"role": "user", "content": "Hello"}])]
    weights = load_weights(smollm2, config, whole(config.layers))
    for tokens, theirs in zip(prompts, oracle(smollm2, prompts), strict=True):
        assert difference(logits(config, weights, tokens), theirs) <= TOLERANCE
    assert difference(logits(*without_rope(config, weights), prompts[-1]), theirs) > VISIBLE
    assert difference(logits(*with_wrong_groups(config, weights), prompts[-1]), theirs) > VISIBLE
