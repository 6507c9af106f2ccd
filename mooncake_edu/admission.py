"""Layer 7, admission: whether a request is served at all, decided where it arrives and where it decodes."""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import NamedTuple, Protocol

from mooncake_edu.events import Refusal


class Forecast(Protocol):
    """What is foretold of a placement, in seconds; a placement of the Conductor is one."""

    @property
    def ttft(self) -> float:
        """Until the first token."""

    @property
    def tbt(self) -> float:
        """Between tokens."""


class Load(NamedTuple):
    """How full the two pools are for a request; 1 is full. Paper: arXiv 7."""

    prefill: float
    decode: float


@dataclass(frozen=True, slots=True)
class Admit:
    """The request is served."""


@dataclass(frozen=True, slots=True)
class Refuse:
    """The request is turned away: the reason, and the seconds after which to ask again."""

    reason: Refusal
    retry_after: float


ADMIT = Admit()


class Admission(ABC):
    """Decides from the forecast of a placement and the load; it sees no output length."""

    @abstractmethod
    def decide(self, placement: Forecast, load: Load) -> Admit | Refuse:
        """Whether to serve the request."""


class AcceptAll(Admission):
    """Serves everybody, however long it takes."""

    def decide(self, placement: Forecast, load: Load) -> Admit | Refuse:
        """Admit."""
        return ADMIT


ADMISSIONS: dict[str, type[Admission]] = {"all": AcceptAll}
"""The policies by the names that a configuration uses."""
