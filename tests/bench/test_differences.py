"""Outputs that differ are counted, and a near tie is told from a mistake."""

from __future__ import annotations

import sys
from pathlib import Path

from mooncake_edu.bench.figures import differences
from mooncake_edu.bench.loads import OURS, Load, Samples
from mooncake_edu.bench.process import Process
from mooncake_edu.model import random_model
from mooncake_edu.model.config import TINY
from mooncake_edu.model.weights import save_weights

PROMPT = [1, 2, 3]


def samples(theirs: list[int]) -> Samples:
    load = Load(1, len(PROMPT), 4)
    kept = Samples(prompts={load: [[PROMPT]]})
    kept.add(OURS, load, {"tokens": [[5, 6, 7, 8]]})
    kept.add("peer", load, {"tokens": [theirs]})
    return kept


def test_a_token_that_the_model_does_not_nearly_prefer_is_no_near_tie(tmp_path: Path) -> None:
    folder = tmp_path / "tiny"
    save_weights(folder, TINY, random_model(TINY).decoder.weights)
    command = [sys.executable, "-m", "mooncake_edu.bench.ours"]
    with Process(OURS, command, 1, tmp_path / "log") as ours:
        ours.ask("start", model=str(folder), threads=1, dtype="float32", device="cpu", batch=1)
        assert ours.ask("gap", tokens=PROMPT, first=5, second=5)["gap"] == 0
        assert ours.ask("gap", tokens=PROMPT, first=5, second=6)["gap"] > 1e-3
        assert differences(samples([5, 6, 7, 8]), ours, "peer") == "peer: all 4 tokens are the same as ours"
        assert differences(samples([5, 6, 1, 8]), ours, "peer").startswith(
            "peer: 1 of 4 tokens are not ours, in 1 of 1 answers; in 0 of these"
        )
