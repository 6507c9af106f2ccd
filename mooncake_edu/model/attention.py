"""Attention over pages: the interface, and the variant in plain torch for CPUs and GPUs.

One object serves one step of a batch. It writes the keys and values of the new tokens into the pages, then lets
every new token attend to all of its sequence up to itself. Fused kernels come as further variants of `Attention`.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor
from torch.nn.functional import scaled_dot_product_attention


@dataclass(frozen=True, slots=True)
class Span:
    """The new tokens of one sequence in a step: `count` tokens behind `start` that are in the pages already.

    `blocks` is the sequence's block table and covers at least start + count tokens.
    """

    blocks: Sequence[int]
    start: int
    count: int

    @property
    def stop(self) -> int:
        """Tokens in the sequence at the end of the step."""
        return self.start + self.count


class Attention(ABC):
    """One step's attention, span after span, over pages [blocks, layers, 2, kv_heads, block_size, head_dim]."""

    def __init__(self, pages: Tensor, spans: Sequence[Span]) -> None:
        self.pages = pages
        self.spans = spans

    @abstractmethod
    def attend(self, layer: int, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        """Writes k and v [tokens, kv_heads, head_dim] of `layer` into the pages; returns [tokens, heads, head_dim].

        `layer` counts from the first layer of the pages, which hold only the layers of this part of the model.
        """


def attention_for(pages: Tensor, spans: Sequence[Span]) -> Attention:
    """The variant for the device that the pages are on."""
    return TorchAttention(pages, spans)


class TorchAttention(Attention):
    """Torch's own attention over gathered pages.

    All index arithmetic is done once, for layer 0; in another layer everything lies a constant further on. Sequences
    with one new token are computed together, those of similar length in one call; longer runs of new tokens one by
    one.
    """

    def __init__(self, pages: Tensor, spans: Sequence[Span]) -> None:
        super().__init__(pages, spans)
        _, layers, _, self.kv_heads, self.block_size, head_dim = pages.shape
        self._rows = pages.view(-1, self.block_size * head_dim)  # one row: one block, layer, K or V, and head
        self._slots = pages.view(-1, head_dim)  # one slot: one token of such a row
        self._block_rows = layers * 2 * self.kv_heads
        self._new_slots = self._slots_of_new_tokens()
        self._parts = [self._part(members) for members in _group_by_length(spans, self.block_size)]

    def attend(self, layer: int, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        """See Attention."""
        first = layer * 2 * self.kv_heads  # this layer's rows of keys, and kv_heads further its rows of values
        for row, new in ((first, k), (first + self.kv_heads, v)):
            self._slots[row * self.block_size :].index_copy_(0, self._new_slots, new.reshape(-1, new.shape[-1]))
        rows = self._rows[first:]
        if len(self._parts) == 1:
            return self._parts[0].attend(rows, q, k, v)
        out = q.new_empty(q.shape)
        for part in self._parts:
            tokens = part.tokens
            out[tokens] = part.attend(rows, q[tokens], k[tokens], v[tokens])
        return out

    def _slots_of_new_tokens(self) -> Tensor:
        """For every new token and head, the slot of its key in layer 0: [tokens * kv_heads]."""
        slots = []
        for span in self.spans:
            position = np.arange(span.start, span.stop)
            first, last = span.start // self.block_size, (span.stop - 1) // self.block_size
            blocks = np.asarray(span.blocks[first : last + 1])[position // self.block_size - first]
            slots.append(blocks * self._block_rows * self.block_size + position % self.block_size)
        heads = np.arange(self.kv_heads) * self.block_size
        return _index((np.concatenate(slots)[:, None] + heads).reshape(-1), self.pages)

    def _part(self, members: list[int]) -> Part:
        spans = [self.spans[member] for member in members]
        starts = np.cumsum([0, *(span.count for span in self.spans)])
        width = max(-(-span.stop // self.block_size) for span in spans)
        tables = np.empty((len(spans), width), dtype=np.int64)
        for row, span in enumerate(spans):
            used = -(-span.stop // self.block_size)
            tables[row, :used] = span.blocks[:used]
            tables[row, used:] = span.blocks[used - 1]  # masked; a foreign block could hold what is not a number
        heads = np.arange(2 * self.kv_heads).reshape(2, 1, self.kv_heads, 1)
        rows = tables[:, None, :] * self._block_rows + heads
        tokens = np.concatenate([np.arange(starts[m], starts[m + 1]) for m in members])
        return _kind(spans, self.pages)(_index(tokens, self.pages), rows, spans, self.pages)


class Part(ABC):
    """Tokens of the step that attend in one call; `rows` [2, sequences, kv_heads, blocks] are theirs in layer 0."""

    gathered = 2
    """Whether keys and values are gathered, or (1) only keys."""

    def __init__(self, tokens: Tensor, rows: npt.NDArray[np.int64], spans: Sequence[Span], pages: Tensor) -> None:
        self.tokens = tokens
        self.block_size, self.head_dim = pages.shape[-2:]
        self.length = rows.shape[3] * self.block_size
        self.shape = (self.gathered, *rows.shape[1:3], self.length, self.head_dim)
        self.index = _index(rows[: self.gathered].reshape(-1), pages)
        self.prepare(rows, spans, pages)

    def gather(self, rows: Tensor) -> Tensor:
        """Contiguous keys and values [gathered, sequences, kv_heads, length, head_dim] of one layer."""
        return rows.index_select(0, self.index).view(self.shape)

    @abstractmethod
    def prepare(self, rows: npt.NDArray[np.int64], spans: Sequence[Span], pages: Tensor) -> None:
        """Once a step: whatever else is the same in all layers."""

    @abstractmethod
    def attend(self, rows: Tensor, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        """Attention of q [tokens, heads, head_dim] in one layer; their own k and v are in the pages already."""


class Chunk(Part):
    """One sequence with several new tokens: a chunk of its prompt."""

    def prepare(self, rows: npt.NDArray[np.int64], spans: Sequence[Span], pages: Tensor) -> None:
        """See Part."""
        (span,) = spans
        self.mask: Tensor | None = None
        if span.start:
            position = np.arange(span.start, span.stop)
            self.mask = _additive(np.arange(self.length) <= position[:, None], pages)

    def attend(self, rows: Tensor, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        """See Part."""
        queries = q.transpose(0, 1)[None]
        if self.mask is None:  # nothing before it in the pages: its own keys and values are all there is
            keys, values = k.transpose(0, 1)[None], v.transpose(0, 1)[None]
            out = scaled_dot_product_attention(queries, keys, values, is_causal=True, enable_gqa=True)
        else:
            keys, values = self.gather(rows)
            out = scaled_dot_product_attention(queries, keys, values, attn_mask=self.mask, enable_gqa=True)
        return out[0].transpose(0, 1)


class SingleTokens(Part):
    """Sequences with one new token each: the query heads that share a KV head attend as if they were tokens."""

    def prepare(self, rows: npt.NDArray[np.int64], spans: Sequence[Span], pages: Tensor) -> None:
        """See Part."""
        stops = np.array([span.stop for span in spans])
        hidden = (np.arange(self.length) < stops[:, None])[:, None, None, :]
        self.mask = None if (stops == self.length).all() else _additive(hidden, pages)

    def attend(self, rows: Tensor, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        """See Part."""
        keys, values = self.gather(rows)
        grouped = q.reshape(q.shape[0], keys.shape[1], -1, self.head_dim)
        return scaled_dot_product_attention(grouped, keys, values, attn_mask=self.mask).reshape(q.shape)


class SingleTokensOnCpu(Part):
    """The same with half the copying: values are weighted and added up where they lie, as rows of an embedding bag."""

    gathered = 1

    def prepare(self, rows: npt.NDArray[np.int64], spans: Sequence[Span], pages: Tensor) -> None:
        """See Part."""
        kv_heads = rows.shape[2]
        slots = rows[0][..., None] * self.block_size + np.arange(self.block_size)
        self.slots = slots.reshape(-1, 1, self.length)
        stops = np.repeat([span.stop for span in spans], kv_heads)
        self.mask = _additive((np.arange(self.length) < stops[:, None])[:, None], pages)
        self.bags: tuple[Tensor, Tensor] | None = None

    def attend(self, rows: Tensor, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        """See Part."""
        kv_heads = k.shape[1]
        keys = self.gather(rows).view(-1, self.length, self.head_dim)
        queries = q.reshape(len(keys), -1, self.head_dim)
        scores = torch.baddbmm(self.mask, queries, keys.transpose(1, 2), alpha=self.head_dim**-0.5)
        slots, starts = self.bags = self.bags or self._bags(queries.shape[1])
        values = rows[kv_heads:].view(-1, self.head_dim)
        weights = scores.softmax(dim=-1).view(-1)
        return torch.embedding_bag(values, slots, starts, per_sample_weights=weights)[0].view(q.shape)

    def _bags(self, group: int) -> tuple[Tensor, Tensor]:
        """Slots of the values that each query head adds up, end to end, and where the slots of each begin."""
        slots = np.broadcast_to(self.slots, (len(self.slots), group, self.length)).reshape(-1)
        starts = np.arange(0, slots.size, self.length)
        return torch.from_numpy(slots), torch.from_numpy(starts)


def _kind(spans: Sequence[Span], pages: Tensor) -> type[Part]:
    """How these spans are computed: a chunk, or single tokens in the way that suits the device."""
    if spans[0].count > 1:
        return Chunk
    return SingleTokensOnCpu if pages.device.type == "cpu" and pages.dtype == torch.float32 else SingleTokens


def _group_by_length(spans: Sequence[Span], block_size: int) -> list[list[int]]:
    """Spans that are computed together: each longer run alone, single tokens by the binary length of their table."""
    runs = [[number] for number, span in enumerate(spans) if span.count > 1]
    singles: dict[int, list[int]] = {}
    for number, span in enumerate(spans):
        if span.count == 1:
            singles.setdefault((-(-span.stop // block_size)).bit_length(), []).append(number)
    return runs + list(singles.values())


def _index(array: npt.NDArray[np.int64], like: Tensor) -> Tensor:
    return torch.from_numpy(np.ascontiguousarray(array, dtype=np.int64)).to(like.device)


def _additive(allowed: npt.NDArray[np.bool_], like: Tensor) -> Tensor:
    mask = torch.zeros(allowed.shape, dtype=like.dtype, device=like.device)
    return mask.masked_fill_(torch.from_numpy(~allowed).to(like.device), float("-inf"))
