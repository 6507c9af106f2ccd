"""Under the layers: a decoder of the Llama family, its weights, tokenizers, sampling and attention over pages."""

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from mooncake_edu.model.loading import Model, load, random_model

__all__ = ["Model", "load", "random_model"]


def __getattr__(name: str) -> Any:
    """What `loading` offers, imported when first used: naming and finding models needs no torch."""
    if name not in __all__:
        raise AttributeError(f"module {__name__} has no attribute {name}")
    from mooncake_edu.model import loading

    return getattr(loading, name)
