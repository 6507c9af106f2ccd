"""Turns a GGUF file into a model folder: `python -m mooncake_edu.model.convert GGUF FOLDER`.

A program of its own, so that the two copies of the weights that transformers makes on the way are gone afterwards.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

from mooncake_edu.model.checkpoint import SINGLE, write_safetensors


def convert_gguf(gguf: Path, new: Path) -> None:
    """Writes the model and tokenizer of a GGUF file into the folder `new`.

    The weights stay float32: a 4-bit weight is a scale times a number plus an offset, which bfloat16 would round
    again; twice the disk buys the very numbers that transformers computes from the GGUF file.
    """
    from transformers import AutoModelForCausalLM, AutoTokenizer

    where: dict[str, Any] = {"gguf_file": gguf.name, "local_files_only": True}
    model = AutoModelForCausalLM.from_pretrained(gguf.parent, **where)
    AutoTokenizer.from_pretrained(gguf.parent, **where).save_pretrained(new)
    model.generation_config.save_pretrained(new)
    config = model.config.to_dict()
    for key in ("quantization_config", "_name_or_path", "_model_name_or_path"):
        config.pop(key, None)
    config["architectures"] = [type(model).__name__]
    (new / "config.json").write_text(json.dumps(config, indent=2) + "\n", encoding="utf-8")
    state = model.state_dict()
    if model.config.tie_word_embeddings:
        state.pop("lm_head.weight")
    write_safetensors({name: tensor.contiguous() for name, tensor in state.items()}, new / SINGLE)


if __name__ == "__main__":
    convert_gguf(Path(sys.argv[1]), Path(sys.argv[2]))
