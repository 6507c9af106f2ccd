"""The inside of a measured process: one JSON request a line on standard input, one JSON answer a line back.

Runs in the environment of each peer, so it needs nothing but Python itself.
"""

import json
import os
import sys
import time
from collections.abc import Callable, Sequence
from typing import Any

Operation = Callable[..., dict[str, Any]]


def serve(operations: dict[str, Operation]) -> None:
    """Answer requests such as {"op": "generate", ...} by the operation of that name until the input ends.

    An operation that fails is answered with {"error": ...}. Whatever else the process prints goes to standard error.
    """
    answers = os.fdopen(os.dup(1), "w", encoding="utf-8")
    os.dup2(2, 1)
    for line in sys.stdin:
        request = json.loads(line)
        try:
            answer = operations[request.pop("op")](**request)
        except Exception as error:
            answer = {"error": f"{type(error).__name__}: {error}"}
        answers.write(json.dumps(answer) + "\n")
        answers.flush()


class Stopwatch:
    """Times one generation: to the first token of every prompt, and the tokens made after it."""

    def __init__(self, prompts: int, clock: Callable[[], float] = time.perf_counter) -> None:
        self._clock = clock
        self._tokens: list[list[int]] = [[] for _ in range(prompts)]
        self._before = 0
        self._first: float | None = None
        self._start = clock()

    def add(self, prompt: int, tokens: Sequence[int]) -> None:
        """Note tokens that were made for the prompt of that number."""
        self._tokens[prompt] += tokens

    def step(self) -> None:
        """Note that a batch step has ended."""
        if self._first is None and all(self._tokens):
            self._first = self._clock()
            self._before = sum(map(len, self._tokens))

    def result(self) -> dict[str, Any]:
        """The answer to `generate`: seconds in all, to all first tokens, of decode; tokens of decode; all tokens."""
        end = self._clock()
        first = end if self._first is None else self._first
        made = sum(map(len, self._tokens))
        return {
            "seconds": end - self._start,
            "first_seconds": first - self._start,
            "decode_seconds": end - first,
            "decode_tokens": made - self._before,
            "tokens": self._tokens,
        }
