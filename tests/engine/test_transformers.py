"""A real model on real text: the same words as transformers, whatever chunks, sharing and preemption do meanwhile."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from mooncake_edu.config import EngineConfig
from mooncake_edu.engine import Engine
from mooncake_edu.events import Kind
from mooncake_edu.model import Model, load
from mooncake_edu.request import SamplingParams

pytestmark = [pytest.mark.slow, pytest.mark.timeout(1800)]

COUNT = 128
"""Tokens of each continuation."""

NEAR = 1e-3
"""Where transformers' best two logits are closer than this, the order of adding up decides which is the best."""

VILLAGE = (
    "The village lies where the river leaves the hills. In spring the water rises and the lower road is closed for two "
    "weeks, so the children of the mill walk to school over the old stone bridge. The baker opens at five, the post "
    "office at nine, and the library only on Wednesdays. There are three wells: one by the church, one behind the inn, "
    "and one that has been dry for as long as anyone remembers. Every autumn the farmers bring apples, walnuts and "
    "honey to the market, and the schoolteacher, Mrs. Alder, writes down the price of each in a green book. The book "
    "goes back to the year of the great frost, when apples cost more than silver and the river could be crossed on "
    "foot. Her pupils learn to add with those numbers, to subtract with them, and to doubt them. "
)

PROMPTS = [
    "The capital of France is",
    "Once upon a time, in a house at the edge of the forest,",
    "To bake a simple loaf of bread, you need",
    "def fibonacci(n):\n    ",
    "The three laws of motion say that",
    "Dear Sir or Madam,\n\nI am writing to",
    "1, 1, 2, 3, 5, 8, 13,",
    "Q: Why is the sky blue?\nA:",
    "The quick brown fox",
    "In the year 1969, two people walked on",
    "A cache is useful when",
    "| Month | Rain in mm |\n|---|---|\n| January | 81 |\n",
    "Une phrase en français : le chat",
    "The main difference between a virus and a bacterium is",
    "SELECT name, price FROM products WHERE",
    "Water boils at",
    VILLAGE + "The first thing a visitor notices is",
    VILLAGE + "Mrs. Alder's green book",
    VILLAGE + "Question: how many wells hold water? Answer:",
    VILLAGE * 3 + "In short,",
]


@pytest.fixture(scope="module")
def model(smollm2: Path) -> Model:
    return load(smollm2)


@pytest.fixture(scope="module")
def prompts(model: Model) -> list[list[int]]:
    return [model.tokenizer.encode(text) for text in PROMPTS]


@pytest.fixture(scope="module")
def oracle(smollm2: Path) -> Any:
    """The same weights in transformers, which never ends a text by itself."""
    from transformers import AutoModelForCausalLM

    theirs = AutoModelForCausalLM.from_pretrained(smollm2, dtype=torch.float32, local_files_only=True)
    theirs.generation_config.eos_token_id = None
    return theirs


@pytest.fixture(scope="module")
def theirs(oracle: Any, prompts: list[list[int]]) -> list[list[int]]:
    """The continuations of transformers, made in batches of like length that are padded on the left."""
    made: list[list[int]] = []
    for batch in (prompts[:16], prompts[16:19], prompts[19:]):
        longest = max(map(len, batch))
        rows = torch.tensor([[0] * (longest - len(prompt)) + prompt for prompt in batch])
        mask = torch.tensor([[0] * (longest - len(prompt)) + [1] * len(prompt) for prompt in batch])
        with torch.inference_mode():
            every = oracle.generate(rows, attention_mask=mask, max_new_tokens=COUNT, do_sample=False, pad_token_id=0)
        made += every[:, longest:].tolist()
    assert [len(tokens) for tokens in made] == [COUNT] * len(prompts)
    return made


def continued(model: Model, prompts: list[list[int]], **config: Any) -> tuple[list[list[int]], Engine]:
    engine = Engine(model, EngineConfig(**config))
    return engine.generate(prompts, SamplingParams(max_tokens=COUNT, ignore_eos=True)), engine


@pytest.fixture(scope="module")
def plain(model: Model, prompts: list[list[int]]) -> list[list[int]]:
    """Our own continuations: nothing shared, nothing cut, nobody sent back."""
    made, engine = continued(
        model, prompts, block_size=128, blocks=80, token_budget=4096, max_batch=20, prefix_sharing=False
    )
    assert len(engine.log.select(Kind.PREEMPTED)) == 0 and len(engine.log.select(Kind.CHUNK)) == len(prompts)
    return made


@pytest.fixture
def compare(
    oracle: Any, prompts: list[list[int]], record_property: Callable[[str, object], None]
) -> Callable[[list[list[int]], list[list[int]]], None]:
    """Demands equal tokens up to the first place where two are all but equally good, and counts those places."""

    def gap(prompt: list[int], tokens: list[int]) -> float:
        with torch.inference_mode():
            logits = oracle(torch.tensor([prompt + tokens])).logits[0, -1]
        best = logits.topk(2).values
        return float(best[0] - best[1])

    def check(ours: list[list[int]], others: list[list[int]]) -> None:
        near = 0
        for prompt, one, other in zip(prompts, ours, others, strict=True):
            same = next((n for n in range(COUNT) if one[n] != other[n]), COUNT)
            if same < COUNT:
                distance = gap(prompt, one[:same])
                assert distance < NEAR, f"prompt {prompts.index(prompt)}, token {same}: best two {distance:.2g} apart"
                near += 1
        record_property("near_ties", near)
        print(f"{len(prompts) - near} of {len(prompts)} continuations are equal to the end, {near} part at a near tie")
        assert near <= 2  # of 2560 tokens hardly any can be one

    return check


def test_continuations_are_those_of_transformers(plain: Any, theirs: Any, compare: Any) -> None:
    compare(plain, theirs)


def test_sharing_small_chunks_and_preemption_change_no_word(
    model: Model, prompts: list[list[int]], plain: Any, compare: Any
) -> None:
    made, engine = continued(model, prompts, block_size=16, blocks=90, token_budget=48, max_batch=12)
    assert len(engine.log.select(Kind.PREEMPTED)) > 0 and int(engine.log.requests().cached.max()) > 100
    compare(made, plain)
    assert engine.stats()["used"] == 0
