"""The shape of a decoder, from a Hugging Face folder or a preset; what is not supported is refused by name."""

from __future__ import annotations

import logging
import math
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from mooncake_edu.errors import ModelError
from mooncake_edu.model.folders import read_json

FAMILIES = {
    "llama": "LlamaForCausalLM",
    "mistral": "MistralForCausalLM",
    "qwen2": "Qwen2ForCausalLM",
    "qwen3": "Qwen3ForCausalLM",
}
"""Family, as in a configuration's model_type, and the architecture that goes with it."""

ROPES = ("default", "linear", "llama3")

CONFIG_LIMIT = 1 << 20
"""Bytes of a config.json; real ones have a few kilobytes."""

LIMITS = {
    "layers": 1024,
    "hidden": 1 << 17,
    "heads": 4096,
    "kv_heads": 4096,
    "head_dim": 1024,
    "intermediate": 1 << 20,
    "vocab": 1 << 22,
    "positions": 1 << 24,
}
"""The largest value believed of each size, several times that of any published model."""


def _require_size(name: str, value: object, largest: int) -> None:
    if isinstance(value, bool) or not isinstance(value, int) or not 1 <= value <= largest:
        raise ModelError(f"{name} {value!r} is not a whole number from 1 to {largest}: mend config.json")


def _require_real(name: str, value: object, low: float, high: float) -> None:
    usable = isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value)
    if not usable or not low <= value <= high:  # type: ignore[operator]
        raise ModelError(f"{name} {value!r} is not a number from {low:g} to {high:g}: mend config.json")


@dataclass(frozen=True)
class Rope:
    """How positions turn queries and keys (rotary embedding).

    `linear` divides every position by `factor`; `llama3` slows low frequencies by `factor`, keeps high ones and
    blends between, where low and high are counted in turns within `original_positions` tokens.
    """

    kind: str = "default"
    theta: float = 10000.0
    factor: float = 1.0
    low_freq_factor: float = 1.0
    high_freq_factor: float = 4.0
    original_positions: int = 8192

    def __post_init__(self) -> None:
        if self.kind not in ROPES:
            raise ModelError(f"rope type {self.kind!r} is not supported: use a model with one of {', '.join(ROPES)}")
        _require_real("rope theta", self.theta, 1.0, 1e12)
        _require_real("rope factor", self.factor, 1.0, 1e6)
        _require_real("rope low_freq_factor", self.low_freq_factor, 1e-6, 1e6)
        _require_real("rope high_freq_factor", self.high_freq_factor, 1e-6, 1e6)
        _require_size("rope original positions", self.original_positions, LIMITS["positions"])
        if self.kind == "llama3" and self.high_freq_factor <= self.low_freq_factor:
            raise ModelError(f"rope high_freq_factor {self.high_freq_factor:g} is not above low_freq_factor "
                             f"{self.low_freq_factor:g}: mend config.json")  # fmt: skip


