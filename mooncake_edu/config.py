"""One TOML file says what is run: model, hardware, instances, SLOs, policies, tiers and transport.

The same file drives a real run and a simulation. Everything that cannot work is refused in one line that names the
file, the key, the value and what is allowed.
"""

from __future__ import annotations

import tomllib
from importlib import resources
from pathlib import Path
from typing import Annotated, Any, Literal, Self, get_args

from annotated_types import Ge, Gt, Le
from pydantic import (
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Field,
    ModelWrapValidatorHandler,
    ValidationError,
    ValidationInfo,
    model_validator,
)
from pydantic.fields import FieldInfo
from pydantic_core import ErrorDetails

from mooncake_edu.errors import ConfigError, near, short
from mooncake_edu.quantities import MAX_BYTES, Quantity, Reader, Slo, SloReader

SIZES = ("tiny", "cpu", "gpu", "cluster")
"""The sizes whose configuration comes with the package, smallest first."""

SloField = Annotated[Slo, BeforeValidator(SloReader())]
Size = Annotated[int, BeforeValidator(Quantity("B", "1 GiB", 0, MAX_BYTES))]
Memory = Annotated[int, BeforeValidator(Quantity("B", "1 GiB", 1, MAX_BYTES))]
SliceSize = Annotated[int, BeforeValidator(Quantity("B", "64 KiB", 4096, 2**30))]
Bandwidth = Annotated[float, BeforeValidator(Quantity("B/s", "100 GB/s", 1, 10**18))]
Compute = Annotated[float, BeforeValidator(Quantity("FLOP/s", "312 TFLOP/s", 1, 10**21))]


AdmissionName = Literal[
    "all", "decode-refuses", "early", "early-predicted", "survival", "early-predicted-lengths", "bet"
]  # fmt: skip


class Section(BaseModel):
    """A table of the configuration; raises ConfigError where it is made with a key or value that cannot work."""

    model_config = ConfigDict(extra="forbid", frozen=True, strict=True, allow_inf_nan=False)

    @model_validator(mode="wrap")
    @classmethod
    def _refuse(cls, data: Any, handler: ModelWrapValidatorHandler[Self], info: ValidationInfo) -> Self:
        try:
            made = handler(data)
            made.check()
            return made
        except ValueError as error:
            if info.context is not None:  # a table inside a file: whoever reads the file knows the whole path
                raise
            text = refusal(cls, _worst(error)) if isinstance(error, ValidationError) else str(error)
            raise ConfigError(text) from None

    def check(self) -> None:
        """Check the keys against each other; raises ValueError, its text beginning with the first key's name."""

    @classmethod
    def load(cls, path: str | Path) -> Self:
        """Read a TOML file; raises ConfigError if it cannot be read or holds what cannot work."""
        try:
            text = Path(path).read_text(encoding="utf-8")
        except OSError as error:
            raise ConfigError(f"{path}: cannot be read ({error.strerror}): give a TOML file") from None
        except UnicodeDecodeError as error:
            raise ConfigError(f"{path}: cannot be read ({error}): give a TOML file in UTF-8") from None
        return cls.from_toml(text, str(path))

    @classmethod
    def from_toml(cls, text: str, file: str = "configuration") -> Self:
        """Read TOML text; `file` is the name that errors give; raises ConfigError on what cannot work."""
        try:
            values = tomllib.loads(text)
        except ValueError as error:
            raise ConfigError(f"{file}: is not TOML ({error}): mend that line") from None
        try:
            return cls.model_validate(values, context={"file": file})
        except ValidationError as error:
            raise ConfigError(f"{file}: {refusal(cls, _worst(error))}") from None


class ModelSection(Section):
    """Which model, in which number format, on which device; `seed` makes its random weights where it has no others."""

    name: str = Field(min_length=1)
    dtype: Literal["float32", "bfloat16", "float16"] = "float32"
    device: Literal["cpu", "cuda"] = "cpu"
    seed: int = Field(default=0, ge=0, le=2**64 - 1)


