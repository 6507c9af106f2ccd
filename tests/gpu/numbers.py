"""The same weights here and in transformers, on one device, and how far apart the two may be in a number format."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from mooncake_edu.config import EngineConfig
from mooncake_edu.engine import Engine
from mooncake_edu.kvcache import BlockLayout, PageTensors
from mooncake_edu.model import Model
from mooncake_edu.model.attention import Span, attention_for
from mooncake_edu.model.config import ModelConfig
from mooncake_edu.model.decoder import Decoder
from mooncake_edu.model.parallel import whole
from mooncake_edu.model.tokenizer import ByteTokenizer
from mooncake_edu.model.weights import load_weights
from mooncake_edu.request import SamplingParams

TOLERANCE = 1e-3
"""Of float32 logits, and of two logits that may change places in float32."""

ROOM = 1.5
"""How much farther from float32 our half precision may be than transformers' own, since both only round."""

BLOCK = 16


@dataclass
class Pair:
    """One folder's weights twice on one device in one number format, and transformers in float32 as the measure."""

    ours: Model
    theirs: Any
    exact: Any
    device: str

    @classmethod
    def of(cls, folder: Path, dtype: str, device: str) -> Pair:
        """Loads a folder's weights."""
        config = ModelConfig.from_folder(folder)
        decoder = Decoder(config, load_weights(folder, config, whole(config.layers), dtype, device))
        theirs = transformers_model(folder, dtype, device)
        exact = theirs if dtype == "float32" else transformers_model(folder, "float32", device)
        return cls(Model(config, decoder, ByteTokenizer(), config.name, ""), theirs, exact, device)

    def prompts(self, count: int, length: int, seed: int = 0) -> list[list[int]]:
        """Random tokens of the vocabulary."""
        generator = torch.Generator().manual_seed(seed)
        tokens: list[list[int]] = torch.randint(
            0, self.ours.config.vocab, (count, length), generator=generator
        ).tolist()
        return tokens

    @torch.inference_mode()
    def logits(self, prompt: list[int], chunks: list[int]) -> Tensor:
        """Our logits of every token of a prompt that is computed chunk by chunk."""
        config, decoder = self.ours.config, self.ours.decoder
        blocks = list(range(-(-len(prompt) // BLOCK)))
        layout = BlockLayout(config.layers, config.kv_heads, BLOCK, config.head_dim, decoder.dtype)
        memory = torch.zeros(len(blocks) * layout.nbytes, dtype=torch.uint8, device=self.device)
        pages, made, start = PageTensors(memory, layout), [], 0
        for count in chunks:
            tokens = torch.tensor(prompt[start : start + count], device=self.device)
            attention = attention_for(pages.tensor, [Span(blocks, start, count)])
            made.append(decoder.logits(decoder.forward(tokens, attention)))
            start += count
        return torch.cat(made)

    @torch.inference_mode()
    def continuations(self, prompts: list[list[int]], count: int) -> list[list[int]]:
        """transformers' greedy tokens after prompts of one length."""
        rows = torch.tensor(prompts, device=self.device)
        self.theirs.generation_config.eos_token_id = None
        every = self.theirs.generate(
            rows, attention_mask=torch.ones_like(rows), max_new_tokens=count, do_sample=False, pad_token_id=0
        )
        continued: list[list[int]] = every[:, rows.shape[1] :].tolist()
        return continued

    def served(self, prompts: list[list[int]], count: int, blocks: int) -> list[list[int]]:
        """Our engine's greedy tokens, in one continuous batch."""
        config = EngineConfig(block_size=BLOCK, blocks=blocks, token_budget=256, max_batch=len(prompts))
        return Engine(self.ours, config).generate(prompts, SamplingParams(max_tokens=count, ignore_eos=True))

    def errors(self, prompt: list[int]) -> tuple[Tensor, Tensor]:
        """How far from transformers' float32 logits ours and its own are, token by token."""
        exact = forward(self.exact, prompt, self.device)
        half = len(prompt) // 2
        ours = self.logits(prompt, [half, len(prompt) - half])
        return ours - exact, forward(self.theirs, prompt, self.device) - exact

    def near(self, prompts: list[list[int]]) -> float:
        """How close two float32 logits must be for rounding to choose between them."""
        if self.ours.decoder.dtype == torch.float32:
            return TOLERANCE
        return 2 * ROOM * max(float(error.abs().max()) for prompt in prompts for error in self.errors(prompt))

    def gap(self, tokens: list[int], first: int, second: int) -> float:
        """How far apart two tokens' float32 logits are behind `tokens`."""
        logits = forward(self.exact, tokens, self.device)[-1]
        return abs(float(logits[first] - logits[second]))


def transformers_model(folder: Path, dtype: str, device: str) -> Any:
    """transformers' model of a folder."""
    from transformers import AutoModelForCausalLM

    return AutoModelForCausalLM.from_pretrained(folder, dtype=getattr(torch, dtype), local_files_only=True).to(device)


@torch.inference_mode()
def forward(model: Any, tokens: list[int], device: str) -> Tensor:
    """The float32 logits of every token."""
    logits: Tensor = model(torch.tensor([tokens], device=device)).logits[0].float()
    return logits
