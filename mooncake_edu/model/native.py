"""The kernels of kernels.c and matrix_unit.c on tensors: compiled on first use, for this machine's own processor.

They serve float32 on Linux where a C compiler is there; everywhere else, and for shapes that they do not know, plain
torch does the same. `MOONCAKE_EDU_NATIVE=0` switches them off.
"""

from __future__ import annotations

import ctypes
import functools
import hashlib
import os
import platform
import shutil
import subprocess
import sys
import tempfile
from collections import defaultdict
from pathlib import Path

import torch
from torch import Tensor

from mooncake_edu.errors import UserError
from mooncake_edu.model.folders import cache_folder
from mooncake_edu.model.race import Race

SOURCES = (Path(__file__).with_name("kernels.c"), Path(__file__).with_name("matrix_unit.c"))
SWITCH = "MOONCAKE_EDU_NATIVE"
COMPILE_LIMIT = 120.0  # seconds
FLAGS = ("-O3", "-march=native", "-fno-math-errno", "-fno-trapping-math", "-fopenmp", "-fPIC", "-shared")
STRIPE = 64
"""Rows of a weight that lie side by side in `pack`'s layout."""
BLOCK = 32
"""Rows, and numbers in each, that the matrix unit takes at once."""
MOST_ROWS = 192
"""Query heads of one KV head at most, or of a chunk's tokens that go over the keys together."""

ARGUMENTS = {"a": ctypes.c_void_p, "n": ctypes.c_int64, "f": ctypes.c_float, "t": ctypes.c_int}
FUNCTIONS = {
    "lanes": "",
    "rms_norm": "aaaannft",
    "gated": "aannt",
    "rotate": "anaannt",
    "few_rows": "aaaannnt",
    "matrix_unit": "",
    "many_rows": "aaaannnt",
    "put": "aaanannnnt",
    "attend_single": "aanaanannnnft",
    "attend_chunk": "aannanannnft",
}
"""Arguments of each function: an address, a number, a real number, the number of threads."""


class NotAvailable(Exception):
    """Why there are no kernels here."""


