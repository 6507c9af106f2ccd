"""The compiled kernels compute what torch computes, with any processor's vectors; where there are none, torch does."""

from __future__ import annotations

import ctypes
import math
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from mooncake_edu.model import native as module
from mooncake_edu.model.attention import NativeAttention, Span, TorchAttention, attention_for
from mooncake_edu.model.config import TINY
from mooncake_edu.model.decoder import Decoder
from mooncake_edu.model.linear import Linear
from mooncake_edu.model.native import SWITCH, Kernels, NotAvailable, kernels_for, load
from mooncake_edu.model.ops import NativeOps, Ops
from mooncake_edu.model.parallel import whole
from mooncake_edu.model.weights import random_weights

CPU = torch.device("cpu")
PROCESSORS = {
    "x86_64": ["-march=native", "-march=x86-64-v3", "-march=x86-64"],
    "aarch64": ["-march=native", "-march=armv8-a"],
}


@pytest.fixture
def fresh() -> Iterator[None]:
    """What was found out about the kernels is forgotten, before and after."""
    module._load.cache_clear()
    yield
    module._load.cache_clear()


def randn(*shape: int, seed: int = 0, scale: float = 1.0) -> torch.Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed)) * scale


def use_compiler(does: str, monkeypatch: pytest.MonkeyPatch, folder: Path) -> None:
    """Another compiler, which does what a line of shell says, and a cache in which nothing is compiled yet."""
    (folder / "compiler").write_text(f"#!/bin/sh\n{does}\n")
    (folder / "compiler").chmod(0o755)
    monkeypatch.setenv("CC", str(folder / "compiler"))
    monkeypatch.setenv("MOONCAKE_EDU_CACHE", str(folder / "cache"))


@settings(max_examples=60)
@given(rows=st.integers(1, 70), vectors=st.integers(1, 40), scale=st.sampled_from((1e-3, 1.0, 1e3)))
def test_norms_equal_those_of_torch(native: Kernels, rows: int, vectors: int, scale: float) -> None:
    x, weight = randn(rows, vectors * native.lanes, scale=scale), randn(vectors * native.lanes, seed=1)
    torch.testing.assert_close(NativeOps(native).rms_norm(x, weight, 1e-5), Ops().rms_norm(x, weight, 1e-5))


@settings(max_examples=60)
@given(rows=st.integers(1, 70), vectors=st.integers(1, 40), scale=st.sampled_from((1e-3, 1.0, 30.0)))
def test_gates_equal_those_of_torch(native: Kernels, rows: int, vectors: int, scale: float) -> None:
    x = randn(rows, 2 * vectors * native.lanes, scale=scale)
    torch.testing.assert_close(NativeOps(native).gated(x), Ops().gated(x), rtol=2e-6, atol=1e-6)


def test_gates_far_out_are_nought_or_all_and_what_is_no_number_stays_so(native: Kernels) -> None:
    gate = torch.tensor([-torch.inf, -1e30, -200.0, -88.5, 0.0, 88.5, 200.0, 1e30]).repeat(native.lanes)
    out = NativeOps(native).gated(torch.cat((gate, torch.ones_like(gate)))[None])[0][1:8]
    torch.testing.assert_close(out, gate[1:8].clamp(min=0.0))
    gate[3] = torch.nan
    found = NativeOps(native).gated(torch.cat((gate, torch.ones_like(gate)))[None])[0].isnan()
    assert found[3] and not found[4:8].any()


@settings(max_examples=60)
@given(rows=st.integers(1, 70), heads=st.integers(1, 9), more=st.integers(0, 3))
def test_turns_equal_those_of_torch_and_leave_the_heads_beside_alone(
    native: Kernels, rows: int, heads: int, more: int
) -> None:
    wide, angle = randn(rows, heads + more, 64), randn(rows, 32, seed=1)
    expected, before = Ops().rotate(wide[:, :heads], (angle.cos(), angle.sin())), wide[:, heads:].clone()
    torch.testing.assert_close(NativeOps(native).rotate(wide[:, :heads], (angle.cos(), angle.sin())), expected)
    assert torch.equal(wide[:, heads:], before)


