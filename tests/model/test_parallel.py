"""A model cut by layers and by heads: every part holds its share, and together they are the whole."""

from __future__ import annotations

import os
import sys
import threading
from collections.abc import Callable
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist
import torch.multiprocessing as mp
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from mooncake_edu.errors import ModelError
from mooncake_edu.kvcache import BlockLayout, PageTensors
from mooncake_edu.model.attention import Span, attention_for
from mooncake_edu.model.config import LLAMA_70B, ModelConfig
from mooncake_edu.model.decoder import Decoder
from mooncake_edu.model.parallel import Alone, Cut, Group, whole
from mooncake_edu.model.weights import Weights, random_weights
from tests.model.plain import double

WIDE = ModelConfig("wide", "llama", layers=4, hidden=32, heads=8, kv_heads=4, head_dim=8, intermediate=48, vocab=96,
                   positions=512)  # fmt: skip
MODELS = [
    WIDE,
    ModelConfig("bias", "qwen2", 3, 32, 4, 4, 8, 48, 96, 512, qkv_bias=True, tied=True),
    ModelConfig("norms", "qwen3", 3, 32, 8, 4, 8, 48, 96, 512, qk_norm=True),
]
BLOCK, BLOCKS = 4, 7
SPANS = [Span([5, 2], 0, 7), Span([3], 0, 1), Span([0, 6, 1], 0, 11)]
NEXT = [Span([5, 2], 7, 1), Span([3], 1, 2), Span([0, 6, 1], 11, 1)]
PROMPTS = torch.arange(19) * 5 % 96
FOLLOWING = torch.tensor([3, 1, 4, 1])


class Exchange:
    """What threads that stand for the ranks of one group have laid on the table for each other."""

    def __init__(self, size: int) -> None:
        self.size = size
        self.parts: list[Tensor] = [torch.empty(0)] * size
        self.barrier = threading.Barrier(size, timeout=60)


class ThreadGroup:
    """A group whose ranks are threads that move in step."""

    def __init__(self, exchange: Exchange, rank: int) -> None:
        self.exchange = exchange
        self.rank = rank

    def gather(self, part: Tensor) -> list[Tensor]:
        """Every rank's part; nobody goes on before all have them."""
        self.exchange.parts[self.rank] = part
        self.exchange.barrier.wait()
        parts = list(self.exchange.parts)
        self.exchange.barrier.wait()
        return parts

    def sum(self, partial: Tensor) -> Tensor:
        """See Group."""
        return torch.stack(self.gather(partial)).sum(0)

    def concat(self, part: Tensor) -> Tensor:
        """See Group."""
        return torch.cat(self.gather(part), dim=-1)


class Stage:
    """One rank of one pipeline stage with its own pages, in float64."""

    def __init__(self, config: ModelConfig, cut: Cut, group: Group) -> None:
        self.decoder = Decoder(config, double(random_weights(config, cut)), cut, group)
        self.layout = BlockLayout(len(cut.layers), self.decoder.kv_heads, BLOCK, config.head_dim, torch.float64)
        self.pages = PageTensors(torch.zeros(BLOCKS * self.layout.nbytes, dtype=torch.uint8), self.layout)

    def forward(self, x: Tensor, spans: list[Span]) -> Tensor:
        return self.decoder.forward(x, attention_for(self.pages.tensor, spans))


def serve(stages: list[Stage]) -> list[Tensor]:
    """A prefill of three sequences and a step behind it, through one rank of every stage."""
    results = []
    for x, spans in ((PROMPTS, SPANS), (FOLLOWING, NEXT)):
        for stage in stages:
            x = stage.forward(x, spans)
        results += [x, stages[-1].decoder.logits(x)]
    return results


def cuts_of(config: ModelConfig, rank: int, size: int, borders: list[int]) -> list[Cut]:
    edges = [0, *borders, config.layers]
    return [Cut(range(a, b), config.layers, rank, size) for a, b in pairwise(edges)]


