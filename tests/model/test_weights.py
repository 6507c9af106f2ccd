"""Weights: what is loaded is what is stored, a rank holds its slice of the whole, and broken files are refused."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from dataclasses import fields, replace
from pathlib import Path

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from safetensors.torch import load_file, save_file
from torch import Tensor

from mooncake_edu.errors import ModelError
from mooncake_edu.model.config import LLAMA_70B, TINY, ModelConfig
from mooncake_edu.model.parallel import Cut, whole
from mooncake_edu.model.weights import (
    LayerWeights,
    Weights,
    as_dtype,
    check_folder,
    load_weights,
    parameters,
    random_weights,
    save_weights,
)

SMALL = replace(TINY, layers=4, hidden=64, head_dim=16, intermediate=96, vocab=272)
QWEN2 = replace(SMALL, family="qwen2", qkv_bias=True, tied=True)
QWEN3 = replace(SMALL, family="qwen3", qk_norm=True)
SHAPES = {"llama": SMALL, "tied": replace(SMALL, tied=True), "qwen2": QWEN2, "qwen3": QWEN3}


def equal(ours: Weights, theirs: Weights) -> bool:
    pairs = list(zip(ours.tensors(), theirs.tensors(), strict=True))
    return all(a.dtype == b.dtype and torch.equal(a, b) for a, b in pairs)


def slices(config: ModelConfig, layer: LayerWeights, cut: Cut) -> dict[str, Tensor | None]:
    """A rank's share of a whole layer, cut by hand: heads of each of q, k and v, channels of gate and of up."""
    dim, q, kv = config.head_dim, config.heads, config.kv_heads

    def run(count: int, offset: int = 0, unit: int = 1) -> range:
        share = range(cut.rank * count // cut.size, (cut.rank + 1) * count // cut.size)
        return range((offset + share.start) * unit, (offset + share.stop) * unit)

    rows = [*run(q, 0, dim), *run(kv, q, dim), *run(kv, q + kv, dim)]
    halves = [*run(config.intermediate), *run(config.intermediate, config.intermediate)]
    bias = None if layer.qkv_bias is None else layer.qkv_bias[rows]
    return {
        "attn_norm": layer.attn_norm, "mlp_norm": layer.mlp_norm, "q_norm": layer.q_norm, "k_norm": layer.k_norm,
        "qkv": layer.qkv[rows], "qkv_bias": bias, "o": layer.o[:, list(run(q, 0, dim))],
        "gate_up": layer.gate_up[halves], "down": layer.down[:, list(run(config.intermediate))],
    }  # fmt: skip


def assert_share(config: ModelConfig, part: Weights, full: Weights, cut: Cut) -> None:
    assert len(part.layers) == len(cut.layers)
    for index, layer in zip(cut.layers, part.layers, strict=True):
        expected = slices(config, full.layers[index], cut)
        for field in fields(LayerWeights):
            ours, theirs = getattr(layer, field.name), expected[field.name]
            assert (ours is None) == (theirs is None)
            assert ours is None or torch.equal(ours, theirs), field.name
    vocab = slice(cut.rank * config.vocab // cut.size, (cut.rank + 1) * config.vocab // cut.size)
    assert full.embed is not None and full.head is not None and full.norm is not None
    assert (part.embed is not None) == (cut.first or (cut.last and config.tied))
    assert (part.norm is not None) == (part.head is not None) == cut.last
    assert part.embed is None or torch.equal(part.embed, full.embed[vocab])
    assert part.head is None or torch.equal(part.head, full.head[vocab])
    assert part.norm is None or torch.equal(part.norm, full.norm)


def cuts() -> st.SearchStrategy[Cut]:
    ends = st.tuples(st.integers(0, 3), st.integers(1, 4)).filter(lambda pair: pair[0] < pair[1])
    shares = st.sampled_from([(rank, size) for size in (1, 2, 4) for rank in range(size)])
    return st.builds(lambda run, share: Cut(range(*run), SMALL.layers, *share), ends, shares)


@pytest.fixture(scope="module")
def stored(tmp_path_factory: pytest.TempPathFactory) -> dict[str, tuple[Path, Weights]]:
    """Each shape's folder and its whole weights."""
    made = {}
    for name, config in SHAPES.items():
        folder = tmp_path_factory.mktemp("weights") / name
        weights = random_weights(config, whole(config.layers), seed=5)
        save_weights(folder, config, weights)
        made[name] = folder, weights
    return made


@settings(max_examples=60, deadline=None)
@given(cut=cuts(), shape=st.sampled_from(list(SHAPES)))
def test_a_rank_holds_its_slice_of_the_whole_whether_made_or_loaded(
    stored: dict[str, tuple[Path, Weights]], cut: Cut, shape: str
) -> None:
    folder, full = stored[shape]
    config = SHAPES[shape]
    assert_share(config, random_weights(config, cut, seed=5), full, cut)
    assert_share(config, load_weights(folder, config, cut), full, cut)


@pytest.mark.parametrize("shape", SHAPES)
def test_what_was_saved_is_loaded(stored: dict[str, tuple[Path, Weights]], shape: str) -> None:
    folder, weights = stored[shape]
    assert equal(load_weights(folder, SHAPES[shape], whole(4)), weights)
    assert replace(check_folder(folder), name="tiny") == SHAPES[shape]


def test_a_tied_head_is_the_embedding_itself(stored: dict[str, tuple[Path, Weights]]) -> None:
    folder, _ = stored["tied"]
    loaded = load_weights(folder, SHAPES["tied"], whole(4))
    assert loaded.head is loaded.embed
    last = load_weights(folder, SHAPES["tied"], Cut(range(2, 4), 4))
    assert last.head is last.embed and last.head is not None


def test_the_checkpoint_of_transformers_in_several_files_is_read(tmp_path: Path) -> None:
    from transformers import AutoModelForCausalLM

    save_weights(tmp_path / "one", QWEN3, weights := random_weights(QWEN3, whole(4)))
    model = AutoModelForCausalLM.from_pretrained(tmp_path / "one", local_files_only=True)
    model.save_pretrained(tmp_path / "many", max_shard_size="100KB")
    assert len(list((tmp_path / "many").glob("*.safetensors"))) > 3
    config = check_folder(tmp_path / "many")
    assert equal(load_weights(tmp_path / "many", config, whole(4)), weights)


@pytest.mark.parametrize("dtype", ["bfloat16", "float16"])
def test_stored_numbers_are_rounded_once_to_the_type_asked_for(
    stored: dict[str, tuple[Path, Weights]], dtype: str
) -> None:
    folder, weights = stored["llama"]
    loaded = load_weights(folder, SMALL, whole(4), dtype)
    for ours, theirs in zip(loaded.tensors(), weights.tensors(), strict=True):
        assert torch.equal(ours, theirs.to(as_dtype(dtype)))


def test_random_weights_depend_on_the_seed_alone() -> None:
    first, again, other = (random_weights(SMALL, whole(4), seed=seed) for seed in (1, 1, 2))
    assert equal(first, again)
    assert not any(torch.equal(a, b) for a, b in zip(first.tensors(), other.tensors(), strict=True))


def test_no_two_rows_or_columns_of_random_weights_are_alike() -> None:
    layer = random_weights(TINY, whole(8)).layers[0]
    for matrix in (layer.qkv, layer.o, layer.gate_up, layer.down):
        for rows in (matrix, matrix.T):
            unit = rows / rows.norm(dim=1, keepdim=True)
            alike = (unit @ unit.T - torch.eye(len(rows))).abs().max()
            assert alike < 0.45


def test_every_kind_of_random_parameter_varies() -> None:
    for config in (QWEN2, QWEN3):
        for tensor in random_weights(config, whole(4)).tensors():
            assert tensor.isfinite().all() and tensor.std() > 0.01


def test_seventy_billion_parameters_take_shape_at_once_on_the_meta_device() -> None:
    full = random_weights(LLAMA_70B, whole(80), "bfloat16", "meta")
    count = sum(shape[0] * (shape[1] if len(shape) > 1 else 1) for shape in parameters(LLAMA_70B).values())
    assert full.nbytes == 2 * count and 70e9 < count < 71e9
    stages = [range(40), range(40, 80)]
    cuts = [Cut(stage, 80, rank, 8) for stage in stages for rank in range(8)]
    parts = [random_weights(LLAMA_70B, cut, "bfloat16", "meta") for cut in cuts]
    norms = 7 * (2 * 80 + 1) * 8192 * 2  # each of the other seven ranks has its own copy
    assert sum(part.nbytes for part in parts) == full.nbytes + norms


def test_a_size_that_does_not_divide_the_heads_is_refused() -> None:
    with pytest.raises(ModelError, match="tensor parallel size 8 does not divide 4 KV heads"):
        random_weights(SMALL, Cut(range(4), 4, 0, 8))
    with pytest.raises(ModelError, match="a cut of 5 layers does not fit tiny of 4 layers"):
        random_weights(SMALL, whole(5))


def test_types_other_than_those_of_weights_are_refused() -> None:
    with pytest.raises(ModelError, match="dtype int8 is not supported: use one of float32, bfloat16, float16"):
        random_weights(SMALL, whole(4), torch.int8)


def test_only_whole_models_are_saved_and_never_over_another(tmp_path: Path) -> None:
    with pytest.raises(ModelError, match="2 of 4 layers"):
        save_weights(tmp_path / "m", SMALL, random_weights(SMALL, Cut(range(2), 4)))
    assert not (tmp_path / "m").exists()
    weights = random_weights(SMALL, whole(4))
    save_weights(tmp_path / "m", SMALL, weights)
    before = (tmp_path / "m" / "model.safetensors").read_bytes()
    with pytest.raises(ModelError, match="exists already"):
        save_weights(tmp_path / "m", SMALL, random_weights(SMALL, whole(4), seed=9))
    assert (tmp_path / "m" / "model.safetensors").read_bytes() == before
    assert [path.name for path in tmp_path.iterdir()] == ["m"]


FILE = "model.safetensors"
O_PROJ = "model.layers.1.self_attn.o_proj.weight"


def rewrite(folder: Path, change: Callable[[dict[str, Tensor]], object]) -> None:
    tensors = load_file(folder / FILE)
    change(tensors)
    save_file(tensors, folder / FILE)


def cut_off(folder: Path) -> None:
    (folder / FILE).write_bytes((folder / FILE).read_bytes()[:-1000])


def cut_in_the_header(folder: Path) -> None:
    (folder / FILE).write_bytes((folder / FILE).read_bytes()[:500])


def garble_the_header(folder: Path) -> None:
    content = bytearray((folder / FILE).read_bytes())
    content[8:200] = b"x" * 192
    (folder / FILE).write_bytes(content)


def claim_a_huge_header(folder: Path) -> None:
    content = bytearray((folder / FILE).read_bytes())
    content[:8] = (1 << 62).to_bytes(8, "little")
    (folder / FILE).write_bytes(content)


def empty(folder: Path) -> None:
    (folder / FILE).write_bytes(b"")


def overlap(folder: Path) -> None:
    """Two tensors that claim the same bytes."""
    content = (folder / FILE).read_bytes()
    length = int.from_bytes(content[:8], "little")
    header = json.loads(content[8 : 8 + length])
    first, second = [name for name in header if "q_proj" in name][:2]
    header[first]["data_offsets"] = header[second]["data_offsets"]
    text = json.dumps(header).encode().ljust(length)
    (folder / FILE).write_bytes(len(text).to_bytes(8, "little") + text + content[8 + length :])


def drop_a_tensor(folder: Path) -> None:
    rewrite(folder, lambda tensors: tensors.pop(O_PROJ))


def transpose_a_tensor(folder: Path) -> None:
    rewrite(folder, lambda tensors: tensors.update({O_PROJ: torch.zeros(64, 64 * 2 + 1)}))


def round_a_tensor(folder: Path) -> None:
    rewrite(folder, lambda tensors: tensors.update({O_PROJ: tensors[O_PROJ].to(torch.int8)}))


def add_a_tensor(folder: Path) -> None:
    rewrite(folder, lambda tensors: tensors.update({"model.layers.1.self_attn.o_proj.bias": torch.zeros(64)}))


def add_a_layer(folder: Path) -> None:
    rewrite(folder, lambda tensors: tensors.update({O_PROJ.replace(".1.", ".4."): tensors[O_PROJ].clone()}))


def pickle_instead(folder: Path) -> None:
    (folder / FILE).rename(folder / "pytorch_model.bin")


def shards(table: object) -> Callable[[Path], None]:
    def spoil(folder: Path) -> None:
        (folder / FILE).rename(folder / "model-00001-of-00002.safetensors")
        (folder / f"{FILE}.index.json").write_text(json.dumps({"weight_map": table}))

    return spoil


def remove_all(folder: Path) -> None:
    (folder / FILE).unlink()


BROKEN: list[tuple[Callable[[Path], None], str]] = [
    (cut_off, "model.safetensors is corrupt or incomplete"),
    (cut_in_the_header, "model.safetensors is corrupt or incomplete"),
    (garble_the_header, "model.safetensors is corrupt or incomplete"),
    (claim_a_huge_header, "a header of 4611686018427387904 bytes"),
    (empty, "model.safetensors is corrupt or incomplete"),
    (overlap, "model.safetensors is corrupt or incomplete"),
    (drop_a_tensor, f"tensor {O_PROJ} is missing"),
    (transpose_a_tensor, rf"tensor {O_PROJ} .* has shape \(64, 129\), config.json says \(64, 128\)"),
    (round_a_tensor, f"tensor {O_PROJ} .* has type I8"),
    (add_a_tensor, "o_proj.bias .* is unknown to this decoder"),
    (add_a_layer, "model.layers.4.self_attn.o_proj.weight .* is unknown"),
    (pickle_instead, "pytorch_model.bin is a pickle, which can run code"),
    (remove_all, "has no model.safetensors"),
    (shards({O_PROJ: "model-00002-of-00002.safetensors"}), "shard .*model-00002-of-00002.safetensors is missing"),
    (shards({O_PROJ: "model-00001-of-00002.safetensors"}), ""),  # the one that is whole
    (shards({O_PROJ: "../model.safetensors"}), "names '../model.safetensors', not a safetensors file beside it"),
    (shards({O_PROJ: "weights.bin"}), "names 'weights.bin', not a safetensors file"),
    (shards({}), "has no weight_map"),
    (shards([1]), "has no weight_map"),
    (shards({O_PROJ: 1}), "names '1', not a safetensors file"),
]


@pytest.mark.parametrize(("spoil", "reason"), BROKEN)
def test_broken_files_are_refused_by_name_in_one_line(
    spoil: Callable[[Path], None], reason: str, stored: dict[str, tuple[Path, Weights]], tmp_path: Path
) -> None:
    folder = tmp_path / "m"
    config = SHAPES["llama"]
    shutil.copytree(stored["llama"][0], folder)
    spoil(folder)
    if not reason:
        assert equal(load_weights(folder, config, whole(4)), stored["llama"][1])
        return
    for look in (lambda: load_weights(folder, config, whole(4)), lambda: check_folder(folder)):
        with pytest.raises(ModelError, match=reason) as refusal:
            look()
        assert "\n" not in str(refusal.value)


def test_leftovers_of_old_checkpoints_are_passed_over(tmp_path: Path) -> None:
    config = SHAPES["tied"]
    save_weights(tmp_path / "m", config, weights := random_weights(config, whole(4)))
    extra = {"model.layers.0.self_attn.rotary_emb.inv_freq": torch.ones(8), "lm_head.weight": torch.ones(272, 64)}
    rewrite(tmp_path / "m", lambda tensors: tensors.update(extra))
    assert equal(load_weights(tmp_path / "m", config, whole(4)), weights)