@dataclass(frozen=True)
class ModelConfig:
    """The sizes and ingredients of a decoder of the Llama family.

    `hidden`, `head_dim`, `intermediate` count channels, `positions` and `vocab` tokens. `eos` are the tokens that end
    a text. Raises ModelError if a size is no sensible number or they do not fit together.
    """

    name: str
    family: str
    layers: int
    hidden: int
    heads: int
    kv_heads: int
    head_dim: int
    intermediate: int
    vocab: int
    positions: int
    norm_eps: float = 1e-5
    rope: Rope = Rope()
    qkv_bias: bool = False
    qk_norm: bool = False
    tied: bool = False
    eos: tuple[int, ...] = ()

    def __post_init__(self) -> None:
        if self.family not in FAMILIES:
            raise ModelError(f"model family {self.family!r} is not supported: use one of {', '.join(FAMILIES)}")
        for size, largest in LIMITS.items():
            _require_size(size, getattr(self, size), largest)
        _require_real("norm_eps", self.norm_eps, 0.0, 1.0)
        if self.heads % self.kv_heads:
            raise ModelError(f"{self.kv_heads} KV heads do not divide {self.heads} heads: mend config.json")
        if self.head_dim % 2:
            raise ModelError(f"head_dim {self.head_dim} is odd, which rope cannot turn: mend config.json")
        for token in self.eos:
            if isinstance(token, bool) or not isinstance(token, int) or not 0 <= token < self.vocab:
                raise ModelError(f"eos token {token!r} is not a token from 0 to {self.vocab - 1}: mend config.json")

    @classmethod
    def from_folder(cls, folder: Path | str, name: str | None = None) -> ModelConfig:
        """The configuration in a Hugging Face model folder, with defaults filled in by transformers.

        Never runs code from the folder. Raises ModelError naming the key, the value and the remedy if the folder
        has no readable configuration or the model is not supported.
        """
        folder = Path(folder)
        if not folder.is_dir():
            raise ModelError(f"model folder {folder} does not exist: check the path, or see `mooncake-edu models list`")
        raw = read_json(folder / "config.json", CONFIG_LIMIT)
        _refuse_unread(raw)
        full = _through_transformers(folder)
        _refuse_unsupported(full)
        return _from_dict(full, name or folder.resolve().name, _eos(folder, full))

    def to_dict(self) -> dict[str, Any]:
        """The config.json of this model, in Hugging Face's keys."""
        scaling: dict[str, Any] | None = None
        if self.rope.kind != "default":
            scaling = {"rope_type": self.rope.kind, "factor": self.rope.factor}
        if scaling and self.rope.kind == "llama3":
            scaling |= {
                "low_freq_factor": self.rope.low_freq_factor,
                "high_freq_factor": self.rope.high_freq_factor,
                "original_max_position_embeddings": self.rope.original_positions,
            }
        return {
            "architectures": [FAMILIES[self.family]],
            "model_type": self.family,
            "num_hidden_layers": self.layers,
            "hidden_size": self.hidden,
            "num_attention_heads": self.heads,
            "num_key_value_heads": self.kv_heads,
            "head_dim": self.head_dim,
            "intermediate_size": self.intermediate,
            "vocab_size": self.vocab,
            "max_position_embeddings": self.positions,
            "rms_norm_eps": self.norm_eps,
            "rope_theta": self.rope.theta,
            "rope_scaling": scaling,
            "tie_word_embeddings": self.tied,
            "hidden_act": "silu",
            "attention_bias": False,
            "mlp_bias": False,
            "use_sliding_window": False,
            "sliding_window": None,
            "bos_token_id": None,
            "eos_token_id": list(self.eos) or None,
        }


def _refuse_unread(raw: dict[str, Any]) -> None:
    """Refuses what transformers would drop silently, run, or answer with more than one line."""
    family = raw.get("model_type")
    if not isinstance(family, str) or family not in FAMILIES:
        raise ModelError(f"model_type {family!r} is not supported: use a model of {', '.join(FAMILIES)}")
    architectures = raw.get("architectures") or [FAMILIES[family]]
    if architectures != [FAMILIES[family]]:
        raise ModelError(f"architectures {architectures!r} is not supported: use a {FAMILIES[family]}")
    if raw.get("auto_map"):
        raise ModelError(f"auto_map {raw['auto_map']!r} asks for code of the model's own: use a model without")
    for key in ("quantization_config", "compression_config"):
        if raw.get(key):
            raise ModelError(f"{key} says that the weights are quantised: use float32, bfloat16 or float16 weights")
    scaling = raw.get("rope_parameters") or raw.get("rope_scaling") or {}
    if not isinstance(scaling, dict):
        raise ModelError(f"rope_scaling {scaling!r} is not an object: mend config.json")
    kind = scaling.get("rope_type", scaling.get("type", "default"))
    if kind not in ROPES:
        raise ModelError(f"rope type {kind!r} is not supported: use a model with one of {', '.join(ROPES)}")


def _through_transformers(folder: Path) -> dict[str, Any]:
    """The configuration with every default of its family filled in and rope in one spelling."""
    from transformers import AutoConfig  # seconds to import, so only where a folder is read

    try:
        with _quiet_transformers():
            config = AutoConfig.from_pretrained(folder, local_files_only=True, trust_remote_code=False)
    except Exception as error:  # the library raises many kinds, none of them its own
        reason = " ".join(str(error).split())[:300]
        raise ModelError(f"{folder / 'config.json'} is refused by transformers ({reason}): mend it") from error
    return dict(config.to_dict())


@contextmanager
def _quiet_transformers() -> Iterator[None]:
    """Holds back the library's warnings: what is wrong is said here, in one line."""
    logger = logging.getLogger("transformers")
    before = logger.level
    logger.setLevel(logging.ERROR)
    try:
        yield
    finally:
        logger.setLevel(before)


