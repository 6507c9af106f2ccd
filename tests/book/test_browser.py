"""The pages in Chromium, from disk and without a network: figures draw, in the light and in the dark."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import plotly.graph_objects as go
import pytest

from mooncake_edu.pictures.figures import finish
from mooncake_edu.pictures.frames import animate
from mooncake_edu.pictures.palette import INK
from tests import browsing
from tests.book.conftest import Book
from tests.browsing import FADE_MS, LIGHT, chromium, contrasts

pytestmark = [pytest.mark.browser, pytest.mark.timeout(900)]

SCHEMES = ("light", "dark")
DRAWN = "[...document.querySelectorAll('.picture-plot')].every(place => place.querySelector('.main-svg'))"
LUMINANCES = f"""() => {{
  const light = {LIGHT};
  const words = [...document.querySelectorAll('.picture-plot .main-svg :is(.xtick, .legend, .annotation) text')];
  const ground = getComputedStyle(document.querySelector('figure.picture')).backgroundColor;
  return [light(ground), ...words.map(word => light(getComputedStyle(word).fill))];
}}"""


@pytest.fixture(scope="module")
def browser() -> Iterator[Any]:
    """Chromium, as the system has it."""
    with chromium() as browser:
        yield browser


class Visit(browsing.Visit):
    """One page, opened from disk; notes what it complains about and what it fetches that is no file."""

    def __init__(self, browser: Any, scheme: str) -> None:
        super().__init__(browser, scheme, ("file:",), offline=True)

    def open(self, page: Path, query: str = "") -> Any:
        """Open a page and wait until its figures are drawn."""
        self.page.goto(page.as_uri() + query)
        self.page.wait_for_function(DRAWN)
        return self.page


@pytest.fixture(params=SCHEMES)
def visit(browser: Any, request: pytest.FixtureRequest) -> Iterator[Visit]:
    """A visit in the light, and one in the dark."""
    visit = Visit(browser, request.param)
    yield visit
    visit.context.close()


def test_a_figure_draws_legibly_and_nothing_complains(small_book: Book, visit: Visit) -> None:
    page = visit.open(small_book.pages / "notebooks" / "00-start-here.html")
    assert page.locator(".picture-plot .main-svg .shapelayer path").count() > 8
    words = contrasts(page.evaluate(LUMINANCES))
    assert len(words) > 10 and min(words) > 4.5
    assert visit.complaints == []


def test_the_theme_can_be_switched_and_figures_follow(small_book: Book, browser: Any) -> None:
    visit = Visit(browser, "light")
    page = visit.open(small_book.pages / "notebooks" / "00-start-here.html")
    before = page.evaluate(LUMINANCES)[:2]
    page.locator(".theme-switch-button:visible").first.click()
    page.locator('.theme-change-button[data-mode="dark"]:visible').click()
    page.wait_for_function("document.documentElement.dataset.theme === 'dark'")
    page.wait_for_timeout(FADE_MS)
    after = page.evaluate(LUMINANCES)[:2]
    assert before[0] > before[1] and after[0] < after[1]
    assert visit.complaints == []


def test_words_are_found_by_the_search(small_book: Book, visit: Visit) -> None:
    page = visit.open(small_book.pages / "search.html", "?q=roofline")
    page.wait_for_selector("#search-results li a")
    assert "Glossary" in page.locator("#search-results").inner_text()
    assert visit.complaints == []


def test_a_folded_solution_opens(small_book: Book, visit: Visit) -> None:
    page = visit.open(small_book.pages / "notebooks" / "00-start-here.html")
    solution = page.get_by_text("BEGIN SOLUTION")
    assert not solution.is_visible()
    page.get_by_text("Show a solution").click()
    assert solution.is_visible()


INKED = """ink => [...document.querySelectorAll('.picture-plot .main-svg text')]
  .filter(word => getComputedStyle(word).fill === ink).map(word => word.textContent)"""


BOXES = """() => ['.updatemenu-button', '.slider-grip-rect', '.slider-rail-touch-rect'].map(name => {
  const boxes = [...document.querySelectorAll(name)].map(each => each.getBoundingClientRect());
  return [Math.min(...boxes.map(box => box.left)), Math.max(...boxes.map(box => box.right))];
})"""


def test_buttons_and_slider_of_an_animation_stand_side_by_side_at_any_width(browser: Any, tmp_path: Path) -> None:
    figure = go.Figure(go.Scatter(x=[1, 2], y=[1, 2]))
    finish(figure, "Moves", "A point moves.")
    animate(figure, [go.Frame(name=str(number), data=[{"y": [number, 2]}]) for number in range(5)])
    figure.write_html(tmp_path / "moves.html", config={"responsive": True}, auto_play=False)
    visit = Visit(browser, "light")
    for width in (480, 690, 720, 1100):
        visit.page.set_viewport_size({"width": width, "height": 700})
        page = visit.open(tmp_path / "moves.html")
        page.wait_for_selector(".slider-grip-rect")
        (_, buttons_end), (grip_start, _), (_, rail_end) = page.evaluate(BOXES)
        assert 4 <= grip_start - buttons_end <= 24, width
        assert rail_end <= width
    visit.context.close()


@pytest.mark.slow
@pytest.mark.timeout(1800)
def test_every_page_of_the_course_draws_all_its_figures(whole_book: Book, visit: Visit) -> None:
    assert whole_book.status == 0, whole_book.said
    ink = f"rgb({', '.join(map(str, bytes.fromhex(INK[1:])))})"
    pages = [page for page in sorted(whole_book.pages.rglob("*.html")) if "_static" not in page.parts]
    drawn = 0
    for page in pages:
        opened = visit.open(page)
        drawn += opened.locator(".picture-plot").count()
        assert opened.evaluate(INKED, ink) == [], f"words of {page.name} that do not follow the theme"
    assert drawn > 10
    assert visit.complaints == []