def in_threads(size: int, work: Callable[[ThreadGroup], Any]) -> list[Any]:
    """What every rank's thread returns."""
    exchange, results, faults = Exchange(size), [None] * size, list[BaseException]()

    def run(rank: int) -> None:
        try:
            with torch.inference_mode():
                results[rank] = work(ThreadGroup(exchange, rank))
        except BaseException as fault:
            faults.append(fault)
            exchange.barrier.abort()

    threads = [threading.Thread(target=run, args=(rank,)) for rank in range(size)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not faults, faults
    return results


def alone(config: ModelConfig) -> Stage:
    return Stage(config, whole(config.layers), Alone())


def check_close(ours: list[Tensor], theirs: list[Tensor]) -> None:
    for one, other in zip(ours, theirs, strict=True):
        torch.testing.assert_close(one, other, rtol=0, atol=1e-4)


@pytest.mark.parametrize("borders", [[], [1], [1, 2]], ids=["1 stage", "2 stages", "3 stages"])
@pytest.mark.parametrize("size", [2, 4])
@pytest.mark.parametrize("config", MODELS, ids=lambda config: config.name)
def test_ranks_and_stages_together_compute_what_the_whole_computes_and_hold_its_pages(
    config: ModelConfig, size: int, borders: list[int]
) -> None:
    complete = alone(config)
    expected = serve([complete])

    def work(group: ThreadGroup) -> tuple[list[Tensor], list[Stage]]:
        stages = [Stage(config, cut, group) for cut in cuts_of(config, group.rank, size, borders)]
        return serve(stages), stages

    ranks = in_threads(size, work)
    for results, _ in ranks:
        check_close(results, expected)
    for block in range(BLOCKS):  # put together by the layout's runs, the shards are the block of the whole
        data, covered = torch.zeros(complete.layout.nbytes, dtype=torch.uint8), 0
        for stage in (stage for _, stages in ranks for stage in stages):
            cut, shard = stage.decoder.cut, stage.pages.block(block)
            for run in complete.layout.runs(cut.layers, cut.share("KV heads", config.kv_heads)):
                data[run.start : run.stop], shard = shard[: len(run)], shard[len(run) :]
                covered += len(run)
            assert shard.numel() == 0
        assert covered == complete.layout.nbytes
        shape = complete.layout.shape
        torch.testing.assert_close(data.view(torch.float64).view(shape), complete.pages.tensor[block])


class GlooGroup:
    """A group whose ranks are processes, joined by torch.distributed."""

    def sum(self, partial: Tensor) -> Tensor:
        """See Group."""
        total = partial.clone()
        dist.all_reduce(total)
        return total

    def concat(self, part: Tensor) -> Tensor:
        """See Group."""
        parts = [torch.empty_like(part) for _ in range(dist.get_world_size())]
        dist.all_gather(parts, part.contiguous())
        return torch.cat(parts, dim=-1)


def process(rank: int, size: int, meeting: str) -> None:
    """One rank in a process of its own; raises if what it computes is not what the whole computes."""
    torch.set_num_threads(1)
    if sys.platform == "linux":  # the name of this machine need not lead anywhere
        os.environ["GLOO_SOCKET_IFNAME"] = "lo"
    dist.init_process_group("gloo", init_method=f"file://{meeting}", rank=rank, world_size=size)
    try:
        with torch.inference_mode():
            check_close(serve([Stage(WIDE, cut, GlooGroup()) for cut in cuts_of(WIDE, rank, size, [2])]),
                        serve([alone(WIDE)]))  # fmt: skip
    finally:
        dist.destroy_process_group()


@pytest.mark.slow
def test_two_processes_joined_by_torch_distributed_compute_what_one_computes(tmp_path: Path) -> None:
    mp.spawn(process, args=(2, str(tmp_path / "meeting")), nprocs=2)


class MetaGroup:
    """A group of ranks that compute shapes only."""

    def __init__(self, size: int) -> None:
        self.size = size

    def sum(self, partial: Tensor) -> Tensor:
        """See Group."""
        return partial

    def concat(self, part: Tensor) -> Tensor:
        """See Group."""
        return part.new_empty((*part.shape[:-1], part.shape[-1] * self.size))


TP, PP = 8, 2


def cut_70b(rank: int, stage: int) -> Cut:
    half = LLAMA_70B.layers // PP
    return Cut(range(stage * half, (stage + 1) * half), LLAMA_70B.layers, rank, TP)


def weights_70b(cut: Cut) -> Weights:
    return random_weights(LLAMA_70B, cut, "bfloat16", "meta")


@pytest.mark.parametrize("rank", [0, TP - 1])
def test_a_step_of_70b_as_tp_8_and_pp_2_has_the_shape_of_the_whole_at_every_stage(rank: int) -> None:
    config, group = LLAMA_70B, MetaGroup(TP)
    spans = [Span(list(range(64)), 512, 512), Span(list(range(64, 96)), 500, 1), Span(list(range(96, 128)), 511, 1)]
    x = torch.zeros(514, dtype=torch.int64, device="meta")
    for stage in range(PP):
        cut = cut_70b(rank, stage)
        decoder = Decoder(config, weights_70b(cut), cut, group)
        assert (decoder.heads, decoder.kv_heads) == (8, 1)
        layout = BlockLayout(len(cut.layers), decoder.kv_heads, 16, config.head_dim, torch.bfloat16)
        pages = PageTensors(torch.empty(128 * layout.nbytes, dtype=torch.uint8, device="meta"), layout)
        assert layout.nbytes * TP * PP == 16 * 327_680  # 320 KB a token (FAST table 1)
        x = decoder.forward(x, attention_for(pages.tensor, spans))
        assert x.shape == (514, config.hidden) and x.dtype == torch.bfloat16
    logits = decoder.logits(x[-3:])
    assert logits.shape == (3, config.vocab) and logits.dtype == torch.float32


def test_a_rank_of_70b_as_tp_8_and_pp_2_holds_a_sixteenth_of_all_that_divides() -> None:
    config, complete = LLAMA_70B, weights_70b(whole(LLAMA_70B.layers))
    d, two = config.hidden, 2
    norms = 2 * d * two  # a layer's two norms are on every rank of its stage
    outer = config.vocab * d * two  # the embedding is only on the first stage, the head only on the last
    layer = complete.layers[0]
    matrices = sum(part.nbytes for part in (layer.qkv, layer.o, layer.gate_up, layer.down))
    assert complete.nbytes == config.layers * (matrices + norms) + 2 * outer + d * two
    total = 0
    for stage in range(PP):
        for rank in range(TP):
            cut = cut_70b(rank, stage)
            held = weights_70b(cut)
            assert (held.embed is None) == (stage == 1) and (held.head is None) == (held.norm is None) == (stage == 0)
            expected = config.layers * matrices // (TP * PP) + len(cut.layers) * norms + outer // TP
            assert held.nbytes == expected + (d * two if stage == 1 else 0)
            total += held.nbytes
    assert total == complete.nbytes + (TP - 1) * (config.layers * norms + d * two)


def test_the_shards_of_a_70b_block_cover_it_once_and_each_is_a_sixteenth() -> None:
    layout = BlockLayout(80, 8, 16, 128, torch.bfloat16)
    cuts = [cut_70b(rank, stage) for stage in range(PP) for rank in range(TP)]
    shards = [layout.runs(cut.layers, cut.share("KV heads", 8)) for cut in cuts]
    assert {sum(map(len, runs)) for runs in shards} == {layout.nbytes // 16}
    edges = sorted((run.start, run.stop) for runs in shards for run in runs)
    assert edges[0][0] == 0 and edges[-1][1] == layout.nbytes
    assert all(before[1] == after[0] for before, after in pairwise(edges))


@settings(max_examples=60, deadline=None)
@given(st.integers(1, 12), st.sampled_from((1, 2, 4, 8)), st.integers(1, 3), st.data())
def test_shares_of_all_ranks_are_the_whole_once_and_in_order(layers: int, size: int, each: int, data: Any) -> None:
    start = data.draw(st.integers(0, layers - 1))
    cut_layers = range(start, data.draw(st.integers(start + 1, layers)))
    cuts = [Cut(cut_layers, layers, rank, size) for rank in range(size)]
    assert [place for cut in cuts for place in cut.share("heads", each * size)] == list(range(each * size))
    assert {(cut.first, cut.last) for cut in cuts} == {(cut_layers.start == 0, cut_layers.stop == layers)}


def test_a_size_that_does_not_divide_is_refused_with_both_numbers() -> None:
    with pytest.raises(ModelError, match="tensor parallel size 3 does not divide 8 KV heads: choose a divisor"):
        Cut(range(2), 2, 0, 3).share("KV heads", 8)


@pytest.mark.parametrize("layers", [range(0), range(3, 2), range(5), range(0, 4, 2), range(-1, 2)])
def test_layers_that_are_no_run_within_the_model_are_refused(layers: range) -> None:
    with pytest.raises(ModelError, match="are not a run within 0 to 4"):
        Cut(layers, 4)


@pytest.mark.parametrize(("rank", "size"), [(-1, 2), (2, 2), (0, 0)])
def test_a_rank_that_is_none_of_the_shares_is_refused(rank: int, size: int) -> None:
    with pytest.raises(ModelError, match=f"rank {rank} is not from 0 to {size - 1}"):
        Cut(range(4), 4, rank, size)
