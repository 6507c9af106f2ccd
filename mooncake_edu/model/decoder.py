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

from mooncake_edu.model.attention import Attention
from mooncake_edu.model.config import ModelConfig, Rope
from mooncake_edu.model.linear import Linear
from mooncake_edu.model.native import Kernels, kernels_for
from mooncake_edu.model.ops import Turn, ops_for
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
        kernels = kernels_for(self.device, self.dtype, config.head_dim)
        self._ops = ops_for(kernels)
        self._layers = [Layer(layer, kernels) for layer in weights.layers]
        self._head = None if weights.head is None else Linear(weights.head, kernels=kernels)
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
        x = self.embed(x) if self.cut.first else x.clone()
        positions = [torch.arange(span.start, span.stop, device=x.device) for span in attention.spans]
        angles = torch.outer(torch.cat(positions).float(), self._frequencies)
        turn = (angles.cos().to(x.dtype), angles.sin().to(x.dtype))
        ops, eps, more = self._ops, self.config.norm_eps, torch.zeros_like(x)  # what the last block adds
        for number, layer in enumerate(self._layers):
            normed = ops.add_norm(x, more, layer.weights.attn_norm, eps)
            more = self._attend(number, layer, normed, turn, attention)
            more = self._feed_forward(layer, ops.add_norm(x, more, layer.weights.mlp_norm, eps))
        return x.add_(more)

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
        assert self.weights.norm is not None and self._head is not None
        normed = self._ops.rms_norm(hidden, self.weights.norm, self.config.norm_eps)
        return self.group.concat(self._head(normed)).float()

    def _attend(self, number: int, layer: Layer, normed: Tensor, turn: Turn, attention: Attention) -> Tensor:
        eps, norms, rms_norm = self.config.norm_eps, layer.weights, self._ops.rms_norm
        qkv = layer.qkv(normed).view(len(normed), -1, self.config.head_dim)
        qk, v = qkv[:, : self.heads + self.kv_heads], qkv[:, self.heads + self.kv_heads :]
        if norms.q_norm is not None and norms.k_norm is not None:
            q, k = qk[:, : self.heads], qk[:, self.heads :]
            qk = torch.cat((rms_norm(q, norms.q_norm, eps), rms_norm(k, norms.k_norm, eps)), dim=1)
        qk = self._ops.rotate(qk, turn)
        attended = attention.attend(number, qk[:, : self.heads], qk[:, self.heads :], v)
        return self.group.sum(layer.o(attended.reshape(len(normed), -1)))

    def _feed_forward(self, layer: Layer, normed: Tensor) -> Tensor:
        return self.group.sum(layer.down(self._ops.gated(layer.gate_up(normed))))


class Layer:
    """One layer's weights, its matrices ready to be multiplied with."""

    def __init__(self, weights: LayerWeights, kernels: Kernels | None) -> None:
        self.weights = weights
        self.qkv = Linear(weights.qkv, weights.qkv_bias, kernels)
        self.o = Linear(weights.o, kernels=kernels)
        self.gate_up = Linear(weights.gate_up, kernels=kernels)
        self.down = Linear(weights.down, kernels=kernels)


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
