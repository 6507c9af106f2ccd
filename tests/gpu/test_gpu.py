"""The engine on a GPU: transformers' numbers in float32 and bfloat16, and its speed beside the card's limits.

The tests of numbers run on the CPU too, with a tiny model, so that they are known to work before a GPU is there.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest
import torch

from mooncake_edu.bench.engine import run
from mooncake_edu.bench.loads import GPU, Setting
from mooncake_edu.bench.peers.install import PEERS
from mooncake_edu.bench.results import usable_cores
from mooncake_edu.model import hub
from mooncake_edu.model.config import SMOLLM2_135M, TINY, ModelConfig, Rope
from mooncake_edu.model.parallel import whole
from mooncake_edu.model.weights import random_weights, save_weights
from tests.bench.own_python import own_python
from tests.gpu.numbers import ROOM, TOLERANCE, Pair

pytestmark = pytest.mark.timeout(600)

HALF_BILLION = ModelConfig("random-0.5b", "qwen2", layers=24, hidden=896, heads=14, kv_heads=2, head_dim=64,
                           intermediate=4864, vocab=151936, positions=32768, norm_eps=1e-6, rope=Rope(theta=1e6),
                           qkv_bias=True, tied=True)  # fmt: skip
BILLION = ModelConfig("random-1b", "llama", layers=16, hidden=2048, heads=32, kv_heads=8, head_dim=64,
                      intermediate=8192, vocab=128256, positions=131072, tied=True,
                      rope=Rope("llama3", 500000.0, 32.0, 1.0, 4.0, 8192))  # fmt: skip

REPORTS = Path("runs")


@dataclass(frozen=True)
class Place:
    """A device, a model that it can hold, and as much work as takes it seconds.

    `prompts` of `prompt` tokens are continued by `output` tokens; `weights` is their number format on disk.
    """

    device: str
    model: ModelConfig
    weights: str
    prompts: int
    prompt: int
    output: int


ON_GPU = pytest.param(Place("cuda", HALF_BILLION, "bfloat16", 20, 100, 128), marks=pytest.mark.gpu, id="cuda")
ON_CPU = pytest.param(Place("cpu", TINY, "float32", 4, 40, 12), marks=pytest.mark.slow, id="cpu")
EVERYWHERE = pytest.mark.parametrize("place", [ON_GPU, ON_CPU])
FORMATS = pytest.mark.parametrize("dtype", ["float32", "bfloat16"])


@pytest.fixture(scope="module")
def saved(tmp_path_factory: pytest.TempPathFactory) -> Callable[[ModelConfig, str], Path]:
    """The folder of a shape with random weights, each made once."""
    folder = tmp_path_factory.mktemp("models")

    def saved(config: ModelConfig, dtype: str) -> Path:
        path = folder / f"{config.name}-{dtype}"
        if not path.exists():
            device = "cuda" if torch.cuda.is_available() else "cpu"
            save_weights(path, config, random_weights(config, whole(config.layers), dtype, device, seed=1))
        return path

    return saved


@pytest.fixture(autouse=True)
def memory_is_given_back() -> Iterator[None]:
    """Leaves the next test, and the processes it starts, all of the card's memory."""
    yield
    if torch.cuda.is_available():
        torch.cuda.empty_cache()


def models(saved: Callable[[ModelConfig, str], Path], place: Place) -> list[Path]:
    """Random weights, and on a GPU SmolLM2 as well where it is in the cache."""
    folders = [saved(place.model, place.weights)]
    entry = hub.find(SMOLLM2_135M.name)
    if place.device == "cuda" and hub.cached(entry):
        folders.append(hub.path(entry.name))
    return folders


@EVERYWHERE
@FORMATS
def test_logits_are_those_of_transformers(
    saved: Callable[[ModelConfig, str], Path], place: Place, dtype: str, capsys: pytest.CaptureFixture[str]
) -> None:
    for folder in models(saved, place):
        pair = Pair.of(folder, dtype, place.device)
        ours, theirs = pair.errors(pair.prompts(1, 3 * place.prompt)[0])
        with capsys.disabled():
            print(f"\n{folder.name}, {dtype} on {place.device}: logits are at most {float(ours.abs().max()):.2g} from "
                  f"transformers' in float32, its own in {dtype} {float(theirs.abs().max()):.2g}")  # fmt: skip
        if dtype == "float32":
            assert ours.abs().max() < TOLERANCE
        else:
            assert ours.square().mean().sqrt() < ROOM * theirs.square().mean().sqrt()


@EVERYWHERE
@FORMATS
def test_greedy_continuations_part_from_transformers_only_at_near_ties(
    saved: Callable[[ModelConfig, str], Path], place: Place, dtype: str, capsys: pytest.CaptureFixture[str]
) -> None:
    for folder in models(saved, place):
        pair = Pair.of(folder, dtype, place.device)
        prompts = pair.prompts(place.prompts, place.prompt)
        near = pair.near(prompts[:3])
        theirs = pair.continuations(prompts, place.output)
        ours = pair.served(prompts, place.output, blocks=place.prompts * (place.prompt + place.output) // 8)
        parted = [(prompt, a, b) for prompt, a, b in zip(prompts, ours, theirs, strict=True) if a != b]
        for prompt, a, b in parted:
            same = next(n for n in range(place.output) if a[n] != b[n])
            assert pair.gap(prompt + a[:same], a[same], b[same]) < near
        with capsys.disabled():
            print(f"\n{folder.name}, {dtype} on {place.device}: {len(parted)} of {len(prompts)} continuations part "
                  f"from transformers' at logits closer than {near:.2g}")  # fmt: skip
        if dtype == "float32":
            assert len(parted) <= len(prompts) // 10


@pytest.mark.gpu
@FORMATS
def test_speed_is_reported_beside_transformers_and_the_limits_of_the_card(
    saved: Callable[[ModelConfig, str], Path], dtype: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    peers, setting = own_python(tmp_path / "peers"), Setting(usable_cores(), dtype, "cuda")
    report = run(BILLION.name, saved(BILLION, "bfloat16"), [PEERS["transformers"]], peers, rounds=3, setting=setting,
                 size=GPU, logs=tmp_path, progress=lambda what, done, total: None)  # fmt: skip
    report.machine["gpu"] = torch.cuda.get_device_name()
    REPORTS.mkdir(exist_ok=True)
    report.save(REPORTS / f"gpu-{dtype}.json")
    with capsys.disabled():
        print()
        report.show()
    batches = [row for row in report.rows if row.what.startswith("decode")]
    assert len(batches) == len(GPU.batches)
    assert batches[-1].ours > batches[0].ours  # a batch reads the weights once for all
    assert all(0 < (row.share() or 0) <= 1.2 for row in report.rows)
