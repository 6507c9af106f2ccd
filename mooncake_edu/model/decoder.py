"""The decoder of the Llama family, whole or one part of it: plain functions over plain weights.

    decoder = Decoder(config, weights)                      # or Decoder(config, weights, cut, group)
    attention = attention_for(pages.tensor, [Span(table.blocks, start=0, count=len(tokens))])
    hidden = decoder.forward(tokens, attention)             # a later pipeline stage is given hidden states instead
    logits = decoder.logits(hidden[-1:])                    # only of the tokens that need them
"""

from __future__ import annotations

import math

import torch
from torch import Tensor
from torch.nn.functional import linear, rms_norm, silu

from mooncake_edu.model.attention import Attention
from mooncake_edu.model.config import ModelConfig, Rope
from mooncake_edu.model.parallel import Alone, Cut, Group, whole
from mooncake_edu.model.weights import LayerWeights, Weights


class Decoder:
    """Some layers of a model, and this rank's heads of each; `group` joins the ranks of a tensor-parallel stage."""

    def __init__(
        self, config: ModelConfig, weights: Weights, cut: Cut | None = None, group: Group | None = None
    ) -> None:
        self.config = config
        self.weights = weights
        self.cut = cut or whole(config.layers)
        self.group = group or Alone()
        self.heads = len(self.cut.share("heads", config.heads))
        self.kv_heads = len(self.cut.share("KV heads", config.kv_heads))
        self._frequencies = rope_frequencies(config.rope, config.head_dim).to(weights.layers[0].qkv.device)

    @property
    def device(self) -> torch.device:
        """Where the weights are, and the pages must be."""
        return self.weights.layers[0].qkv.device

    @property
    def dtype(self) -> torch.dtype:
        """Of weights, activations and KVCache."""
        return self.weights.layers[0].qkv.dtype

    def forward(self, x: Tensor, attention: Attention) -> Tensor:
        """Runs the layers over one step's tokens; returns hidden states [tokens, hidden], unnormed.

        `x` is token ids [tokens] for the part with the first layer, else the hidden states of the part before.
        """
        x = self.embed(x) if self.cut.first else x
        positions = [torch.arange(span.start, span.stop, device=x.device) for span in attention.spans]
        angles = torch.outer(torch.cat(positions).float(), self._frequencies)
        turn = (angles.cos().to(x.dtype)[:, None], angles.sin().to(x.dtype)[:, None])
        for number, layer in enumerate(self.weights.layers):
            x = self._layer(number, layer, x, turn, attention)
        return x

    def embed(self, tokens: Tensor) -> Tensor:
        """Hidden states of token ids; each rank knows a share of the vocabulary, the group adds them up."""
        assert self.weights.embed is not None
        if self.cut.size == 1:
            return self.weights.embed[tokens]
        share = self.cut.share("vocabulary rows", self.config.vocab)
        elsewhere = (tokens < share.start) | (tokens >= share.stop)
        rows = self.weights.embed[(tokens - share.start).masked_fill(elsewhere, 0)]
        return self.group.sum(rows.masked_fill(elsewhere[:, None], 0))

    def logits(self, hidden: Tensor) -> Tensor:
        """Float32 logits [tokens, vocab] of the last layer's hidden states."""
        assert self.weights.norm is not None and self.weights.head is not None
        normed = rms_norm(hidden, hidden.shape[-1:], self.weights.norm, self.config.norm_eps)
        return self.group.concat(linear(normed, self.weights.head)).float()

    def _layer(self, number: int, weights: LayerWeights, x: Tensor, turn: tuple[Tensor, Tensor],
               attention: Attention) -> Tensor:  # fmt: skip
        eps, dim = self.config.norm_eps, self.config.head_dim
        normed = rms_norm(x, x.shape[-1:], weights.attn_norm, eps)
        qkv = linear(normed, weights.qkv, weights.qkv_bias).view(len(x), -1, dim)
        q, k, v = torch.split(qkv, [self.heads, self.kv_heads, self.kv_heads], dim=1)
        if weights.q_norm is not None and weights.k_norm is not None:
            q, k = rms_norm(q, (dim,), weights.q_norm, eps), rms_norm(k, (dim,), weights.k_norm, eps)
        attended = attention.attend(number, rotate(q, turn), rotate(k, turn), v)
        x = x + self.group.sum(linear(attended.reshape(len(x), -1), weights.o))
        normed = rms_norm(x, x.shape[-1:], weights.mlp_norm, eps)
        gate, up = linear(normed, weights.gate_up).chunk(2, dim=-1)
        return x + self.group.sum(linear(silu(gate) * up, weights.down))


def rotate(x: Tensor, turn: tuple[Tensor, Tensor]) -> Tensor:
    """Rotary embedding: turns each pair (i, i + head_dim/2) of x [tokens, heads, head_dim] by its token's angle."""
    cos, sin = turn
    first, second = x.chunk(2, dim=-1)
    return torch.cat((first * cos - second * sin, second * cos + first * sin), dim=-1)


def rope_frequencies(rope: Rope, head_dim: int) -> Tensor:
    """Radians a token by which each pair of channels turns: [head_dim / 2], float32.

    `linear` slows all by the factor. `llama3` slows those that turn fewer than `low_freq_factor` times within the
    original context, keeps those that turn more than `high_freq_factor` times, and blends linearly in between.
    """
    frequencies = rope.theta ** -(torch.arange(0, head_dim, 2, dtype=torch.float32) / head_dim)
    if rope.kind == "default":
        return frequencies
    if rope.kind == "linear":
        return frequencies / rope.factor
    turns = rope.original_positions * frequencies / (2 * math.pi)
    keep = (turns - rope.low_freq_factor) / (rope.high_freq_factor - rope.low_freq_factor)
    keep = keep.clamp(0, 1)
    return frequencies * (keep + (1 - keep) / rope.factor)