class EngineConfig(Section):
    """How one instance serves: its KVCache, and what it takes into one batch step.

    Exactly one of `memory` (bytes, or a string such as "1 GiB") and `blocks` sets the size of the KVCache.
    `token_budget` is the most tokens computed in one step, `max_batch` the most requests in it, `max_queue` the most
    requests waiting. `compare_tokens` compares a hit's tokens with the request's, so that not even two prompts with
    the same hash are mixed up.
    """

    block_size: int = Field(default=16, ge=1, le=512)
    memory: Memory | None = None
    blocks: int | None = Field(default=None, ge=1, le=2**31 - 1)
    token_budget: int = Field(default=512, ge=1, le=2**20)
    max_batch: int = Field(default=16, ge=1, le=4096)
    max_queue: int = Field(default=1024, ge=1, le=2**20)
    prefix_sharing: bool = True
    compare_tokens: bool = True

    def check(self) -> None:
        """At most as many requests as tokens in a step, and one way of sizing the KVCache."""
        if self.max_batch > self.token_budget:
            raise ValueError(
                f"token_budget {self.token_budget} is below max_batch {self.max_batch}, and each request of a batch "
                f"needs one token a step: use at least {self.max_batch}, or a smaller max_batch"
            )
        if (self.memory is None) == (self.blocks is None):
            given = "neither" if self.memory is None else "both"
            raise ValueError(f'memory and blocks: {given} given: give one of them, such as memory = "1 GiB"')

    def count_blocks(self, token_bytes: int) -> int:
        """How many blocks fit, where a token's KVCache takes `token_bytes` in all layers; ConfigError if none does."""
        if self.blocks is not None:
            return self.blocks
        block = self.block_size * token_bytes
        memory = self.memory or 0
        if memory < block:
            raise ConfigError(
                f"engine.memory {memory} is below one block of {self.block_size} tokens, {block} bytes for this "
                f"model: give at least that, or a smaller block_size"
            )
        return memory // block


class Hardware(Section):
    """What one instance's hardware can do, for estimates and the simulator.

    `compute` in FLOP/s, all bandwidths in bytes/s: `memory` of the device, `host` between host and device,
    `network` between instances.
    """

    compute: Compute
    memory: Bandwidth
    host: Bandwidth
    network: Bandwidth


class Instances(Section):
    """`count` instances alike. `prefill` and `decode` are disaggregated, `coupled` does both (the baseline)."""

    role: Literal["prefill", "decode", "coupled"] = "coupled"
    count: int = Field(default=1, ge=1, le=10_000)
    tensor_parallel: int = Field(default=1, ge=1, le=64)
    pipeline_parallel: int = Field(default=1, ge=1, le=256)


class SloSection(Section):
    """The objectives of every request: absolute seconds, or multiples of the unloaded value. Paper: FAST 5.1."""

    ttft: SloField = Slo(30.0)
    tbt: SloField = Slo(0.1)


class Policies(Section):
    """Who decides what: the names of the policies, and their one parameter. Paper: arXiv table 1, 6 and 7.

    A place at the `decode` instance is reserved when a request arrives, or chosen when its KVCache begins to move. What
    one instance fetches from another is kept there, which is the paper's `replication`, or only used once (`none`);
    with `ahead`, hot prefixes are copied before they are asked for, too.
    """

    placement: Literal["random", "round-robin", "load-balancing", "cache-aware", "kvcache-centric"] = "load-balancing"
    kvcache_balancing_threshold: float = Field(default=2.0, ge=1, le=1000)  # unpublished; 1 to 4 hardly differ
    decode: Literal["reserved", "hand-over"] = "reserved"
    replication: Literal["none", "fetched", "ahead"] = "fetched"
    eviction: Literal["lru", "lfu", "length-aware", "fifo", "s3-fifo"] = "lru"
    admission: AdmissionName = "all"


class AdmissionSection(Section):
    """How the policy of admission judges.

    A decode is taken to last `stay` seconds before any has ended, and times to come are multiplied by `factor`, which
    experiments with wrong forecasts set. The share `keep` of both pools is kept for requests of the highest priority.
    With `last_check`, a decode instance refuses whom it has no room for; with `second_look`, the policy is asked again
    when a prefill begins.
    """

    stay: float = Field(default=10.0, gt=0, le=3600)
    factor: float = Field(default=1.0, ge=0.01, le=100)
    keep: float = Field(default=0.0, ge=0, le=0.9)
    last_check: bool = True
    second_look: bool = False


