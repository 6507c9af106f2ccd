"""The engine of one instance: continuous batching with chunked prefill over a paged, prefix-shared KVCache."""

from mooncake_edu.engine.engine import Engine, Output

__all__ = ["Engine", "Output"]
