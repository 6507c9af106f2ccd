"""vllm on a CPU as a measured process: its engine, stepped in this process, with prefix caching."""

import os
from typing import Any

from serve import Stopwatch, serve

KVCACHE_GIB = 2  # as much as ours gets
BLOCK_SIZE = 32  # its attention on CPUs works on multiples of 32 tokens; a small block lets it reuse most


class Peer:
    """Greedy continuation of prompts as one continuous batch."""

    def start(self, model: str, threads: int, dtype: str, device: str, batch: int) -> dict[str, Any]:
        """Load the model of a folder; the environment must be set before vllm is imported."""
        if device != "cpu":
            raise ValueError(f"device {device}: this build of vllm knows CPUs only")
        cores = sorted(os.sched_getaffinity(0))[:threads]
        os.environ.update(
            VLLM_CPU_KVCACHE_SPACE=str(KVCACHE_GIB),
            VLLM_CPU_OMP_THREADS_BIND=",".join(map(str, cores)),
            VLLM_ENABLE_V1_MULTIPROCESSING="0",
            VLLM_NO_USAGE_STATS="1",
            HF_HUB_OFFLINE="1",
        )
        import torch
        import vllm

        self.engine = vllm.LLM(
            model=model,
            skip_tokenizer_init=True,
            dtype=dtype,
            seed=0,
            max_model_len=4096,
            max_num_seqs=batch,
            block_size=BLOCK_SIZE,
            enable_prefix_caching=True,
            disable_log_stats=True,
        ).llm_engine
        self.served = 0
        return {"versions": {"vllm-cpu": vllm.__version__, "torch": torch.__version__}}

    def generate(self, prompts: list[list[int]], max_tokens: int) -> dict[str, Any]:
        """Continue the prompts by `max_tokens` each."""
        from vllm import SamplingParams

        params = SamplingParams(temperature=0, max_tokens=max_tokens, ignore_eos=True, detokenize=False)
        watch = Stopwatch(len(prompts))
        numbers = {str(self.served + number): number for number in range(len(prompts))}
        self.served += len(prompts)
        for name, number in numbers.items():
            self.engine.add_request(name, {"prompt_token_ids": prompts[number]}, params)
        seen = [0] * len(prompts)
        while self.engine.has_unfinished_requests():
            for output in self.engine.step():
                number, tokens = numbers[output.request_id], output.outputs[0].token_ids
                watch.add(number, list(tokens[seen[number] :]))
                seen[number] = len(tokens)
            watch.step()
        return watch.result()


if __name__ == "__main__":
    peer = Peer()
    serve({"start": peer.start, "generate": peer.generate})