class Tiers(Section):
    """Where KVCache is kept beyond the device: bytes of DRAM and of SSD an instance; 0 is none.

    The SSD holds all that DRAM holds, and more.
    """

    dram: Size = 0
    ssd: Size = 0
    ssd_bandwidth: Bandwidth = 7e9  # a PCIe 4 drive, by the data sheets

    def check(self) -> None:
        """The lower tier is the larger one."""
        if 0 < self.ssd < self.dram:
            raise ValueError(f"ssd {self.ssd} is below dram {self.dram}, whose blocks it holds too: give more, or 0")


class Transport(Section):
    """How KVCache moves between instances; `slice` is in bytes. Defaults of the numbers: Mooncake upstream."""

    name: Literal["inproc", "shm", "tcp", "rdma", "mooncake"] = "inproc"
    slice: SliceSize = 64 * 1024
    retries: int = Field(default=9, ge=0, le=100)


class Outage(Section):
    """An instance that takes nothing new between two times on the clock of the arrivals, in seconds.

    `instance` is its number in the order of the configuration, from 0. One that is draining ends what it has, and gives
    its cache to others. One that is down loses all that it had, and comes back with nothing.
    """

    instance: int = Field(ge=0, le=1_000_000)
    start: float = Field(ge=0, le=1e9)
    stop: float = Field(ge=0, le=1e9)
    kind: Literal["draining", "down"]

    def check(self) -> None:
        """It ends after it began."""
        if self.stop <= self.start:
            raise ValueError(f"stop {self.stop:g} is not after start {self.start:g}: give a later time")


class SimulationSection(Section):
    """What only a simulation needs to know.

    `costs` is a preset or file of `mooncake-edu calibrate`; without it, times follow from `hardware`. `layers` are
    those of the model. With `layerwise`, KVCache is loaded, stored and sent layer by layer while others are computed.
    A `coupled` instance computes whole prompts first, or chunks of them beside its decoding requests. The view of the
    cluster is `view_age` seconds old; each estimate of a prefill is off by a factor that is log-normal with
    `estimate_noise` as its sigma. With `outages`, instances are missing for a while; if all of a role are, requests are
    refused.
    """

    costs: str | None = Field(default=None, min_length=1)
    layers: int = Field(default=80, ge=1, le=1000)  # FAST table 1
    layerwise: bool = True
    coupled: Literal["prefill-first", "chunked"] = "prefill-first"
    view_age: float = Field(default=0.0, ge=0, le=3600)
    estimate_noise: float = Field(default=0.0, ge=0, le=3)
    seed: int = Field(default=0, ge=0, le=2**63 - 1)
    outages: tuple[Outage, ...] = Field(default=(), strict=False)

    def check(self) -> None:
        """An instance is out for one reason at a time."""
        last: dict[int, Outage] = {}
        for each in sorted(self.outages, key=lambda outage: (outage.start, outage.stop)):
            before = last.get(each.instance)
            if before is not None and each.start < before.stop:
                raise ValueError(
                    f"outages: instance {each.instance} goes at {each.start:g} and is out until {before.stop:g} "
                    "already: let one end before the next begins"
                )
            last[each.instance] = each


