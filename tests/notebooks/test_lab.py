"""Chapter 01 in JupyterLab in Chromium, with real clicks and keys: it runs, draws, reacts, is edited and is checked."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from tests.browsing import FADE_MS, LIGHT, chromium, contrasts
from tests.notebooks.lab import Notebook, jupyter_lab

pytestmark = [pytest.mark.browser, pytest.mark.slow, pytest.mark.timeout(900)]

CHAPTER = "01-paged-kvcache.ipynb"
PLAY_MS = 120_000
MARKS = ".main-svg :is(.bars .point path, .scatterlayer path, .hm image)"
WRONG = "def tail_waste(lengths, block_size):\nreturn sum(block_size - length % block_size for length in lengths)"
RIGHT = "def tail_waste(lengths, block_size):\nreturn sum(-length % block_size for length in lengths)"
LEGIBLE = 4.0
"""Contrast of a colour that must be read on white and on black: at best 4.6 on both."""

LUMINANCES = f"""plot => {{
  const light = {LIGHT};
  const words = [...plot.querySelectorAll(':is(.xtick, .ytick, .legend) text, text.gtitle')];
  const ground = getComputedStyle(plot.closest('.jp-Notebook')).backgroundColor;
  return [light(ground), ...words.map(word => light(getComputedStyle(word).fill))];
}}"""
THEME = "light => document.body.dataset.jpThemeLight === String(light)"
LAST_FRAME = """plot => {
  const [slider] = plot._fullLayout.sliders;
  return slider.active === slider.steps.length - 1;
}"""


@pytest.fixture(scope="module")
def opened(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Notebook]:
    """The chapter after Run All, on a copy, with a kernel of its own."""
    with jupyter_lab(tmp_path_factory.mktemp("lab")) as lab, chromium() as browser:
        notebook = Notebook(browser, lab, CHAPTER)
        assert notebook.run_all() == []
        yield notebook
        notebook.context.close()


@pytest.fixture
def chapter(opened: Notebook) -> Iterator[Notebook]:
    """The chapter; whatever a test does with it, nothing may complain."""
    yield opened
    assert opened.complaints == []


def plot(chapter: Notebook, cell: str) -> Any:
    """The drawn figure under a cell."""
    return chapter.output(cell).locator(".js-plotly-plot")


def test_all_cells_run_and_all_checks_pass(chapter: Notebook) -> None:
    said = [chapter.output(f"check-1-{number}").inner_text() for number in range(1, 7)]
    assert all("✓ passed" in words for words in said), said


def test_nothing_pops_up_that_asks_for_something(chapter: Notebook) -> None:
    assert chapter.page.locator(".Toastify__toast, .jp-Dialog").all_text_contents() == []


def test_every_figure_draws(chapter: Notebook) -> None:
    cells = chapter.pictures()
    assert {"first-three", "memories", "sharing", "measure-sizes", "life"} <= set(cells)
    for cell in cells:
        plot(chapter, cell).locator(MARKS).first.wait_for(state="attached")


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_words_in_figures_are_legible(chapter: Notebook, scheme: str) -> None:
    chapter.page.emulate_media(color_scheme=scheme)
    chapter.page.wait_for_function(THEME, arg=scheme == "light")
    chapter.page.wait_for_timeout(FADE_MS)
    for cell in ("first-three", "measure-sizes", "life"):
        words = contrasts(plot(chapter, cell).evaluate(LUMINANCES))
        assert len(words) > 5 and min(words) > LEGIBLE, cell


def test_an_animation_plays_to_its_end(chapter: Notebook) -> None:
    figure = plot(chapter, "memories")
    headings = figure.locator(".annotation-text")
    assert "3 inside" in headings.nth(0).text_content()
    figure.locator(".updatemenu-button").first.click()
    chapter.page.wait_for_function(LAST_FRAME, arg=figure.element_handle(), timeout=PLAY_MS)
    chapter.page.wait_for_timeout(FADE_MS)
    assert [text.count("0 inside") for text in headings.all_text_contents()] == [1, 0, 1]


def test_a_widget_reacts(chapter: Notebook) -> None:
    title = chapter.output("turn").locator(".gtitle")
    assert title.text_content() == "Blocks of 16 tokens, sequences of 300 on average"
    handle = chapter.output("turn").get_by_role("slider").first
    for key, size in (("ArrowRight", 32), ("ArrowLeft", 16)):
        handle.focus()
        chapter.page.keyboard.press(key)
        title.filter(has_text=f"Blocks of {size} tokens").wait_for()
        assert chapter.output("turn").locator(".widget-readout").first.inner_text() == str(size)


def test_an_edited_listing_changes_the_system_until_it_is_changed_back(chapter: Notebook) -> None:
    agreed = chapter.run("compare-again")
    assert agreed.count("0 of 24 tokens") == 2

    chapter.edit("listing-must-copy", "Control+End", "Backspace", text="9")
    assert "differs from the package's, and is live" in chapter.run("listing-must-copy")
    broken = chapter.run("compare-again")
    assert broken.count("0 of 24 tokens") == 1 and "the first of them number" in broken

    chapter.edit("listing-must-copy", "Control+End", "Backspace", text="1")
    assert "is the package's again" in chapter.run("listing-must-copy")
    assert chapter.run("compare-again") == agreed


def test_a_wrong_answer_fails_and_the_right_one_then_passes(chapter: Notebook) -> None:
    for answer, verdict in ((WRONG, "✗ failed"), (RIGHT, "✓ passed")):
        chapter.edit("exercise-1-1", "Control+a", text=answer.replace("\n", "\n    "))
        assert chapter.run("exercise-1-1") == ""
        said = chapter.run("check-1-1")
        assert verdict in said
        assert ("smallest input" in said) == (answer == WRONG)
