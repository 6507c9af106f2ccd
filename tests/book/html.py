"""What a page of the book refers to, read as a browser reads it."""

from __future__ import annotations

import re
from collections.abc import Iterator
from html.parser import HTMLParser
from pathlib import Path

LOADED = {
    "script": "src",
    "link": "href",
    "img": "src",
    "iframe": "src",
    "source": "src",
    "video": "src",
    "audio": "src",
}
ELSEWHERE = re.compile(r"(?:[a-z]+:)?//", re.IGNORECASE)


class Tags(HTMLParser):
    """The tags of a page with their attributes, in order."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.found: list[tuple[str, dict[str, str]]] = []
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        """See HTMLParser."""
        self.found.append((tag, {name: value or "" for name, value in attrs}))


def tags(page: Path) -> list[tuple[str, dict[str, str]]]:
    """The tags of a page."""
    return Tags(page.read_text(encoding="utf-8")).found


def of_class(page: Path, name: str) -> list[dict[str, str]]:
    """The attributes of every tag of a class."""
    return [attributes for _, attributes in tags(page) if name in attributes.get("class", "").split()]


def loads_from_elsewhere(folder: Path) -> Iterator[str]:
    """Everything that pages and style sheets would fetch over a network."""
    for page in folder.rglob("*.html"):
        for tag, attributes in tags(page):
            address = attributes.get(LOADED.get(tag, ""), "")
            if ELSEWHERE.match(address):
                yield f"{page.name}: <{tag}> {address}"
    for sheet in folder.rglob("*.css"):
        for address in re.findall(r"(?:url\(|@import)\s*['\"]?([^'\")]+)", sheet.read_text(encoding="utf-8")):
            if ELSEWHERE.match(address):
                yield f"{sheet.name}: {address}"
