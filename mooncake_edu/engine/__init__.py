"""The engine of one instance: continuous batching with chunked prefill over a paged, prefix-shared KVCache."""

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from mooncake_edu.engine.engine import Engine, Output

__all__ = ["Engine", "Output"]


def __getattr__(name: str) -> Any:
    """What `engine` offers, imported when first used: the help of commands that start an engine needs no torch."""
    if name not in __all__:
        raise AttributeError(f"module {__name__} has no attribute {name}")
    from mooncake_edu.engine import engine

    return getattr(engine, name)
