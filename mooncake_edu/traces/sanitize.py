"""A log of requests made fit to be shared, the paper's way: times, lengths and numbers for blocks instead of content.

What is kept: which prompts share how many blocks, exactly. What goes: every token and every hash of one. The blocks'
hashes are made with a key that nobody keeps, and only numbers in the order of first use are written, so that nobody
can try out texts, nor tell by the ids that two exports hold the same content.

What still shows: when requests came and how long they and their answers were (so somebody who knows a request can
find it, and two exports of the same hours can be laid side by side), and which requests have a common beginning.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from mooncake_edu.errors import RequestError, short
from mooncake_edu.prefix import block_keys, token_bytes
from mooncake_edu.traces.trace import (
    BLOCK_SIZE,
    Row,
    Trace,
    in_order,
    is_number,
    objects,
    refuse,
    seconds,
    tokens,
)

MOST_LINE = 1 << 26
"""Bytes of a row of a log: a prompt of several million tokens."""

FINEST = 1e-6
"""Seconds to which times are written: a finer tick cuts nothing."""

LEAKS = (
    "What still shows: when requests came, how long prompts and answers were, and which prompts begin alike. Coarser "
    "times (--tick) and times from zero (--rebase) say less of when."
)

Encode = Callable[[str], Sequence[int]]
"""Turns text into tokens."""


def sanitize(
    log: str | Path, key: bytes, encode: Encode, *, rebase: bool = False, tick: float = 0.0,
    block_size: int = BLOCK_SIZE,
) -> Trace:  # fmt: skip
    """The trace of a log of JSON lines, whose content is not in it.

    A row has `timestamp` in ms, `prompt` (text) or `tokens`, `output` (text), `output_tokens` or `output_length`, and
    perhaps `salt`, text that keeps tenants apart; whatever else it has is left out. `key` is random and forgotten,
    16 to 64 bytes. With `rebase` the first request comes at 0; with `tick` times are cut to so many seconds.
    Raises TraceError with the row for what is none.
    """
    if not 16 <= len(key) <= hashlib.blake2b.MAX_KEY_SIZE:
        raise ValueError(f"a key of {len(key)} bytes: give 16 to {hashlib.blake2b.MAX_KEY_SIZE}")
    log = Path(log)
    lines, rows, hashes = [], [], []
    for number, value in objects(log, MOST_LINE):
        if "timestamp" not in value:
            refuse(log, number, "timestamp is missing", "give milliseconds, 0 or more")
        prompt = _tokens(value, "prompt", "tokens", encode, log, number)
        lines.append(number)
        rows.append((seconds(value["timestamp"], log, number), len(prompt), _output(value, encode, log, number)))
        hashes.append(_chain(prompt, block_size, key, _salt(value, log, number), log, number))
    order = in_order([row[0] for row in rows], log, lines)
    start = rows[order[0]][0] if rebase else 0.0
    numbers: dict[bytes, int] = {}
    made = []
    for at in order:
        ids = [numbers.setdefault(each, len(numbers)) for each in hashes[at]]
        made.append(Row(_cut(rows[at][0] - start, tick), *rows[at][1:], ids))
    return Trace.of(made, block_size, log.stem)


def _chain(prompt: Sequence[int], block_size: int, key: bytes, salt: str, log: Path, number: int) -> list[bytes]:
    """A keyed hash for every block, the partial last one included, over its tokens and the hash before it."""

    def keyed(data: bytes) -> bytes:
        return hashlib.blake2b(data, key=key, digest_size=16).digest()

    try:
        root = keyed(salt.encode("utf-8", "surrogatepass"))
        hashes = block_keys(prompt, block_size, root, keyed)
        rest = prompt[len(hashes) * block_size :]
        return hashes + ([keyed((hashes[-1] if hashes else root) + token_bytes(rest))] if rest else [])
    except RequestError as error:
        refuse(log, number, f"tokens are none ({error})", "give whole numbers from 0 to 4294967295")


def _output(value: dict[str, Any], encode: Encode, log: Path, number: int) -> int:
    if "output_length" in value:
        return tokens("output_length", value["output_length"], 0, log, number)
    return len(_tokens(value, "output", "output_tokens", encode, log, number, least=0))


_REMEDIES = {
    "prompt": "give prompt (text) or tokens (ids)",
    "output": "give output (text), output_tokens (ids) or output_length (a number)",
}


def _tokens(
    value: dict[str, Any], text: str, ids: str, encode: Encode, log: Path, number: int, least: int = 1
) -> Sequence[int]:
    """The tokens under one of two names; the error does not show what they are."""
    if (text in value) == (ids in value):
        refuse(log, number, f"{'both' if text in value else 'neither'} of {text} and {ids} given", _REMEDIES[text])
    given = value.get(text, value.get(ids))
    if not isinstance(given, str if text in value else list):
        refuse(log, number, f"{text if text in value else ids} is a {type(given).__name__}", _REMEDIES[text])
    if isinstance(given, list) and not all(is_number(each, int) for each in given):
        refuse(log, number, f"{ids} are none (not all are whole numbers)", "give whole numbers from 0 to 4294967295")
    found: Sequence[int] = encode(given) if isinstance(given, str) else given
    if len(found) < least:
        refuse(log, number, f"{text if text in value else ids} is empty", "leave such requests out")
    return found


def _salt(value: dict[str, Any], log: Path, number: int) -> str:
    salt = value.get("salt", "")
    if not isinstance(salt, str):
        refuse(log, number, f"salt {short(salt)} is no text", "give text, or leave it out")
    return salt


def _cut(time: float, tick: float) -> float:
    return float(np.floor(time / tick) * tick) if tick > FINEST else time


def utf8(text: str) -> Sequence[int]:
    """The bytes of a text as tokens, where no tokenizer is at hand."""
    return list(text.encode("utf-8", "surrogatepass"))
