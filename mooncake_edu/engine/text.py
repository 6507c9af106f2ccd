"""Tokens become text that is safe to show: no half characters, nothing of a stop string."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from mooncake_edu.model.tokenizer import Tokenizer

REPLACEMENT = "\ufffd"
HALF_CHARACTER = 3  # bytes of a UTF-8 character that may wait for the last one, each shown as one replacement
LONGEST_WINDOW = 32  # tokens decoded together while nothing but replacements appears
CONTEXT = 12  # tokens kept of such a window: more than the bytes of all characters that may be held back


class TextStream:
    """The text of one request as its tokens arrive.

    All pieces that `push` and `finish` return, put together, are the decoded text, cut where the stop string
    that is complete first begins; of several complete at once the longest counts. A character whose bytes are
    not all there, and text that may be the start of a stop string, are held back. Work per token is constant.
    """

    def __init__(self, tokenizer: Tokenizer, stop: Sequence[str] = ()) -> None:
        self.stopped = False
        self._decode = tokenizer.decode
        self._stops = [_Matcher(text) for text in stop]
        self._window: list[int] = []  # the last tokens, enough to decode what follows them
        self._shown = 0  # characters of the window's text that are done with
        self._held = ""  # text that may be the start of a stop string

    def push(self, tokens: Sequence[int]) -> str:
        """The text that these tokens make safe to show; empty once a stop string is met."""
        if self.stopped or not tokens:
            return ""
        self._window.extend(tokens)
        text = self._decode(self._window)
        ready = len(text) - _half_characters(text)
        fresh = text[self._shown : ready]
        self._shown = max(self._shown, ready)
        self._shorten(len(text) - self._shown)
        return self._release(fresh)

    def finish(self) -> str:
        """The text still held back, when no token follows; half a character is shown as U+FFFD."""
        fresh = "" if self.stopped else self._release(self._decode(self._window)[self._shown :])
        rest, self._held = self._held, ""
        self._window, self._shown = [], 0
        return fresh + rest

    def _shorten(self, waiting: int) -> None:
        """Forget tokens that are done with, but for some context: a tokenizer may drop a leading space."""
        if not waiting and (context := self._decode(self._window[-1:])):
            self._window, self._shown = self._window[-1:], len(context)
        elif len(self._window) > LONGEST_WINDOW:
            self._window = self._window[-CONTEXT:]
            self._shown = max(0, len(self._decode(self._window)) - waiting)

    def _release(self, fresh: str) -> str:
        """`fresh` behind what was held back, up to a stop string or what may become one."""
        if not self._stops:
            return fresh
        text = self._held + fresh
        for index, character in enumerate(fresh, start=len(self._held) + 1):
            met = [len(stop.text) for stop in self._stops if stop.feed(character)]
            if met:
                self.stopped, self._held = True, ""
                return text[: index - max(met)]
        safe = len(text) - max(stop.matched for stop in self._stops)
        self._held = text[safe:]
        return text[:safe]


class _Matcher:
    """How much of the start of a stop string the text now ends with (Knuth, Morris and Pratt)."""

    def __init__(self, text: str) -> None:
        self.text = text
        self.matched = 0
        self._shorter = [0] * len(text)  # by matched length - 1: the next shorter match
        for index in range(1, len(text)):
            self._shorter[index] = self._step(self._shorter[index - 1], text[index])

    def feed(self, character: str) -> bool:
        """Whether this character completes the stop string; nothing may be fed after it does."""
        self.matched = self._step(self.matched, character)
        return self.matched == len(self.text)

    def _step(self, matched: int, character: str) -> int:
        while matched and self.text[matched] != character:
            matched = self._shorter[matched - 1]
        return matched + (self.text[matched] == character)


def _half_characters(text: str) -> int:
    """How many replacement characters at the end a later token may complete to one character."""
    tail = text[-HALF_CHARACTER:]
    return len(tail) - len(tail.rstrip(REPLACEMENT))
