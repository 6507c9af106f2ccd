"""What a request asks for is what it gets: where it ends, what text streams out, and a clear no where it must be."""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import itertools
import sys
import threading

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from mooncake_edu.config import EngineConfig
from mooncake_edu.engine import Engine, Output
from mooncake_edu.errors import BusyError, RequestError
from mooncake_edu.events import Kind, Refusal
from mooncake_edu.model import Model
from mooncake_edu.model.decoder import Decoder
from mooncake_edu.model.tokenizer import ByteTokenizer
from mooncake_edu.request import FinishReason, Request, SamplingParams
from tests.engine.plain import SMALL, drain, plain, reasons_of, served, small_engine, small_model, tokens_of

TEXT = [int(token) for token in np.random.default_rng(13).integers(0, 250, 100)]
FREE = SamplingParams(max_tokens=24, ignore_eos=True)
EOS = ByteTokenizer().eos


@functools.cache
def letters_model() -> Model:
    """The small model, if it could only say printable characters."""
    weights = small_model().decoder.weights
    assert weights.head is not None
    head = weights.head.clone()
    head[:32] = head[127:] = 0
    return dataclasses.replace(small_model(), decoder=Decoder(SMALL, dataclasses.replace(weights, head=head)))


def answer(prompt: list[int], sampling: SamplingParams, model: Model | None = None) -> Output:
    """All that the engine gives out for one prompt, put together."""
    engine = small_engine(model=model)
    engine.submit(Request("only", prompt, sampling))
    outputs = drain(engine)
    (reason,) = reasons_of(outputs)["only"]
    return Output("only", tokens_of(outputs)["only"], "".join(output.text for output in outputs), reason)


def prompt_whose_answer_has_eos() -> tuple[list[int], int]:
    """A prompt and the place of the first end token in its free answer, which is not the first token."""
    for start in range(80):
        made = plain(TEXT[start : start + 9], FREE)
        place = next((n for n, token in enumerate(made) if token in EOS), 0)
        if place > 0:
            return TEXT[start : start + 9], place
    raise AssertionError("no answer of the small model holds an end token")


def test_an_end_token_ends_a_request_is_told_and_is_no_text() -> None:
    prompt, place = prompt_whose_answer_has_eos()
    made = plain(prompt, FREE)
    given = answer(prompt, SamplingParams(max_tokens=24))
    assert (given.tokens, given.finish) == (made[: place + 1], FinishReason.STOP)
    assert given.text == ByteTokenizer().decode(made[:place])


def test_ignore_eos_goes_on_to_max_tokens() -> None:
    prompt, _ = prompt_whose_answer_has_eos()
    given = answer(prompt, FREE)
    assert (given.tokens, given.finish) == (plain(prompt, FREE), FinishReason.LENGTH)


@pytest.mark.parametrize("wanted", [1, 2, 7])
def test_max_tokens_is_exact(wanted: int) -> None:
    given = answer(TEXT[:5], SamplingParams(max_tokens=wanted, ignore_eos=True))
    assert (given.tokens, given.finish) == (plain(TEXT[:5], FREE)[:wanted], FinishReason.LENGTH)


@pytest.mark.parametrize("place", [0, 1, 5])
@pytest.mark.parametrize("ignore_eos", [True, False])
def test_a_stop_token_ends_a_request_whether_or_not_end_tokens_count(place: int, ignore_eos: bool) -> None:
    made = plain(TEXT[:6], FREE)
    first = made.index(made[place])
    sampling = SamplingParams(max_tokens=24, stop_tokens=frozenset({made[place]}), ignore_eos=ignore_eos)
    given = answer(TEXT[:6], sampling)
    assert (given.tokens, given.finish) == (made[: first + 1], FinishReason.STOP)


