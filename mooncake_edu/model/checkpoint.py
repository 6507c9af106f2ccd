"""The safetensors files of a model folder: found, checked before anything is believed, and read in slices."""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from contextlib import ExitStack
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file
from torch import Tensor

from mooncake_edu.errors import ModelError
from mooncake_edu.model.folders import AGAIN, read_json

SINGLE = "model.safetensors"
INDEX = "model.safetensors.index.json"
PICKLED = ("*.bin", "*.pt", "*.pth", "*.ckpt", "*.pkl")
HEADER_LIMIT = 100 << 20
"""Bytes of the header of one file; the format's own library draws the same line."""

TENSOR_LIMIT = 100_000
SHARD_LIMIT = 10_000
FLOATS = ("F32", "BF16", "F16")
"""Types of stored weights, as safetensors spells them."""


class Checkpoint:
    """The tensors of a folder by name; use it in a `with` statement, which closes the files.

    Raises ModelError naming the file if there are no safetensors, or one is missing, truncated or garbled.
    """

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._open = ExitStack()
        self._file_of: dict[str, Any] = {}  # tensor name: the open file that holds it
        self._path_of: dict[str, Path] = {}
        try:
            for path in _files(folder):
                self._add(path)
        except BaseException:
            self._open.close()
            raise

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None,
                 trace: TracebackType | None) -> None:  # fmt: skip
        self._open.close()

    def _add(self, path: Path) -> None:
        _check_header(path)
        try:
            file = self._open.enter_context(safe_open(path, framework="pt"))
            names = list(file.keys())
        except (SafetensorError, OSError) as error:
            raise ModelError(f"{path} is corrupt or incomplete ({error}): {AGAIN}") from error
        for name in names:
            if name in self._file_of:
                raise ModelError(f"tensor {name} is in {self._path_of[name].name} and in {path.name}: {AGAIN}")
            self._file_of[name], self._path_of[name] = file, path
        if len(self._file_of) > TENSOR_LIMIT:
            raise ModelError(f"{self.folder} has more than {TENSOR_LIMIT} tensors: it is no supported model")

    def check(self, expected: Mapping[str, tuple[int, ...]], *, tied: bool) -> None:
        """Raises ModelError unless the folder holds exactly the expected tensors, by name, shape and kind of number."""
        for name, shape in expected.items():
            if name not in self._file_of:
                raise ModelError(f"tensor {name} is missing in {self.folder}: {AGAIN}")
            stored = self._file_of[name].get_slice(name)
            if tuple(stored.get_shape()) != shape:
                raise ModelError(f"tensor {name} in {self._path_of[name]} has shape {tuple(stored.get_shape())}, "
                                 f"config.json says {shape}: {AGAIN}")  # fmt: skip
            if stored.get_dtype() not in FLOATS:
                raise ModelError(f"tensor {name} in {self._path_of[name]} has type {stored.get_dtype()}: "
                                 f"use weights in one of {', '.join(FLOATS)}")  # fmt: skip
        for name in self._file_of:
            if name not in expected and not _harmless(name, tied):
                raise ModelError(f"tensor {name} in {self._path_of[name]} is unknown to this decoder: "
                                 "use a model of a supported family")  # fmt: skip

    def read(self, target: Tensor, name: str, rows: range, columns: range | None) -> None:
        """Copies rows and columns of a tensor into `target`, converted to its type."""
        try:
            stored = self._file_of[name].get_slice(name)
            run = slice(rows.start, rows.stop)
            value = stored[run] if columns is None else stored[run, columns.start : columns.stop]
        except (SafetensorError, OSError) as error:
            raise ModelError(f"tensor {name} in {self._path_of[name]} cannot be read ({error}): "
                             f"{AGAIN}") from error  # fmt: skip
        target.copy_(value)


def write_safetensors(tensors: dict[str, Tensor], path: Path) -> None:
    """Writes tensors that share no memory into one file; raises OSError as any writing does."""
    try:
        save_file(tensors, path, metadata={"format": "pt"})
    except SafetensorError as error:
        number = re.search(r"os error (\d+)", str(error))
        if number is None:
            raise
        raise OSError(int(number[1]), os.strerror(int(number[1]))) from error
    path.chmod(0o644)  # the library makes it private


def _harmless(name: str, tied: bool) -> bool:
    """Tensors that checkpoints carry and nothing reads: old rope tables, and the head where it is the embedding."""
    return name.endswith("rotary_emb.inv_freq") or (tied and name == "lm_head.weight")


def _files(folder: Path) -> list[Path]:
    """The safetensors files that make up the model, one or those that the index names."""
    if not folder.is_dir():
        raise ModelError(f"model folder {folder} does not exist: check the path, or see `mooncake-edu models list`")
    if (folder / SINGLE).exists():
        return [folder / SINGLE]
    if (folder / INDEX).exists():
        return _shards(folder)
    pickled = sorted(path.name for pattern in PICKLED for path in folder.glob(pattern))
    if pickled:
        raise ModelError(f"{folder / pickled[0]} is a pickle, which can run code when it is opened: "
                         "use a model with safetensors, or convert it where you trust it")  # fmt: skip
    raise ModelError(f"{folder} has no {SINGLE}: use a model with safetensors, or {AGAIN}")


def _shards(folder: Path) -> list[Path]:
    table = read_json(folder / INDEX).get("weight_map")
    if not isinstance(table, dict) or not table:
        raise ModelError(f"{folder / INDEX} has no weight_map: {AGAIN}")
    names = {str(name) for name in table.values()}
    if len(names) > SHARD_LIMIT or len(table) > TENSOR_LIMIT:
        raise ModelError(
            f"{folder / INDEX} names {len(names)} files for {len(table)} tensors: it is no supported model"
        )
    for name in sorted(names):
        if name != Path(name).name or not name.endswith(".safetensors"):
            raise ModelError(f"{folder / INDEX} names {name!r}, not a safetensors file beside it: {AGAIN}")
        if not (folder / name).exists():
            raise ModelError(f"shard {folder / name} is missing: {AGAIN}")
    return [folder / name for name in sorted(names)]


def _check_header(path: Path) -> None:
    """Looks at the length in front of the header before a library acts on it."""
    try:
        size = path.stat().st_size
        with path.open("rb") as file:
            header = int.from_bytes(file.read(8), "little")
    except OSError as error:
        raise ModelError(f"{path} cannot be read ({error.strerror}): {AGAIN}") from error
    if size < 8 or header > min(size - 8, HEADER_LIMIT):
        raise ModelError(f"{path} is corrupt or incomplete (a header of {header} bytes in a file of {size}): "
                         f"{AGAIN}")  # fmt: skip
