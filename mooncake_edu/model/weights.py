"""The weights of a decoder, or of one worker's part of it: loaded from safetensors, made at random, or saved."""

from __future__ import annotations

import hashlib
import json
import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass, fields
from pathlib import Path

import torch
from torch import Tensor

from mooncake_edu.errors import ModelError
from mooncake_edu.model.checkpoint import Checkpoint, write_safetensors
from mooncake_edu.model.config import ModelConfig
from mooncake_edu.model.folders import whole_folder
from mooncake_edu.model.parallel import Cut, whole

DTYPES = {"float32": torch.float32, "bfloat16": torch.bfloat16, "float16": torch.float16}
"""What weights can be computed in."""

RANDOM_CHUNK = 1 << 22
"""Elements made at a time, so that the integers behind them do not add to the peak."""


@dataclass
class LayerWeights:
    """One layer's weights, in the order in which they are used; q, k and v are rows of one matrix, so are gate and up.

    Shapes: norms [hidden]; qkv [(heads + 2 * kv_heads) * head_dim, hidden]; q_norm and k_norm [head_dim];
    o [hidden, heads * head_dim]; gate_up [2 * intermediate, hidden]; down [hidden, intermediate]. On a rank of a
    tensor-parallel group heads, kv_heads and intermediate are that rank's share.
    """

    attn_norm: Tensor
    qkv: Tensor
    qkv_bias: Tensor | None
    q_norm: Tensor | None
    k_norm: Tensor | None
    o: Tensor
    mlp_norm: Tensor
    gate_up: Tensor
    down: Tensor


@dataclass
class Weights:
    """The weights of the layers of a cut, with what comes before the first and after the last where it holds them.

    `embed` and `head` are [vocab share, hidden], `norm` [hidden]. Where embeddings are tied, `head` is `embed`.
    """

    embed: Tensor | None
    layers: list[LayerWeights]
    norm: Tensor | None
    head: Tensor | None

    def tensors(self) -> Iterator[Tensor]:
        """Every tensor held, each once."""
        outer = [self.embed, self.norm, None if self.head is self.embed else self.head]
        yield from (tensor for tensor in outer if tensor is not None)
        for layer in self.layers:
            held = (getattr(layer, field.name) for field in fields(layer))
            yield from (tensor for tensor in held if tensor is not None)

    def matrices(self) -> Iterator[Tensor]:
        """Every weight that activations are multiplied with."""
        for layer in self.layers:
            yield from (layer.qkv, layer.o, layer.gate_up, layer.down)
        if self.head is not None:
            yield self.head

    @property
    def nbytes(self) -> int:
        """Bytes of all tensors held."""
        return sum(tensor.nbytes for tensor in self.tensors())


@dataclass(frozen=True)
class Piece:
    """A run of rows and columns of one named parameter; `shape` is that of the whole, vectors have no columns."""

    name: str
    shape: tuple[int, ...]
    rows: range
    columns: range | None = None

    @property
    def held(self) -> tuple[int, ...]:
        """The shape of the run itself."""
        return (len(self.rows),) if self.columns is None else (len(self.rows), len(self.columns))


Fill = Callable[[Tensor, Piece], None]
"""Writes a piece into a tensor of its shape."""


def as_dtype(name: str | torch.dtype) -> torch.dtype:
    """The torch type of a name such as "float32"; raises ModelError naming those that weights can have."""
    short = str(name).removeprefix("torch.")
    dtype = DTYPES.get(short)
    if dtype is None:
        raise ModelError(f"dtype {short} is not supported: use one of {', '.join(DTYPES)}")
    return dtype


def load_weights(folder: Path | str, config: ModelConfig, cut: Cut, dtype: torch.dtype | str = torch.float32,
                 device: torch.device | str = "cpu") -> Weights:  # fmt: skip
    """The weights that `cut` holds, read from the safetensors files of a Hugging Face folder.

    Reads only this rank's rows and columns, straight into the fused tensors: the peak is what is kept and one
    parameter's share. Raises ModelError naming file and tensor if something is missing, unknown, of another shape
    or type, corrupt or pickled.
    """
    with Checkpoint(Path(folder)) as checkpoint:
        checkpoint.check(parameters(config), tied=config.tied)

        def fill(target: Tensor, piece: Piece) -> None:
            checkpoint.read(target, piece.name, piece.rows, piece.columns)

        return _assemble(config, cut, as_dtype(dtype), device, fill)


def check_folder(folder: Path | str) -> ModelConfig:
    """The configuration of a folder, once it is sure that every tensor it calls for is there; raises ModelError."""
    config = ModelConfig.from_folder(folder)
    with Checkpoint(Path(folder)) as checkpoint:
        checkpoint.check(parameters(config), tied=config.tied)
    return config


