"""A model that is ready to serve: its shape, decoder and tokenizer, by the name of the model or of its folder."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import psutil
import torch

from mooncake_edu.errors import ModelError
from mooncake_edu.model import hub
from mooncake_edu.model.config import ModelConfig
from mooncake_edu.model.decoder import Decoder
from mooncake_edu.model.linear import packs
from mooncake_edu.model.native import kernels_for
from mooncake_edu.model.parallel import whole
from mooncake_edu.model.tokenizer import ByteTokenizer, Tokenizer, load_tokenizer
from mooncake_edu.model.weights import as_dtype, load_weights, random_weights


@dataclass(frozen=True)
class Model:
    """What an engine serves. Two models whose `name` and `revision` are equal have equal weights."""

    config: ModelConfig
    decoder: Decoder
    tokenizer: Tokenizer
    name: str
    revision: str

    @property
    def token_bytes(self) -> int:
        """Bytes of a token's KVCache in all layers."""
        shape = self.config
        return 2 * shape.layers * shape.kv_heads * shape.head_dim * self.decoder.dtype.itemsize


def load(name: str | Path, *, dtype: str | torch.dtype = "float32", device: str = "cpu", seed: int = 0) -> Model:
    """The model of a folder, or of a name that is in the user's cache or has random weights (then made from `seed`).

    Raises ModelError if it is not there, not supported, larger than the free memory, or its files are broken.
    """
    if device.startswith("cuda") and not torch.cuda.is_available():
        raise ModelError(f"device {device} is not there: use device cpu, or a torch with CUDA and a driver")
    if not Path(name).is_dir():
        entry = hub.find(str(name))
        if entry.shape is not None:
            return random_model(entry.shape, dtype=dtype, device=device, seed=seed)
    folder = Path(name) if Path(name).is_dir() else hub.path(str(name))
    config = ModelConfig.from_folder(folder)
    require_memory(config, dtype, device)
    decoder = Decoder(config, load_weights(folder, config, whole(config.layers), dtype, device))
    return Model(config, decoder, load_tokenizer(folder, config), config.name, hub.revision(folder))


def random_model(config: ModelConfig, *, dtype: str | torch.dtype = "float32", device: str = "cpu",
                 seed: int = 0) -> Model:  # fmt: skip
    """A model of any shape with random weights, which speaks bytes.

    Raises ModelError if its vocabulary is smaller, or its weights are larger than the free memory.
    """
    tokenizer = ByteTokenizer()
    if config.vocab < tokenizer.vocab:
        raise ModelError(f"vocabulary {config.vocab} is below the {tokenizer.vocab} of the byte tokenizer: enlarge it")
    require_memory(config, dtype, device)
    weights = random_weights(config, whole(config.layers), dtype, device, seed)
    return Model(config, Decoder(config, weights), tokenizer, config.name, f"random-{seed}")


def require_memory(config: ModelConfig, dtype: str | torch.dtype, device: str) -> None:
    """Raises ModelError, before any is taken, unless the device has memory for all weights of a model."""
    weights = random_weights(config, whole(config.layers), dtype, "meta")
    copies = 0
    if kernels_for(torch.device(device), as_dtype(dtype), config.head_dim) is not None:
        copies = sum(weight.nbytes for weight in weights.matrices() if packs(weight))
    kind = torch.device(device).type
    if kind == "meta":
        return  # it holds no values
    free = torch.cuda.mem_get_info(device)[0] if kind == "cuda" else psutil.virtual_memory().available
    if weights.nbytes + copies > free:
        name = str(as_dtype(dtype)).removeprefix("torch.")
        raise ModelError(
            f"model {config.name}: its weights in {name} take {weights.nbytes / 1e9:,.1f} GB, their packed copies "
            f"{copies / 1e9:,.1f}, {free / 1e9:,.1f} GB of memory are free: use a smaller model or dtype"
        )