def test_what_does_not_fit_a_vector_or_lies_apart_is_computed_by_torch(native: Kernels) -> None:
    ops, x, weight = NativeOps(native), randn(5, 3, 24), randn(24, seed=1)
    assert torch.equal(ops.rms_norm(x, weight, 1e-5), Ops().rms_norm(x, weight, 1e-5))
    assert torch.equal(ops.rms_norm(x[:, 0], weight, 1e-5), Ops().rms_norm(x[:, 0], weight, 1e-5))
    assert torch.equal(ops.gated(x[:, 0]), Ops().gated(x[:, 0]))
    apart, turn = randn(4, 64, 3).transpose(1, 2), (randn(4, 32), randn(4, 32, seed=2))
    assert torch.equal(ops.rotate(apart, turn), Ops().rotate(apart, turn))


@pytest.fixture(scope="session")
def unit(native: Kernels) -> Kernels:
    """Kernels that use the processor's matrix unit."""
    if not native.matrix_unit:
        pytest.skip("the processor has no matrix unit (AMX): run the tests on one that has")
    return native


def error(found: torch.Tensor, exact: torch.Tensor) -> float:
    """Root mean square."""
    return float((found - exact).square().mean().sqrt())


@settings(max_examples=40, deadline=None)
@given(
    rows=st.one_of(st.integers(1, 70), st.integers(250, 600)),
    chunks=st.integers(1, 60),
    stripes=st.integers(1, 3),
    bias=st.booleans(),
    spread=st.sampled_from((0, 6)),
)
def test_the_matrix_unit_is_as_exact_as_float32(
    unit: Kernels, rows: int, chunks: int, stripes: int, bias: bool, spread: int
) -> None:
    inner, out = 32 * chunks, 64 * stripes
    size = torch.exp(randn(inner, seed=2) * spread)  # channels of very different sizes
    x, weight = randn(rows, inner) * size, randn(out, inner, seed=1)
    add = randn(out, seed=3) if bias else None
    exact = torch.nn.functional.linear(x.double(), weight.double(), None if add is None else add.double())
    found = unit.many_rows(x, unit.pack(weight), add)
    assert found.shape == exact.shape
    sums = x.double().abs() @ weight.double().abs().T  # float32 may round once for each of their summands
    assert error(found, exact) <= 8 * 2**-24 * float(sums.square().mean().sqrt())


def test_the_matrix_unit_keeps_what_is_no_number_and_touches_no_other_row(unit: Kernels) -> None:
    x, weight = randn(40, 64), randn(64, 64, seed=1)
    x[7, 3], x[20] = math.nan, 3e38
    found = unit.many_rows(x, unit.pack(weight), None)
    assert found[7].isnan().all() and torch.equal(found[20].isfinite(), (x[20] @ weight.T).isfinite())
    others = [row for row in range(40) if row not in (7, 20)]
    torch.testing.assert_close(found[others], x[others] @ weight.T, rtol=1e-4, atol=1e-5)


def test_a_row_has_the_same_product_on_the_matrix_unit_whatever_the_others(unit: Kernels) -> None:
    x, packed = randn(300, 96), unit.pack(randn(128, 96, seed=1))
    together = unit.many_rows(x, packed, None)
    for rows in (1, 31, 32, 33, 257):
        assert torch.equal(unit.many_rows(x[:rows], packed, None), together[:rows])


