"""transformers as a measured process, in the plain loop that wastes least.

Of its caches the static one is the faster: the dynamic one copies all keys and values for every token.
"""

from typing import Any

import torch
import transformers
from serve import Stopwatch, serve
from transformers import AutoModelForCausalLM, StaticCache


class Peer:
    """Greedy continuation of prompts of one length, computed together."""

    def start(self, model: str, threads: int, dtype: str, device: str, batch: int) -> dict[str, Any]:
        """Load the model of a folder; `batch` is the largest that will come."""
        torch.set_num_threads(threads)
        self.device = device
        self.model = AutoModelForCausalLM.from_pretrained(
            model, dtype=getattr(torch, dtype), attn_implementation="sdpa", local_files_only=True
        ).to(device)
        return {"versions": {"transformers": transformers.__version__, "torch": torch.__version__}}

    @torch.inference_mode()
    def generate(self, prompts: list[list[int]], max_tokens: int) -> dict[str, Any]:
        """Continue the prompts by `max_tokens` each; logits of last tokens only."""
        watch = Stopwatch(len(prompts))
        cache = StaticCache(config=self.model.config, max_cache_len=len(prompts[0]) + max_tokens)
        tokens = torch.tensor(prompts, device=self.device)
        for _ in range(max_tokens):
            logits = self.model(tokens, past_key_values=cache, use_cache=True, logits_to_keep=1).logits
            tokens = logits[:, -1].argmax(-1, keepdim=True)
            for prompt, token in enumerate(tokens[:, 0].tolist()):
                watch.add(prompt, [token])
            watch.step()
        return watch.result()


if __name__ == "__main__":
    peer = Peer()
    serve({"start": peer.start, "generate": peer.generate})
