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
    """Gathers each sequence's pages into contiguous keys and values and lets torch's own attention do the rest.

    All index arithmetic is done once for layer 0; another layer is a constant further on. Sequences with one new
    token are computed together, those of similar length in one call; longer runs of new tokens one by one.
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
        rows = layer * 2 * self.kv_heads
        for offset, new in ((0, k), (self.kv_heads, v)):
            slots = self._new_slots + (rows + offset) * self.block_size
            self._slots.index_copy_(0, slots.view(-1), new.reshape(-1, new.shape[-1]))
        if len(self._parts) == 1:
            return self._parts[0].attend(self._rows, rows, q, k, v)
        out = torch.empty_like(q)
        for part in self._parts:
            tokens = part.tokens
            out[tokens] = part.attend(self._rows, rows, q[tokens], k[tokens], v[tokens])
        return out

    def _slots_of_new_tokens(self) -> Tensor:
        """For every new token and head, the slot of its key in layer 0: [tokens, kv_heads]."""
        slots = []
        for span in self.spans:
            position = np.arange(span.start, span.stop)
            first, last = span.start // self.block_size, (span.stop - 1) // self.block_size
            blocks = np.asarray(span.blocks[first : last + 1])[position // self.block_size - first]
            slots.append(blocks * self._block_rows * self.block_size + position % self.block_size)
        heads = np.arange(self.kv_heads) * self.block_size
        return _index(np.concatenate(slots)[:, None] + heads, self.pages)

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
        rows = _index(tables[:, None, :] * self._block_rows + heads, self.pages)
        tokens = np.concatenate([np.arange(starts[m], starts[m + 1]) for m in members])
        kind: type[Part] = SingleTokens if spans[0].count == 1 else Chunk
        return kind(_index(tokens, self.pages), rows, spans, width * self.block_size, self.pages)


class Part(ABC):
    """Tokens of the step that attend in one call; `rows` [2, sequences, kv_heads, blocks] are theirs in layer 0."""

    def __init__(self, tokens: Tensor, rows: Tensor, spans: Sequence[Span], length: int, pages: Tensor) -> None:
        self.tokens = tokens
        self._index = rows
        self._shape = (*rows.shape[:3], length, pages.shape[-1])
        self._mask = self._mask_for(spans, length, pages)

    def gather(self, rows: Tensor, offset: int) -> Tensor:
        """Contiguous keys and values [2, sequences, kv_heads, length, head_dim]."""
        return rows.index_select(0, (self._index + offset).view(-1)).view(self._shape)

    @abstractmethod
    def _mask_for(self, spans: Sequence[Span], length: int, pages: Tensor) -> Tensor | None:
        """What is added to the scores to hide keys behind a query's position, or None if nothing is to be hidden."""

    @abstractmethod
    def attend(self, rows: Tensor, offset: int, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        """Attention of this group's q [tokens, heads, head_dim], whose own k and v are in the pages already."""


class SingleTokens(Part):
    """Sequences with one new token each: the query heads that share a KV head attend as if they were tokens."""

    def _mask_for(self, spans: Sequence[Span], length: int, pages: Tensor) -> Tensor | None:
        stops = np.array([span.stop for span in spans])
        if (stops == length).all():
            return None
        return _additive((np.arange(length) < stops[:, None])[:, None, None, :], pages)

    def attend(self, rows: Tensor, offset: int, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        """See Part."""
        keys, values = self.gather(rows, offset)
        grouped = q.view(q.shape[0], keys.shape[1], -1, q.shape[-1])
        return scaled_dot_product_attention(grouped, keys, values, attn_mask=self._mask).reshape(q.shape)


class Chunk(Part):
    """One sequence with several new tokens: a chunk of its prompt."""

    def _mask_for(self, spans: Sequence[Span], length: int, pages: Tensor) -> Tensor | None:
        (span,) = spans
        self._alone = span.start == 0
        if self._alone:
            return None
        position = np.arange(span.start, span.stop)
        return _additive(np.arange(length) <= position[:, None], pages)

    def attend(self, rows: Tensor, offset: int, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        """See Part."""
        queries = q.transpose(0, 1)[None]
        if self._alone:  # nothing before it in the pages: its own keys and values are all there is
            keys, values = k.transpose(0, 1)[None], v.transpose(0, 1)[None]
            out = scaled_dot_product_attention(queries, keys, values, is_causal=True, enable_gqa=True)
        else:
            keys, values = self.gather(rows, offset)
            out = scaled_dot_product_attention(queries, keys, values, attn_mask=self._mask, enable_gqa=True)
        return out[0].transpose(0, 1)


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
