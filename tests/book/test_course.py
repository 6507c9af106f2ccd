"""The book of the course, built from all its chapters."""

from __future__ import annotations

from pathlib import Path

import pytest

from mooncake_edu.course.cells import Chapter, source
from tests.book.conftest import Book
from tests.book.html import loads_from_elsewhere, of_class
from tests.notebooks.running import CHAPTERS

pytestmark = [pytest.mark.slow, pytest.mark.timeout(1800)]


def test_the_course_is_built_without_a_warning_and_loads_nothing_from_elsewhere(whole_book: Book) -> None:
    assert whole_book.status == 0, whole_book.said
    assert list(loads_from_elsewhere(whole_book.pages)) == []


@pytest.mark.parametrize("path", CHAPTERS, ids=[path.stem for path in CHAPTERS])
def test_a_chapter_s_page_shows_figures_listings_and_exercises(path: Path, whole_book: Book) -> None:
    page = whole_book.pages / "notebooks" / f"{path.stem}.html"
    chapter = Chapter(path)
    assert len(of_class(page, "picture-plot")) >= 5
    text = page.read_text(encoding="utf-8")
    assert text.count("Show a solution") == sum("BEGIN SOLUTION" in source(cell) for cell in chapter.cells)
    assert all(f"{listing.layer} {listing.start}-{listing.stop}" in text for listing in chapter.listings)


def test_no_page_names_a_place_on_the_machine_that_built_it(whole_book: Book) -> None:
    for page in whole_book.pages.rglob("*.html"):
        assert str(Path.home()) + "/" not in page.read_text(encoding="utf-8")
