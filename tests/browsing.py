"""Chromium as the system has it, and visits that note what a page complains about and what it fetches elsewhere."""

from __future__ import annotations

import shutil
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

WAIT_MS = 60_000
FADE_MS = 500  # until colours that fade have changed
WINDOW = {"width": 1280, "height": 900}


LIGHT = """text => {
  const [r, g, b] = text.match(/[\\d.]+/g).map(Number);
  return [r, g, b].map(v => v / 255).map(v => v <= 0.04045 ? v / 12.92 : ((v + 0.055) / 1.055) ** 2.4)
    .reduce((sum, v, i) => sum + v * [0.2126, 0.7152, 0.0722][i], 0);
}"""
"""In the browser: the luminance of a colour as CSS writes it (WCAG 2)."""


@contextmanager
def chromium() -> Iterator[Any]:
    """The system's Chromium, without its window; closed in the end."""
    from playwright.sync_api import sync_playwright

    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(
            executable_path=shutil.which("chromium"), args=["--no-sandbox", "--disable-gpu"]
        )
        yield browser
        browser.close()


class Visit:
    """One page in a context of its own.

    `complaints` has each error of its scripts, each error on its console, each fetch that failed, and each address
    fetched that does not begin with one of `allowed`.
    """

    def __init__(self, browser: Any, scheme: str, allowed: tuple[str, ...], offline: bool = False) -> None:
        self.context = browser.new_context(color_scheme=scheme, offline=offline, viewport=WINDOW)
        self.page = self.context.new_page()
        self.page.set_default_timeout(WAIT_MS)
        self.complaints: list[str] = []
        self._allowed = (*allowed, "data:", "blob:")
        self.page.on("pageerror", lambda error: self.complaints.append(str(error)))
        self.page.on("console", lambda said: self.complaints.append(said.text) if said.type == "error" else None)
        self.page.on("request", self._note)
        self.page.on("requestfailed", lambda request: self.complaints.append(f"failed: {request.url}"))

    def _note(self, request: Any) -> None:
        if not request.url.startswith(self._allowed):
            self.complaints.append(f"fetched {request.url}")


def contrasts(luminances: Sequence[float]) -> list[float]:
    """Of all luminances but the first against the first, their ground (WCAG 2)."""
    ground, *words = luminances
    return [(max(word, ground) + 0.05) / (min(word, ground) + 0.05) for word in words]
