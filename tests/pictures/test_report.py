"""A report is one file that needs nothing else and whose text cannot become markup."""

from __future__ import annotations

import re
from html.parser import HTMLParser
from pathlib import Path

import plotly.graph_objects as go
import pytest
from plotly.offline import get_plotlyjs

from mooncake_edu.errors import UserError
from mooncake_edu.events import EventLog, Kind
from mooncake_edu.pictures.figures import timeline
from mooncake_edu.pictures.report import Section, Table, report_html, write_report

EVIL = '</script><script>alert(1)</script><img src=x onerror="alert(2)">\u00e4'


class Page(HTMLParser):
    """Tags with their attributes, the text outside scripts, and a check that tags close in order."""

    EMPTY = ("meta", "img", "link", "br")

    def __init__(self, html: str) -> None:
        super().__init__()
        self.tags: list[tuple[str, dict[str, str | None]]] = []
        self.open: list[str] = []
        self.text = ""
        self.feed(html)
        assert not self.open

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append((tag, dict(attrs)))
        if tag not in self.EMPTY:
            self.open.append(tag)

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag

    def handle_data(self, data: str) -> None:
        if self.open and self.open[-1] not in ("script", "style"):
            self.text += data

    def of(self, tag: str) -> list[dict[str, str | None]]:
        return [attributes for name, attributes in self.tags if name == tag]


def figure(name: str = "r0") -> go.Figure:
    log = EventLog()
    log.add(Kind.ARRIVED, request=name, start=0.0, prompt=1)
    log.add(Kind.QUEUED, request=name, start=0.0, end=1.0)
    return timeline(log)


def page(evil: str = "") -> str:
    table = Table("caption" + evil, ["name", "value" + evil], [["a" + evil, 1234], ["b", 0.125]])
    return report_html("title" + evil, "lead" + evil, [
        Section("first" + evil, ["text" + evil], [figure("r0" + evil), figure()], [table]), Section("second"),
    ])  # fmt: skip


def test_the_page_carries_plotly_once_and_asks_for_nothing_else() -> None:
    html = page()
    assert html.count(get_plotlyjs()) == 1
    parsed = Page(html)
    for tag, attributes in parsed.tags:
        assert "src" not in attributes, tag
        assert tag != "link" and (tag != "a" or str(attributes["href"]).startswith("#"))
    policy = next(meta["content"] for meta in parsed.of("meta") if "http-equiv" in meta)
    assert policy is not None and policy.startswith("default-src 'none'")
    assert "http" not in html.replace(get_plotlyjs(), "").replace("http-equiv", "")


def test_text_from_outside_never_becomes_markup() -> None:
    plain, evil = Page(page()), Page(page(EVIL))
    assert [tag for tag, _ in evil.tags] == [tag for tag, _ in plain.tags]
    assert evil.text.count(EVIL) >= 7


def test_every_picture_has_its_words_and_every_table_its_headings() -> None:
    parsed = Page(page())
    images = [div for div in parsed.of("div") if div.get("role") == "img"]
    assert len(images) == len(parsed.of("figure")) == 2 and all(div["aria-label"] for div in images)
    assert len(parsed.of("caption")) == 1
    assert [cell["scope"] for cell in parsed.of("th")] == ["col", "col", "row", "row"]
    assert "1,234" in parsed.text and "0.12" in parsed.text
    assert parsed.of("html")[0]["lang"] == "en" and len(parsed.of("h1")) == 1


def test_links_of_the_contents_lead_somewhere() -> None:
    parsed = Page(page())
    targets = {str(attributes.get("id")) for _, attributes in parsed.tags}
    assert {str(link["href"])[1:] for link in parsed.of("a")} <= targets


def test_light_and_dark_are_both_defined() -> None:
    assert re.search(r"@media \(prefers-color-scheme: dark\)", page())


def test_a_report_that_cannot_be_written_is_refused_and_leaves_nothing(tmp_path: Path) -> None:
    with pytest.raises(UserError, match=r"absent/x\.html cannot be written"):
        write_report(tmp_path / "absent" / "x.html", "t", "l", [])
    write_report(tmp_path / "x.html", "t", "half a pair \ud800", [])
    assert [path.name for path in tmp_path.iterdir()] == ["x.html"]
