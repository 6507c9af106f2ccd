"""Pictures of Conductor show the candidates, queues and waits that they were given, in data and in words."""

from __future__ import annotations

from collections.abc import Callable

import plotly.graph_objects as go
import pytest

from mooncake_edu.conductor import POLICIES, Conductor, Pool, Query
from mooncake_edu.course.checks import placing
from mooncake_edu.model.costs import PRESETS
from mooncake_edu.pictures import conductor as pictures
from mooncake_edu.simulation.cluster import simulate
from mooncake_edu.simulation.explain import Candidate, Journal, candidates
from mooncake_edu.simulation.result import Result
from mooncake_edu.traces.profiles import make

COSTS = PRESETS["A800x8"]


def found() -> list[Candidate]:
    """Three instances: idle, holding half and busy; and one that may not be chosen."""
    pool = Pool(range(4), [1] * 4, [0.0, 5.0, 2.0, 0.0], [0, 8192, 512, 0], [0] * 4, [0] * 4, [True] * 3 + [False])
    return candidates(Query(16384, (), 0.0), pool, COSTS, 2.0)


def run(name: str = "kvcache-centric", journal: Journal | None = None) -> Result:
    trace = placing.at_load(make("papers", 1, 60), 1.3)
    return simulate(placing.cluster(), trace, conductor=Conductor(POLICIES[name](COSTS)), journal=journal, name=name)


def mapped() -> go.Figure:
    journal = Journal()
    run(journal=journal)
    return pictures.cluster_map(journal, range(20, 50))


MAKERS: dict[str, Callable[[], go.Figure]] = {
    "candidates": lambda: pictures.candidates(found(), 0),
    "map": mapped,
    "waits": lambda: pictures.waits([run("random"), run()]),
    "shares": lambda: pictures.shares({"alone": {3: 12}, "with": {0: 5, 3: 7}}, "Twelve"),
    "thresholds": lambda: pictures.thresholds((1, 2, 1000), {"fast": [run()] * 3}, ("1", "2", "never")),
    "wrong blocks": lambda: pictures.wrong_blocks({"naive": [0, 1, 5], "ours": [0, 2, 0]}),
    "scores": lambda: pictures.scores({"yours": 0.9, "random": 7.0, "best": 0.7}, "yours", 1.3),
}


@pytest.mark.parametrize("make_figure", MAKERS.values(), ids=MAKERS)
def test_every_figure_says_in_words_what_it_shows(make_figure: Callable[[], go.Figure]) -> None:
    figure = make_figure()
    assert figure.layout.meta["alt"] == f"{figure.layout.title.text}. {figure.layout.meta['finding']}"
    assert len(figure.layout.meta["finding"]) > 30


def bars(figure: go.Figure, name: str) -> go.Bar:
    [bar] = [trace for trace in figure.data if trace.type == "bar" and (trace.name or "").startswith(name)]
    return bar


def test_the_bars_of_a_candidate_add_up_to_its_forecast_and_are_told_apart_without_colour() -> None:
    figure, there = pictures.candidates(found(), 0), found()
    parts = [bars(figure, name) for name in ("queue", "transfer", "prefill")]
    for place, each in enumerate(there[:3]):
        assert sum(part.x[place] for part in parts) == pytest.approx(each.ttft)
    assert len({part.marker.pattern.shape for part in parts}) == 3


def test_the_chosen_candidate_is_marked_in_words_and_one_that_may_not_be_has_no_bar() -> None:
    figure = pictures.candidates(found(), 0)
    [told] = [trace for trace in figure.data if trace.type == "scatter"]
    assert ["chosen" in text for text in told.text] == [True, False, False, True]
    assert "may not be chosen" in told.text[3] and "fetches 8,192 from 1" in told.text[0]
    assert [text.startswith("<b>▶") for text in figure.layout.yaxis.ticktext] == [True, False, False, False]
    assert all(bar.x[3] == 0 for bar in figure.data if bar.type == "bar")
    assert "Instance 0 is chosen" in figure.layout.meta["finding"]
    assert "Instance 1 holds most, 8,192" in figure.layout.meta["finding"]


def test_each_frame_of_the_map_shows_the_view_and_the_placement_of_its_request() -> None:
    journal = Journal()
    run(journal=journal)
    figure = pictures.cluster_map(journal, range(20, 50))
    assert len(figure.frames) == len(figure.layout.sliders[0].steps) == 30
    for number, frame in zip(range(20, 50), figure.frames, strict=True):
        view, placed = journal.shown[number], journal.placed[number].answer
        queue, mark, held, fetch, decode, other = frame.data
        assert list(queue.y) == list(view.prefill.queue) and list(decode.y) == list(view.decode.requests)
        assert (list(mark.x), list(other.x)) == ([str(placed.prefill)], [str(placed.decode)])
        prompt = journal.placed[number].arguments[0].prompt
        assert list(held.y) == [100 * cached / prompt for cached in view.prefill.cached]
        ends = [None] if placed.source is None else [str(placed.source), str(placed.prefill)]
        assert list(fetch.x) == ends
    assert any(frame.data[3].x[0] is not None for frame in figure.frames), "no frame shows a fetch"


def test_a_legend_names_fetching_only_where_something_is_fetched() -> None:
    pool = Pool(range(2), [1] * 2, [0.0, 5.0], [0, 8192], [0] * 2, [0] * 2, [True] * 2)
    alone = pictures.candidates(candidates(Query(16384, (), 0.0), pool, COSTS, None), 0)
    assert bars(alone, "transfer").showlegend is False and bars(alone, "queue").showlegend
    assert bars(pictures.candidates(found(), 0), "transfer").showlegend
    journal = Journal()
    run("cache-aware", journal)
    for figure, fetches in ((pictures.cluster_map(journal, range(20, 50)), False), (mapped(), True)):
        [arrow] = [trace for trace in figure.data if trace.name == "a prefix is fetched"]
        assert arrow.showlegend is fetches


def test_waits_are_those_of_the_runs() -> None:
    runs = [run("random"), run()]
    figure = pictures.waits(runs)
    assert list(bars(figure, "mean").y) == [each.table.mean("ttft") for each in runs]
    assert list(bars(figure, "90th").y) == [each.table.percentile("ttft", 90) for each in runs]


def test_an_instance_without_a_request_has_an_empty_bar_not_none() -> None:
    figure = pictures.shares({"alone": {3: 12}, "with": {0: 5, 3: 7}}, "Twelve")
    assert [list(bar.y) for bar in figure.data] == [[0, 12], [5, 7]]
    assert "one instance gets 12 of 12" in figure.layout.meta["finding"]


def test_of_scores_the_shortest_stands_first_and_yours_is_marked() -> None:
    figure = pictures.scores({"yours": 0.9, "random": 7.0, "best": 0.7}, "yours", 1.3)
    assert list(figure.layout.yaxis.ticktext) == ["best", "<b>▶ yours</b>", "random"]
    assert "number 2 of 3" in figure.layout.meta["finding"]
    [line], [word] = figure.layout.shapes, figure.layout.annotations
    assert line.x0 == pytest.approx(1.3)
    assert 10**word.x == pytest.approx(1.3), "on an axis of powers of ten a word stands at its logarithm"
    without = pictures.scores({"random": 7.0, "best": 0.7}, "yours", 1.3)
    assert "Yours places not all requests" in without.layout.meta["finding"]
