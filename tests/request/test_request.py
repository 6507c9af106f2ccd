"""Rules of requests and sampling parameters: what cannot be served is refused where it is made."""

from __future__ import annotations

import dataclasses

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from mooncake_edu.errors import RequestError, UserError
from mooncake_edu.request import MAX_SEED, Request, SamplingParams, as_tokens

NAN, INF = float("nan"), float("inf")


@pytest.mark.parametrize(
    ("name", "value"),
    [
        *[("max_tokens", bad) for bad in (0, -1, 2**31, 1.0, True, None, "8")],
        *[("top_k", bad) for bad in (-1, 2**31, 0.5, NAN)],
        *[("seed", bad) for bad in (-1, MAX_SEED + 1, 1.5)],
        *[("temperature", bad) for bad in (NAN, INF, -INF, -0.1, 100.5, "hot", None, True)],
        *[("top_p", bad) for bad in (NAN, INF, -0.1, 1.1, 0, 0.0, None)],
        *[("stop", bad) for bad in ("end", ("",), ("a", ""), (1,), (b"end",))],
        *[("stop_tokens", bad) for bad in (frozenset({-1}), frozenset({"a"}), frozenset({1.5}))],
    ],
)
def test_a_sampling_value_that_cannot_work_is_refused_in_one_line_with_its_name(
    name: str, value: object
) -> None:
    with pytest.raises(RequestError) as refusal:
        SamplingParams(**{name: value})
    assert str(refusal.value).startswith(name) and "\n" not in str(refusal.value)
    assert isinstance(refusal.value, UserError)


@pytest.mark.parametrize(
    ("name", "value"),
    [("max_tokens", 1), ("max_tokens", 2**31 - 1), ("temperature", 100), ("top_p", 1), ("top_p", 1e-9),
     ("top_k", 2**31 - 1), ("seed", MAX_SEED), ("stop", ("\n",))],
)  # fmt: skip
def test_values_on_the_border_are_taken(name: str, value: object) -> None:
    assert getattr(SamplingParams(**{name: value}), name) == value


@pytest.mark.parametrize("empty", [[], (), np.zeros(0, np.uint32), np.zeros(0, np.float64)])
def test_an_empty_prompt_is_refused_by_the_name_of_its_request_sglang_2011(empty: list[int]) -> None:
    with pytest.raises(RequestError, match="request a: the prompt is empty"):
        Request("a", empty)


def test_a_request_needs_a_name() -> None:
    with pytest.raises(RequestError, match="request id '' is empty"):
        Request("", [1])


@pytest.mark.parametrize(
    "bad",
    [
        [-1],
        [2**32],
        [1, -(2**40)],
        [1.0],
        [NAN],
        ["a"],
        [[1, 2]],
        [True],
        5,
        np.array([2**63], np.uint64),
        [2**70],
        [[1, 2], [3]],
    ],
)
def test_what_is_no_row_of_token_ids_is_refused(bad: list[int]) -> None:
    with pytest.raises(RequestError):
        as_tokens(bad)


@given(st.lists(st.integers(0, 2**32 - 1)), st.sampled_from(("list", "i8", "u4", ">u4", ">i8")))
def test_token_ids_become_little_endian_32_bit_whatever_they_came_in(tokens: list[int], form: str) -> None:
    given_tokens = tokens if form == "list" else np.array(tokens, dtype=form)
    result = as_tokens(given_tokens)
    assert result.dtype == np.dtype("<u4") and result.tolist() == tokens
    assert result.tobytes() == b"".join(token.to_bytes(4, "little") for token in tokens)


def test_a_prompt_is_a_read_only_copy() -> None:
    mine = np.array([1, 2, 3], dtype=np.uint32)
    request = Request("a", mine)
    mine[0] = 9
    assert request.prompt.tolist() == [1, 2, 3]
    with pytest.raises(ValueError, match="read-only"):
        request.prompt[0] = 9


def test_requests_and_sampling_parameters_cannot_be_changed() -> None:
    with pytest.raises(dataclasses.FrozenInstanceError):
        Request("a", [1]).id = "b"
    with pytest.raises(dataclasses.FrozenInstanceError):
        SamplingParams().max_tokens = 0
