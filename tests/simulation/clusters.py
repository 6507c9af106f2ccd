"""Small clusters, workloads made from a seed, and real traces where they are, for the tests of the simulator."""

from __future__ import annotations

import os
from pathlib import Path

import numpy as np

from mooncake_edu.config import Config
from mooncake_edu.model.costs import CostModel
from mooncake_edu.traces.trace import Row, Trace, read

TRACES = Path(os.environ.get("MOONCAKE_EDU_TRACES", Path(__file__).parents[3] / "shared" / "traces"))
SEPARATE = '[[instances]]\nrole = "prefill"\ncount = 2\n[[instances]]\nrole = "decode"\ncount = 2\n'
COUPLED = '[[instances]]\nrole = "coupled"\ncount = 4\n'


def config(
    instances: str = SEPARATE, *, memory: str = "400 GiB", budget: int = 8192, batch: int = 128, dram: str = "1 TB",
    tiers: str = "", placement: str = "load-balancing", simulation: str = "", costs: str = "A800x8", slo: str = "",
) -> Config:  # fmt: skip
    """A cluster under the paper's model; what is not named is as in the paper's cluster."""
    return Config.from_toml(
        f"""
        [model]
        name = "llama-70b"
        [engine]
        block_size = 512
        memory = "{memory}"
        token_budget = {budget}
        max_batch = {batch}
        {instances}
        [policies]
        placement = "{placement}"
        [tiers]
        dram = "{dram}"
        {tiers}
        [slo]
        {slo}
        [simulation]
        costs = "{costs}"
        {simulation}
        """
    )


def workload(count: int, rate: float, seed: int, *, longest: int = 20_000, tick: float = 0.0) -> Trace:
    """Sessions of growing prompts, `rate` requests a second: Poisson, or all of a tick at its begin."""
    rng = np.random.default_rng(seed)
    times = np.cumsum(rng.exponential(1 / rate, count))
    if tick:
        times = np.floor(times / tick) * tick
    sessions: list[list[int]] = []
    rows, fresh = [], 0
    for time in times.tolist():
        if not sessions or rng.random() < 0.4:
            sessions.append([])
        session = sessions[int(rng.integers(len(sessions)))]
        length = min(len(session) * 512 + int(rng.integers(1, longest // 2)), longest)
        whole = length // 512
        while len(session) < whole:
            session.append(fresh := fresh + 1)
        ids = session[:whole]
        if length % 512:
            ids = [*ids, fresh := fresh + 1]
        rows.append(Row(time, length, int(rng.geometric(1 / 100)), ids))
    return Trace.of(rows, name="workload")


def plain(arrivals: np.ndarray, prompts: np.ndarray, outputs: np.ndarray) -> Trace:
    """Requests that share nothing."""
    rows, fresh = [], 0
    for time, prompt, output in zip(arrivals.tolist(), prompts.tolist(), outputs.tolist(), strict=True):
        blocks = -(-prompt // 512)
        rows.append(Row(time, prompt, output, range(fresh, fresh + blocks)))
        fresh += blocks
    return Trace.of(rows, name="plain")


def real(name: str, count: int = 500) -> Trace:
    """The first rows of a real trace; where it is not, a workload made from its name."""
    file = TRACES / f"{name}.jsonl"
    return read(file).slice(0, count) if file.exists() else workload(count, 3.0, sum(name.encode()), tick=3.0)


def linear(folder: Path, **values: float) -> str:
    """A file of costs in which all is free but what is named."""
    free: dict[str, float] = dict.fromkeys(("per_token", "per_pair", "per_sequence", "per_context", "floor"), 0.0)
    rates = {"host": 1e18, "network": 1e18, "node_rate": 1e18, "wire": 1.0}
    file = folder / "costs.toml"
    file.write_text(CostModel(name="linear", token_bytes=1, **(free | rates | values)).to_toml())
    return str(file)
