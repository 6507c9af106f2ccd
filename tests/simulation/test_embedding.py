"""The Conductor beyond language models: stages already done are a prefix, and what it knows of costs decides."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from mooncake_edu.conductor import POLICIES, Query
from mooncake_edu.errors import ConfigError
from mooncake_edu.prefix import block_keys
from mooncake_edu.simulation.agenda import Rank
from mooncake_edu.simulation.experiments import find, settings_of
from mooncake_edu.simulation.experiments.embedding import (
    MEASURES,
    Case,
    Pipeline,
    Ran,
    Settings,
    StageCosts,
    compare,
    make_jobs,
    schedule,
)

OWN: Settings = settings_of("embedding")
CASE = Case(name="plain")
ORDER = ["random", "load-balancing", "cache-aware", "kvcache-centric"]


def silent(what: str, done: int, total: int) -> None:
    """Tells nobody."""


def small(**changes: Any) -> Settings:
    """The experiment with fewer jobs."""
    return OWN.model_copy(update={"jobs": 150, "seeds": 2} | changes)


def job(at: float, picked: list[int], text: bytes = b"text", pages: int = 10) -> Query:
    """A job by the settings of its stages."""
    return Query(pages * len(picked), block_keys(picked, 1, text), at, block_size=pages)


def placed(pipe: Settings, name: str, jobs: list[Query], case: Case = CASE) -> Ran:
    """Jobs under a policy."""
    return schedule(pipe, case, POLICIES[name](StageCosts(pipe.stages, case), 0, pipe.threshold), jobs)


def test_other_settings_of_a_stage_leave_the_stages_before_it_done_and_a_new_text_none() -> None:
    first = [0, 0, 0, 0, 0]
    jobs = [job(0.0, first), job(100.0, [0, 0, 0, 1, 0]), job(200.0, first, b"new text"), job(300.0, first)]
    assert placed(small(workers=1), "cache-aware", jobs).reused == [0, 3, 0, 5]


@given(st.integers(1, 50), st.integers(0, 5))
def test_what_is_left_of_a_job_costs_its_stages_and_what_is_fetched_its_bytes(pages: int, done: int) -> None:
    costs = StageCosts(OWN.stages, Case(name="half", work=0.5, artefact=1000, network=2e6))
    left = sum(stage.seconds for stage in OWN.stages[done:]) * pages / 2
    assert costs.prefill(5 * pages, done * pages) == pytest.approx(left)
    assert costs.fetch(done * pages) == pytest.approx(done * pages * 1000 / 2e6)


@given(st.sampled_from(sorted(POLICIES)), st.integers(0, 10**6), st.integers(1, 40), st.sampled_from([0.0, 5.0]))
@settings(max_examples=30, deadline=None)
def test_all_jobs_end_and_every_stage_is_reused_or_made_once_for_each_job(
    name: str, seed: int, memory: int, age: float
) -> None:
    pipe, case = small(jobs=60, workers=3, memory=memory, age=age), Case(name="slow", network=1e6, offered=1.5)
    jobs = make_jobs(pipe, case, seed)
    costs = StageCosts(pipe.stages, case)
    pipeline = Pipeline(pipe, case, POLICIES[name](costs, seed), len(jobs))
    for number, query in enumerate(jobs):
        pipeline.agenda.run(query.arrival, Rank.ARRIVED)
        pipeline.arrive(number, query)
        assert all(len(worker.cache) <= memory for worker in pipeline.workers)
    pipeline.agenda.run()
    assert not any(worker.queue or worker.busy for worker in pipeline.workers)
    needed = [costs.prefill(each.prompt, done * each.block_size)
              for each, done in zip(jobs, pipeline.reused, strict=True)]  # fmt: skip
    assert pipeline.work == pytest.approx(sum(needed))
    assert (np.array(pipeline.seconds) >= np.array(needed) - 1e-6).all()


def test_one_worker_takes_jobs_one_after_the_other_and_rests_only_when_there_is_none() -> None:
    pipe, case = small(workers=1), Case(name="new", renewed=1.0)
    jobs, free = make_jobs(pipe, case, 3), 0.0
    ran = placed(pipe, "random", jobs, case)
    for query, seconds in zip(jobs, ran.seconds, strict=True):
        free = max(free, query.arrival) + StageCosts(pipe.stages, case).prefill(query.prompt)
        assert seconds == pytest.approx(free - query.arrival)


def test_what_a_worker_lacks_comes_from_another_before_its_job_begins() -> None:
    pipe = small(workers=2, threshold=1.0)
    case = Case(name="plain", artefact=1000, network=1e6)
    same, costs = [0] * 5, StageCosts(pipe.stages, case)
    busy = job(100.0, [0, 0, 0, 1, 0])  # its worker has the first three stages, and is then busy
    jobs = [job(0.0, same), busy, job(100.0, same)]
    ran = placed(pipe, "kvcache-centric", jobs, case)
    assert ran.reused == [0, 3, 5]
    assert ran.moved == 50 * 1000
    assert ran.seconds[2] == pytest.approx(costs.fetch(50))


def test_prefixes_are_fetched_by_kvcache_centric_alone() -> None:
    moved = {name: ran.moved for name, ran in compare(small(), CASE).items()}
    assert moved.pop("kvcache-centric") > 0 and set(moved.values()) == {0.0}


def test_documents_are_popular_by_rank_and_as_much_work_comes_as_is_offered() -> None:
    pipe, case = small(jobs=20_000), Case(name="plain", offered=0.7)
    jobs = make_jobs(pipe, case, 1)
    work = sum(StageCosts(pipe.stages, case).prefill(each.prompt) for each in jobs)
    assert work / jobs[-1].arrival / pipe.workers == pytest.approx(0.7, rel=0.05)
    firsts = [len({each.keys[0] for each in make_jobs(pipe, Case(name="x", renewed=share), 1)}) for share in (0, 1)]
    assert firsts[0] <= pipe.documents and firsts[1] == pipe.jobs


def test_equal_seeds_give_equal_runs_and_others_do_not() -> None:
    first, again, other = (compare(small(), CASE, seed) for seed in (1, 1, 2))
    assert first == again and first != other


def means(case: Case) -> list[float]:
    """The mean time to the end of each policy, over the experiment's seeds."""
    runs = [compare(OWN.model_copy(update={"policies": tuple(ORDER)}), case, seed) for seed in range(OWN.seeds)]
    return [float(np.mean([np.mean(each[name].seconds) for each in runs])) for name in ORDER]


