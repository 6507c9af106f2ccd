"""Under the layers: a compact decoder of the Llama family, its weights, tokenizers, sampling and attention over pages."""

from mooncake_edu.model.loading import Model, load, random_model

__all__ = ["Model", "load", "random_model"]