def random_weights(config: ModelConfig, cut: Cut, dtype: torch.dtype | str = torch.float32,
                   device: torch.device | str = "cpu", seed: int = 0) -> Weights:  # fmt: skip
    """Weights whose every ingredient shows in the output, for any configuration and any device, "meta" included.

    An element depends on the seed, its parameter's name, its row and its column alone: any rank of any cut on any
    device holds the same values of the whole. Activations have a root mean square near 1 and logits a standard
    deviation near 2; attention is not uniform, norms are not one and biases not zero.
    """
    if torch.device(device).type == "meta":
        return _assemble(config, cut, as_dtype(dtype), device, lambda target, piece: None)
    return _assemble(config, cut, as_dtype(dtype), device,
                     lambda target, piece: _fill_random(target, piece, config, seed))  # fmt: skip


def save_weights(folder: Path | str, config: ModelConfig, weights: Weights) -> None:
    """Writes config.json and model.safetensors in Hugging Face's names, so that transformers can load the whole model.

    The folder appears whole or not at all. Raises ModelError if it exists and is not empty, or cannot be written.
    """
    if len(weights.layers) != config.layers:
        raise ModelError(f"{len(weights.layers)} of {config.layers} layers at hand: save the whole model, not a cut")
    named = dict(_named(config, weights))
    dtype = str(weights.layers[0].qkv.dtype).removeprefix("torch.")
    text = json.dumps(config.to_dict() | {"dtype": dtype}, indent=2)
    with whole_folder(Path(folder)) as new:
        write_safetensors(named, new / "model.safetensors")
        (new / "config.json").write_text(text + "\n", encoding="utf-8")


def _assemble(config: ModelConfig, cut: Cut, dtype: torch.dtype, device: torch.device | str, fill: Fill) -> Weights:
    """Allocates the tensors of a cut and has `fill` write each piece in its place."""
    if cut.total != config.layers:
        raise ModelError(f"a cut of {cut.total} layers does not fit {config.name} of {config.layers} layers")

    def build(pieces: list[Piece]) -> Tensor:
        rows = sum(len(piece.rows) for piece in pieces)
        fused = torch.empty(rows, *pieces[0].held[1:], dtype=dtype, device=device)
        start = 0
        for piece in pieces:
            fill(fused[start : start + len(piece.rows)], piece)
            start += len(piece.rows)
        return fused

    def layer(index: int) -> LayerWeights:
        pieces = layer_pieces(config, cut, index)
        held = {f.name: build(pieces[f.name]) if f.name in pieces else None for f in fields(LayerWeights)}
        return LayerWeights(**held)  # type: ignore[arg-type]

    outer = {name: build([piece]) for name, piece in outer_pieces(config, cut).items()}
    embed, norm = outer.get("embed"), outer.get("norm")
    head = embed if cut.last and config.tied else outer.get("head")
    return Weights(embed, [layer(index) for index in cut.layers], norm, head)


def layer_pieces(config: ModelConfig, cut: Cut, index: int) -> dict[str, list[Piece]]:
    """The parameters behind each fused tensor of a layer, in order of their rows, as the rank of `cut` holds them."""
    prefix = f"model.layers.{index}."
    hidden, dim = config.hidden, config.head_dim
    heads = _scaled(cut.share("heads", config.heads), dim)
    kv_heads = _scaled(cut.share("KV heads", config.kv_heads), dim)
    channels = cut.share("intermediate channels", config.intermediate)
    q_rows, kv_rows, inter = config.heads * dim, config.kv_heads * dim, config.intermediate

    def vector(name: str, count: int, rows: range | None = None) -> Piece:
        return Piece(prefix + name, (count,), range(count) if rows is None else rows)

    def matrix(name: str, shape: tuple[int, int], rows: range | None = None, columns: range | None = None) -> Piece:
        return Piece(prefix + name, shape, rows or range(shape[0]), columns or range(shape[1]))

    projections = [("q", q_rows, heads), ("k", kv_rows, kv_heads), ("v", kv_rows, kv_heads)]
    pieces = {
        "attn_norm": [vector("input_layernorm.weight", hidden)],
        "qkv": [matrix(f"self_attn.{p}_proj.weight", (count, hidden), rows) for p, count, rows in projections],
        "o": [matrix("self_attn.o_proj.weight", (hidden, q_rows), columns=heads)],
        "mlp_norm": [vector("post_attention_layernorm.weight", hidden)],
        "gate_up": [matrix(f"mlp.{p}_proj.weight", (inter, hidden), channels) for p in ("gate", "up")],
        "down": [matrix("mlp.down_proj.weight", (hidden, inter), columns=channels)],
    }
    if config.qkv_bias:
        pieces["qkv_bias"] = [vector(f"self_attn.{p}_proj.bias", count, rows) for p, count, rows in projections]
    if config.qk_norm:
        pieces |= {f"{p}_norm": [vector(f"self_attn.{p}_norm.weight", dim)] for p in ("q", "k")}
    return pieces


