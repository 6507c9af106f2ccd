"""What a configuration names, as parts of a simulated cluster."""

from __future__ import annotations

import math
from collections.abc import Mapping
from random import Random
from typing import TypeVar

from mooncake_edu.conductor import POLICIES, Conductor, Spread
from mooncake_edu.config import Config, Instances
from mooncake_edu.errors import ConfigError
from mooncake_edu.model.costs import PAPER_MODEL, CostModel


def costs_of(config: Config) -> CostModel:
    """The times that a configuration names, or that follow from its hardware; raises ConfigError if it has neither."""
    if config.simulation.costs is not None:
        return CostModel.named(config.simulation.costs)
    if config.model.name == "llama-70b" and config.model.dtype != "bfloat16":
        raise ConfigError(f"model.dtype {config.model.dtype!r} is not simulated from [hardware]: use bfloat16, or name "
                          "simulation.costs")  # fmt: skip
    if config.hardware is None or config.model.name != "llama-70b":
        raise ConfigError(
            f"simulation.costs is missing for model.name {config.model.name!r}: name a preset such as \"A800x8\" or a "
            f"file of `mooncake-edu calibrate`; times follow from [hardware] for llama-70b alone"
        )
    try:
        return CostModel.of(config.model.name, PAPER_MODEL, config.hardware)
    except ConfigError as error:
        raise ConfigError(f"hardware is too slow to simulate ({error}): give more compute and memory") from None


class Noisy:
    """Estimates that are off: those of a prefill by a log-normal factor of mean 1."""

    def __init__(self, costs: CostModel, sigma: float, seed: int) -> None:
        self._costs, self._sigma, self._random = costs, sigma, Random(seed)
        self.decode_step, self.fetch = costs.decode_step, costs.fetch

    def prefill(self, prompt: int, prefix: int = 0) -> float:
        """The estimate for a prompt."""
        exact = self._costs.prefill(prompt, prefix)
        if not self._sigma:
            return exact
        return exact * math.exp(self._random.gauss(-self._sigma**2 / 2, self._sigma))


def conductor_of(config: Config) -> Conductor:
    """The Conductor that a configuration names, its estimates as far off as it says."""
    simulation, policies = config.simulation, config.policies
    costs = Noisy(costs_of(config), simulation.estimate_noise, simulation.seed)
    policy = named("policies.placement", POLICIES, policies.placement)
    spread = Spread() if policies.replication == "ahead" else None
    return Conductor(policy(costs, simulation.seed, policies.kvcache_balancing_threshold), spread=spread)


def numbered(config: Config) -> list[tuple[int, Instances]]:
    """Every instance by its number, with the group it belongs to."""
    return list(enumerate(group for group in config.instances for _ in range(group.count)))


Named = TypeVar("Named")


def named(key: str, known: Mapping[str, Named], name: str) -> Named:
    """What a configuration names under a key; raises ConfigError if that is not known."""
    if name not in known:
        raise ConfigError(f"{key} {name!r} is not simulated: use one of {', '.join(known)}")
    return known[name]
