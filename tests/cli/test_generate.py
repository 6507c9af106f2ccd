"""`generate` continues a prompt as the engine does, and refuses in one line what cannot work."""

from __future__ import annotations

import dataclasses
import io
import sys
from pathlib import Path

import psutil
import pytest

from mooncake_edu.config import EngineConfig
from mooncake_edu.engine import Engine, options
from mooncake_edu.model import Model, load, loading
from mooncake_edu.request import SamplingParams
from tests.cli.conftest import Run

TINY = ("--model", "tiny", "--ignore-eos", "--max-tokens", "24")


def test_the_text_is_the_engine_s(run: Run) -> None:
    model = load("tiny")
    engine = Engine(model, EngineConfig(blocks=64))
    tokens = engine.generate([model.tokenizer.encode("hello")], SamplingParams(max_tokens=24, ignore_eos=True))
    ended = run("generate", "hello", *TINY)
    assert (ended.status, ended.err) == (0, "")
    assert ended.out == model.tokenizer.decode(tokens[0]) + "\n"


def test_streaming_changes_when_the_text_comes_and_not_what_it_is(run: Run) -> None:
    assert run("generate", "hello", *TINY, "--no-stream").out == run("generate", "hello", *TINY).out


def test_a_prompt_may_come_from_standard_input(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(b"hello")))
    assert run("generate", *TINY).out == run("generate", "hello", *TINY).out


def test_a_seed_makes_a_sample_repeatable(run: Run) -> None:
    def sampled(seed: str) -> str:
        wild = ("--temperature", "2", "--top-k", "50", "--top-p", "0.99")
        return run("generate", "hello", *TINY, *wild, "--seed", seed).out

    assert sampled("1") == sampled("1") != sampled("2")


def test_text_ends_before_a_stop_string(run: Run) -> None:
    whole = run("generate", "hello", *TINY).out.removesuffix("\n")
    stop = whole[5:8]
    assert run("generate", "hello", *TINY, "--stop", stop).out == whole[: whole.index(stop)] + "\n"


def test_stats_count_the_prompt_and_the_output(run: Run) -> None:
    ended = run("generate", "hello", *TINY, "--stats")
    assert "5 prompt tokens, 0 of them cached; 24 tokens out; TTFT 0." in ended.err
    assert run("generate", "hello", *TINY, "--chat", "--stats").err.startswith("prompt: 9 prompt tokens")


def test_chat_takes_every_option_of_generate_that_is_about_the_engine_or_the_sampling(run: Run) -> None:
    names = {f"--{field.name.replace('_', '-')}" for field in dataclasses.fields(options.Options)}
    for command in ("generate", "chat"):
        assert names <= set(run(command, "--help").out.split())


def test_options_override_the_configuration(run: Run, tmp_path: Path) -> None:
    file = tmp_path / "mine.toml"
    file.write_text('[model]\nname = "tiny"\n[engine]\nblocks = 1\nmax_batch = 1\ntoken_budget = 16\n')
    ended = run("generate", "hello", "--config", str(file), "--max-tokens", "24")
    assert ended.status == 2
    ended = run("generate", "hello", "--config", str(file), "--memory", "1 MiB", *TINY)
    assert (ended.status, ended.out) == (0, run("generate", "hello", *TINY).out)
    assert run("generate", "hello", "--config", "tiny", *TINY).out == ended.out


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["--max-tokens", "0"], ["max_tokens 0", "from 1 to"]),
        (["--max-tokens", "5000"], ["max_tokens 5000", "4096 positions"]),
        (["--temperature", "nan"], ["temperature nan", "from 0 to 100"]),
        (["--temperature", "-1"], ["temperature -1", "from 0 to 100"]),
        (["--top-p", "0"], ["top_p 0", "above 0"]),
        (["--top-k", "-3"], ["top_k -3", "from 0 to"]),
        (["--seed", "-1"], ["seed -1", "from 0 to"]),
        (["--stop", ""], ["stop ''", "drop the empty stop string"]),
        (["--block-size", "0"], ["block_size 0", "from 1 to 512"]),
        (["--block-size", "513"], ["block_size 513", "from 1 to 512"]),
        (["--memory", "1"], ["memory 1 ", "131072 bytes"]),
        (["--memory", "900 TiB"], ["KVCache of 989560464998400 bytes", "give less"]),
        (["--memory", "much"], ["memory 'much'", '"1 GiB"']),
        (["--token-budget", "3"], ["token_budget 3", "max_batch 16"]),
        (["--dtype", "int8"], ["dtype 'int8'", "float32, bfloat16, float16"]),
        (["--device", "abacus"], ["device 'abacus'", "cpu, cuda"]),
        (["--model", "tinny"], ["model 'tinny'", "did you mean 'tiny'?"]),
        (["--config", "absent.toml"], ["absent.toml", "is no file, nor a size"]),
    ],
    ids=lambda value: " ".join(value) if value and value[0].startswith("--") else "",
)
def test_what_cannot_work_is_refused_in_one_line_naming_it(run: Run, arguments: list[str], words: list[str]) -> None:
    ended = run("generate", "hello", "--model", "tiny", *arguments)
    assert (ended.status, ended.out, ended.err.count("\n")) == (2, "", 1)
    for word in words:
        assert word in ended.err


def test_an_empty_prompt_is_refused(run: Run) -> None:
    ended = run("generate", "", *TINY)
    assert ended.status == 2
    assert "the prompt is empty" in ended.err


@pytest.mark.parametrize("command", [["generate", "hi"], ["demo", "--quick"], ["bench", "engine", "--peers", "none"]])
def test_a_model_larger_than_the_free_memory_is_refused_before_any_is_taken(
    run: Run, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, command: list[str]
) -> None:
    def allocate(*arguments: object, **options: object) -> None:
        pytest.fail("memory was taken")

    monkeypatch.chdir(tmp_path)
    free = type(psutil.virtual_memory())
    monkeypatch.setattr("psutil.virtual_memory", lambda: free(10**12, 141 * 10**9, *[0] * (len(free._fields) - 2)))
    monkeypatch.setattr("mooncake_edu.model.weights._fill_random", allocate)
    ended = run(*command, "--model", "llama-70b")
    assert (ended.status, ended.err.count("\n")) == (2, 1)
    assert "llama-70b: its weights in float32 take 282.2 GB, their packed copies" in ended.err
    assert "141.0 GB of memory are free: use" in ended.err


def test_an_answer_that_is_no_numbers_is_refused_with_a_remedy_that_is_not_in_use_already(
    run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    def broken(name: str, **how: object) -> Model:
        model = load("tiny", **how)  # type: ignore[arg-type]
        model.decoder.weights.layers[0].attn_norm.fill_(float("nan"))
        return model

    monkeypatch.setattr(loading, "load", broken)
    low, full = (run("generate", "hello", *TINY, "--dtype", dtype) for dtype in ("bfloat16", "float32"))
    assert low.status == full.status == 2
    assert low.err == "mooncake-edu: tiny computed logits that are not numbers: use --dtype float32\n"
    assert "not numbers: its weights are damaged, fetch them again" in full.err and "float32" not in full.err
