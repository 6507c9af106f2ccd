"""The engine beside its peers: prefill, decode, a small load from end to end, and what a cached prompt saves.

Every system runs in a process of its own, with the same weights, prompts, number of threads and number format, one
at a time and in turn. All make the same tokens, which are compared.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from dataclasses import asdict
from pathlib import Path

import numpy as np
import torch

from mooncake_edu.bench.figures import differences, rows
from mooncake_edu.bench.loads import OURS, Load, Prompts, Samples, Setting, Size
from mooncake_edu.bench.peers.install import Peer
from mooncake_edu.bench.process import START_LIMIT, Process
from mooncake_edu.bench.results import BenchError, Report, machine
from mooncake_edu.model.config import ModelConfig

Progress = Callable[[str, int, int], None]
"""Told what is under way, and how many of how many measurements are done."""


def run(
    model: str, folder: Path, peers: Sequence[Peer], installed: Path, *, rounds: int, setting: Setting, size: Size,
    logs: Path, progress: Progress, seed: int = 0,
) -> Report:  # fmt: skip
    """Measure `model`, whose files are in `folder`; each file in `logs` is what one system printed.

    Raises BenchError if there is no such device, or a system cannot be started, fails or hangs.
    """
    if setting.device == "cuda" and not torch.cuda.is_available():
        raise BenchError("device cuda is not there: use --device cpu, or a torch with CUDA and a driver")
    surroundings = machine(setting.threads, {})
    config = ModelConfig.from_folder(folder)
    with ExitStack() as stack:
        command = [sys.executable, "-m", "mooncake_edu.bench.ours"]
        systems = {OURS: stack.enter_context(Process(OURS, command, setting.threads, logs / "ours.log"))}
        for peer in peers:
            process = peer.run(installed, setting.threads, logs / f"{peer.name}.log")
            systems[peer.name] = stack.enter_context(process)
        surroundings["versions"] |= _start(systems, folder, setting, size, progress)
        samples = _measure(systems, peers, config, rounds, size, progress, seed)
        compared = [differences(samples, systems[OURS], peer.name, setting.dtype) for peer in peers]
    how = f"{model}, {setting.dtype} on {setting.device}, {setting.threads} threads"
    notes = [f"{how}; the median of {rounds} rounds in turn", *compared]
    return Report(bench="engine", machine=surroundings, rows=rows(samples, config, size, setting.dtype), notes=notes)


def _start(
    systems: dict[str, Process], folder: Path, setting: Setting, size: Size, progress: Progress
) -> dict[str, str]:
    versions: dict[str, str] = {}
    for number, (name, system) in enumerate(systems.items()):
        progress(f"{name} loads the model", number, len(systems))
        answer = system.ask("start", START_LIMIT, model=str(folder), batch=max(size.batches), **asdict(setting))
        versions |= {f"{key} of {name}" if key == "torch" else key: value for key, value in answer["versions"].items()}
    return versions


def _measure(
    systems: dict[str, Process], peers: Sequence[Peer], config: ModelConfig, rounds: int, size: Size,
    progress: Progress, seed: int,
) -> Samples:  # fmt: skip
    """Every load to every system, round after round, each round begun by another system."""
    samples, random = Samples(), np.random.default_rng(seed)
    caching = {OURS, *(peer.name for peer in peers if peer.caches_prefixes)}
    names, loads = list(systems), [*size.prefills(), *size.decodes()]
    for system in systems.values():
        system.ask("generate", prompts=_prompts(random, config, Load(1, size.context, 2)), max_tokens=2)
    prompts: Prompts = []
    for number in range(rounds):
        rates = systems[OURS].ask("rates", size=size.matrix, nbytes=size.read)
        samples.rates.append((rates["matrix"], rates["read"]))
        turn = number % len(names)
        for place, load in enumerate(loads):
            prompts = prompts if load.again else _prompts(random, config, load)
            samples.prompts.setdefault(load, []).append(prompts)
            for name in names[turn:] + names[:turn]:
                if name in caching or not load.again:
                    progress(f"round {number + 1} of {rounds}: {load}: {name}", number * len(loads) + place,
                             rounds * len(loads))  # fmt: skip
                    samples.add(name, load, systems[name].ask("generate", prompts=prompts, max_tokens=load.output))
    return samples


def _prompts(random: np.random.Generator, config: ModelConfig, load: Load) -> Prompts:
    tokens: Prompts = random.integers(0, config.vocab, (load.batch, load.prompt)).tolist()
    return tokens