class Config(Section):
    """Everything that one file says. `hardware` may be left out where only real runs are made."""

    model: ModelSection
    engine: EngineConfig
    hardware: Hardware | None = None
    instances: tuple[Instances, ...] = Field(default=(Instances(),), min_length=1, strict=False)
    slo: SloSection = SloSection()
    policies: Policies = Policies()
    admission: AdmissionSection = AdmissionSection()
    tiers: Tiers = Tiers()
    transport: Transport = Transport()
    simulation: SimulationSection = SimulationSection()

    def check(self) -> None:
        """Prefill and decode instances need each other."""
        roles = {group.role for group in self.instances}
        for role, other in (("prefill", "decode"), ("decode", "prefill")):
            if role in roles and other not in roles:
                raise ValueError(f"instances: role {role!r} needs one of role {other!r}: add it, or use 'coupled'")
        count = sum(group.count for group in self.instances)
        for number, outage in enumerate(self.simulation.outages):
            if outage.instance >= count:
                raise ValueError(
                    f"simulation.outages[{number}].instance {outage.instance} does not exist: use a number from 0 to "
                    f"{count - 1}"
                )

    @classmethod
    def size(cls, name: str) -> Config:
        """The configuration of a size that comes with the package; raises ConfigError if there is none of that name."""
        if name not in SIZES:
            raise ConfigError(f"size {name!r} is not known: use one of {', '.join(SIZES)}")
        file = resources.files("mooncake_edu") / "configs" / f"{name}.toml"
        return cls.from_toml(file.read_text(encoding="utf-8"), f"{name}.toml")

    @classmethod
    def named(cls, name: str) -> Config:
        """The configuration of a size, or else of the file of that name; raises ConfigError for what is neither."""
        if name not in SIZES and not Path(name).exists():
            otherwise = f"give a TOML file, or a size: {', '.join(SIZES)}"
            raise ConfigError(f"configuration {name!r} is no file, nor a size: {near(name, SIZES, otherwise)}")
        return cls.size(name) if name in SIZES else cls.load(name)


def _worst(error: ValidationError) -> ErrorDetails:
    """The error to tell: a name that nobody knows before all others, since what it was meant for is missing then."""
    errors = error.errors()
    return next((each for each in errors if each["type"] == "extra_forbidden"), errors[0])


def refusal(section: type[BaseModel], error: ErrorDetails) -> str:
    """One line on why a key of `section` was refused: the key, the value, and what is allowed."""
    place, field = "", None
    for step in error["loc"]:
        if isinstance(step, int):
            place += f"[{step}]"
            continue
        place += f".{step}" if place else step
        section = _table(field) or section
        field = section.model_fields.get(step)
    if error["type"] == "extra_forbidden":
        key = str(error["loc"][-1])
        return f"{place} is no known key: {near(key, section.model_fields)}"
    if error["type"] == "missing":
        return f"{place} is missing: give {allowed(field)}"
    if error["type"] == "value_error" and (field is None or _table(field)):
        # A check across the keys of a table begins with their names itself.
        return (f"{place}." if place else "") + error["msg"].removeprefix("Value error, ")
    return f"{place} {_show(error['input'])} is not allowed: use {allowed(field)}"


def allowed(field: FieldInfo | None) -> str:
    """What a key may hold, in words."""
    if field is None or _table(field):
        return "one table or more" if field and get_args(field.annotation)[-1:] == (...,) else "a table"
    kind, limits = limits_of(field)
    for limit in limits:
        if isinstance(limit, BeforeValidator):
            reader: Reader = limit.func  # type: ignore[assignment]  # every validator above is a Reader
            return reader.allowed
    choices = get_args(kind)
    if choices[-1:] == (...,):
        return f"a list of at least one, each {allowed(FieldInfo.from_annotation(choices[0]))}"
    if choices:
        return f"one of {', '.join(choices)}"
    if kind is bool:
        return "true or false"
    if kind is str:
        return "text of at least one character"
    low = next(f"from {limit.ge}" if isinstance(limit, Ge) else f"above {limit.gt}, up"
               for limit in limits if isinstance(limit, Ge | Gt))  # fmt: skip
    high = next(limit.le for limit in limits if isinstance(limit, Le))
    return f"a {'whole ' if kind is int else ''}number {low} to {high}"


def limits_of(field: FieldInfo) -> tuple[Any, list[Any]]:
    """The type of a field without its `| None`, and everything that limits it."""
    kind: Any = field.annotation
    limits = list(field.metadata)
    options = [option for option in get_args(kind) if option is not type(None)]
    if len(options) == 1 and type(None) in get_args(kind):
        kind = options[0]
    if hasattr(kind, "__metadata__"):
        limits += kind.__metadata__
        kind = kind.__origin__
    return kind, limits


def _table(field: FieldInfo | None) -> type[BaseModel] | None:
    """The section that a field holds, itself or in a list; None if it holds a plain value."""
    if field is None:
        return None
    for kind in (field.annotation, *get_args(field.annotation)):
        if isinstance(kind, type) and issubclass(kind, BaseModel):
            return kind
    return None


def _show(value: object) -> str:
    return str(value).lower() if isinstance(value, bool) else short(value)
