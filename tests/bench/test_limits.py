"""The work of a model as the limits count it is the work that its decoder does."""

from __future__ import annotations

import pytest
import torch
from torch.utils.flop_counter import FlopCounterMode
from transformers import LlamaConfig, LlamaForCausalLM

from mooncake_edu.bench import limits
from mooncake_edu.bench.figures import Limits
from mooncake_edu.bench.loads import Load
from mooncake_edu.kvcache import BlockLayout
from mooncake_edu.model import random_model
from mooncake_edu.model.config import TINY


def test_operations_are_those_that_torch_counts_in_transformers() -> None:
    tokens = 48
    model = LlamaForCausalLM(LlamaConfig(**TINY.to_dict()))
    with FlopCounterMode(display=False) as counter, torch.inference_mode():
        model(torch.arange(tokens)[None], logits_to_keep=1)
    counts = counter.get_flop_counts()["Global"]
    products = sum(count for name, count in counts.items() if "attention" not in str(name))
    attention = 4 * TINY.layers * TINY.heads * TINY.head_dim * tokens * (tokens + 1) // 2
    assert limits.prefill_flops(TINY, tokens) == products + attention


def test_a_prompt_in_two_parts_takes_the_operations_of_the_whole() -> None:
    head = 2 * TINY.vocab * TINY.hidden
    whole, first, rest = (limits.prefill_flops(TINY, n, cached) for n, cached in [(100, 0), (60, 0), (100, 60)])
    assert first + rest - head == whole


def test_bytes_are_those_of_weights_and_pages() -> None:
    weights = random_model(TINY).decoder.weights
    matrices = [each for layer in weights.layers for each in (layer.qkv, layer.o, layer.gate_up, layer.down)]
    assert weights.head is not None
    assert limits.weight_bytes(TINY) == sum(each.nbytes for each in [*matrices, weights.head])
    layout = BlockLayout(TINY.layers, TINY.kv_heads, 1, TINY.head_dim, torch.float32)
    assert limits.kvcache_bytes(TINY) == layout.nbytes
    assert limits.decode_bytes(TINY, 3, 10.0) == limits.weight_bytes(TINY) + 30 * layout.nbytes


@pytest.mark.parametrize(("prompt", "left"), [(2048, 16), (2047, 15), (2049, 1), (10, 10)])
def test_of_a_cached_prompt_only_what_no_full_block_before_the_last_token_holds_is_left(prompt: int, left: int) -> None:
    bound = Limits(TINY, "float32", 16, compute=1.0, read=1.0)
    assert bound.prefill(Load(1, prompt, 1, again=True)) == limits.prefill_flops(TINY, prompt, prompt - left)


def test_measured_rates_are_those_of_the_work_done() -> None:
    rates = [limits.matrix_rate(size=size) for size in (64, 256)]
    assert all(1e6 < rate < 1e16 for rate in rates)
    assert 1e6 < limits.read_rate(nbytes=1 << 22) < 1e14
