"""What the simulated instances do, told to an event log; without one, nothing is recorded."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from mooncake_edu.events import FINISH_CODES, EventLog, Kind, Reals, Refusal
from mooncake_edu.request import FinishReason
from mooncake_edu.simulation.job import Job


class Recorder:
    """Writes the events of all instances; `block_size` turns tokens into the blocks that steps are told with."""

    def __init__(self, log: EventLog | None, block_size: int) -> None:
        self.log = log
        self._block_size = block_size

    def at(self, kind: Kind, job: Job, instance: int, start: float, end: float, **values: int) -> None:
        """One event of a request."""
        if self.log is not None:
            self.log.add(kind, request=job.name, instance=instance, start=start, end=end, **values)

    def finished(self, job: Job, instance: int, now: float) -> None:
        """A request has its last token."""
        reason = FINISH_CODES[FinishReason.LENGTH]
        self.at(Kind.FINISHED, job, instance, now, now, output=job.output, reason=reason)

    def refused(self, job: Job, reason: Refusal, now: float) -> None:
        """A request was turned away."""
        self.at(Kind.REFUSED, job, job.prefill, now, now, reason=int(reason))

    def prefill_step(
        self, instance: int, start: float, end: float, tokens: int, used: int = 0, cached: int = 0, free: int = 0
    ) -> None:
        """A step that decodes nothing; the blocks are those of the pages."""
        if self.log is not None:
            self.log.add(Kind.STEP, instance=instance, start=start, end=end, prefill=tokens, decode=0, used=used,
                         cached=cached, free=free)  # fmt: skip

    def run(
        self, instance: int, start: float, ends: Reals, prefill: int, decode: int, tokens: int, total: int, cached: int
    ) -> None:
        """Steps in a row that decode, the last of which left `tokens` in the pages; `total` and `cached` in blocks."""
        if self.log is None:
            return
        starts = np.concatenate(([start], ends[:-1]))
        stored = tokens - decode * np.arange(len(ends) - 1, -1, -1)
        used: npt.NDArray[np.int64] = np.minimum(-(-stored // self._block_size), total)
        kept = np.minimum(cached, total - used)
        self.log.add_steps(instance, starts, ends, prefill=prefill, decode=decode, used=used, cached=kept,
                           free=total - used - kept)  # fmt: skip
