"""Beyond language models: the same Conductor places the jobs of a pipeline that embeds documents.

A job takes a document through all stages. The artefact of a stage is keyed by a hash over the stage's settings and the
key before it, so a prefix of keys is what has been done already: other settings of a late stage leave what comes before
it as it was, a new text leaves nothing. What a token is to a prompt, one stage of one page is here: a document's
"prompt" is stages x pages long, and its "block" is one stage of all pages. There is no answer, so nothing is decoded.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence
from typing import Annotated, NamedTuple

import numpy as np
import plotly.graph_objects as go
from plotly.subplots import make_subplots
from pydantic import Field

from mooncake_edu.conductor import POLICIES, Conductor, Placement, Policy, Query
from mooncake_edu.config import Bandwidth, Memory, Section
from mooncake_edu.pictures.figures import bar_marker, finish
from mooncake_edu.pictures.palette import INK, SERIES
from mooncake_edu.prefix import block_keys
from mooncake_edu.simulation.agenda import Agenda, Rank
from mooncake_edu.simulation.experiments import Experiment, Outcome, Progress, Row
from mooncake_edu.simulation.experiments.serving import Seconds
from mooncake_edu.simulation.network import Network
from mooncake_edu.simulation.parts import named
from mooncake_edu.simulation.sight import Side, Sight
from mooncake_edu.store import ChainCache
from mooncake_edu.traces.generate import Lengths, Shared

Share = Annotated[float, Field(ge=0, le=1)]


class Stage(Section):
    """A step of the pipeline: `seconds` a page, and how many `settings` of it are in use, each as often."""

    name: str = Field(min_length=1)
    seconds: Seconds
    settings: int = Field(default=1, ge=1, le=1000)


class Case(Section):
    """What making and moving artefacts costs: stages take `work` times their seconds, a page's artefact is so large.

    `offered` is the work that would come, in seconds a second and worker, if nothing were reused. The share `renewed`
    of all jobs brings a new text of its document.
    """

    name: str = Field(min_length=1)
    work: float = Field(default=1.0, gt=0, le=1000)
    artefact: Memory = 100_000
    network: Bandwidth = 1.25e9
    offered: float = Field(default=0.8, gt=0, le=100)
    renewed: Share = 0.1


class Settings(Section):
    """A pipeline on `workers`, each of which keeps at most `memory` artefacts, those used last.

    Documents are popular by Zipf's law, and have log-normally many pages, on average `pages`. The view of the workers
    is `age` seconds old.
    """

    workers: int = Field(default=8, ge=1, le=1000)
    memory: int = Field(default=200, ge=1, le=10**6)
    jobs: int = Field(default=1000, ge=1, le=10**6)
    documents: int = Field(default=300, ge=1, le=10**6)
    zipf: float = Field(default=0.9, ge=0, le=5)
    pages: float = Field(default=20.0, ge=1, le=10_000)
    threshold: float = Field(default=2.0, ge=1, le=1000)
    age: float = Field(default=0.0, ge=0, le=3600)
    seeds: int = Field(default=5, ge=1, le=100)
    policies: tuple[str, ...] = Field(default=tuple(POLICIES), min_length=1, strict=False)
    stages: tuple[Stage, ...] = Field(min_length=1, strict=False)
    cases: tuple[Case, ...] = Field(min_length=1, strict=False)


class StageCosts:
    """Estimates of a pipeline's times, in seconds, in the units of the Conductor: one token is one stage of a page."""

    def __init__(self, stages: Sequence[Stage], case: Case) -> None:
        self.bytes = case.artefact
        self._rate = case.network
        self._left = [sum(each.seconds for each in stages[done:]) * case.work for done in range(len(stages) + 1)]

    def prefill(self, prompt: int, prefix: int = 0) -> float:
        """The stages of a document that are not done yet."""
        pages = prompt // (len(self._left) - 1)
        return pages * self._left[prefix // pages]

    def decode_step(self, batch: int, context: int) -> float:
        """Nothing: a job ends with its last stage."""
        return 0.0

    def fetch(self, tokens: int) -> float:
        """Artefacts that come from another worker."""
        return tokens * self.bytes / self._rate


def make_jobs(settings: Settings, case: Case, seed: int) -> list[Query]:
    """The jobs of a seed in the order they come: how long each document is, what its artefacts are called, and when."""
    random = np.random.default_rng(seed)
    shared = Shared(settings.documents, Lengths(settings.pages, 0.6, 10_000), settings.zipf)
    pages, chosen = shared.draw(random, settings.jobs)
    renewed = random.random(settings.jobs) < case.renewed
    drawn = random.integers(0, [each.settings for each in settings.stages], (settings.jobs, len(settings.stages)))
    alone = StageCosts(settings.stages, case).prefill(len(settings.stages)) * float(pages[chosen].mean())
    times = np.cumsum(random.exponential(alone / case.offered / settings.workers, settings.jobs))
    texts, jobs = [0] * settings.documents, []
    for document, new, picked, time in zip(chosen.tolist(), renewed.tolist(), drawn, times.tolist(), strict=True):
        texts[document] += new
        keys = block_keys(picked, 1, b"document %d, text %d" % (document, texts[document]))
        size = int(pages[document])
        jobs.append(Query(size * len(keys), keys, time, block_size=size))
    return jobs


class Ran(NamedTuple):
    """How jobs went: seconds from arrival to end of each, in the order they came, and of work done in all.

    `reused` are the stages of each that were found done, and `moved` the bytes of artefacts that were fetched.
    """

    seconds: list[float]
    work: float
    reused: list[int]
    moved: float


class Job:
    """A job at a worker."""

    def __init__(self, number: int, query: Query, placement: Placement) -> None:
        self.number, self.query, self.placement = number, query, placement
        self.fetching = False


class Worker:
    """Takes jobs one after the other, and keeps artefacts."""

    def __init__(self, number: int, memory: int) -> None:
        self.number, self.cache = number, ChainCache(memory)
        self.queue: deque[Job] = deque()
        self.busy = False


class Pipeline:
    """Workers, the network between them, and the Conductor, which sees them as instances that only prefill."""

    def __init__(self, settings: Settings, case: Case, policy: Policy, jobs: int) -> None:
        numbers = range(settings.workers)
        side = Side(numbers, [1] * settings.workers)
        self.agenda, self.costs = Agenda(), StageCosts(settings.stages, case)
        self.workers = [Worker(number, settings.memory) for number in numbers]
        self.seconds, self.reused, self.work, self.moved = [0.0] * jobs, [0] * jobs, 0.0, 0.0
        self._sight = Sight(side, side, settings.age)
        self._network = Network(self.agenda, dict.fromkeys(numbers, case.network))
        self._conductor = Conductor(policy)

    def arrive(self, number: int, query: Query) -> None:
        """A job comes, and goes where the Conductor says."""
        now = self.agenda.now = query.arrival
        placement = self._conductor.place(query, self._sight.look(now, query))
        self._conductor.commit(number, query, placement, reserve=False)
        self._sight.report(now, self._sight.queued, placement.prefill, placement.work)
        self._sight.report(now, self._conductor.confirm, number)
        job, worker = Job(number, query, placement), self.workers[placement.prefill]
        if placement.source is not None:
            self._fetch(job, self.workers[placement.source], worker, now)
        worker.queue.append(job)
        self._take(worker, now)

    def _fetch(self, job: Job, source: Worker, target: Worker, now: float) -> None:
        """Let those artefacts come that the source still has and the target lacks."""
        keys = job.query.keys[: source.cache.match(job.query.keys)]
        lacking = (len(keys) - target.cache.match(keys)) * job.query.block_size
        if lacking <= 0:
            return
        size, seconds = lacking * self.costs.bytes, self.costs.fetch(lacking)

        def done(time: float) -> None:
            self._sight.report(time, self._sight.sends, source.number, -seconds)
            self._keep(target, keys, time)
            job.fetching = False
            self._take(target, time)

        job.fetching, self.moved = True, self.moved + size
        source.cache.use(keys)
        self._sight.report(now, self._sight.sends, source.number, seconds)
        self._network.send(now, job.number, source.number, target.number, size, done)

    def _take(self, worker: Worker, now: float) -> None:
        """The next job begins, if the worker is free and what it fetches has come."""
        if worker.busy or not worker.queue or worker.queue[0].fetching:
            return
        job, worker.busy = worker.queue.popleft(), True
        query, found = job.query, worker.cache.match(job.query.keys)
        seconds = self.costs.prefill(query.prompt, found * query.block_size)
        self.work, self.reused[job.number] = self.work + seconds, found
        self._sight.report(now, self._sight.started, worker.number, job.placement.work, now + seconds)
        self.agenda.put(now + seconds, Rank.TAKEN, worker.number, lambda time: self._end(worker, job, time))

    def _end(self, worker: Worker, job: Job, now: float) -> None:
        self.seconds[job.number], worker.busy = now - job.query.arrival, False
        self._keep(worker, job.query.keys, now)
        self._sight.report(now, self._sight.free, worker.number)
        self._take(worker, now)

    def _keep(self, worker: Worker, keys: Sequence[object], now: float) -> None:
        new = keys[worker.cache.match(keys) :]
        self._sight.report(now, self._sight.cached, worker.number, new, worker.cache.use(keys))


def schedule(settings: Settings, case: Case, policy: Policy, jobs: Sequence[Query]) -> Ran:
    """Let a policy place jobs, until the last of them has ended."""
    pipeline = Pipeline(settings, case, policy, len(jobs))
    for number, query in enumerate(jobs):
        pipeline.agenda.run(query.arrival, Rank.ARRIVED)
        pipeline.arrive(number, query)
    pipeline.agenda.run()
    return Ran(pipeline.seconds, pipeline.work, pipeline.reused, pipeline.moved)


def compare(settings: Settings, case: Case, seed: int = 0) -> dict[str, Ran]:
    """The same jobs under each policy; raises ConfigError for one that is not known."""
    jobs, costs = make_jobs(settings, case, seed), StageCosts(settings.stages, case)
    kinds = {name: named("policies", POLICIES, name) for name in settings.policies}
    return {name: schedule(settings, case, kind(costs, seed, settings.threshold), jobs) for name, kind in kinds.items()}


Runs = dict[str, list[Ran]]
"""The runs of each policy, one a seed."""

MEASURES: dict[str, tuple[str, Callable[[Ran, int], float]]] = {
    "mean time to the end": ("s", lambda ran, stages: float(np.mean(ran.seconds))),
    "time to the end, 90th percentile": ("s", lambda ran, stages: float(np.percentile(ran.seconds, 90))),
    "work a job": ("s", lambda ran, stages: ran.work / len(ran.seconds)),
    "stages reused": ("of stages", lambda ran, stages: float(np.mean(ran.reused)) / stages),
    "fetched a job": ("MB", lambda ran, stages: ran.moved / len(ran.seconds) / 1e6),
}
"""What is read off a run of so many stages, with its unit."""


def run(settings: Settings, progress: Progress) -> Outcome:
    """Let every policy place the jobs of every case, with every seed."""
    found: dict[str, Runs] = {}
    for place, case in enumerate(settings.cases):
        runs = found.setdefault(case.name, {name: [] for name in settings.policies})
        for seed in range(settings.seeds):
            progress(case.name, place * settings.seeds + seed, len(settings.cases) * settings.seeds)
            for name, ran in compare(settings, case, seed).items():
                runs[name].append(ran)
    rows = [
        Row(what=f"{case}, {name}: {what}", unit=unit, ours=float(np.mean(values)), low=min(values), high=max(values))
        for case, runs in found.items() for name, each in runs.items() for what, (unit, read) in MEASURES.items()
        if (values := [read(ran, len(settings.stages)) for ran in each])
    ]  # fmt: skip
    return Outcome(rows, [picture(found, len(settings.stages))], [
        "Nothing in the paper corresponds to this: the costs are made up, and only the order of the policies is meant.",
        f"The threshold {settings.threshold:g} counts stages of a document, however long each takes: a worker fetches "
        f"if another has done more than {settings.threshold:g} times as many, and always if it has none itself. It "
        "does not compare the seconds of fetching with those of making anew.",
        "So where artefacts are cheap to make and slow to fetch, a worker that lacks them seems as slow as the fetch, "
        "and jobs wait where they are: kvcache-centric can be behind cache-aware there while workers have time to "
        "spare. Where they have none, the same gathers the jobs of a document, and fewer artefacts are made twice. "
        "Where nothing comes back, the queue alone decides, and all that look at it do alike.",
        *_told(found),
    ])  # fmt: skip


def _told(found: dict[str, Runs]) -> list[str]:
    """How each case's policies rank."""
    means = {case: {name: float(np.mean([ran.seconds for ran in each])) for name, each in runs.items()}
             for case, runs in found.items()}  # fmt: skip
    return [
        f"{case}: {' < '.join(f'{name} {values[name]:.3g} s' for name in sorted(values, key=values.__getitem__))}."
        for case, values in means.items()
    ]


def picture(found: dict[str, Runs], stages: int) -> go.Figure:
    """Mean time to the end and work of a job by policy, with the lowest and highest of all seeds, or one value."""
    shown = [(what, *MEASURES[what]) for what in ("mean time to the end", "work a job")]
    figure = make_subplots(rows=2, cols=1, shared_xaxes=True, vertical_spacing=0.06)
    for row, (what, unit, read) in enumerate(shown, 1):
        for number, name in enumerate(next(iter(found.values()))):
            values = np.array([[read(ran, stages) for ran in runs[name]] for runs in found.values()])
            mean = values.mean(axis=1)
            figure.add_bar(
                x=list(found), y=mean, name=name, marker=bar_marker(SERIES[number % len(SERIES)]), legendgroup=name,
                showlegend=row == 1, row=row, col=1, textposition="outside", cliponaxis=False,
                text=[f"{each:.3g}" for each in mean] if values.shape[1] == 1 else None,
                error_y={"array": values.max(axis=1) - mean, "arrayminus": mean - values.min(axis=1), "color": INK},
                hovertemplate=f"{name}, %{{x}}: %{{y:.3g}} {unit} {what}<extra></extra>",
            )  # fmt: skip
        figure.update_yaxes(title=f"{what} ({unit})", row=row, col=1)
    figure.update_layout(barmode="group", height=620)
    figure.update_xaxes(type="category")
    figure.update_yaxes(type="log", row=1, col=1)
    return finish(figure, "An embedding pipeline under the Conductor's policies", " ".join(_told(found)))


EMBEDDING = Experiment(Settings, run)
