"""What a trace is like: how many requests how long, and how much of them a cache could give back."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from mooncake_edu.store import POLICIES, Belady, ChainCache, Eviction
from mooncake_edu.traces.trace import Trace, TraceError

BELADY = "belady"


@dataclass(frozen=True)
class Stats:
    """A trace in numbers. `hits` are what a cache without limit gives back: references to a block seen before.

    `seconds` from the first arrival to the last, `rate` in requests/s (None where all come at once), means in tokens.
    """

    requests: int
    seconds: float
    rate: float | None
    input_mean: float
    output_mean: float
    block_size: int
    references: int
    distinct: int
    hits: int
    hit_ratio: float
    token_hits: int
    token_hit_ratio: float


@dataclass(frozen=True)
class Replay:
    """What one pool of `capacity` blocks under a policy gives back.

    `block_hits` counts blocks by themselves, looked up and stored one by one in the order of the prompts, as the
    paper's table does (arXiv 2407.00079, table 1). `prefix_hits` and `token_hits` count what a prefill can use: the
    blocks and tokens of the longest kept prefix, in a pool that keeps no block without those before it.
    """

    policy: str
    capacity: int | None
    block_hits: int
    block_hit_ratio: float
    prefix_hits: int
    prefix_hit_ratio: float
    token_hits: int
    token_hit_ratio: float


def fresh(trace: Trace) -> npt.NDArray[np.bool_]:
    """For every entry of `ids`, whether its block comes up for the first time."""
    first = np.zeros(len(trace.ids), bool)
    first[np.unique(trace.ids, return_index=True)[1]] = True
    return first


def stats(trace: Trace) -> Stats:
    """The numbers of a trace."""
    again = ~fresh(trace)
    seconds = float(trace.arrival[-1] - trace.arrival[0]) if len(trace) else 0.0
    hits, tokens = int(again.sum()), int(trace.sizes()[again].sum())
    return Stats(
        requests=len(trace),
        seconds=seconds,
        rate=len(trace) / seconds if seconds else None,
        input_mean=_ratio(int(trace.input_length.sum()), len(trace)),
        output_mean=_ratio(int(trace.output_length.sum()), len(trace)),
        block_size=trace.block_size,
        references=len(trace.ids),
        distinct=len(trace.ids) - hits,
        hits=hits,
        hit_ratio=_ratio(hits, len(trace.ids)),
        token_hits=tokens,
        token_hit_ratio=_ratio(tokens, int(trace.input_length.sum())),
    )


def replay(trace: Trace, policy: str, capacity: int | None) -> Replay:
    """Both ways of counting hits under a policy; `belady` knows the trace. Raises TraceError for an unknown policy."""
    blocks = block_hits(trace, policy, capacity)
    prefixes, tokens = prefix_hits(trace, policy, capacity)
    references, prompt = len(trace.ids), int(trace.input_length.sum())
    return Replay(policy, capacity, blocks, _ratio(blocks, references), prefixes, _ratio(prefixes, references), tokens,
                  _ratio(tokens, prompt))  # fmt: skip


def block_hits(trace: Trace, policy: str, capacity: int | None) -> int:
    """References to a block that is kept at that moment, the blocks used one by one and without closure."""
    keys = [(key,) for key in trace.ids.tolist()]
    cache, hits = ChainCache(capacity, eviction(policy, keys)), 0
    for key, position in zip(keys, trace.positions().tolist(), strict=True):
        hits += key[0] in cache
        cache.use(key, position)
    return hits


def prefix_hits(trace: Trace, policy: str, capacity: int | None) -> tuple[int, int]:
    """Blocks and tokens of the longest kept prefix of each prompt, which is looked up before it is stored."""
    prompts = [trace.ids_of(number).tolist() for number in range(len(trace))]
    cache, hits, tokens = ChainCache(capacity, eviction(policy, prompts)), 0, 0
    for prompt, length in zip(prompts, trace.input_length.tolist(), strict=True):
        found = cache.match(prompt)
        hits, tokens = hits + found, tokens + min(found * trace.block_size, length)
        cache.use(prompt)
    return hits, tokens


def eviction(policy: str, chains: list[tuple[int]] | list[list[int]]) -> Eviction:
    """A policy by its name, for a pool that will be used with these chains; raises TraceError if there is none."""
    if policy == BELADY:
        return Belady(chains)
    if policy not in POLICIES:
        raise TraceError(f"policy {policy!r} is not known: use one of {', '.join([*POLICIES, BELADY])}")
    return POLICIES[policy]()


def _ratio(part: int, whole: int) -> float:
    return part / whole if whole else 0.0
