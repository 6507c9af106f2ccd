"""How the simulated cluster asks a policy of admission, and what it tells it."""

from __future__ import annotations

from dataclasses import dataclass

from mooncake_edu.admission import ADMISSIONS, Admission, Asked, Forecast, Load, Refuse, Room
from mooncake_edu.config import Config
from mooncake_edu.events import Refusal
from mooncake_edu.model.costs import CostModel
from mooncake_edu.simulation.job import Job
from mooncake_edu.simulation.parts import named
from mooncake_edu.simulation.sight import Sight


@dataclass(frozen=True)
class Ahead:
    """What is foretold of a prefill that begins now, in seconds."""

    ttft: float
    work: float


def admission_of(config: Config, costs: CostModel) -> Admission:
    """The policy of admission that a configuration names."""
    engine, chosen = config.engine, config.admission
    capacity = engine.count_blocks(costs.token_bytes) * engine.block_size
    policy = named("policies.admission", ADMISSIONS, config.policies.admission)
    room = Room(engine.max_batch, capacity, costs.decode_step)
    return policy(room, chosen.stay, chosen.factor, chosen.keep)


class Gate:
    """A policy of admission at work: it is told what happens when the Conductor would see it, too."""

    def __init__(self, config: Config, costs: CostModel, sight: Sight, policy: Admission | None = None) -> None:
        self.policy = policy or admission_of(config, costs)
        self.last_check = config.admission.last_check and self.policy.refuses_late
        self._second_look, self._reserved = config.admission.second_look, config.policies.decode == "reserved"
        self._slo, self._costs, self._sight = config.slo, costs, sight

    def ask(self, job: Job, forecast: Forecast, cached: int, now: float) -> Refusal | None:
        """Why a request that comes and would be placed so is turned away; None if it is not."""
        ttft = self._slo.ttft.seconds(self._costs.prefill(job.prompt))
        decode = job.decode if self._reserved else None
        tbt = self._slo.tbt.seconds(self._costs.decode_step(1, job.prompt))
        job.asked = Asked(job.prompt, ttft, tbt, cached, job.priority, decode)
        return self._decide(job, job.asked, forecast, forecast.ttft, now)

    def ask_again(self, job: Job, now: float) -> Refusal | None:
        """Why it is turned away when its prefill is about to begin, if policies are asked twice."""
        if not self._second_look or job.asked is None:
            return None
        self.policy.dropped(job.number, now)
        ttft, forecast = now - job.arrival + job.estimate, Ahead(job.estimate, job.estimate)
        if ttft > job.asked.ttft:
            return Refusal.TTFT
        return self._decide(job, job.asked, forecast, ttft, now)

    def _decide(self, job: Job, asked: Asked, forecast: Forecast, ttft: float, now: float) -> Refusal | None:
        decision = self.policy.decide(asked, forecast, self._load(job, asked, ttft), now)
        if isinstance(decision, Refuse):
            return decision.reason
        self.policy.placed(job.number, asked, forecast, now)
        return None

    def _load(self, job: Job, asked: Asked, ttft: float) -> Load:
        """The loads where the request was placed, as they are seen, with it."""
        side = self._sight.decode
        place = side.place[job.decode]
        requests, tokens = side.decoding[place], side.tokens[place]
        decode = self.policy.room.load(requests + 1, tokens + job.prompt, asked.tbt) if requests else 0.0
        return Load(ttft / asked.ttft, decode, max(sum(side.usable), 1))

    def came(self, job: Job, now: float) -> None:
        """Its KVCache is where it should decode."""
        job.came = True
        self._sight.report(now, self._sight.decodes, job.decode, job.prompt)

    def began(self, job: Job, now: float) -> None:
        """It is a member of a batch."""
        self._sight.report(now, self.policy.began, job.number, now)

    def ended(self, job: Job, now: float) -> None:
        """It has all its tokens."""
        self._went(job, now)
        self._sight.report(now, self.policy.ended, job.number, job.output, now)

    def dropped(self, job: Job, now: float) -> None:
        """It is turned away after it was admitted, or given up."""
        self._went(job, now)
        self._sight.report(now, self.policy.dropped, job.number, now)

    def lost(self, job: Job, now: float) -> None:
        """Its KVCache is lost, with the instance that would have told so."""
        job.came = False
        self.policy.dropped(job.number, now)

    def again(self, job: Job, forecast: Forecast, now: float) -> None:
        """Who was lost is placed again; since it was admitted once, the policy is not asked."""
        if job.asked is not None:
            self.policy.placed(job.number, job.asked, forecast, now)

    def _went(self, job: Job, now: float) -> None:
        if job.came:
            job.came = False
            self._sight.report(now, self._sight.decodes, job.decode, -job.prompt)
