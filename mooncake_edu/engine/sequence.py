"""A request while it is served: its tokens so far, its pages, its keys and its text."""

from __future__ import annotations

import numpy as np

from mooncake_edu.engine.text import TextStream
from mooncake_edu.kvcache import BlockTable
from mooncake_edu.prefix import KeyChain
from mooncake_edu.request import FinishReason, Phase, Request, Tokens


class Sequence:
    """One request on its way. `length` counts its tokens, prompt and made ones; `computed` those in the pages."""

    def __init__(self, request: Request, chain: KeyChain, text: TextStream, now: float) -> None:
        self.request = request
        self.chain = chain
        self.text = text
        self.table: BlockTable | None = None
        self.published = 0
        """Blocks of the table, from the first on, that are in the prefix index."""
        self.length = len(request.prompt)
        self._tokens = np.empty(self.length + request.sampling.max_tokens, dtype="<u4")
        self._tokens[: self.length] = request.prompt
        self.enter(Phase.QUEUED, now)

    def enter(self, phase: Phase, now: float) -> None:
        """Begin a phase at `now`, in seconds."""
        self.phase, self.since, self.made_before = phase, now, self.made

    @property
    def tokens(self) -> Tokens:
        """All tokens so far, prompt and made ones."""
        return self._tokens[: self.length]

    @property
    def made(self) -> int:
        """How many tokens were made."""
        return self.length - len(self.request.prompt)

    @property
    def computed(self) -> int:
        """How many tokens have, or will have at the end of the current step, their KVCache in the pages."""
        return self.table.length if self.table else 0

    def append(self, token: int, eos: frozenset[int]) -> tuple[str, FinishReason | None]:
        """Take the next token made; returns the text now safe to show, and why the request ends here, if it does."""
        self._tokens[self.length] = token
        self.length += 1
        sampling = self.request.sampling
        if token in sampling.stop_tokens or (token in eos and not sampling.ignore_eos):
            return "", FinishReason.STOP
        text = self.text.push([token])
        if self.text.stopped:
            return text, FinishReason.STOP
        return text, FinishReason.LENGTH if self.made >= sampling.max_tokens else None

    def release(self) -> None:
        """Give all pages back."""
        if self.table is not None:
            self.table.release()
        self.table, self.published = None, 0
