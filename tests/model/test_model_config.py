"""Configurations: what transformers writes is read back, and what is not supported is refused by name."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from mooncake_edu.errors import ModelError
from mooncake_edu.model.config import LLAMA_70B, SMOLLM2_135M, TINY, ModelConfig, Rope

PLAIN: dict[str, Any] = {
    "model_type": "llama", "hidden_size": 64, "num_hidden_layers": 2, "num_attention_heads": 4,
    "num_key_value_heads": 2, "intermediate_size": 96, "vocab_size": 300, "max_position_embeddings": 512,
    "rms_norm_eps": 1e-5, "rope_theta": 5000.0,
}  # fmt: skip


def read(folder: Path, **changes: Any) -> ModelConfig:
    (folder / "config.json").write_text(json.dumps(PLAIN | changes))
    return ModelConfig.from_folder(folder)


@pytest.mark.parametrize("config", [TINY, SMOLLM2_135M, LLAMA_70B, replace(TINY, rope=Rope("linear", 1e4, 2.0))])
def test_a_configuration_written_is_read_back_the_same(config: ModelConfig, tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text(json.dumps(config.to_dict()))
    assert ModelConfig.from_folder(tmp_path, config.name) == config


def test_the_name_is_that_of_the_folder(tmp_path: Path) -> None:
    assert read(tmp_path).name == tmp_path.name


LLAMA3 = {"factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0, "original_max_position_embeddings": 128}
SPELLINGS: list[tuple[dict[str, Any], Rope]] = [
    ({}, Rope("default", 5000.0)),
    ({"rope_scaling": None}, Rope("default", 5000.0)),
    ({"rope_scaling": {"type": "linear", "factor": 2.0}}, Rope("linear", 5000.0, 2.0)),
    ({"rope_scaling": {"rope_type": "llama3"} | LLAMA3}, Rope("llama3", 5000.0, 8.0, 1.0, 4.0, 128)),
    ({"rope_parameters": {"rope_type": "default", "rope_theta": 7000.0}}, Rope("default", 7000.0)),
    (
        {"rope_parameters": {"rope_type": "llama3", "rope_theta": 7000.0} | LLAMA3},
        Rope("llama3", 7000.0, 8.0, 1.0, 4.0, 128),
    ),
]


@pytest.mark.parametrize(("spelling", "rope"), SPELLINGS)
def test_rope_is_read_in_its_old_and_its_new_spelling(spelling: dict[str, Any], rope: Rope, tmp_path: Path) -> None:
    assert read(tmp_path, **spelling).rope == rope


def test_families_bring_their_ingredients(tmp_path: Path) -> None:
    assert not read(tmp_path).qkv_bias and not read(tmp_path).qk_norm
    assert read(tmp_path, model_type="qwen2").qkv_bias
    assert read(tmp_path, model_type="qwen3", head_dim=32).qk_norm
    assert read(tmp_path, model_type="qwen3", head_dim=32).head_dim == 32
    assert read(tmp_path, model_type="mistral", sliding_window=None).family == "mistral"


def test_end_tokens_of_both_files_count(tmp_path: Path) -> None:
    (tmp_path / "generation_config.json").write_text('{"eos_token_id": [7, 2]}')
    assert read(tmp_path, eos_token_id=2).eos == (2, 7)


def test_a_window_that_no_text_can_fill_is_not_in_use(tmp_path: Path) -> None:
    assert read(tmp_path, model_type="mistral", sliding_window=512).positions == 512
    assert read(tmp_path, model_type="qwen2", sliding_window=64, use_sliding_window=False).positions == 512


REFUSED: list[tuple[dict[str, Any], str]] = [
    ({"model_type": "gemma3_text"}, "model_type 'gemma3_text' is not supported"),
    ({"model_type": "qwen3_moe"}, "model_type 'qwen3_moe' is not supported"),
    ({"model_type": None}, "model_type None is not supported"),
    ({"model_type": ["llama"]}, r"model_type \['llama'\] is not supported"),
    ({"architectures": ["LlamaForSequenceClassification"]}, "architectures .* is not supported"),
    ({"auto_map": {"AutoConfig": "evil.Config"}}, "auto_map .* asks for code"),
    ({"quantization_config": {"quant_method": "gptq", "bits": 4}}, "quantization_config .* quantised"),
    ({"rope_scaling": {"rope_type": "yarn", "factor": 4.0}}, "rope type 'yarn' is not supported"),
    ({"rope_scaling": {"type": "dynamic", "factor": 4.0}}, "rope type 'dynamic' is not supported"),
    ({"rope_scaling": {"type": ["linear"]}}, r"rope type \['linear'\] is not supported"),
    ({"rope_scaling": 5}, "rope_scaling 5 is not an object"),
    ({"rope_scaling": {"type": "linear"}}, "[Ff]actor"),
    ({"rope_scaling": {"type": "linear", "factor": "two"}}, "rope factor 'two' is not a number"),
    ({"rope_scaling": {"type": "linear", "factor": float("nan")}}, "rope factor nan is not a number"),
    ({"rope_scaling": {"rope_type": "llama3"} | LLAMA3 | {"low_freq_factor": 4.0}}, "high_freq_factor 4 is not above"),
    ({"rope_parameters": {"rope_type": "default", "partial_rotary_factor": 0.5}}, "partial_rotary_factor 0.5"),
    ({"rope_theta": -1.0}, "rope theta -1.0"),
    ({"hidden_act": "gelu"}, "hidden_act 'gelu' is not supported"),
    ({"attention_bias": True}, "attention_bias True is not supported"),
    ({"mlp_bias": True}, "mlp_bias True is not supported"),
    ({"model_type": "mistral", "max_position_embeddings": 8192}, "sliding_window 4096 is in use"),
    ({"model_type": "mistral", "sliding_window": 128}, "sliding_window 128 is in use"),
    ({"model_type": "qwen2", "use_sliding_window": True, "sliding_window": 64, "max_window_layers": 1}, "_window 64"),
    ({"hidden_size": 1 << 40}, "hidden 1099511627776 is not a whole number"),
    ({"num_hidden_layers": 0}, "layers 0 is not a whole number"),
    ({"num_hidden_layers": -3}, "layers -3 is not a whole number"),
    ({"num_attention_heads": 0}, "refused by transformers"),
    ({"num_key_value_heads": 3}, "3 KV heads do not divide 4 heads"),
    ({"head_dim": 15}, "head_dim.*15"),
    ({"hidden_size": "many"}, "refused by transformers"),
    ({"rms_norm_eps": float("inf")}, "norm_eps inf is not a number"),
    ({"eos_token_id": 300}, "eos token 300 is not a token from 0 to 299"),
]  # fmt: skip


@pytest.mark.parametrize(("changes", "reason"), REFUSED, ids=[str(changes) for changes, _ in REFUSED])
def test_what_is_not_supported_is_refused_by_name_in_one_line(
    changes: dict[str, Any], reason: str, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(ModelError, match=reason) as refusal:
        read(tmp_path, **changes)
    assert "\n" not in str(refusal.value)
    assert capfd.readouterr() == ("", "")


def test_a_missing_or_broken_configuration_is_named(tmp_path: Path) -> None:
    with pytest.raises(ModelError, match="nowhere does not exist"):
        ModelConfig.from_folder(tmp_path / "nowhere")
    with pytest.raises(ModelError, match=r"config.json cannot be read"):
        ModelConfig.from_folder(tmp_path)
    for text in (b"{", b"\xff\xfe", b"[1]", b'"a"', b"[" * 100_000, b" " * (2 << 20)):
        (tmp_path / "config.json").write_bytes(text)
        with pytest.raises(ModelError, match=r"config.json"):
            ModelConfig.from_folder(tmp_path)
