"""Attention over pages equals attention as in a textbook, whatever the spans, blocks and heads."""

from __future__ import annotations

import pytest
import torch
from hypothesis import example, given, settings
from hypothesis import strategies as st
from torch import Tensor

from mooncake_edu.model.attention import Attention, NativeAttention, Span, TorchAttention, attention_for
from mooncake_edu.model.native import Kernels

LAYERS = 2


class Case:
    """Random keys, values and queries of some sequences, and shuffled pages in which all but the new tokens lie."""

    def __init__(self, lengths: list[tuple[int, int]], block_size: int, heads: int, share: int, dim: int, seed: int,
                 rubbish: float = 0.0, dtype: torch.dtype = torch.float64) -> None:  # fmt: skip
        """`lengths` are the tokens before and the new ones of each sequence, `share` the query heads of a KV head."""
        random = torch.Generator().manual_seed(seed)
        counts = [-(-(start + count) // block_size) for start, count in lengths]
        order = torch.randperm(sum(counts) + 3, generator=random).tolist()
        self.block_size, self.share = block_size, share
        self.pages = torch.full((len(order), LAYERS, 2, heads, block_size, dim), rubbish, dtype=dtype)
        self.spans, self.sequences = [], []
        for (start, count), blocks in zip(lengths, counts, strict=True):
            table, order = order[:blocks], order[blocks:]
            kv = torch.randn(LAYERS, 2, start + count, heads, dim, generator=random, dtype=torch.float64).to(dtype)
            q = torch.randn(LAYERS, count, heads * share, dim, generator=random, dtype=torch.float64).to(dtype)
            self.spans.append(Span(table, start, count))
            self.sequences.append((q, kv))
            self.pages[table] = self.written(kv, blocks, start, rubbish)

    def written(self, kv: Tensor, blocks: int, stop: int, rubbish: float = 0.0) -> Tensor:
        """The pages of one sequence with its first `stop` tokens: [blocks, layers, 2, heads, block_size, dim]."""
        layers, two, _, heads, dim = kv.shape
        flat = torch.full((layers, two, blocks * self.block_size, heads, dim), rubbish, dtype=kv.dtype)
        flat[:, :, :stop] = kv[:, :, :stop]
        return flat.view(layers, two, blocks, self.block_size, heads, dim).permute(2, 0, 1, 4, 3, 5)

    def attend(self, attention: Attention, layer: int) -> Tensor:
        """What the attention under test makes of the new tokens of all sequences."""
        new = [(q[layer], kv[layer, :, span.start :]) for (q, kv), span in zip(self.sequences, self.spans, strict=True)]
        q, k, v = (torch.cat(parts) for parts in zip(*[(q, kv[0], kv[1]) for q, kv in new], strict=True))
        return attention.attend(layer, q, k, v)

    def expected(self, layer: int) -> Tensor:
        """The same, one query at a time."""
        rows = []
        for (q, kv), span in zip(self.sequences, self.spans, strict=True):
            keys, values = kv[layer].double().repeat_interleave(self.share, dim=2)
            for number in range(span.count):
                seen = span.start + number + 1
                scores = torch.einsum("hd,khd->hk", q[layer, number].double(), keys[:seen]) / q.shape[-1] ** 0.5
                rows.append(torch.einsum("hk,khd->hd", scores.softmax(-1), values[:seen]))
        return torch.stack(rows)

    def check(self, tolerance: float = 1e-12, kernels: Kernels | None = None) -> None:
        """Both layers, computed one after the other from one object, then the pages."""
        torch_only = TorchAttention(self.pages, self.spans)
        attention = NativeAttention(self.pages, self.spans, kernels) if kernels else torch_only
        for layer in range(LAYERS):
            torch.testing.assert_close(
                self.attend(attention, layer).double(), self.expected(layer), rtol=tolerance, atol=tolerance
            )
        for (_, kv), span in zip(self.sequences, self.spans, strict=True):
            slots = self.pages[list(span.blocks)].permute(1, 2, 0, 4, 3, 5).flatten(2, 3)
            assert torch.equal(slots[:, :, : span.stop], kv)


spans = st.one_of(
    st.tuples(st.integers(0, 40), st.just(1)),  # decodes
    st.tuples(st.integers(0, 40), st.integers(2, 20)),  # chunks behind a prefix
    st.tuples(st.just(0), st.integers(1, 40)),  # first chunks
)


@settings(max_examples=150, deadline=None)
@given(
    lengths=st.lists(spans, min_size=1, max_size=6),
    block_size=st.one_of(st.integers(1, 9), st.sampled_from((16, 64))),
    heads=st.integers(1, 4),
    share=st.integers(1, 4),
    dim=st.sampled_from((2, 4, 8)),
    seed=st.integers(0, 1000),
)
@example([(0, 1)], 1, 1, 1, 2, 0)
@example([(7, 1), (8, 1), (9, 1)], 8, 2, 2, 4, 0)
@example([(15, 2), (16, 16), (0, 33), (31, 1)], 16, 2, 4, 8, 1)
def test_attention_over_shuffled_pages_equals_textbook_attention(
    lengths: list[tuple[int, int]], block_size: int, heads: int, share: int, dim: int, seed: int
) -> None:
    Case(lengths, block_size, heads, share, dim, seed).check()


def test_every_query_head_may_have_its_own_kv_head_or_all_may_share_one() -> None:
    for heads, share in ((8, 1), (2, 4), (1, 8)):
        Case([(20, 1), (3, 9), (0, 7), (30, 1)], 4, heads, share, 8, seed=heads).check()


def test_float32_stays_close_to_the_exact_result(kernels: Kernels | None) -> None:
    case = Case([(100, 1), (50, 30), (0, 64), (90, 1)], 16, 2, 3, 64, seed=5, dtype=torch.float32)
    case.check(1e-5, kernels)


@settings(max_examples=40, deadline=None)
@given(
    lengths=st.lists(st.one_of(spans, st.tuples(st.integers(0, 150), st.integers(1, 100))), min_size=1, max_size=4),
    block_size=st.one_of(st.integers(1, 70), st.just(512)),
    heads=st.integers(1, 4),
    share=st.sampled_from((1, 2, 3, 7, 64)),
    rubbish=st.sampled_from((0.0, 1e30, float("nan"))),
    seed=st.integers(0, 1000),
)
@example([(0, 1)], 1, 1, 1, float("nan"), 0)
@example([(63, 1), (64, 1), (65, 1), (63, 64), (64, 65)], 16, 2, 3, 1e30, 0)
def test_kernels_read_exactly_the_tokens_that_each_query_sees(
    native: Kernels, lengths: list[tuple[int, int]], block_size: int, heads: int, share: int, rubbish: float, seed: int
) -> None:
    Case(lengths, block_size, heads, share, 64, seed, rubbish, torch.float32).check(1e-4, native)


def test_the_number_of_threads_changes_no_bit(native: Kernels) -> None:
    threads, found = torch.get_num_threads(), []
    try:
        for count in (1, 2, 5):
            torch.set_num_threads(count)
            case = Case([(40, 1), (20, 90), (7, 1), (0, 3)], 16, 3, 3, 64, seed=1, dtype=torch.float32)
            found.append(case.attend(NativeAttention(case.pages, case.spans, native), 0))
    finally:
        torch.set_num_threads(threads)
    assert torch.equal(found[0], found[1]) and torch.equal(found[0], found[2])


def test_a_query_or_key_that_is_no_number_is_not_hidden(native: Kernels) -> None:
    for lengths in ([(40, 1)], [(20, 9)]):
        for part in (0, 1):
            case = Case(lengths, 16, 1, 2, 64, seed=1, dtype=torch.float32)
            (q, kv), span = case.sequences[0], case.spans[0]
            (q[0, -1] if part == 0 else kv[0, 0, -1])[...] = float("nan")
            out = case.attend(NativeAttention(case.pages, [span], native), 0)
            assert out[-1].isnan().all() and not out[:-1].isnan().any()


@settings(max_examples=60, deadline=None)
@given(st.lists(spans, min_size=1, max_size=5), st.integers(1, 9), st.sampled_from((1e30, -1e30)), st.integers(0, 99))
def test_what_lies_behind_the_last_token_has_no_weight(
    lengths: list[tuple[int, int]], block_size: int, rubbish: float, seed: int
) -> None:
    Case(lengths, block_size, 2, 2, 4, seed, rubbish).check()


def test_blocks_that_no_sequence_of_the_step_has_are_neither_read_nor_written() -> None:
    case = Case([(7, 1), (30, 1), (2, 9), (0, 4)], 4, 2, 2, 8, seed=9)
    mine = [block for span in case.spans for block in span.blocks]
    others = [block for block in range(len(case.pages)) if block not in mine]
    case.pages[others] = float("nan")
    case.check()
    assert len(others) == 3 and case.pages[others].isnan().all()


def test_tokens_in_the_pages_before_the_step_stay_as_they_are() -> None:
    case = Case([(7, 1), (6, 5)], 4, 2, 2, 8, seed=2)
    before = case.pages.clone()
    attention = attention_for(case.pages, case.spans)
    case.attend(attention, 0)
    assert torch.equal(case.pages[:, 1], before[:, 1])  # the other layer
    for span in case.spans:
        slots = [each[list(span.blocks)].permute(0, 4, 1, 2, 3, 5).flatten(0, 1) for each in (case.pages, before)]
        assert torch.equal(slots[0][: span.start], slots[1][: span.start])
        assert not torch.equal(slots[0][span.start : span.stop], slots[1][span.start : span.stop])


def test_a_sequence_computed_token_by_token_equals_one_computed_at_once() -> None:
    whole = Case([(0, 23)], 4, 2, 2, 8, seed=3)
    q, kv = whole.sequences[0]
    table = whole.spans[0].blocks
    for layer in range(LAYERS):
        rows = []
        for place in range(23):
            one = attention_for(whole.pages, [Span(table, place, 1)])
            rows.append(one.attend(layer, q[layer, place : place + 1], *kv[layer, :, place : place + 1]))
        torch.testing.assert_close(torch.cat(rows), whole.expected(layer), rtol=1e-12, atol=1e-12)


def test_pages_in_float32_on_a_cpu_get_the_kernels_where_there_are_any(native: Kernels) -> None:
    for dtype, kind in ((torch.float32, NativeAttention), (torch.bfloat16, TorchAttention)):
        case = Case([(0, 1)], 4, 1, 1, 64, seed=0, dtype=dtype)
        assert type(attention_for(case.pages, case.spans)) is kind
    apart = torch.zeros(2, LAYERS, 2, 1, 4, 128)[..., :64]
    with pytest.raises(RuntimeError, match="view"):  # the kernels would read what lies between
        attention_for(apart, [Span([0], 0, 1)])