def test_with_a_fast_network_each_policy_beats_the_one_before_it() -> None:
    found = means(OWN.cases[0])
    assert found == sorted(found, reverse=True)


def test_fetching_does_not_pay_where_artefacts_are_cheap_and_the_network_is_slow() -> None:
    _, balanced, aware, fetching = means(next(each for each in OWN.cases if each.name == "cheap, slow network"))
    assert aware < fetching < balanced


def test_where_nothing_comes_back_knowing_the_caches_gains_nothing() -> None:
    scattered, balanced, *others = means(next(each for each in OWN.cases if each.renewed == 1.0))
    assert others == pytest.approx([balanced, balanced], rel=0.02) and balanced < scattered


def test_every_measure_is_given_for_every_case_and_policy_with_its_range() -> None:
    pipe = small(cases=OWN.cases[:2])
    outcome = find("embedding").run(pipe, silent)
    assert len(outcome.rows) == 2 * len(pipe.policies) * len(MEASURES)
    assert all(row.low is not None and row.high is not None and row.low <= row.ours <= row.high for row in outcome.rows)
    assert len(outcome.figures) == 1
    told = next(remark for remark in outcome.remarks if remark.startswith(pipe.cases[0].name))
    assert told.index("cache-aware") < told.index("random")


def test_a_policy_that_is_not_known_is_refused_by_its_name() -> None:
    with pytest.raises(ConfigError, match="policies 'nearest' is not simulated: use one of random, "):
        compare(small(policies=("nearest",)), CASE)