@settings(max_examples=40, deadline=None)
@given(st.integers(0, 3), st.data())
def test_a_stop_string_ends_the_text_before_it_wherever_the_borders_of_tokens_are(
    start: int, data: st.DataObject
) -> None:
    free = answer(TEXT[start : start + 7], FREE, letters_model())
    assert len(free.text) == 24  # one character a token, so any longer stop string crosses borders
    begin = data.draw(st.integers(0, 22))
    stop = free.text[begin : data.draw(st.integers(begin + 1, 24))]
    other = data.draw(st.text("xyz", min_size=25, max_size=25))
    given = answer(TEXT[start : start + 7], dataclasses.replace(FREE, stop=(other, stop)), letters_model())
    assert given.text == free.text.split(stop)[0] and given.finish is FinishReason.STOP
    assert given.tokens == free.tokens[: free.text.index(stop) + len(stop)]


def test_a_stop_string_that_never_becomes_whole_is_shown_at_the_end() -> None:
    free = answer(TEXT[:7], FREE, letters_model())
    given = answer(TEXT[:7], dataclasses.replace(FREE, stop=(free.text[-3:] + "!!",)), letters_model())
    assert given.text == free.text and given.finish is FinishReason.LENGTH


@settings(max_examples=30, deadline=None)
@given(st.integers(0, 80), st.integers(1, 15), st.integers(0, 2**64 - 1))
def test_the_pieces_of_streamed_text_add_up_to_the_text_of_all_tokens(start: int, length: int, seed: int) -> None:
    sampling = SamplingParams(max_tokens=20, temperature=1.0, seed=seed, ignore_eos=True)
    given = answer(TEXT[start : start + length], sampling)
    assert given.text == ByteTokenizer().decode(given.tokens)


def test_tokens_stream_out_one_a_step_as_they_are_made() -> None:
    engine = small_engine()
    engine.submit(Request("only", TEXT[:5], FREE))
    every = [output for _ in range(24) for output in engine.step()]
    assert [len(output.tokens) for output in every] == [1] * 24 and engine.idle


def test_a_full_queue_refuses_for_now_and_serves_what_it_took() -> None:
    engine = small_engine(max_queue=3)
    asked = [Request(str(number), TEXT[number : number + 5], FREE) for number in range(3)]
    for request in asked:
        engine.submit(request)
    late = Request("late", TEXT[20:25], FREE)
    with pytest.raises(BusyError, match="request late: 3 requests wait already: try again later"):
        engine.submit(late)
    assert engine.log.select(Kind.REFUSED).field(Kind.REFUSED, "reason").tolist() == [Refusal.QUEUE_FULL]
    outputs = engine.step()
    engine.submit(late)  # the others are in the batch now
    made = tokens_of(outputs + drain(engine))
    assert made == {request.id: plain(request.prompt, FREE) for request in [*asked, late]}


def test_a_run_takes_more_requests_than_the_queue_holds_and_no_faster_than_it_holds_them() -> None:
    engine, taken = small_engine(max_queue=2, max_batch=2), []

    def source():  # type: ignore[no-untyped-def]
        for number in range(9):
            taken.append(number)
            yield Request(str(number), TEXT[number : number + 6], FREE)

    running = engine.run(source())
    outputs = [next(running)]
    assert len(taken) <= 2 + 2 + 1
    made = tokens_of([*outputs, *running])
    assert made == {str(number): plain(TEXT[number : number + 6], FREE) for number in range(9)}


def test_a_run_waits_while_another_thread_keeps_the_queue_full_and_tells_of_no_refusal() -> None:
    engine, over, before = small_engine(max_queue=1, max_batch=2), threading.Event(), sys.getswitchinterval()
    one = SamplingParams(max_tokens=1)

    def fill() -> None:
        for number in itertools.count():
            if over.is_set():
                return
            with contextlib.suppress(BusyError):
                engine.submit(Request(f"other{number}", TEXT[:5], one))

    other = threading.Thread(target=fill)
    sys.setswitchinterval(1e-6)
    try:
        other.start()
        outputs = list(engine.run(Request(f"mine{number}", TEXT[5:10], one) for number in range(30)))
    finally:
        over.set()
        other.join()
        sys.setswitchinterval(before)
    assert {f"mine{number}" for number in range(30)} <= {output.request_id for output in outputs}
    rows, names = engine.log.snapshot()
    assert not [name for index in rows.of(Kind.REFUSED).request if (name := names[index]).startswith("mine")]


