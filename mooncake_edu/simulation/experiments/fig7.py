"""Figure 7 of the first paper: what storing the KVCache adds to a prefill, at its end or layer by layer."""

from __future__ import annotations

from typing import Annotated

import numpy as np
import plotly.graph_objects as go
from pydantic import Field

from mooncake_edu.config import Section
from mooncake_edu.model.costs import CostModel, fit_relative
from mooncake_edu.pictures.figures import finish
from mooncake_edu.pictures.palette import COMPUTED, MOVING, Paint
from mooncake_edu.simulation.experiments import Experiment, Outcome, Progress, Row
from mooncake_edu.simulation.prefill import Through, Work, by_layer, in_turn

SERIALISED = {8192: 0.11, 16384: 0.12, 32768: 0.23, 65536: 0.42, 131072: 0.87}
LAYER_WISE = dict.fromkeys(SERIALISED, 0.10)
"""Prompt tokens and seconds that storing adds; arXiv 2407.00079, fig. 7, read off to about 5 %."""

WAYS: dict[str, tuple[Through, dict[int, float]]] = {
    "serialised": (in_turn, SERIALISED),
    "layer-wise": (by_layer, LAYER_WISE),
}


class Settings(Section):
    """The cost model, the model's layers, and the lengths of the prompts in tokens."""

    costs: str = Field(min_length=1)
    layers: int = Field(ge=1, le=1000)
    prompts: tuple[Annotated[int, Field(ge=1, le=2**24)], ...] = Field(min_length=1, strict=False)


def run(settings: Settings, progress: Progress) -> Outcome:
    """Prefill each prompt with and without storing, with the host link as specified and as fits the paper's times."""
    costs = CostModel.named(settings.costs)
    rate, constant = implied(costs.token_bytes)
    links = {"link as specified": (costs.host, 0.0), "link as fits the paper's times": (rate, constant)}
    lines: dict[str, list[float]] = {}
    rows = []
    for way, (through, paper) in WAYS.items():
        for link, (bandwidth, setup) in links.items():
            name = f"{way}, {link}"
            lines[name] = [
                extra_latency(through, costs, prompt, settings.layers, bandwidth) + setup for prompt in settings.prompts
            ]
            rows += [Row(what=f"{name}: {prompt:,} tokens", unit="s", ours=ours, paper=paper.get(prompt))
                     for prompt, ours in zip(settings.prompts, lines[name], strict=True)]  # fmt: skip
            progress(name, len(lines), len(WAYS) * len(links))
    what = "rate of storing (paper: fitted to its serialised times)"
    rows.append(Row(what=what, unit="GB/s", ours=costs.host / 1e9, paper=rate / 1e9))
    return Outcome(rows, [_figure(settings.prompts, lines)], _remarks(costs, rate, constant))


def extra_latency(through: Through, costs: CostModel, prompt: int, layers: int, bandwidth: float) -> float:
    """Seconds by which storing a prompt's KVCache at that rate delays the end of its prefill, nothing reused."""
    compute = costs.prefill(prompt)
    passage = through(0.0, 0.0, Work(0.0, compute, prompt * costs.token_bytes / bandwidth), layers)
    return passage.stored - compute


def implied(token_bytes: int) -> tuple[float, float]:
    """Bytes/s and constant seconds of storing that fit the paper's serialised times best, by relative errors."""
    terms = np.array([(tokens * token_bytes / 1e9, 1.0) for tokens in SERIALISED])
    seconds_per_gigabyte, constant = fit_relative(terms, np.array([*SERIALISED.values()]))
    return 1e9 / seconds_per_gigabyte, constant


def _remarks(costs: CostModel, rate: float, constant: float) -> list[str]:
    return [
        "Extra latency: the end of the last store less the end of the same prefill without storing.",
        f"Serialised: the paper's times fit {rate / 1e9:.0f} GB/s and {constant * 1e3:.0f} ms a prompt, but the link "
        f"of the node is specified with {costs.host / 1e9:.0f} GB/s (FAST table 1). Likely causes: pages are copied "
        "one by one, and the first paper does not name the hardware of its figure.",
        "Layer-wise: here only the last layer's store is left, as a layer is stored far sooner than the next is "
        "computed. The paper's flat 0.10 s is likely the cost of managing the copies, for which it has no formula; "
        "that it hardly grows with the prompt is what both show.",
    ]


def _figure(prompts: tuple[int, ...], lines: dict[str, list[float]]) -> go.Figure:
    figure = go.Figure()
    paints = {"serialised": MOVING, "layer-wise": COMPUTED}
    for way, paint in paints.items():
        paper = WAYS[way][1]
        _line(figure, prompts, [paper.get(prompt) for prompt in prompts], f"paper, {way}", paint, "x", "dot")
    for (name, values), symbol in zip(lines.items(), ("circle", "square", "circle", "square"), strict=True):
        paint = paints[name.partition(",")[0]]
        _line(figure, prompts, values, f"ours, {name}", paint, symbol, "solid" if symbol == "circle" else "dash")
    figure.update_layout(height=480)
    figure.update_xaxes(title="prompt (tokens)", type="log", tickvals=prompts, ticktext=[f"{n:,}" for n in prompts])
    figure.update_yaxes(title="extra latency (s)", rangemode="tozero")
    said = "; ".join(f"{name} {values[-1]:.3f} s" for name, values in lines.items())
    return finish(figure, "What storing the KVCache adds to a prefill", f"At {prompts[-1]:,} tokens: {said}.")


def _line(
    figure: go.Figure, x: tuple[int, ...], y: list[float] | list[float | None], name: str, paint: Paint, symbol: str,
    dash: str,
) -> None:  # fmt: skip
    figure.add_scatter(
        x=x, y=y, name=name, mode="lines+markers", line={"color": paint.colour, "dash": dash},
        marker={"symbol": symbol, "size": 9, "color": paint.colour},
        hovertemplate=name + ", %{x:,} tokens: %{y:.3f} s<extra></extra>",
    )  # fmt: skip


FIG7 = Experiment(Settings, run)