def outer_pieces(config: ModelConfig, cut: Cut) -> dict[str, Piece]:
    """The parameters before the first layer and after the last, where the cut holds them; a tied head is `embed`."""
    shape, columns = (config.vocab, config.hidden), range(config.hidden)
    rows = cut.share("vocabulary rows", config.vocab)
    pieces = {}
    if cut.first or (cut.last and config.tied):
        pieces["embed"] = Piece("model.embed_tokens.weight", shape, rows, columns)
    if cut.last:
        pieces["norm"] = Piece("model.norm.weight", (config.hidden,), columns)
    if cut.last and not config.tied:
        pieces["head"] = Piece("lm_head.weight", shape, rows, columns)
    return pieces


def parameters(config: ModelConfig) -> dict[str, tuple[int, ...]]:
    """The name and shape of every parameter of the whole model."""
    cut = whole(config.layers)
    pieces = list(outer_pieces(config, cut).values())
    for index in cut.layers:
        pieces += [piece for fused in layer_pieces(config, cut, index).values() for piece in fused]
    return {piece.name: piece.shape for piece in pieces}


def _scaled(heads: range, dim: int) -> range:
    return range(heads.start * dim, heads.stop * dim)


def _named(config: ModelConfig, weights: Weights) -> Iterator[tuple[str, Tensor]]:
    """Every parameter under its Hugging Face name, as a copy of its own: safetensors stores no views of one memory."""
    cut = whole(config.layers)
    for field, piece in outer_pieces(config, cut).items():
        yield piece.name, getattr(weights, field).contiguous()
    for index, layer in enumerate(weights.layers):
        for field, pieces in layer_pieces(config, cut, index).items():
            parts = torch.split(getattr(layer, field), [len(piece.rows) for piece in pieces])
            yield from ((piece.name, part.clone()) for piece, part in zip(pieces, parts, strict=True))


def _fill_random(target: Tensor, piece: Piece, config: ModelConfig, seed: int) -> None:
    mean, std = _moments(piece, config)
    digest = hashlib.sha256(f"{seed}/{piece.name}".encode()).digest()
    row_key, column_key = (int.from_bytes(digest[at : at + 4], "little") for at in (0, 4))
    columns = piece.columns or range(1)
    row_hash = _mixed(torch.arange(piece.rows.start, piece.rows.stop, device=target.device) ^ row_key)
    column_hash = _mixed(torch.arange(columns.start, columns.stop, device=target.device) ^ column_key)
    step = max(1, RANDOM_CHUNK // len(columns))
    for start in range(0, len(piece.rows), step):
        bits = _mixed(row_hash[start : start + step, None] ^ column_hash)
        value = (bits - (1 << 31)).float() * (math.sqrt(3.0) / (1 << 31))  # uniform with variance 1
        target[start : start + step] = (value * std + mean).reshape(target[start : start + step].shape)


def _mixed(bits: Tensor) -> Tensor:
    """A one-to-one scramble of 32-bit numbers held in 64 bits, in exact integers, so alike on every device."""
    for _ in range(2):
        bits = ((bits ^ (bits >> 16)) * 0x45D9F3B) & 0xFFFFFFFF  # an odd factor; the product stays below 2**59
    return bits ^ (bits >> 16)


def _moments(piece: Piece, config: ModelConfig) -> tuple[float, float]:
    """Mean and standard deviation of a parameter.

    Matrices keep a unit input at unit size, but: the head doubles it, queries and keys are larger so that scores
    spread by about 2, and what joins the residual stream is smaller the more layers there are.
    """
    kind = piece.name.rsplit(".", 2)[-2]
    if kind in ("q_norm", "k_norm"):
        return 1.4, 0.4
    if "norm" in kind:
        return 1.0, 0.3
    if piece.name.endswith(".bias"):
        return 0.0, 0.5
    if kind == "embed_tokens" and not config.tied:
        return 0.0, 1.0
    gain = {"embed_tokens": 2.0, "lm_head": 2.0, "q_proj": 1.4, "k_proj": 1.4}.get(kind, 1.0)
    if kind in ("o_proj", "down_proj"):
        gain = math.sqrt(1.0 / config.layers)
    return 0.0, gain / math.sqrt(piece.shape[1])