class Kernels:
    """The compiled functions for one head dimension; every tensor is float32 on a CPU, each row of it contiguous."""

    def __init__(self, library: ctypes.CDLL, head_dim: int) -> None:
        self.head_dim = head_dim
        self._call = library
        for name, arguments in FUNCTIONS.items():
            getattr(library, name).argtypes = [ARGUMENTS[letter] for letter in arguments]
        self.lanes: int = library.lanes()
        """Numbers in a vector: widths must be a multiple."""
        self.matrix_unit = bool(library.matrix_unit())
        """Whether the processor has a unit that `many_rows` can use."""
        self.races: defaultdict[torch.Size, Race] = defaultdict(Race)
        """For each shape of a weight, whether to use that unit."""

    def rms_norm(self, x: Tensor, weight: Tensor, eps: float, more: Tensor | None = None) -> Tensor:
        """x [rows, width] over the root of its mean square, times a weight a channel; `more` is added to x before."""
        y = torch.empty_like(x)
        self._call.rms_norm(
            x.data_ptr(), None if more is None else more.data_ptr(), weight.data_ptr(), y.data_ptr(),
            *x.shape, eps, torch.get_num_threads(),
        )  # fmt: skip
        return y

    def gated(self, gate_up: Tensor) -> Tensor:
        """silu(gate) * up for gate and up side by side: [rows, 2 * width] to [rows, width]."""
        y = gate_up.new_empty(len(gate_up), gate_up.shape[1] // 2)
        self._call.gated(gate_up.data_ptr(), y.data_ptr(), *y.shape, torch.get_num_threads())
        return y

    def rotate(self, x: Tensor, cosine: Tensor, sine: Tensor) -> None:
        """Turns x [tokens, heads, head_dim] in place by the angles [tokens, head_dim / 2]."""
        self._call.rotate(
            x.data_ptr(), x.stride(0), cosine.data_ptr(), sine.data_ptr(), *x.shape[:2], torch.get_num_threads()
        )

    def pack(self, weight: Tensor) -> Tensor:
        """A copy of a weight [out, in] as `few_rows` and `many_rows` read it; out is a multiple of STRIPE."""
        return weight.view(-1, STRIPE, weight.shape[1]).transpose(1, 2).contiguous()

    def few_rows(self, x: Tensor, packed: Tensor, bias: Tensor | None) -> Tensor:
        """x [rows, in] @ weight.T + bias; a row's result does not depend on how many there are."""
        y = x.new_empty(len(x), packed.shape[0] * STRIPE)
        self._call.few_rows(
            x.data_ptr(), packed.data_ptr(), None if bias is None else bias.data_ptr(), y.data_ptr(),
            *x.shape, y.shape[1], torch.get_num_threads(),
        )  # fmt: skip
        return y

    def many_rows(self, x: Tensor, packed: Tensor, bias: Tensor | None) -> Tensor:
        """The same on the matrix unit, as exact as float32 is; `in` is a multiple of BLOCK. Raises MemoryError."""
        rows, width = -(-len(x) // BLOCK) * BLOCK, packed.shape[0] * STRIPE
        y = x.new_empty(rows, width)
        failed = self._call.many_rows(
            x.data_ptr(), packed.data_ptr(), None if bias is None else bias.data_ptr(), y.data_ptr(),
            *x.shape, width, torch.get_num_threads(),
        )  # fmt: skip
        if failed:
            raise MemoryError(f"no memory to multiply {len(x)} rows on the matrix unit: free some of this machine's")
        return y[: len(x)]

    def put(self, keys: int, slots: Tensor, k: Tensor, v: Tensor, block_size: int) -> None:
        """Writes k and v [tokens, kv_heads, head_dim] into the pages; `keys` is the address of the layer in block 0."""
        self._call.put(
            keys, slots.data_ptr(), k.data_ptr(), k.stride(0), v.data_ptr(), v.stride(0), *k.shape[:2], block_size,
            torch.get_num_threads(),
        )  # fmt: skip

    def attend_single(
        self, keys: int, places: Tensor, lengths: Tensor, q: Tensor, out: Tensor, kv_heads: int, block_size: int
    ) -> None:
        """Attention of one token a sequence: q and out [sequences, heads, head_dim], places [sequences, blocks]."""
        self._call.attend_single(
            keys, places.data_ptr(), places.shape[1], lengths.data_ptr(), q.data_ptr(), q.stride(0), out.data_ptr(),
            len(q), kv_heads, q.shape[1] // kv_heads, block_size, self.head_dim**-0.5, torch.get_num_threads(),
        )  # fmt: skip

    def attend_chunk(
        self, keys: int, places: Tensor, start: int, q: Tensor, out: Tensor, kv_heads: int, block_size: int
    ) -> None:
        """Attention of several new tokens of one sequence, behind `start` others; raises MemoryError."""
        failed = self._call.attend_chunk(
            keys, places.data_ptr(), start, len(q), q.data_ptr(), q.stride(0), out.data_ptr(),
            kv_heads, q.shape[1] // kv_heads, block_size, self.head_dim**-0.5, torch.get_num_threads(),
        )  # fmt: skip
        if failed:
            raise MemoryError(f"no memory to gather the KVCache of {start + len(q)} tokens: use a smaller batch")


def kernels_for(device: torch.device, dtype: torch.dtype, head_dim: int) -> Kernels | None:
    """The kernels, where they are and serve this device, number format and head dimension."""
    if device.type != "cpu" or dtype != torch.float32:
        return None
    try:
        kernels = load(head_dim)
    except NotAvailable:
        return None
    return kernels if head_dim % (2 * kernels.lanes) == 0 else None


def load(head_dim: int) -> Kernels:
    """The kernels for a head dimension, compiled unless that was done before; raises NotAvailable."""
    if os.environ.get(SWITCH) == "0":
        raise NotAvailable(f"switched off by {SWITCH}=0")
    found = _load(head_dim)
    if isinstance(found, str):
        raise NotAvailable(found)
    return found


@functools.cache
def _load(head_dim: int) -> Kernels | str:
    """The kernels, or why there are none: a machine that lacks them is not asked again for each weight."""
    try:
        return Kernels(ctypes.CDLL(str(_compiled(head_dim))), head_dim)
    except (NotAvailable, UserError, OSError) as error:
        return str(error)


def _compiled(head_dim: int) -> Path:
    """The compiled library in the user's cache; its name tells source, flags, processor, OpenMP and content apart."""
    compiler = shutil.which(os.environ.get("CC", "cc")) or shutil.which("gcc") or shutil.which("clang")
    if sys.platform != "linux" or compiler is None:
        raise NotAvailable(f"no C compiler on {sys.platform}: on Linux, install gcc")
    sizes = (f"-DHEAD_DIM={head_dim}", f"-DSTRIPE={STRIPE}", f"-DMOST_ROWS={MOST_ROWS}")
    command = [compiler, *FLAGS, *sizes, *map(str, SOURCES), "-Wl,--as-needed", *_openmp(), "-lm"]
    name = _digest(*(source.read_bytes() for source in SOURCES), *command, _processor())
    folder = cache_folder() / "kernels"
    for library in folder.glob(f"{name}-*.so"):
        if library.name == f"{name}-{_digest(library.read_bytes())}.so":  # one cut short would end the process
            return library
    folder.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=folder) as place:
        made = Path(place, "kernels.so")
        _run([*command, "-o", str(made)])
        library = folder / f"{name}-{_digest(made.read_bytes())}.so"
        made.replace(library)  # at once, since other processes may look for it
    return library


def _digest(*parts: str | bytes) -> str:
    joined = b"\0".join(part if isinstance(part, bytes) else part.encode() for part in parts)
    return hashlib.sha256(joined).hexdigest()[:20]


def _run(command: list[str]) -> None:
    try:
        run = subprocess.run(command, capture_output=True, timeout=COMPILE_LIMIT, text=True, errors="replace")
    except subprocess.TimeoutExpired:
        raise NotAvailable(f"{command[0]} took longer than {COMPILE_LIMIT:g} s") from None
    if run.returncode:
        raise NotAvailable(f"{command[0]} failed: {' '.join(run.stderr.split())[:200]}")


def _openmp() -> list[str]:
    """The OpenMP that torch runs on, of those in this process: with another one, two would fight for the cores."""
    mapped = {line.split()[-1] for line in Path("/proc/self/maps").read_text().splitlines() if "omp" in line}
    names = [path for path in mapped if Path(path).name.startswith(("libgomp", "libiomp5", "libomp"))]
    homes = (Path(torch.__file__).parent, Path(torch.__file__).parent.with_name("torch.libs"))
    return sorted(path for path in names if any(home in Path(path).parents for home in homes))[:1]


def _processor() -> str:
    """What the processor can do, since the compiler makes use of all of it."""
    lines = Path("/proc/cpuinfo").read_text().splitlines()
    return platform.machine() + next((line for line in lines if line.startswith(("flags", "Features"))), "")
