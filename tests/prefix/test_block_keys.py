"""The key of a block is a hash over its tokens and the key before it, whatever kind of row the tokens come in."""

from __future__ import annotations

import hashlib
import itertools
import sys
from array import array
from collections.abc import Callable
from types import FrameType
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from mooncake_edu.errors import RequestError
from mooncake_edu.prefix import KeyChain, block_keys, sha256

unhurried = settings(deadline=None, suppress_health_check=[HealthCheck.too_slow])  # the machine may be busy

ROOT = b"model:4:tiny;"
TOKEN = st.one_of(st.integers(0, 255), st.integers(0, 2**32 - 1))
ROW = st.lists(TOKEN, max_size=40)
BLOCK = st.integers(1, 9)


def oracle(tokens: list[int], size: int, root: bytes = ROOT) -> list[bytes]:
    """The definition, token by token: sha256 over the key before and four little-endian bytes a token."""
    blocks = [tokens[start : start + size] for start in range(0, len(tokens) - len(tokens) % size, size)]
    chain = itertools.accumulate(
        blocks,
        lambda key, block: hashlib.sha256(key + b"".join(t.to_bytes(4, "little") for t in block)).digest(),
        initial=root,
    )
    return list(chain)[1:]


def spread(tokens: list[int]) -> np.ndarray[Any, Any]:
    """The same tokens, three items apart in memory."""
    wide = np.full((len(tokens), 3), 2**32 - 1, np.uint32)
    wide[:, 1] = tokens
    return wide[:, 1]


KINDS: dict[str, Callable[[list[int]], Any]] = {
    "list": list,
    "tuple": tuple,
    "uint32 array": lambda row: np.array(row, np.uint32),
    "int64 array": lambda row: np.array(row, np.int64),
    "big-endian array": lambda row: np.array(row, ">u4"),
    "array that is not contiguous": spread,
    "reversed view": lambda row: np.array(row[::-1], np.uint32)[::-1],
    "read-only array": lambda row: np.frombuffer(np.array(row, np.uint32).tobytes(), np.uint32),
    "list of numpy integers": lambda row: [np.int64(token) for token in row],
    "array.array": lambda row: array("I", row),
    "memoryview": lambda row: memoryview(array("I", row)),
    "tensor": lambda row: torch.tensor(row, dtype=torch.int64),
}


@pytest.mark.parametrize("kind", KINDS)
@unhurried
@given(row=ROW, size=BLOCK)
def test_keys_are_a_sha256_chain_over_little_endian_tokens(kind: str, row: list[int], size: int) -> None:
    assert block_keys(KINDS[kind](row), size, ROOT) == oracle(row, size)


def test_keys_do_not_change_between_versions() -> None:
    """Stored blocks outlive a release, so these values, made with the sha256sum command, must stay as they are."""
    keys = block_keys([1, 2, 3, 2**32 - 1, 5], 2, b"root")
    assert [key.hex()[:16] for key in keys] == ["66832f2246a967cf", "a958119e4904b085"]


@unhurried
@given(ROW, BLOCK)
def test_bytes_that_a_buffer_lends_are_one_token_each(row: list[int], size: int) -> None:
    data = bytearray(token % 256 for token in row)
    assert block_keys(data, size, ROOT) == block_keys(memoryview(data), size, ROOT) == oracle(list(data), size)


BAD: dict[str, Any] = {
    "negative in a list": [1, -1],
    "negative in a tuple": (1, -1),
    "negative in an array": np.array([1, -1]),
    "2**32 in a list": [0, 2**32],
    "2**32 in an array": np.array([0, 2**32]),
    "far too large": [2**64],
    "floats in a list": [1.0, 2.0],
    "one float among integers": [1, 2.5],
    "floats in an array": np.array([1.0, 2.0]),
    "float32 array": np.array([1, 2], np.float32),
    "not a number": [float("nan")],
    "booleans in an array": np.array([True, False]),
    "two dimensions": np.ones((2, 2), np.uint32),
    "two dimensions in lists": [[1, 2], [3, 4]],
    "no dimension": np.uint32(3),
    "one integer": 3,
    "text": "12",
    "bytes": b"12",
    "list of texts": ["1", "2"],
    "none": None,
    "list with none": [1, None],
    "a set": {1, 2},
    "objects": np.array([1, 2], object),
}


@pytest.mark.parametrize("what", BAD)
def test_what_is_no_row_of_token_ids_is_refused(what: str) -> None:
    with pytest.raises(RequestError, match="token id"):
        block_keys(BAD[what], 1, ROOT)


@unhurried
@given(ROW, BLOCK)
def test_a_partial_last_block_has_no_key(row: list[int], size: int) -> None:
    assert len(block_keys(row, size, ROOT)) == len(row) // size


@unhurried
@given(ROW, ROW, ROW, BLOCK)
def test_keys_are_equal_exactly_as_far_as_whole_prefixes_are(
    common: list[int], one: list[int], other: list[int], size: int
) -> None:
    one, other = common + one, common + other
    pairs = list(zip(block_keys(one, size, ROOT), block_keys(other, size, ROOT), strict=False))
    for number, (left, right) in enumerate(pairs, 1):
        assert (left == right) == (one[: number * size] == other[: number * size])


@unhurried
@given(ROW, BLOCK, st.integers(0, 5))
def test_keys_may_be_continued_from_any_block(row: list[int], size: int, done: int) -> None:
    keys = block_keys(row, size, ROOT)
    done = min(done, len(keys))
    parent = keys[done - 1] if done else ROOT
    assert block_keys(row[done * size :], size, parent) == keys[done:]


@unhurried
@given(st.lists(ROW, max_size=6), BLOCK)
def test_a_chain_that_grows_has_the_keys_of_the_whole_row_and_hashes_each_token_once(
    parts: list[list[int]], size: int
) -> None:
    hashed: list[int] = []

    def counting(data: bytes) -> bytes:
        hashed.append(len(data))
        return sha256(data)

    chain, row = KeyChain(ROOT, size, counting), []
    for part in parts:
        row += part
        assert chain.cover(np.array(row, np.uint32)) == oracle(row, size)
        chain.cover(np.array(row, np.uint32))
    before = [len(ROOT), *[32] * len(hashed)]
    assert hashed == [length + 4 * size for length in before[: len(row) // size]]


@pytest.mark.parametrize("kind", ["list", "tuple", "uint32 array", "int64 array", "array that is not contiguous"])
def test_the_work_grows_with_the_blocks_not_with_their_tokens(kind: str) -> None:
    """One hash a block, and not a line of Python more for a block of 512 tokens than for one of 4."""

    def work(size: int) -> tuple[int, int]:
        hashes, lines = 0, 0

        def counting(data: bytes) -> bytes:
            nonlocal hashes
            hashes += 1
            return data[:32]

        def trace(frame: FrameType, event: str, argument: Any) -> Any:
            nonlocal lines
            lines += event == "line" and frame.f_code.co_filename != __file__
            return trace

        row, old = KINDS[kind](list(range(6 * size))), sys.gettrace()
        sys.settrace(trace)
        try:
            block_keys(row, size, ROOT, counting)
        finally:
            sys.settrace(old)
        return hashes, lines

    work(4)  # what runs only once in a process is not counted
    hashes, lines = work(4)
    assert hashes == 6 and lines > 0
    assert work(512) == (hashes, lines)
