"""Knobs redraw their figure, and a notebook with many of them runs to its end without a browser."""

from __future__ import annotations

from typing import Any

import nbformat
import plotly.graph_objects as go
import pytest
from nbclient import NotebookClient

from mooncake_edu.course.knobs import turning

ipywidgets = pytest.importorskip("ipywidgets")

IMPORTS = """import ipywidgets
import plotly.graph_objects as go
from mooncake_edu.course.knobs import turning"""
CELL = "turning(lambda high: go.Figure().add_bar(y=[high] * 1000), high=ipywidgets.IntSlider(value=3))"


def bars(high: int, many: int) -> go.Figure:
    return go.Figure().add_bar(y=[high] * many)


def drawn(box: Any) -> list[int]:
    """The heights of the bars that are shown."""
    (output,) = box.children[1].outputs
    heights: list[int] = output["data"]["application/vnd.plotly.v1+json"]["data"][0]["y"]
    return heights


@pytest.fixture(autouse=True)
def notebook_renderer(monkeypatch: pytest.MonkeyPatch) -> None:
    import plotly.io

    monkeypatch.setattr(plotly.io.renderers, "default", "plotly_mimetype")


def test_the_first_figure_is_of_the_knobs_first_values() -> None:
    high, many = ipywidgets.IntSlider(value=3), ipywidgets.IntSlider(value=2)
    assert drawn(turning(bars, high=high, many=many)) == [3, 3]


def test_a_knob_that_moves_replaces_the_figure() -> None:
    high, many = ipywidgets.IntSlider(value=3), ipywidgets.IntSlider(value=2)
    box = turning(bars, high=high, many=many)
    high.value = 5
    many.value = 1
    assert drawn(box) == [5]


def test_what_draw_raises_at_first_is_raised() -> None:
    with pytest.raises(ZeroDivisionError):
        turning(lambda by: bars(1 // by, 1), by=ipywidgets.IntSlider(value=0))


@pytest.mark.slow
def test_no_cell_with_knobs_hides_its_end_from_who_runs_it() -> None:
    cells = [nbformat.v4.new_code_cell(source) for source in (IMPORTS, *[CELL] * 40)]
    notebook = nbformat.v4.new_notebook(cells=cells)
    NotebookClient(notebook, timeout=60, kernel_name="python3").execute()
    shown = [cell.outputs[0].data for cell in notebook.cells[1:]]
    assert all("application/vnd.jupyter.widget-view+json" in data for data in shown)
