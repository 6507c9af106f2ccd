"""Pictures of overload show the fates, forecasts and scores that they were given, in data and in words."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import cache

import numpy as np
import plotly.graph_objects as go
import pytest

from mooncake_edu.admission import ADMISSIONS
from mooncake_edu.course.checks import shedding
from mooncake_edu.pictures import overload as pictures
from mooncake_edu.simulation.cluster import simulate
from mooncake_edu.simulation.result import Result, Stage


@cache
def run(name: str = "early", last_check: bool = True) -> Result:
    policy = ADMISSIONS[name](shedding.room())
    return simulate(shedding.cluster(last_check=last_check), shedding.documents(1, 150), admission=policy, name=name)


MAKERS: dict[str, Callable[[], go.Figure]] = {
    "fates": lambda: pictures.fates([run("all"), run()]),
    "trade": lambda: pictures.trade([run("decode-refuses"), run()]),
    "curves": lambda: pictures.curves({"learnt": (np.arange(3.0), np.array([1, 0.6, 0.2]))}, "age (s)", "Lasts"),
    "calibration": lambda: pictures.calibration({"ours": [5, 4, 6, 5, 5, 5, 5, 5, 5, 5]}),
    "stays": lambda: pictures.stays([(0.0, 5.0), (4.0, 5.0)], 6.0, "Who decodes then", "1 decodes at 6 s, as counted."),
    "scores": lambda: pictures.scores({"yours": 1.5, "early": 0.9}, "yours", 1.4, 1.7),
}


@pytest.mark.parametrize("make_figure", MAKERS.values(), ids=MAKERS)
def test_every_figure_says_in_words_what_it_shows(make_figure: Callable[[], go.Figure]) -> None:
    figure = make_figure()
    assert figure.layout.meta["alt"] == f"{figure.layout.title.text}. {figure.layout.meta['finding']}"
    assert len(figure.layout.meta["finding"]) > 20


@pytest.mark.parametrize("last_check", [True, False])
@pytest.mark.parametrize("name", ADMISSIONS)
def test_every_request_has_one_fate(name: str, last_check: bool) -> None:
    result = run(name, last_check)
    fate = pictures.fate(result)
    assert sum(fate.values()) == len(result.table) == 150
    assert min(fate.values()) >= 0
    assert fate[pictures.MET] == result.met.sum()
    assert fate[pictures.WASTED] == (result.stage == Stage.DECODE).sum()


def test_the_bars_of_a_run_are_its_fates() -> None:
    figure = pictures.fates([run(), run("all")])
    bars = {trace.name: list(trace.x) for trace in figure.data if trace.type == "bar"}
    for paint in (pictures.MET, pictures.LATE, pictures.WASTED, pictures.REFUSED):
        assert bars[paint.label] == [pictures.fate(run())[paint], pictures.fate(run("all"))[paint]]


def test_a_policy_stands_where_its_waste_and_its_goodput_are() -> None:
    figure = pictures.trade([run("decode-refuses"), run()])
    assert [(point.x[0], point.y[0]) for point in figure.data] == [
        (result.wasted / 150, result.goodput) for result in (run("decode-refuses"), run())
    ]


def test_several_runs_of_a_policy_are_small_points_around_a_named_one_at_their_mean() -> None:
    runs = [run(), run(last_check=False)]
    small, large = pictures.trade(runs).data
    assert list(small.y) == [result.goodput for result in runs]
    assert (large.text, large.y[0]) == (("early",), pytest.approx(np.mean([result.goodput for result in runs])))
    assert small.marker.size < large.marker.size and small.marker.color == large.marker.color


def test_no_two_policies_look_or_are_labelled_alike() -> None:
    names = [*ADMISSIONS][1:]
    points = pictures.trade([replace(run(), name=name) for name in names]).data
    assert [point.text[0] for point in points] == names
    assert len({point.marker.color for point in points}) == len({point.marker.symbol for point in points}) == len(names)


def test_a_decode_is_marked_if_the_time_that_is_asked_about_lies_in_it() -> None:
    figure = pictures.stays([(0.0, 5.0), (4.0, 5.0), (6.0, 1.0)], 6.0, "Who", "finding")
    assert {trace.name: list(trace.y) for trace in figure.data} == {
        "decodes then": ["decode 2", "decode 3"], "does not": ["decode 1"],
    }  # fmt: skip


def test_the_reader_s_own_is_marked_and_the_best_stands_above() -> None:
    figure = pictures.scores({"yours": 1.2, "early": 0.9, "early-predicted": 1.5}, "yours", 1.4, 1.7)
    assert [bar.y[0] for bar in figure.data] == ["early-predicted", "yours", "early"]
    assert figure.layout.yaxis.ticktext == ("early-predicted", "<b>▶ yours</b>", "early")
    assert "number 2 of 3" in figure.layout.meta["finding"]
    assert {line.x0 for line in figure.layout.shapes} == {1.4, 1.7}
    assert {text.text: text.x for text in figure.layout.annotations} == {"asked": 1.4, "for fun": 1.7}


def test_an_answer_without_numbers_is_not_drawn() -> None:
    figure = pictures.scores({"early": 0.9}, "yours", 1.4, 1.7)
    assert "no numbers" in figure.layout.meta["finding"]
