"""The simulated cluster: its parts as a configuration names them, and the way of a request through them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial

import numpy as np

from mooncake_edu.admission import ADMISSIONS, Admission
from mooncake_edu.conductor import POLICIES, ClusterView, Conductor, Placement, Query
from mooncake_edu.config import Config, Instances
from mooncake_edu.errors import ConfigError
from mooncake_edu.events import EventLog, Kind, Reals, Refusal
from mooncake_edu.simulation.agenda import Action, Agenda, Rank
from mooncake_edu.simulation.batch import Batch
from mooncake_edu.simulation.caches import NodeCache, PagedCache, Tier
from mooncake_edu.simulation.coupled import CoupledInstance
from mooncake_edu.simulation.decode import DecodeInstance, Decoding
from mooncake_edu.simulation.explain import Journal, Recording
from mooncake_edu.simulation.fetches import Fetch, Fetches
from mooncake_edu.simulation.gate import Gate
from mooncake_edu.simulation.job import Job
from mooncake_edu.simulation.network import Network
from mooncake_edu.simulation.outages import Outages
from mooncake_edu.simulation.parts import conductor_of, costs_of, named, numbered
from mooncake_edu.simulation.prefill import Flow, PrefillInstance, by_layer, in_turn
from mooncake_edu.simulation.record import Recorder
from mooncake_edu.simulation.reference import StepBatch, layer_after_layer
from mooncake_edu.simulation.result import Columns, Result, Slos, Stage
from mooncake_edu.simulation.sight import Side, Sight
from mooncake_edu.traces.trace import Trace

Progress = Callable[[int, int], None]
"""Told how many of how many requests have arrived."""

Watch = Callable[[float, int, Sequence[int], Sequence[int]], None]
"""Told when, which instance, and the ids that it stored and those that are gone."""

_TOLD = 500  # requests between two such calls


class Cluster:
    """Instances, network, and what the Conductor sees; numbers of instances follow the order of the configuration."""

    def __init__(
        self, config: Config, block_size: int, columns: Columns, log: EventLog | None = None, reference: bool = False,
        journal: Journal | None = None, watch: Watch | None = None, conductor: Conductor | None = None,
        admission: Admission | None = None,
    ) -> None:  # fmt: skip
        self.config, self.costs, self.columns = config, costs_of(config), columns
        self.agenda = Agenda()
        self.recorder = Recorder(log, block_size)
        self.moved_bytes: dict[str, float] = {}
        self._block_size, self._reference = block_size, reference
        roles = numbered(config)
        coupled = [number for number, group in roles if group.role == "coupled"]
        fill = coupled or [number for number, group in roles if group.role == "prefill"]
        decode = coupled or [number for number, group in roles if group.role == "decode"]
        stages = {number: group.pipeline_parallel for number, group in roles}
        side = Side(fill, [stages[number] for number in fill])
        other = side if coupled else Side(decode, [1] * len(decode), config.engine.max_batch)
        self.sight = Sight(side, other, config.simulation.view_age, config.engine.max_queue)
        rate = self.costs.network_rate()
        self.network = Network(self.agenda, {number: rate * nodes for number, nodes in stages.items()})
        self.fetches = Fetches(self.network, self.costs, self.sight, block_size)
        self._copies, self._late = 0, config.policies.decode == "hand-over" and not coupled
        self.prefill: dict[int, PrefillInstance] = {}
        self.decode: dict[int, Decoding] = {}
        self.capacity = config.engine.count_blocks(self.costs.token_bytes) * block_size
        self.gate = Gate(config, self.costs, self.sight, admission)
        for number, group in roles:
            self._add(number, group)
        conductor = conductor or conductor_of(config)
        self._conductor = conductor if journal is None else Recording(conductor, journal)
        self.watch = watch
        self.alive: dict[int, Job] = {}  # who is served
        self.outages = Outages(self, config.simulation.outages)

    def _add(self, number: int, group: Instances) -> None:
        engine, simulation, told = self.config.engine, self.config.simulation, self._told(number)
        batch = StepBatch(self.costs) if self._reference else Batch(self.costs)
        serving = (number, engine.max_batch, self.capacity, self.costs, batch, self.agenda, self.recorder, self)
        if group.role == "prefill":
            cache = NodeCache(self._tiers(group.pipeline_parallel), self.config.policies.eviction, told)
            self.fetches.caches[number] = cache
            overlapped = layer_after_layer if self._reference else by_layer
            self.prefill[number] = PrefillInstance(
                number, group.pipeline_parallel, engine.token_budget, simulation.layers,
                overlapped if simulation.layerwise else in_turn, self._block_size, self.costs, cache, self.agenda,
                self.recorder, self,
            )  # fmt: skip
        elif group.role == "decode":
            self.decode[number] = DecodeInstance(*serving, self._block_size, self.gate.last_check)
        else:
            pages = PagedCache(engine.prefix_sharing, told)
            chunked = simulation.coupled == "chunked"
            self.decode[number] = CoupledInstance(*serving, pages, engine.token_budget, chunked, self._block_size)

    def _told(self, number: int) -> Callable[[Sequence[int], Sequence[int]], None]:
        def told(new: Sequence[int], gone: Sequence[int]) -> None:
            self.sight.report(self.agenda.now, self.sight.cached, number, new, gone)
            if self.watch is not None:
                self.watch(self.agenda.now, number, new, gone)

        return told

    def _tiers(self, nodes: int) -> list[Tier]:
        """The tiers of a group of nodes together."""
        tiers, block = self.config.tiers, self.costs.block_bytes(self._block_size)
        if not self.config.engine.prefix_sharing:
            return []
        found = (("dram", tiers.dram, self.costs.host), ("ssd", tiers.ssd, tiers.ssd_bandwidth))
        return [Tier(name, size * nodes // block, bandwidth) for name, size, bandwidth in found if size]

    def arrive(self, job: Job) -> None:
        """A request comes: it is placed and admitted, or refused."""
        now = self.agenda.now = job.arrival
        self.columns.arrived(job)
        self.place(job, now)

    def place(self, job: Job, now: float) -> None:
        """A request that comes, or was lost, goes where the Conductor says; if that is nowhere, it is refused."""
        self.alive[job.number] = job
        query = self._query(job, now)
        view = self.sight.look(now, query)
        placement = self._choose(query, view, now)
        if placement is not None:
            job.prefill, job.decode, job.estimate = placement.prefill, placement.decode, placement.work
        if not job.tries:
            self.recorder.at(Kind.ARRIVED, job, job.prefill, now, now, prompt=job.prompt)
        stage = Stage.TURN if job.tries else Stage.ARRIVAL
        if placement is None:
            self._refuse(job, stage, self._nowhere(), now)
        elif (refusal := self._refusal(job, placement, now)) is not None:
            self._refuse(job, stage, refusal, now)
        else:
            self._serve(job, query, view, placement, now)

    def _serve(self, job: Job, query: Query, view: ClusterView, placement: Placement, now: float) -> None:
        self.columns.placed(job)
        self._conductor.commit(job.number, query, placement, reserve=not self._late)
        self.sight.report(now, self.sight.queued, job.prefill, job.estimate)
        if not self._late:
            self.reserve(job, 1, now)
        self.sight.report(now, self._conductor.confirm, job.number)
        if job.prefill in self.prefill:
            self._fetch(job, placement, now)
            self._copy(query, view, placement, now)
            self.prefill[job.prefill].submit(job, now)
        else:
            self.decode[job.prefill].enter(job, now)

    def _query(self, job: Job, now: float) -> Query:
        return Query(job.prompt, job.ids, now, job.priority, self._block_size)

    def _choose(self, query: Query, view: ClusterView, now: float) -> Placement | None:
        """Where the Conductor places a request, asked again as long as an instance that it chose takes nothing."""
        while any(view.prefill.usable) and any(view.decode.usable):
            placement = self._conductor.place(query, view)
            if not self.outages.refuse(placement.prefill, *(() if self._late else (placement.decode,))):
                return placement
            view = self.sight.look(now, query)  # which shows what the refusal told
        return None

    def reserve(self, job: Job, sign: int, now: float) -> None:
        """A place at its decode instance is held for a request from now on; with -1 no more."""
        job.reserved = sign > 0
        self.sight.report(now, self.sight.placed, job.decode, sign * job.prompt)

    def _fetch(self, job: Job, placement: Placement, now: float) -> None:
        """Let the prefix come that the placement counts on."""
        if placement.source is None:
            return
        kept = self.config.policies.replication != "none"
        ids, tries = job.ids[: -(-placement.cached // self._block_size)], job.tries
        fetch = Fetch(placement.source, job.prefill, ids, placement.cached, kept)

        def done(time: float, came: bool) -> None:
            if job.tries == tries:
                job.fetching, job.borrowed = False, job.borrowed if came else 0
                self.prefill[job.prefill].fetched(time)

        blocks = self.fetches.begin(fetch, 3 * job.number + 2, now, done)
        job.fetching, job.borrowed = blocks > 0, 0 if kept else blocks

    def _copy(self, query: Query, view: ClusterView, placement: Placement, now: float) -> None:
        """Let a copy be made ahead of demand, if the Conductor wants one."""
        if not any(view.prefill.usable):  # the last one may just have become full
            return
        copy = self._conductor.copy(query, view, placement)
        if copy is not None and copy.target not in self.outages.out:
            self._copies += 1
            ids: Sequence[int] = query.keys[: -(-copy.tokens // self._block_size)]  # type: ignore[assignment]
            fetch = Fetch(copy.source, copy.target, ids, copy.tokens)
            self.fetches.begin(fetch, -self._copies, now, lambda *_: None)

    def _refusal(self, job: Job, placement: Placement, now: float) -> Refusal | None:
        if job.tries:
            self.gate.again(job, placement, now)
            return None
        if len(job.ids) * self._block_size + job.output > self.capacity:
            return Refusal.TOO_LARGE
        return self.gate.ask(job, placement, placement.cached, job.arrival)

    def _nowhere(self) -> Refusal:
        return Refusal.QUEUE_FULL if self.sight.roster.full else Refusal.DOWN

    def _refuse(self, job: Job, stage: Stage, reason: Refusal, now: float) -> None:
        del self.alive[job.number]
        job.send = None
        self.recorder.refused(job, reason, now)
        self.columns.refused(job, stage, reason, now)

    def withdrawn(self, job: Job, now: float) -> bool:
        """Whether a prompt whose turn has come is turned away after all."""
        reason = None if job.tries else self.gate.ask_again(job, now)
        if reason is None:
            return False
        self._refuse(job, Stage.TURN, reason, now)
        self.sight.report(now, self.sight.started, job.prefill, job.estimate, now)
        if job.reserved:
            self.reserve(job, -1, now)
        return True

    def began(self, job: Job, now: float) -> None:
        """A request decodes from now on."""
        self.gate.began(job, now)

    def turned_away(self, job: Job, reason: Refusal, now: float) -> None:
        """A request found no room where it should decode."""
        self._refuse(job, Stage.DECODE, reason, now)
        self.reserve(job, -1, now)
        self.gate.dropped(job, now)

    def taken(self, job: Job, until: float, now: float) -> None:
        """A prompt's turn has come; it will have been computed by `until`."""
        self.sight.report(now, self.sight.started, job.prefill, job.estimate, until)

    def free(self, number: int, now: float) -> None:
        """The prefill in progress has ended."""
        self.sight.report(now, self.sight.free, number)

    def first(self, job: Job, now: float) -> None:
        """The first token is there, or the next one of a request that was lost."""
        if job.made == 1:
            job.first = now
        if not self.prefill and job.left:  # where it was computed, it decodes
            self.gate.came(job, now)
            self.gate.began(job, now)

    def streaming(self, job: Job, flow: Flow, last: float, now: float) -> None:
        """KVCache begins to move: what is computed as fast as it is, at most, and the last layer behind it."""
        if not job.reserved and job.left and not self._hand_over(job, now):
            return
        job.send = partial(self.streaming, job, flow, last) if job.left else None  # let go when the request ends
        size, window = flow.tokens * self.costs.token_bytes, flow.computed - now
        bulk = size * (1 - last) if window > 0 else 0.0
        self.moved("stream", size)
        done = partial(self._streamed, job, now, size)
        rest = partial(self._stream_rest, job, job.tries, flow, size - bulk, done)
        if bulk:
            self.network.send(now, 3 * job.number, job.prefill, job.decode, bulk, rest, bulk / window)
        else:
            rest(now)

    def _stream_rest(self, job: Job, tries: int, flow: Flow, size: float, done: Action, now: float) -> None:
        """What is computed last moves when it is there."""
        if job.tries != tries:
            return
        if now < flow.computed:  # by rounding
            rest = partial(self._stream_rest, job, tries, flow, size, done)
            self.agenda.put(flow.computed, Rank.MOVED, -1 - job.number, rest)
        else:
            self.network.send(now, 3 * job.number + 1, job.prefill, job.decode, size, done)

    def _streamed(self, job: Job, start: float, size: int, now: float) -> None:
        """KVCache is where its request decodes."""
        self.recorder.at(Kind.STREAM, job, job.decode, start, now, layer=-1, bytes=size)
        if job.left:
            self.gate.came(job, now)
            self.decode[job.decode].enter(job, now)

    def _hand_over(self, job: Job, now: float) -> bool:
        """Choose where a request decodes, now that its KVCache begins to move; without an instance it is refused."""
        name, query = ("decode", job.number), self._query(job, now)
        view = self.sight.look(now, query)
        while any(view.decode.usable):
            job.decode = self._conductor.hand_over(name, query, view, now)
            if not self.outages.refuse(job.decode):
                self.columns.placed(job)
                self.reserve(job, 1, now)
                self.sight.report(now, self._conductor.confirm, name)
                return True
            view = self.sight.look(now, query)
        self._conductor.confirm(name)
        if job.stored or job.left > 1:  # else its prefill makes its last token
            self._refuse(job, Stage.DECODE, self._nowhere(), now)
            self.gate.dropped(job, now)
        return False

    def moved(self, what: str, size: float) -> None:
        """Bytes were moved."""
        self.moved_bytes[what] = self.moved_bytes.get(what, 0.0) + size

    def ended(self, job: Job, now: float) -> None:
        """A request has all its tokens."""
        self.recorder.finished(job, job.decode, now)
        del self.alive[job.number]
        job.send = None
        if job.reserved:
            self.reserve(job, -1, now)
        self.gate.ended(job, now)
        self.columns.ended(job, now)

    def busy(self, duration: float) -> dict[str, dict[int, float]]:
        """Each instance's share of that time, by role."""
        roles: dict[str, dict[int, float]] = {}
        for number, group in numbered(self.config):
            instance = self.prefill.get(number) or self.decode[number]
            roles.setdefault(group.role, {})[number] = instance.busy / duration if duration else 0.0
        return roles


