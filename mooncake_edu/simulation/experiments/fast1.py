"""Figures 1 and 7 of the second paper: requests served within their objectives, by how tight the TBT is."""

from __future__ import annotations

from functools import partial

import plotly.graph_objects as go

from mooncake_edu.pictures.figures import bar_marker, finish
from mooncake_edu.pictures.palette import INK, SERIES
from mooncake_edu.simulation.experiments import Experiment, Outcome, Progress, Row
from mooncake_edu.simulation.experiments.serving import Run, Settings, best, by_load, gains, serve

Shares = dict[str, dict[float, float]]

PAPER: Shares = {"separate": {0.1: 0.95, 0.2: 1.0, 0.3: 1.0}, "prefill first": {0.1: 0.16, 0.2: 0.39, 0.3: 0.63}}
"""Share of conversation's requests within TTFT 30 s, by the TBT in seconds, on 16 nodes; FAST fig. 1, read off."""

GAINS = {0.1: 498.0, 0.2: 157.0, 0.3: 59.0}
"""Requests more than the best baseline, in percent; FAST fig. 1."""

SYNTHETIC_GAINS = {0.1: 62.0, 0.2: 40.0, 0.3: 28.0}
"""The same on the synthetic trace; FAST fig. 7."""


def run(
    settings: Settings, progress: Progress, shares: Shares = PAPER, more: dict[float, float] = GAINS
) -> Outcome:
    """Serve the trace at every speed by every system, and count who is within both objectives."""
    runs = serve(settings, progress)
    rows = [row for each in runs for row in _shares(each, settings, shares)]
    figure = _figure(runs, settings, shares)
    return Outcome([*rows, *gains(runs, settings, more)], [figure], _remarks(runs, settings))


def _shares(each: Run, settings: Settings, shares: Shares) -> list[Row]:
    paper = shares.get(each.system.kind, {})
    return [
        Row(what=f"{each.where}, {each.system.name}: TTFT {settings.ttft:g} s, TBT {tbt * 1e3:g} ms",
            unit="of requests", ours=each.share(settings.ttft, tbt), paper=paper.get(tbt))
        for tbt in settings.tbts
    ]  # fmt: skip


def _remarks(runs: list[Run], settings: Settings) -> list[str]:
    tbt = min(settings.tbts)
    told = []
    for group in by_load(runs).values():
        ours, strong = best(group, "separate", settings.ttft, tbt), best(group, "chunked", settings.ttft, tbt)
        told.append(f"{group[0].where}: {ours:.3f} against {strong:.3f}")
    return [
        "The paper does not state the speed of the replay, nor how its 16 nodes are divided: its figures stand beside "
        "every speed and division. TBT of a request: the mean of the longest 10 % of its intervals (FAST 5.1).",
        f"Against chunked prefill, the stronger baseline, at TBT {tbt * 1e3:g} ms: {'; '.join(told)}. Its chunks cost "
        "no more here than a whole prompt does, which favours it; real kernels lose with small chunks.",
        f"Placement here is {settings.placement}, each instance reusing what its own DRAM holds; the paper's Conductor "
        "fetches prefixes from others, and so may need fewer prefill instances for the same load.",
        "A decoding request stalls as long as the prefills that come in between, so the baseline's share rests on the "
        "unpublished limit of tokens a step, and on the load.",
        *(f"{each.where}, {each.system.name}: too few prefill instances for this load, mean TTFT "
          f"{each.table.mean('ttft'):.0f} s." for each in runs
          if each.system.kind == "separate" and each.share_in("ttft", settings.ttft) < 0.5),
    ]  # fmt: skip


def _figure(runs: list[Run], settings: Settings, paper: Shares) -> go.Figure:
    figure, loads = go.Figure(), list(by_load(runs))
    places = [[f"{load.speed:g} x" for load in loads for _ in settings.tbts],
              [f"{tbt * 1e3:g} ms" for _ in loads for tbt in settings.tbts]]  # fmt: skip
    for system, paint in zip(settings.systems, SERIES, strict=False):
        shares = [each.share(settings.ttft, tbt) for each in runs if each.system == system for tbt in settings.tbts]
        figure.add_bar(
            x=places, y=shares, name=system.name, marker=bar_marker(paint),
            hovertemplate=system.name + ", %{x}: %{y:.1%}<extra></extra>",
        )  # fmt: skip
    for name, kind, symbol in (("paper, Mooncake", "separate", "star"), ("paper, best baseline", "prefill first", "x")):
        if kind not in paper:
            continue
        figure.add_scatter(
            x=places, y=[paper[kind].get(tbt) for _ in loads for tbt in settings.tbts], name=name, mode="markers",
            marker={"symbol": symbol, "size": 11, "color": INK, "line": {"width": 1, "color": "white"}},
        )  # fmt: skip
    figure.update_layout(barmode="group", height=480)
    figure.update_yaxes(title="requests within both objectives", tickformat=".0%", rangemode="tozero")
    figure.update_xaxes(title="speed of the replay and limit of TBT")
    tightest = min(settings.tbts)
    said = "; ".join(f"{each.where}, {each.system.name} {each.share(settings.ttft, tightest):.0%}" for each in runs)
    return finish(figure, f"Requests within TTFT {settings.ttft:g} s and a TBT", f"At the tightest TBT: {said}.")


FAST1 = Experiment(Settings, run)
FAST7 = Experiment(Settings, partial(run, shares={}, more=SYNTHETIC_GAINS))
