"""The options that every command which serves prompts takes, and the engine and the sampling that they say."""

from __future__ import annotations

import functools
import sys
from collections.abc import Callable
from dataclasses import dataclass, fields
from inspect import Parameter, Signature, signature
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, get_type_hints

import psutil
import typer

from mooncake_edu.config import SIZES, Config, EngineConfig, ModelSection
from mooncake_edu.errors import ConfigError
from mooncake_edu.model import hub
from mooncake_edu.model.commands import progress_bar
from mooncake_edu.request import SamplingParams

if TYPE_CHECKING:
    from mooncake_edu.engine import Engine
    from mooncake_edu.model import Model


@dataclass(frozen=True, kw_only=True)
class Options:
    """What every command that serves prompts takes: which model on which engine, and how tokens are chosen."""

    config: Annotated[str | None, typer.Option(help=f"A TOML file, or a size: {', '.join(SIZES)}.")] = None
    model: Annotated[str | None, typer.Option(help="A name of `models list`, or a folder.")] = None
    dtype: Annotated[str | None, typer.Option(help="float32, bfloat16 or float16.")] = None
    device: Annotated[str | None, typer.Option(help="cpu or cuda.")] = None
    block_size: Annotated[int | None, typer.Option(help="Tokens a block of the KVCache.")] = None
    memory: Annotated[str | None, typer.Option(help='Memory of the KVCache, such as "1 GiB".')] = None
    token_budget: Annotated[int | None, typer.Option(help="Most tokens computed in one step.")] = None
    max_tokens: Annotated[int, typer.Option(help="Most tokens of an answer.")] = 128
    temperature: Annotated[float, typer.Option(help="0 takes the likeliest token.")] = 0.0
    top_k: Annotated[int, typer.Option(help="Choose among the k likeliest; 0 is all.")] = 0
    top_p: Annotated[float, typer.Option(help="Choose among the likeliest up to this probability.")] = 1.0
    seed: Annotated[int, typer.Option(help="Of the choice of tokens.")] = 0
    stop: Annotated[list[str] | None, typer.Option(help="End before this text (repeatable).")] = None
    stop_token: Annotated[list[int] | None, typer.Option(help="End at this token id (repeatable).")] = None
    ignore_eos: Annotated[bool, typer.Option("--ignore-eos", help="Go on after the model's own end token.")] = False

    def sampling(self) -> SamplingParams:
        """The sampling parameters; raises RequestError on what cannot work."""
        ends = frozenset(self.stop_token or ())
        return SamplingParams(self.max_tokens, self.temperature, self.top_k, self.top_p, self.seed,
                              tuple(self.stop or ()), ends, self.ignore_eos)  # fmt: skip

    def engine(self) -> Engine:
        """An engine as the configuration says, changed by the other options."""
        return open_engine(
            self.config,
            {"name": self.model, "dtype": self.dtype, "device": self.device},
            {"block_size": self.block_size, "memory": self.memory, "token_budget": self.token_budget},
        )


def with_options(**defaults: object) -> Callable[[Callable[..., None]], Callable[..., None]]:
    """Gives a command each field of `Options` on the command line; it gets them as its first argument.

    `defaults` are those of this command that differ from the fields'.
    """

    def wrap(command: Callable[..., None]) -> Callable[..., None]:
        @functools.wraps(command)
        def run(**given: Any) -> None:
            shared = {field.name: given.pop(field.name) for field in fields(Options)}
            command(Options(**shared), **given)

        _, *own = signature(command, eval_str=True).parameters.values()
        hints = get_type_hints(Options, include_extras=True)
        shared = [Parameter(field.name, Parameter.KEYWORD_ONLY, default=defaults.get(field.name, field.default),
                            annotation=hints[field.name]) for field in fields(Options)]  # fmt: skip
        every = [*(each.replace(kind=Parameter.KEYWORD_ONLY) for each in own), *shared]
        run.__signature__ = Signature(every)  # type: ignore[attr-defined]  # what typer reads
        run.__annotations__ = {each.name: each.annotation for each in every}
        return run

    return wrap


def open_engine(config: str | None, model: dict[str, Any], engine: dict[str, Any]) -> Engine:
    """An engine as the configuration says, changed by what of `model` and `engine` is not None."""
    from mooncake_edu.engine import Engine

    base = Config.named("cpu" if config is None else config)
    if engine.get("memory") is not None:
        engine = {**engine, "memory": plain_number(engine["memory"])}
    engine = {key: value for key, value in engine.items() if value is not None}
    model = {key: value for key, value in model.items() if value is not None}
    sizing = {"memory": None, "blocks": None} if "memory" in engine else {}
    settled = EngineConfig(**base.engine.model_dump() | sizing | engine)
    wanted = ModelSection(**base.model.model_dump() | model)
    opened = open_model(wanted, may_be_tiny=config is None and "name" not in model)
    require_room(opened, settled)
    return Engine(opened, settled)


def require_room(model: Model, config: EngineConfig) -> None:
    """Raises ConfigError if the KVCache takes more memory than is free; a promise of memory is not memory."""
    needed = config.count_blocks(model.token_bytes) * config.block_size * model.token_bytes
    free = psutil.virtual_memory().available if model.decoder.device.type == "cpu" else needed
    if needed > free:
        raise ConfigError(f"engine.memory: a KVCache of {needed} bytes is more than the {free} free: give less")


def plain_number(text: str) -> int | str:
    """A number without a unit as a number, everything else as it is."""
    return int(text) if text.isdecimal() else text


def open_model(wanted: ModelSection, *, may_be_tiny: bool) -> Model:
    """The model, fetched if it is not in the cache; `may_be_tiny` takes the random one where none can be fetched."""
    from mooncake_edu.model import load

    name = wanted.name
    if not Path(name).is_dir() and hub.find(name).shape is None:
        with progress_bar() as progress:
            if may_be_tiny:
                name = hub.fetch_or_tiny(name, lambda text: print(text, file=sys.stderr), progress)
            else:
                hub.fetch(name, progress)
    return load(name, dtype=wanted.dtype, device=wanted.device, seed=wanted.seed)