def simulate(
    config: Config, trace: Trace, log: EventLog | None = None, *, reference: bool = False,
    order: Sequence[int] | None = None, progress: Progress = lambda done, of: None, name: str = "",
    journal: Journal | None = None, watch: Watch | None = None, conductor: Conductor | None = None,
    admission: Admission | None = None, priorities: Sequence[int] | None = None,
) -> Result:  # fmt: skip
    """Serve a trace by a configuration's cluster, until the last request has ended.

    Requests that arrive at one time are taken in the order of their rows, or of their values in `order`. A `log`
    gets the events. `reference` computes step by step and layer by layer what is otherwise computed in closed form,
    and takes no log. A `journal` gets what the Conductor was asked and decided, `watch` every change of what is held
    where. A `conductor` and an `admission` take the places of those that the configuration names. Without `priorities`,
    one a row, all requests are of one class. Raises ConfigError if the configuration cannot be simulated with this
    trace.
    """
    check(config, trace)
    ranks = np.arange(len(trace)) if order is None else np.asarray(order)
    rows = np.lexsort((ranks, trace.arrival))
    columns = Columns(len(trace))
    cluster = Cluster(config, trace.block_size, columns, None if reference else log, reference, journal, watch,
                      conductor, admission)  # fmt: skip
    flat, offsets = trace.ids.tolist(), trace.offsets.tolist()
    requests = (trace.arrival[rows].tolist(), trace.input_length[rows].tolist(), trace.output_length[rows].tolist())
    for number, (row, arrival, prompt, output) in enumerate(zip(rows.tolist(), *requests, strict=True)):
        if number % _TOLD == 0:
            progress(number, len(trace))
        job = Job(number, row, arrival, prompt, output, flat[offsets[row] : offsets[row + 1]])
        job.priority = 0 if priorities is None else priorities[row]
        cluster.agenda.run(arrival, Rank.ARRIVED)
        cluster.arrive(job)
    cluster.agenda.run()
    progress(len(trace), len(trace))
    return _result(cluster, columns, trace, name or config.policies.placement)