@pytest.mark.parametrize("flag", PROCESSORS.get(os.uname().machine, ["-march=native"]))
@pytest.mark.parametrize("head_dim", [32, 64, 96, 128])
def test_every_width_of_vectors_gives_the_same(
    flag: str, head_dim: int, native: Kernels, fresh: None, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(module, "FLAGS", (*(f for f in module.FLAGS if "march" not in f), flag))
    monkeypatch.setenv("MOONCAKE_EDU_CACHE", str(tmp_path))
    kernels = load(head_dim)
    for x, weight in ((randn(19, 200), randn(128, 200, seed=1)), (randn(100, 96), randn(128, 96, seed=1))):
        torch.testing.assert_close(Linear(weight, None, kernels)(x), x @ weight.T, rtol=1e-4, atol=1e-4)
    pages = randn(40, 2, 2, 2, 5, head_dim, seed=2)
    spans = [Span(range(10), 40, 1), Span(range(10, 30), 13, 80), Span(range(30, 40), 47, 1), Span([0], 0, 2)]
    q, k, v = randn(84, 6, head_dim, seed=3), randn(84, 2, head_dim, seed=4), randn(84, 2, head_dim, seed=5)
    theirs, ours = (pages.clone() for _ in range(2))
    expected = TorchAttention(theirs, spans).attend(1, q, k, v)
    torch.testing.assert_close(NativeAttention(ours, spans, kernels).attend(1, q, k, v), expected, rtol=1e-4, atol=1e-5)
    assert torch.equal(ours, theirs)


def test_a_decoder_gives_the_same_logits_with_and_without_kernels(
    native: Kernels, monkeypatch: pytest.MonkeyPatch
) -> None:
    weights, tokens = random_weights(TINY, whole(TINY.layers), "float32", "cpu", 0), torch.arange(50) % TINY.vocab
    logits = []
    for value, kind in (("1", NativeAttention), ("0", TorchAttention)):
        monkeypatch.setenv(SWITCH, value)
        decoder, pages = Decoder(TINY, weights), torch.zeros(13, TINY.layers, 2, TINY.kv_heads, 4, TINY.head_dim)
        for part in (slice(0, 41), *(slice(place, place + 1) for place in range(41, 50))):
            attention = attention_for(pages, [Span(range(13), part.start, part.stop - part.start)])
            assert isinstance(attention, kind)
            hidden = decoder.forward(tokens[part], attention)
        logits.append(decoder.logits(hidden[-1:]))
    torch.testing.assert_close(*logits, rtol=1e-4, atol=1e-4)


def test_only_float32_on_a_cpu_with_whole_vectors_is_served(native: Kernels) -> None:
    assert kernels_for(CPU, torch.float32, 64) is not None
    assert kernels_for(CPU, torch.bfloat16, 64) is None and kernels_for(CPU, torch.float64, 64) is None
    assert kernels_for(torch.device("meta"), torch.float32, 64) is None
    assert kernels_for(CPU, torch.float32, 2 * native.lanes + 2) is None


def test_more_heads_a_kv_head_than_the_kernels_hold_are_served_by_torch(native: Kernels) -> None:
    heads = module.MOST_ROWS + 1
    pages, q, kv = torch.zeros(1, 1, 2, 1, 4, 64), randn(2, heads, 64), randn(2, 2, 1, 64, seed=1)
    expected = TorchAttention(pages.clone(), [Span([0], 0, 2)]).attend(0, q, *kv)
    assert torch.equal(NativeAttention(pages, [Span([0], 0, 2)], native).attend(0, q, *kv), expected)


@pytest.mark.usefixtures("fresh")
class TestWhereThereAreNone:
    """Each reason is told in words; models run all the same."""

    def test_switched_off(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setenv(SWITCH, "0")
        with pytest.raises(NotAvailable, match=f"switched off by {SWITCH}=0"):
            load(64)
        assert kernels_for(CPU, torch.float32, 64) is None

    def test_without_a_compiler(self, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
        monkeypatch.setenv("PATH", str(tmp_path))
        monkeypatch.setenv("MOONCAKE_EDU_CACHE", str(tmp_path))
        with pytest.raises(NotAvailable, match="no C compiler"):
            load(64)

    def test_with_a_compiler_that_fails(self, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
        use_compiler("echo cannot do that >&2; exit 3", monkeypatch, tmp_path)
        with pytest.raises(NotAvailable, match="failed: cannot do that"):
            load(64)
        assert not any(path.is_file() for path in (tmp_path / "cache").rglob("*"))

    def test_with_a_compiler_that_hangs(self, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
        use_compiler("exec sleep 60", monkeypatch, tmp_path)
        monkeypatch.setattr(module, "COMPILE_LIMIT", 0.2)
        with pytest.raises(NotAvailable, match="longer than 0.2 s"):
            load(64)

    def test_in_a_cache_that_is_a_file(self, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
        (tmp_path / "file").write_text("")
        monkeypatch.setenv("MOONCAKE_EDU_CACHE", str(tmp_path / "file"))
        with pytest.raises(NotAvailable):
            load(64)


def test_a_library_that_was_cut_short_is_compiled_anew(
    native: Kernels, fresh: None, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("MOONCAKE_EDU_CACHE", str(tmp_path))
    whole_one = module._compiled(64)
    content = whole_one.read_bytes()
    for broken in (content[:1000], content[:5000] + b"x" + content[5001:]):
        whole_one.write_bytes(broken)
        assert module._compiled(64).read_bytes() == content
    assert load(64).lanes == native.lanes


def test_processes_that_compile_at_once_all_get_kernels_and_leave_one_file(native: Kernels, tmp_path: Path) -> None:
    code = "from mooncake_edu.model.native import load; print(load(64).lanes)"
    environment = {**os.environ, "MOONCAKE_EDU_CACHE": str(tmp_path), "OMP_NUM_THREADS": "1"}
    started = [
        subprocess.Popen([sys.executable, "-c", code], env=environment, stdout=subprocess.PIPE, text=True)
        for _ in range(2)
    ]
    assert {process.communicate(timeout=120)[0].strip() for process in started} == {str(native.lanes)}
    assert len(list((tmp_path / "kernels").iterdir())) == 1


def test_the_kernels_bring_no_threads_besides_those_of_torch(native: Kernels) -> None:
    code = (
        "import torch; from pathlib import Path; from mooncake_edu.model.native import load\n"
        "def runtimes(): return {p for p in Path('/proc/self/maps').read_text().split() if 'omp' in Path(p).name}\n"
        "before = runtimes(); load(64); print(runtimes() == before)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=120)
    assert done.stdout.strip() == "True", "two OpenMP runtimes in one process fight for the cores"


def test_every_function_is_declared_with_as_many_arguments_as_it_has() -> None:
    text = "".join(source.read_text() for source in module.SOURCES)
    kinds = {"*": "a", "int64_t": "n", "float": "f", "int": "t"}
    for name, arguments in module.FUNCTIONS.items():
        start = next(at for at in (text.find(f"\n{kind} {name}(") for kind in ("void", "int")) if at >= 0)
        listed = text[text.index("(", start) + 1 : text.index(")", start)].split(",")
        found = ["*" if "*" in each else each.split()[0] for each in listed if each.strip() != "void"]
        assert "".join(kinds[kind] for kind in found) == arguments, name
    assert all(issubclass(kind, ctypes._SimpleCData) for kind in module.ARGUMENTS.values())


@settings(max_examples=30)
@given(rows=st.integers(1, 70), vectors=st.integers(1, 40))
def test_a_sum_and_its_norm_equal_those_of_torch(native: Kernels, rows: int, vectors: int) -> None:
    x, more, weight = (randn(rows, vectors * native.lanes, seed=seed) for seed in range(3))
    theirs, ours = x.clone(), x.clone()
    expected = Ops().add_norm(theirs, more, weight[0], 1e-5)
    torch.testing.assert_close(NativeOps(native).add_norm(ours, more, weight[0], 1e-5), expected)
    assert torch.equal(ours, theirs) and torch.equal(theirs, x + more)
