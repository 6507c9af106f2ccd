"""Attention over pages: the interface, a variant in plain torch for CPUs and GPUs, and one by compiled kernels.

One object serves one step of a batch. It writes the keys and values of the new tokens into the pages, then lets
every new token attend to all of its sequence up to itself.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import groupby

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor
from torch.nn.functional import scaled_dot_product_attention

from mooncake_edu.model.native import MOST_ROWS, Kernels, kernels_for


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
    """The fastest variant there is for the device that the pages are on."""
    kernels = kernels_for(pages.device, pages.dtype, pages.shape[-1])
    if kernels is not None and pages.is_contiguous():
        return NativeAttention(pages, spans, kernels)
    return TorchAttention(pages, spans)


class NativeAttention(Attention):
    """Compiled kernels that read keys and values where they lie: no scores or masks of a whole prompt in memory."""

    def __init__(self, pages: Tensor, spans: Sequence[Span], kernels: Kernels) -> None:
        super().__init__(pages, spans)
        self._kernels = kernels
        self._slots = torch.from_numpy(_slots(spans, pages))
        self._runs = list(self._plan())

    def attend(self, layer: int, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        """See Attention."""
        kv_heads, block_size, head_dim = self.pages.shape[3:]
        if q.shape[1] // kv_heads > MOST_ROWS:
            return TorchAttention(self.pages, self.spans).attend(layer, q, k, v)
        q, k, v = (x if x.stride()[1:] == (head_dim, 1) else x.contiguous() for x in (q, k, v))
        keys = self.pages.data_ptr() + layer * self.pages.stride(1) * self.pages.itemsize
        self._kernels.put(keys, self._slots, k, v, block_size)
        out = q.new_empty(q.shape)
        for tokens, places, lengths, start in self._runs:
            if lengths is None:
                self._kernels.attend_chunk(keys, places, start, q[tokens], out[tokens], kv_heads, block_size)
            else:
                self._kernels.attend_single(keys, places, lengths, q[tokens], out[tokens], kv_heads, block_size)
        return out

    def _plan(self) -> Iterator[tuple[slice, Tensor, Tensor | None, int]]:
        """What one call computes: a chunk alone, neighbouring single tokens, which need their lengths, together."""
        token = 0
        for single, run in groupby(self.spans, key=lambda span: span.count == 1):
            spans = list(run)
            for members in [spans] if single else [[span] for span in spans]:
                stop = token + sum(span.count for span in members)
                places = torch.from_numpy(_tables(members, self.pages.shape[4]) * self.pages.stride(0))
                lengths = torch.tensor([span.stop for span in members]) if single else None
                yield slice(token, stop), places, lengths, members[0].start
                token = stop


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
        self._tokens = pages.view(-1, head_dim)  # one token of such a row
        self._block_rows = layers * 2 * self.kv_heads
        heads = np.arange(self.kv_heads) * self.block_size
        self._new = _index(_slots(spans, pages)[:, None] // head_dim + heads, pages)
        self._parts = [self._part(members) for members in _group_by_length(spans, self.block_size)]

    def attend(self, layer: int, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        """See Attention."""
        first = layer * 2 * self.kv_heads  # this layer's rows of keys, and kv_heads further its rows of values
        for row, new in ((first, k), (first + self.kv_heads, v)):
            self._tokens[row * self.block_size :].index_copy_(0, self._new, new.reshape(-1, new.shape[-1]))
        rows = self._rows[first:]
        if len(self._parts) == 1:
            return self._parts[0].attend(rows, q, k, v)
        out = q.new_empty(q.shape)
        for part in self._parts:
            tokens = part.tokens
            out[tokens] = part.attend(rows, q[tokens], k[tokens], v[tokens])
        return out

    def _part(self, members: list[int]) -> Part:
        spans = [self.spans[member] for member in members]
        starts = np.cumsum([0, *(span.count for span in self.spans)])
        heads = np.arange(2 * self.kv_heads).reshape(2, 1, self.kv_heads, 1)
        rows = _tables(spans, self.block_size)[:, None, :] * self._block_rows + heads
        tokens = np.concatenate([np.arange(starts[m], starts[m + 1]) for m in members])
        kind = Chunk if spans[0].count > 1 else SingleTokens
        return kind(_index(tokens, self.pages), rows, spans, self.pages)


class Part(ABC):
    """Tokens of the step that attend in one call; `rows` [2, sequences, kv_heads, blocks] are theirs in layer 0."""

    def __init__(self, tokens: Tensor, rows: npt.NDArray[np.int64], spans: Sequence[Span], pages: Tensor) -> None:
        self.tokens = tokens
        self.index = _index(rows, pages)
        self.length = rows.shape[3] * pages.shape[4]
        self.shape = (*rows.shape[:3], self.length, pages.shape[5])
        self.prepare(spans, pages)

    def gather(self, rows: Tensor) -> Tensor:
        """Contiguous keys and values [2, sequences, kv_heads, length, head_dim] of one layer."""
        return rows.index_select(0, self.index).view(self.shape)

    @abstractmethod
    def prepare(self, spans: Sequence[Span], pages: Tensor) -> None:
        """Once a step: whatever else is the same in all layers."""

    @abstractmethod
    def attend(self, rows: Tensor, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        """Attention of q [tokens, heads, head_dim] in one layer; their own k and v are in the pages already."""


class Chunk(Part):
    """One sequence with several new tokens: a chunk of its prompt."""

    def prepare(self, spans: Sequence[Span], pages: Tensor) -> None:
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

    def prepare(self, spans: Sequence[Span], pages: Tensor) -> None:
        """See Part."""
        stops = np.array([span.stop for span in spans])
        seen = (np.arange(self.length) < stops[:, None])[:, None, None, :]
        self.mask = None if (stops == self.length).all() else _additive(seen, pages)

    def attend(self, rows: Tensor, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        """See Part."""
        keys, values = self.gather(rows)
        grouped = q.reshape(q.shape[0], keys.shape[1], -1, keys.shape[3])
        return scaled_dot_product_attention(grouped, keys, values, attn_mask=self.mask).reshape(q.shape)


def _group_by_length(spans: Sequence[Span], block_size: int) -> list[list[int]]:
    """Spans that are computed together: each longer run alone, single tokens by the binary length of their table."""
    runs = [[number] for number, span in enumerate(spans) if span.count > 1]
    singles: dict[int, list[int]] = {}
    for number, span in enumerate(spans):
        if span.count == 1:
            singles.setdefault((-(-span.stop // block_size)).bit_length(), []).append(number)
    return runs + list(singles.values())


def _slots(spans: Sequence[Span], pages: Tensor) -> npt.NDArray[np.int64]:
    """Where the first key of every new token lies in layer 0, in numbers from the first of the pages."""
    block_size, head_dim = pages.shape[4:]
    slots = []
    for span in spans:
        position = np.arange(span.start, span.stop)
        first, last = span.start // block_size, (span.stop - 1) // block_size
        blocks = np.asarray(span.blocks[first : last + 1], dtype=np.int64)[position // block_size - first]
        slots.append(blocks * pages.stride(0) + position % block_size * head_dim)
    return np.concatenate(slots)


def _tables(spans: Sequence[Span], block_size: int) -> npt.NDArray[np.int64]:
    """Block tables of equal length; where a table is shorter, its last block is repeated."""
    width = max(-(-span.stop // block_size) for span in spans)
    tables = np.empty((len(spans), width), dtype=np.int64)
    for row, span in enumerate(spans):
        used = -(-span.stop // block_size)
        tables[row, :used] = span.blocks[:used]
        tables[row, used:] = span.blocks[used - 1]  # masked; another block could hold what is not a number
    return tables


def _index(array: npt.NDArray[np.int64], like: Tensor) -> Tensor:
    return torch.from_numpy(np.ascontiguousarray(array.reshape(-1))).to(like.device)


def _additive(allowed: npt.NDArray[np.bool_], like: Tensor) -> Tensor:
    mask = torch.zeros(allowed.shape, dtype=like.dtype, device=like.device)
    return mask.masked_fill_(torch.from_numpy(~allowed).to(like.device), float("-inf"))