def check(config: Config, trace: Trace) -> None:
    """Raise ConfigError if a trace cannot be simulated by a configuration."""
    costs = costs_of(config)
    config.engine.count_blocks(costs.token_bytes)
    block = costs.block_bytes(trace.block_size)
    for tier, size in (("dram", config.tiers.dram), ("ssd", config.tiers.ssd)):
        if 0 < size < block:
            raise ConfigError(f"tiers.{tier} {size} is below one block of {trace.block_size} tokens, {block} bytes for "
                              "this model: give at least that, or 0 for none")  # fmt: skip
    named("policies.placement", POLICIES, config.policies.placement)
    named("policies.admission", ADMISSIONS, config.policies.admission)
    if config.engine.block_size != trace.block_size:
        raise ConfigError(
            f"engine.block_size {config.engine.block_size} is not the trace's: its ids stand for blocks of "
            f"{trace.block_size} tokens: use {trace.block_size}"
        )
    for number, group in enumerate(config.instances):
        if group.role != "prefill" and group.pipeline_parallel > 1:
            raise ConfigError(
                f"instances[{number}].pipeline_parallel {group.pipeline_parallel} of role {group.role!r} is not "
                f"simulated: use 1, or role 'prefill'"
            )
    roles = {group.role for group in config.instances}
    if "coupled" in roles and len(roles) > 1:
        raise ConfigError("instances: coupled ones beside others are not simulated: use one kind of cluster a file")
    if "coupled" in roles and POLICIES[config.policies.placement].fetches:
        raise ConfigError(
            f"policies.placement {config.policies.placement!r} fetches prefixes, which coupled instances do not: use "
            "'cache-aware', or prefill and decode instances"
        )


