"""`mooncake-edu calibrate`: measure what steps of the real engine cost, and write the cost model that fits them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from itertools import product
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import numpy as np
import typer

from mooncake_edu.events import Kind
from mooncake_edu.model.calibrate import Decode, Prefill, Published, fit, published
from mooncake_edu.model.costs import CostModel
from mooncake_edu.request import Request, SamplingParams, Tokens, as_tokens

if TYPE_CHECKING:
    import torch

    from mooncake_edu.bench.engine import Progress
    from mooncake_edu.engine import Engine

FITTED_ROWS = (37, 75, 150, 230, 330, 500)
FITTED_PREFIXES = (0, 768)
"""Tokens computed in one step, and those reused before them, that the model is fitted to.

Few are a power of two, nor are most prompts: kernels that compute rows by the dozen favour round numbers.
"""

CHUNK = 512
"""The most tokens computed in a step: longer prompts take several."""

CHECKED_PROMPTS = (115, 410, 1205)
CHECKED_PREFIXES = (0.0, 1 / 3, 2 / 3)
"""Prompts and the shares of them that are reused by which the model is checked; none of them is fitted to."""

FITTED_DECODES = ((1, 16), (1, 640), (4, 64), (8, 16))
CHECKED_DECODES = ((2, 250), (6, 60))
"""Batches and the context of each request; `DECODE_STEPS` of each are measured."""

DECODE_STEPS = 6
COPY = 1 << 28  # bytes: far beyond the caches


@dataclass(frozen=True)
class Calibration:
    """A cost model, and the measured prefills and decode steps that it was not fitted to."""

    costs: CostModel
    prefills: list[Prefill]
    decodes: list[Decode]

    @property
    def worst(self) -> float:
        """How far the model is off the farthest of the prefills, as a share of the measured time."""
        return max(abs(point.error(self.costs)) for point in self.prefills)


def calibrate(
    out: Annotated[Path | None, typer.Option(help="A file for the cost model.")] = None,
    model: Annotated[str | None, typer.Option(help="A name of `models list`, or a folder.")] = None,
    rounds: Annotated[int, typer.Option(min=1, max=100, help="Times that each is measured; the median counts.")] = 24,
    preset: Annotated[bool, typer.Option("--published", help="Show how close the presets come to the paper.")] = False,
) -> None:
    """Fit a cost model to the engine on this machine, and check it on prompts that it was not fitted to."""
    from mooncake_edu.bench.commands import progress_bar
    from mooncake_edu.bench.results import require_writable
    from mooncake_edu.engine.options import open_engine
    from mooncake_edu.events import write_whole

    if preset:
        show_published(published())
        return
    require_writable(out, "--out")
    engine = open_engine(None, {"name": model}, {"memory": "1 GiB", "token_budget": CHUNK})
    with progress_bar() as progress:
        found = measure(engine, rounds, progress)
    show(found)
    if out is not None:
        write_whole(out, found.costs.to_toml().encode())
        print(f"written to {out}")


def measure(engine: Engine, rounds: int, progress: Progress) -> Calibration:
    """Time the engine, which nobody else uses."""
    from mooncake_edu.bench.results import cpu_name

    meter = Meter(engine)
    fitted = [meter.point(prefix + rows, prefix) for rows, prefix in product(FITTED_ROWS, FITTED_PREFIXES)]
    checked = [meter.point(prompt, prompt * share) for prompt, share in product(CHECKED_PROMPTS, CHECKED_PREFIXES)]
    loads = (*FITTED_DECODES, *CHECKED_DECODES)
    work = [partial(meter.prefill, point) for point in fitted + checked]
    work += [partial(meter.decode, *load) for load in loads]
    seconds = typical(work, rounds, lambda number: progress("prefill and decode", number, rounds))
    prefills = [replace(point, seconds=each) for point, each in zip(fitted + checked, seconds, strict=False)]
    decodes = [Decode(batch, batch * (context + DECODE_STEPS // 2), each)
               for (batch, context), each in zip(loads, seconds[len(prefills) :], strict=True)]  # fmt: skip
    model = engine.model
    costs = fit(f"{model.name} on {cpu_name()}", prefills[: len(fitted)], decodes[: len(FITTED_DECODES)],
                token_bytes=model.token_bytes, copy_rate=copy_rate(model.decoder.device))  # fmt: skip
    return Calibration(costs, prefills[len(fitted) :], decodes[len(FITTED_DECODES) :])


def typical(work: Sequence[Callable[[], float]], rounds: int, progress: Callable[[int], None]) -> list[float]:
    """The median of the seconds that each work told in the rounds.

    The fewest would not be fair: where another machine's work slows this one now and then, a short step finds a moment
    without it and a long one never does. Every round has an order of its own, so that what slows the machine for
    seconds does not meet the same works again.
    """
    random, seconds = np.random.default_rng(0), np.empty((rounds, len(work)))
    for number in range(rounds):
        progress(number)
        for place in random.permutation(len(work)).tolist():
            seconds[number, place] = work[place]()
    medians: list[float] = np.median(seconds, axis=0).tolist()
    return medians


class Meter:
    """Serves prompts of random tokens on an engine, and reads from its log how long that took."""

    def __init__(self, engine: Engine) -> None:
        self.engine = engine
        self._random = np.random.default_rng(0)
        self._start = self._tokens(max(CHECKED_PROMPTS))  # of every prompt that reuses a prefix
        self._served = 0

    def point(self, prompt: int, prefix: float) -> Prefill:
        """A prefill to be measured, of whose prefix whole blocks are reused."""
        size = self.engine.config.block_size
        return Prefill(prompt, int(prefix) // size * size, self.engine.config.token_budget, 0.0)

    def prefill(self, point: Prefill) -> float:
        """Seconds from the arrival of such a prompt to its first token, its prefix being cached."""
        if point.prefix:
            self._serve([self._start[: point.prefix]], 1)
        self._serve([np.concatenate((self._start[: point.prefix], self._tokens(point.rows)))], 1)
        table = self.engine.log.requests()
        assert table.cached[-1] == point.prefix
        return float(table.ttft[-1])

    def decode(self, batch: int, context: int) -> float:
        """Seconds of a decode step of so many requests that hold so many tokens each: the median of a few."""
        before = len(self.engine.log)
        self._serve([self._tokens(context) for _ in range(batch)], DECODE_STEPS + 1)
        steps = self.engine.log.columns().where(np.arange(before, len(self.engine.log))).of(Kind.STEP)
        alike = (steps.field(Kind.STEP, "decode") == batch) & (steps.field(Kind.STEP, "prefill") == 0)
        return float(np.median((steps.end - steps.start)[alike]))

    def _serve(self, prompts: list[Tokens], max_tokens: int) -> None:
        sampling = SamplingParams(max_tokens=max_tokens, ignore_eos=True)
        for prompt in prompts:
            self._served += 1
            self.engine.submit(Request(f"prompt {self._served}", as_tokens(prompt), sampling))
        while not self.engine.idle:
            self.engine.step()

    def _tokens(self, count: int) -> Tokens:
        return self._random.integers(0, self.engine.model.config.vocab, count, dtype=np.uint32)


def copy_rate(device: torch.device) -> float:
    """Bytes/s at which host memory is copied to the device, or to other host memory: the fastest of a few tries."""
    import torch

    from mooncake_edu.bench import limits

    data, place = torch.ones(COPY, dtype=torch.uint8), torch.empty(COPY, dtype=torch.uint8, device=device)
    return COPY / limits.fastest(lambda: place.copy_(data), str(device))


def show(found: Calibration) -> None:
    """Print each checked time beside what the model says, and the model."""
    points: list[Prefill | Decode] = [*found.prefills, *found.decodes]
    _print_table("not fitted to", [(str(point), point.seconds, point.error(found.costs), None) for point in points])
    print(f"worst error of a prefill: {found.worst:.1%}\n")
    print(found.costs.to_toml(), end="")


def show_published(points: list[Published]) -> None:
    """Print each published time beside the preset's, and beside what a model says that was fitted without it."""
    _print_table("8 x A800", [(str(each.point), each.point.seconds, each.error, each.held_out) for each in points])


Line = tuple[str, float, float, float | None]
"""A name, measured seconds, the model's error, and its error where it was not fitted to the line."""


def _print_table(title: str, rows: Sequence[Line]) -> None:
    from rich.console import Console
    from rich.table import Table

    held = any(row[3] is not None for row in rows)
    table = Table(title=title, header_style="bold", box=None)
    for column in ("", "measured", "model", "error", *(["held out"] if held else [])):
        table.add_column(column, justify="right" if column else "left")
    for what, seconds, error, out in rows:
        last = ["-" if out is None else f"{out:+.1%}"] if held else []
        table.add_row(what, f"{seconds:.4f} s", f"{seconds * (1 + error):.4f} s", f"{error:+.1%}", *last)
    Console().print(table)
