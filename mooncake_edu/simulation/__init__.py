"""A cluster simulated exactly, event by event, and the experiments that run in it.

    from mooncake_edu.config import Config
    from mooncake_edu.simulation import simulate
    from mooncake_edu.traces.trace import read

    result = simulate(Config.load("cluster.toml"), read("conversation_trace.jsonl").faster(1.5))
    result.table.percentile("ttft", 90), result.met.mean(), result.goodput, result.hits, result.moved, result.busy

`result.table` is the `RequestTable` that an event log gives too, in the trace's order; give `simulate` an `EventLog` as
`log` to have every span and step, and an `explain.Journal` as `journal` to have every decision. The configuration says
all else: [[instances]], [engine] (places, pages, how many may wait, and as `token_budget` the chunk of a prefill
instance or the step of a coupled one), [tiers], [policies], [slo], [simulation]. Instances are missing for a while by
[[simulation.outages]]: see `outages`.

When a block counts as cached: at the end of the prefill that computed it, all its layers stored. What a request is to
fetch from another instance begins to move when it is placed, and its prefill waits for it. What it reuses is looked up
when its prefill begins. Its KVCache moves to the decode instance while it is prefilled, and it joins the batch at the
end of the step in which the last layer came. Ties: see `agenda.Rank`; requests that arrive at one time are taken in the
order of their rows.
"""

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from mooncake_edu.simulation.cluster import simulate
    from mooncake_edu.simulation.result import Result

__all__ = ["Result", "simulate"]


def __getattr__(name: str) -> Any:
    """What is offered, imported when first used, so that the command line starts at once."""
    if name == "simulate":
        from mooncake_edu.simulation.cluster import simulate

        return simulate
    if name == "Result":
        from mooncake_edu.simulation.result import Result

        return Result
    raise AttributeError(f"module {__name__} has no attribute {name}")
