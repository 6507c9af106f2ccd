"""A small book, really built: what stands in its pages, and that nothing in them comes from elsewhere."""

from __future__ import annotations

import json
import runpy
from pathlib import Path
from typing import Any

import pytest
from pygments.token import Keyword

from book.chapters import figure
from book.extension import ListingLexer
from mooncake_edu.pictures.map import course_map
from tests.book.conftest import ROOT, Book, build, write_small
from tests.book.html import loads_from_elsewhere, of_class, tags

pytestmark = pytest.mark.timeout(900)  # the first test that asks for the small book waits for it


@pytest.fixture(scope="module")
def page(small_book: Book) -> Path:
    """The page of the small chapter."""
    assert small_book.status == 0, small_book.said
    return small_book.pages / "notebooks" / "00-start-here.html"


def scripts(page: Path) -> list[str]:
    """Addresses of the scripts that a page loads."""
    return [attributes["src"] for tag, attributes in tags(page) if tag == "script" and "src" in attributes]


def test_the_book_is_built_without_a_warning(small_book: Book) -> None:
    assert small_book.status == 0, small_book.said
    assert "WARNING: " not in small_book.said


def test_nothing_is_fetched_from_elsewhere(small_book: Book) -> None:
    assert list(loads_from_elsewhere(small_book.pages)) == []


def test_what_would_be_fetched_is_seen(tmp_path: Path) -> None:
    (tmp_path / "page.html").write_text('<script src="https://a.example/x.js"></script><img src="//b.example/y.png">')
    (tmp_path / "page.css").write_text("a { background: url('https://c.example/z.png') } b { background: url(w.png) }")
    found = list(loads_from_elsewhere(tmp_path))
    assert [line.split()[-1] for line in found] == [
        "https://a.example/x.js", "//b.example/y.png", "https://c.example/z.png"
    ]  # fmt: skip


def test_a_figure_is_data_with_a_text_alternative(page: Path) -> None:
    [plot] = of_class(page, "picture-plot")
    assert plot["role"] == "img"
    assert plot["aria-label"].startswith("Where the seven layers stand. A request goes to Conductor")


def test_plotly_is_one_file_and_only_pages_with_figures_load_it(page: Path, small_book: Book) -> None:
    assert any("plotly.min.js" in source for source in scripts(page))
    assert not any("plotly.min.js" in source for source in scripts(small_book.pages / "glossary.html"))
    assert len(list(small_book.pages.rglob("plotly*.js"))) == 1


def test_the_first_page_shows_the_map_and_leads_to_every_chapter(small_book: Book) -> None:
    page = small_book.pages / "index.html"
    assert len(of_class(page, "picture-plot")) == 1
    assert "notebooks/00-start-here.html" in [attributes.get("href") for _, attributes in tags(page)]


def test_formulas_are_mathml_and_no_script_draws_them(page: Path) -> None:
    text = page.read_text(encoding="utf-8")
    assert text.count("<math ") == 3
    assert 'display="block"' in text and "<mfrac>" in text
    assert not [source for source in scripts(page) if "mathjax" in source.lower() or "katex" in source.lower()]


def test_a_listing_is_in_the_colours_of_python(page: Path) -> None:
    text = page.read_text(encoding="utf-8")
    listing = text.split("kvcache 1-1", 1)[1].split("</pre>", 1)[0]
    assert 'class="sd"' in listing or 'class="s2"' in listing  # a string, as Python's lexer tells it


def test_the_lexer_reads_python_below_the_magic_and_leaves_other_cells_as_they_were() -> None:
    def keywords(text: str) -> list[str]:
        return [word for kind, word in ListingLexer().get_tokens(text) if kind in Keyword]

    assert keywords("%%layer kvcache 1-2\ndef f():\n    return 1") == ["layer", "def", "return"]
    assert keywords("%load_ext x\nimport y")[-1:] == ["import"] or "import" in keywords("%load_ext x\nimport y")


def test_tables_that_a_cell_makes_are_tables(page: Path) -> None:
    text = page.read_text(encoding="utf-8")
    assert "<td><p>two</p></td>" in text.replace("\n", "")


def test_controls_that_need_a_kernel_become_a_sentence(page: Path) -> None:
    assert len(of_class(page, "controls")) == 1
    text = page.read_text(encoding="utf-8")
    assert "VBox(children" not in text and "widget-view" not in text


def test_a_solution_is_folded_and_the_instructor_s_notes_are_left_out(page: Path) -> None:
    text = page.read_text(encoding="utf-8")
    assert text.count("Show a solution") == 1
    assert "Ask the room first" not in text


def test_the_notebook_to_download_is_the_student_s(small_book: Book, page: Path) -> None:
    notebook = json.loads((small_book.pages / "_sources" / "notebooks" / "00-start-here.ipynb").read_text("utf-8"))
    [answer] = [cell for cell in notebook["cells"] if cell["id"] == "exercise-0-1"]
    assert "raise NotImplementedError" in "".join(answer["source"]) and "return value" not in "".join(answer["source"])
    assert not any(cell.get("outputs") for cell in notebook["cells"])
    assert any("_sources/notebooks/00-start-here.ipynb" in attributes.get("href", "") for _, attributes in tags(page))


def test_the_instructor_s_page_lists_sections_minutes_and_notes(small_book: Book) -> None:
    text = (small_book.pages / "instructor.html").read_text(encoding="utf-8")
    assert "00 Small" in text and "30 minutes, 10 of them core" in text and "The problem" in text
    assert "Ask the room first" in text


def test_a_folder_that_holds_something_else_is_refused_and_left_alone(tmp_path: Path) -> None:
    kept = tmp_path / "html" / "mine.html"
    kept.parent.mkdir()
    kept.touch()
    book = build(write_small(tmp_path / "notebooks"), tmp_path)
    assert book.status == 2
    assert "holds something that is no book: name a new folder" in book.said.replace("\n", " ")
    assert kept.exists()


@pytest.mark.slow
def test_a_link_that_leads_nowhere_fails_the_build(tmp_path: Path) -> None:
    book = build(write_small(tmp_path / "notebooks", "See [there](nowhere.ipynb)."), tmp_path / "out")
    assert book.status != 0
    assert "nowhere.ipynb" in book.said


def test_a_figure_cannot_end_the_page_s_script() -> None:
    content: dict[str, Any] = json.loads(course_map().update_layout(title_text="</script><b>").to_json())
    html = figure(content)
    assert html.count("</script>") == 1
    assert "<b>" not in html.replace("<b>1</b>", "")


@pytest.mark.parametrize("address", ["", "https://git.example/org/course"])
def test_colab_and_binder_are_offered_only_with_a_repository(address: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MOONCAKE_EDU_REPOSITORY", address)
    options = runpy.run_path(str(ROOT / "book" / "conf.py"))["html_theme_options"]
    assert ("launch_buttons" in options) == bool(address)
    assert options.get("repository_url", "") == address


def test_the_glossary_says_each_term_once_in_order() -> None:
    text = (ROOT / "book" / "glossary.md").read_text(encoding="utf-8").split("```{glossary}\n", 1)[1].split("```", 1)[0]
    terms = [line for line in text.split("\n") if line and not line.startswith(" ")]
    assert len(terms) > 20
    assert len({term.lower() for term in terms}) == len(terms)
    assert terms == sorted(terms, key=str.lower)