def _refuse_unsupported(full: dict[str, Any]) -> None:
    """Refuses ingredients that this decoder does not compute."""
    if full.get("hidden_act") != "silu":
        raise ModelError(f"hidden_act {full.get('hidden_act')!r} is not supported: use a model with silu")
    for key in ("attention_bias", "mlp_bias"):
        if full.get(key):
            raise ModelError(f"{key} {full[key]!r} is not supported: use a model without bias on o and mlp")
    types = full.get("layer_types")
    if types is None:  # families without the key apply one window to all layers
        types = ["full_attention"] if _window_unused(full) else ["sliding_attention"]
    if set(types) != {"full_attention"}:
        raise ModelError(f"sliding_window {full.get('sliding_window')!r} is in use: use a model with full attention")
    partial = full["rope_parameters"].get("partial_rotary_factor", 1.0)
    if partial != 1.0:
        raise ModelError(f"partial_rotary_factor {partial!r} is not supported: use a model that turns whole heads")


def _window_unused(full: dict[str, Any]) -> bool:
    window = full.get("sliding_window")
    return window is None or window >= full["max_position_embeddings"]


def _from_dict(full: dict[str, Any], name: str, eos: tuple[int, ...]) -> ModelConfig:
    family, heads, hidden = full["model_type"], full["num_attention_heads"], full["hidden_size"]
    rope, positions = full["rope_parameters"], full["max_position_embeddings"]
    return ModelConfig(
        name=name,
        family=family,
        layers=full["num_hidden_layers"],
        hidden=hidden,
        heads=heads,
        kv_heads=full.get("num_key_value_heads") or heads,
        head_dim=full.get("head_dim") or hidden // heads,
        intermediate=full["intermediate_size"],
        vocab=full["vocab_size"],
        positions=positions,
        norm_eps=full["rms_norm_eps"],
        rope=_rope(rope, positions),
        qkv_bias=family == "qwen2",
        qk_norm=family == "qwen3",
        tied=bool(full.get("tie_word_embeddings")),
        eos=eos,
    )


def _rope(entry: dict[str, Any], positions: int) -> Rope:
    kind, theta, factor = entry["rope_type"], entry["rope_theta"], entry.get("factor", math.nan)
    if kind == "default":
        return Rope(kind, theta)
    if kind == "linear":
        return Rope(kind, theta, factor)
    low, high = entry.get("low_freq_factor", math.nan), entry.get("high_freq_factor", math.nan)  # refused by Rope
    return Rope(kind, theta, factor, low, high, entry.get("original_max_position_embeddings") or positions)


def _eos(folder: Path, full: dict[str, Any]) -> tuple[int, ...]:
    """End tokens of both configuration files: chat models often name theirs only in the one for generation."""
    found = [full.get("eos_token_id")]
    generation = folder / "generation_config.json"
    if generation.exists():
        found.append(read_json(generation, CONFIG_LIMIT).get("eos_token_id"))
    tokens: list[int] = []
    for entry in found:
        tokens += entry if isinstance(entry, list) else [] if entry is None else [entry]
    return tuple(dict.fromkeys(tokens))


TINY = ModelConfig("tiny", "llama", layers=8, hidden=256, heads=8, kv_heads=4, head_dim=32, intermediate=688,
                   vocab=264, positions=4096, eos=(258, 262))  # fmt: skip
"""The model of the smallest size: random weights, 256 bytes and 8 marks as its vocabulary (see ByteTokenizer)."""

SMOLLM2_135M = ModelConfig("smollm2-135m", "llama", layers=30, hidden=576, heads=9, kv_heads=3, head_dim=64,
                           intermediate=1536, vocab=49152, positions=8192, rope=Rope(theta=100000.0), tied=True,
                           eos=(2,))  # fmt: skip
"""The shape of SmolLM2-135M-Instruct, read from its configuration."""

LLAMA_70B = ModelConfig("llama-70b", "llama", layers=80, hidden=8192, heads=64, kv_heads=8, head_dim=128,
                        intermediate=28672, vocab=128256, positions=131072, eos=(128001, 128008, 128009),
                        rope=Rope("llama3", 500000.0, 8.0, 1.0, 4.0, 8192))  # fmt: skip
"""The shape of Llama 3.1 70B, the size that the paper's dummy model follows (FAST table 1)."""