def unloaded(config: Config, trace: Trace) -> tuple[Reals, Reals]:
    """TTFT and TBT of each request alone, nothing reused, in seconds; as TBT stands the time of its last token."""
    costs = costs_of(config)
    sizes = list(zip(trace.input_length.tolist(), trace.output_length.tolist(), strict=True))
    ttft = np.array([costs.prefill(prompt) for prompt, _ in sizes])
    return ttft, np.array([costs.decode_step(1, prompt + output) for prompt, output in sizes])


def _result(cluster: Cluster, columns: Columns, trace: Trace, name: str) -> Result:
    slo, slos = cluster.config.slo, Slos(cluster.config.slo.ttft.value, cluster.config.slo.tbt.value)
    if slo.ttft.multiple or slo.tbt.multiple:
        ttft, tbt = unloaded(cluster.config, trace)
        pairs = ((slo.ttft, ttft), (slo.tbt, tbt))
        slos = Slos(*(each.value * (alone if each.multiple else 1.0) for each, alone in pairs))
    table = columns.table(len(trace))
    ends = (table.arrival + table.e2e)[~np.isnan(table.e2e)]
    duration = float(ends.max() - table.arrival.min()) if len(ends) else 0.0
    reals, ints = columns.reals, columns.ints
    return Result(
        name, table, slos, reals["started"], ints["prefill"], ints["decode"], columns.hits,
        dict(sorted(cluster.moved_bytes.items())), cluster.busy(duration), duration, cluster.fetches.sent,
        ints["stage"], ints["refusal"], reals["worked"], cluster.outages.lost,
    )  # fmt: skip
