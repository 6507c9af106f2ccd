"""This project's engine as a measured process, asked in the same way as the peers."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

from mooncake_edu import __version__
from mooncake_edu.bench.limits import matrix_rate, read_rate
from mooncake_edu.bench.loads import BLOCK_SIZE
from mooncake_edu.bench.peers.serve import Stopwatch, serve
from mooncake_edu.config import Config, EngineConfig
from mooncake_edu.engine import Engine
from mooncake_edu.kvcache import BlockLayout, PageTensors
from mooncake_edu.model import Model
from mooncake_edu.model.attention import Span, attention_for
from mooncake_edu.model.config import ModelConfig
from mooncake_edu.model.decoder import Decoder
from mooncake_edu.model.parallel import whole
from mooncake_edu.model.tokenizer import ByteTokenizer
from mooncake_edu.model.weights import load_weights
from mooncake_edu.request import Request, SamplingParams, as_tokens

KVCACHE = {"cpu": 2 << 30, "cuda": 4 << 30}  # bytes
TOKEN_BUDGET = 4096  # a step, as vllm takes on CPUs; transformers computes any prompt in one


class Ours:
    """Greedy continuation of prompts as one continuous batch, with prefix sharing."""

    def start(self, model: str, threads: int, dtype: str, device: str, batch: int) -> dict[str, Any]:
        """Load the model of a folder, without its tokenizer: the peers make no text of their tokens either."""
        torch.set_num_threads(threads)
        config = ModelConfig.from_folder(model)
        decoder = Decoder(config, load_weights(model, config, whole(config.layers), dtype, device))
        served = Model(config, decoder, ByteTokenizer(), config.name, "")
        settings = Config.size("gpu" if device == "cuda" else "cpu").engine.model_dump()
        changes = {
            "memory": KVCACHE[device],
            "block_size": BLOCK_SIZE,
            "max_batch": batch,
            "token_budget": TOKEN_BUDGET,
        }
        self.engine = Engine(served, EngineConfig(**settings | changes))
        self.dtype, self.device = decoder.dtype, device
        self.served = 0
        return {"versions": {"mooncake_edu": __version__, "torch": torch.__version__}}

    def generate(self, prompts: Sequence[Sequence[int]], max_tokens: int) -> dict[str, Any]:
        """Continue the prompts by `max_tokens` each."""
        sampling = SamplingParams(max_tokens=max_tokens, ignore_eos=True)
        numbers = {str(self.served + number): number for number in range(len(prompts))}
        self.served += len(prompts)
        watch = Stopwatch(len(prompts))
        for name, number in numbers.items():
            self.engine.submit(Request(name, as_tokens(prompts[number]), sampling))
        while not self.engine.idle:
            for output in self.engine.step():
                watch.add(numbers[output.request_id], output.tokens)
            watch.step()
        return watch.result()

    @torch.inference_mode()
    def gap(self, tokens: Sequence[int], first: int, second: int) -> dict[str, Any]:
        """How far apart the logits of two tokens are that may follow `tokens`."""
        decoder, shape = self.engine.model.decoder, self.engine.model.config
        layout = BlockLayout(shape.layers, shape.kv_heads, len(tokens), shape.head_dim, decoder.dtype)
        pages = PageTensors(torch.zeros(layout.nbytes, dtype=torch.uint8, device=self.device), layout)
        inputs = torch.tensor(tokens, device=self.device)
        hidden = decoder.forward(inputs, attention_for(pages.tensor, [Span([0], 0, len(tokens))]))
        logits = decoder.logits(hidden[-1:])[0]
        return {"gap": abs(float(logits[first] - logits[second]))}

    def rates(self, size: int, nbytes: int) -> dict[str, Any]:
        """What the hardware does at most: FLOP/s of matrix products, bytes/s read from memory."""
        return {"matrix": matrix_rate(self.dtype, self.device, size), "read": read_rate(self.device, nbytes)}


if __name__ == "__main__":
    ours = Ours()
    serve({"start": ours.start, "generate": ours.generate, "gap": ours.gap, "rates": ours.rates})