def refused(prompt: list[int], sampling: SamplingParams = FREE, engine: Engine | None = None) -> str:
    """The one line that says why; a neighbour in the batch is served all the same."""
    engine = engine or small_engine(blocks=1024)
    engine.submit(Request("neighbour", TEXT[:5], FREE))
    outputs = engine.step()
    with pytest.raises(RequestError) as caught:
        engine.submit(Request("bad", prompt, sampling))
    assert tokens_of(outputs + drain(engine)) == {"neighbour": plain(TEXT[:5], FREE)}
    assert "\n" not in str(caught.value)
    return str(caught.value)


def test_a_token_that_the_model_does_not_have_is_refused_by_name() -> None:
    assert refused([1, 264, 3]) == (
        "request bad: token 264 is not one of the 264 of small: encode the prompt with this model's tokenizer"
    )


def test_more_tokens_than_the_model_has_positions_are_refused_with_both_numbers() -> None:
    assert refused([1] * 2000, SamplingParams(max_tokens=49)) == (
        "request bad: 2000 prompt tokens and max_tokens 49 are more than the 2048 positions of small: "
        "shorten one of them"
    )


def test_as_many_tokens_as_the_model_has_positions_are_served() -> None:
    engine = small_engine(blocks=1024, token_budget=2048)
    long = Request("long", [1] * 2040, SamplingParams(max_tokens=8, ignore_eos=True))
    assert len(served(engine, [long])["long"]) == 8


def test_a_name_that_is_being_served_is_refused_until_it_is_done() -> None:
    engine = small_engine()
    engine.submit(Request("twice", TEXT[:5], FREE))
    for wanted in (FREE, SamplingParams(max_tokens=1)):
        with pytest.raises(RequestError, match="request twice is being served already: give each request a name"):
            engine.submit(Request("twice", TEXT[:5], wanted))
        engine.step()
    with pytest.raises(RequestError, match="request twice is being served already"):
        engine.fork("twice", "twice", FREE)
    assert tokens_of(drain(engine))["twice"]
    assert served(engine, [Request("twice", TEXT[:5], FREE)]) == {"twice": plain(TEXT[:5], FREE)}


def test_only_a_request_that_decodes_can_be_forked() -> None:
    engine = small_engine(token_budget=4)
    with pytest.raises(RequestError, match="request nobody is not decoding: fork it between two of its tokens"):
        engine.fork("nobody", "twin", FREE)
    engine.submit(Request("first", TEXT[:12], FREE))
    engine.step()
    with pytest.raises(RequestError, match="request first is not decoding"):
        engine.fork("first", "twin", FREE)


def test_a_fork_into_a_full_batch_is_refused_for_now() -> None:
    engine = small_engine(max_batch=1)
    engine.submit(Request("first", TEXT[:5], FREE))
    engine.step()
    with pytest.raises(BusyError, match="request twin: the batch of 1 is full: try again later"):
        engine.fork("first", "twin", FREE)
    assert tokens_of(drain(engine)).keys() == {"first"}


def test_the_memory_of_the_kvcache_is_what_the_configuration_says() -> None:
    block = 2 * 2 * 2 * 4 * 8 * 8  # layers, K and V, heads, tokens, channels, bytes
    engine = Engine(small_model(), EngineConfig(block_size=4, memory=10 * block + block - 1))
    assert engine.pool.total == 10 and engine.pages.memory.numel() == 10 * block
