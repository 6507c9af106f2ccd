"""`mooncake-edu explain`: why a request of a run went where it went, and what other policies would have done."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

from mooncake_edu.errors import UserError

if TYPE_CHECKING:
    from mooncake_edu.simulation.explain import Explanation
    from mooncake_edu.simulation.result import Result


def explain(
    request: Annotated[int, typer.Argument(min=0, help="The request's number in the trace, from 0.")],
    config: Annotated[str, typer.Option(help="A TOML file, or a size such as cluster.")] = "cluster",
    trace: Annotated[str, typer.Option(help="A file of JSON lines, or a name such as conversation.")] = "conversation",
    speed: Annotated[float, typer.Option(min=0.001, max=1000, help="How many times as fast requests come.")] = 1.0,
    placement: Annotated[str | None, typer.Option(help="A policy in place of the configuration's.")] = None,
) -> None:
    """Serve a trace up to a request, and show what the Conductor saw when it was placed."""
    from mooncake_edu.simulation.cluster import simulate
    from mooncake_edu.simulation.commands import configurations
    from mooncake_edu.simulation.explain import Journal, Shadows, regrets
    from mooncake_edu.simulation.explain import explain as told_of
    from mooncake_edu.simulation.parts import costs_of
    from mooncake_edu.traces.places import open_trace

    (chosen,) = configurations(config, [] if placement is None else [placement]).values()
    asked = open_trace(trace, chosen.engine.block_size)
    if request >= len(asked):
        raise UserError(f"request {request} is not in {asked.name}: use a number from 0 to {len(asked) - 1}")
    journal, threshold = Journal(), chosen.policies.kvcache_balancing_threshold
    found = simulate(chosen, asked.slice(0, request + 1).faster(speed), journal=journal)
    end = ending(found)
    # not the request's number: those that an outage sends back are placed again, and some are not placed at all
    came = found.table.arrival[-1]
    places = [place for place, call in enumerate(journal.placed) if call.arguments[0].arrival == came]
    if not places:
        raise UserError(f"request {request} of {asked.name} was not placed: {end}")
    costs = costs_of(chosen)
    shadows = Shadows(costs, threshold, chosen.simulation.seed)
    mean = regrets(journal, shadows, places[-1])
    show(told_of(journal, places[-1], costs, shadows, threshold), mean)
    if end:
        print(f"In the end {end}.")


def ending(found: Result) -> str:
    """Where and why the last request of a run was refused; nothing if it was served."""
    from mooncake_edu.events import Refusal
    from mooncake_edu.simulation.result import Stage

    if found.refusal[-1] < 0:
        return ""
    stage, why = Stage(found.stage[-1]), Refusal(found.refusal[-1])
    return f"it was refused ({stage.name.lower()}: {why.text})"


def show(told: Explanation, mean: dict[str, float]) -> None:
    """Print the candidates and the choices; `mean` are the policies' mean regrets before."""
    from rich.table import Table

    from mooncake_edu.bench.results import page

    seen, choices = Table(header_style="bold", box=None), Table(header_style="bold", box=None)
    for column in ("instance", "cached", "fetched", "from", "queue (s)", "transfer (s)", "prefill (s)", "TTFT (s)",
                   "alone (s)", ""):  # fmt: skip
        seen.add_column(column, justify="right")
    for each, local in zip(told.candidates, told.local, strict=True):
        mark = "chosen" if each.instance == told.placement.prefill else "" if each.usable else "not usable"
        source = "-" if each.source is None else str(each.source)
        times = (each.queue, each.transfer, each.prefill, each.ttft, local.ttft)
        seen.add_row(str(each.instance), f"{each.cached:,}", f"{each.fetched:,}", source,
                     *(f"{value:.3f}" for value in times), mark)  # fmt: skip
    for column in ("policy", "instance", "TTFT (s)", "regret (s)", "mean before (s)"):
        choices.add_column(column, justify="left" if column == "policy" else "right")
    for name, choice in told.choices.items():
        values = (choice.ttft, choice.regret, mean[name])
        choices.add_row(name, str(choice.instance), *(f"{value:.3f}" for value in values))
    console = page()
    console.print(f"A prompt of {told.query.prompt:,} tokens at {told.query.arrival:.3f} s. Alone: without fetching.")
    console.print(seen)
    console.print(choices)
    console.print(
        "A policy's TTFT is what these estimates say of its choice; its regret is how much later that is than the best "
        "instance would be. The mean is over all requests before.",
        style="dim", highlight=False,
    )  # fmt: skip
