"""A request can end at any moment, by its user or by a fault: its pages come back and nobody else notices."""

from __future__ import annotations

import dataclasses
import threading

import numpy as np
import pytest
import torch
from torch import Tensor

from mooncake_edu.engine import Engine, Output
from mooncake_edu.errors import RequestError
from mooncake_edu.events import Kind
from mooncake_edu.model import Model
from mooncake_edu.model.attention import Attention
from mooncake_edu.model.decoder import Decoder
from mooncake_edu.request import FinishReason, Phase, Request, SamplingParams
from tests.engine.plain import SMALL, counts, drain, plain, reasons_of, served, small_engine, small_model, tokens_of

TEXT = [int(token) for token in np.random.default_rng(11).integers(0, 250, 100)]
LONG = SamplingParams(max_tokens=12, ignore_eos=True)
NEIGHBOUR = Request("neighbour", TEXT[:9], LONG)


class Watched(Decoder):
    """A decoder that does something of the test's choosing in the middle of every step."""

    def __init__(self) -> None:
        super().__init__(SMALL, small_model().decoder.weights)
        self.meanwhile = lambda: None

    def forward(self, x: Tensor, attention: Attention) -> Tensor:
        """See Decoder."""
        hidden = super().forward(x, attention)
        self.meanwhile()
        return hidden


def watched_engine(**config: int) -> tuple[Engine, Watched]:
    decoder = Watched()
    return small_engine(model=dataclasses.replace(small_model(), decoder=decoder), **config), decoder


def phase_of(engine: Engine, name: str) -> Phase:
    every = [*engine.scheduler.waiting, *engine.scheduler.running]
    return next(sequence.phase for sequence in every if sequence.request.id == name)


@pytest.mark.parametrize(
    ("phase", "steps", "length", "budget"),
    [(Phase.QUEUED, 0, 30, 16), (Phase.LOADING, 1, 40, 64), (Phase.PREFILL, 2, 60, 16), (Phase.DECODE, 5, 4, 16)],
)
def test_a_request_is_cancelled_in_any_phase_and_its_neighbour_is_served_as_if_alone(
    phase: Phase, steps: int, length: int, budget: int
) -> None:
    engine, outputs = small_engine(token_budget=budget), []
    maker = Request("maker", [*TEXT[40 : 40 + length], 1], LONG)
    asked = [NEIGHBOUR, *([maker] if phase is Phase.LOADING else []), Request("gone", TEXT[40 : 40 + length], LONG)]
    for request in asked:
        engine.submit(request)
    for _ in range(steps):
        outputs += engine.step()
    assert phase_of(engine, "gone") is phase
    assert engine.cancel("gone")
    outputs += drain(engine)
    assert reasons_of(outputs)["gone"] == [FinishReason.CANCELLED]
    assert tokens_of(outputs)["neighbour"] == plain(NEIGHBOUR.prompt, LONG)
    assert counts(engine)[1] == 0


def test_a_cancelled_request_ends_with_the_next_step_and_its_pages_are_back() -> None:
    engine = small_engine()
    engine.submit(Request("gone", TEXT[:30], LONG))
    engine.step()
    assert counts(engine)[1] > 0
    assert engine.cancel("gone")
    assert engine.step() == [Output("gone", [], "", FinishReason.CANCELLED)]
    assert engine.idle and counts(engine)[1] == 0


def test_cancelling_twice_ends_a_request_once() -> None:
    engine = small_engine()
    engine.submit(Request("gone", TEXT[:5], LONG))
    engine.step()
    assert engine.cancel("gone") and engine.cancel("gone")
    assert reasons_of(drain(engine)) == {"gone": [FinishReason.CANCELLED]}
    assert not engine.cancel("gone")


def test_cancelling_a_name_that_nobody_serves_says_so() -> None:
    assert not small_engine().cancel("nobody")


def test_the_name_of_a_cancelled_request_can_be_used_again() -> None:
    engine = small_engine()
    engine.submit(Request("name", TEXT[:5], LONG))
    engine.cancel("name")
    drain(engine)
    assert served(engine, [Request("name", TEXT[:5], LONG)]) == {"name": plain(TEXT[:5], LONG)}


@pytest.mark.parametrize("step", [1, 2, 3, 6])
def test_another_thread_can_cancel_in_the_middle_of_a_step(step: int) -> None:
    engine, decoder = watched_engine(token_budget=8)
    answers, done = [], [0]

    def meanwhile() -> None:
        done[0] += 1
        if done[0] == step:
            thread = threading.Thread(target=lambda: answers.append(engine.cancel("gone")))
            thread.start()
            thread.join(timeout=10)  # it does not wait for the step to end
            assert not thread.is_alive()

    decoder.meanwhile = meanwhile
    engine.submit(Request("gone", TEXT[40:60], LONG))
    engine.submit(NEIGHBOUR)
    outputs: list[Output] = []
    while done[0] < step:
        outputs += engine.step()
    assert answers == [True] and reasons_of(outputs)["gone"] == [FinishReason.CANCELLED]
    outputs += drain(engine)
    made = tokens_of(outputs)
    assert made["neighbour"] == plain(NEIGHBOUR.prompt, LONG)
    assert made["gone"] == plain(TEXT[40:60], LONG)[: len(made["gone"])]
    table = engine.log.requests()
    assert table.complete.all() and len(engine.log.token_times("gone")) == len(made["gone"]) == table.output[0]


def test_many_threads_submit_and_cancel_while_one_steps() -> None:
    engine, stop, lock = small_engine(block_size=2, blocks=30, max_queue=1024), threading.Event(), threading.Lock()
    submitted: set[str] = set()

    def use(thread: int) -> None:
        random = np.random.default_rng(thread)
        for number in range(25):
            name = f"{thread}-{number}"
            engine.submit(Request(name, TEXT[: int(random.integers(1, 30))], SamplingParams(max_tokens=5)))
            with lock:
                submitted.add(name)
            if random.integers(3) == 0:
                engine.cancel(f"{thread}-{random.integers(number + 1)}")

    threads = [threading.Thread(target=use, args=(number,)) for number in range(4)]
    for thread in threads:
        thread.start()
    outputs: list[Output] = []
    while any(thread.is_alive() for thread in threads) or not engine.idle:
        outputs += engine.step()
    stop.set()
    ends = reasons_of(outputs)
    assert ends.keys() == submitted and all(len(reasons) == 1 for reasons in ends.values())
    assert counts(engine)[1] == 0 and engine.log.requests().complete.all()


def test_a_run_that_is_left_early_ends_its_requests_at_once_and_their_names_are_free() -> None:
    engine = small_engine()
    asked = [Request(str(number), TEXT[number : number + 20], LONG) for number in range(6)]
    running = engine.run(iter(asked))
    for _ in range(3):
        next(running)
    running.close()
    assert engine.idle and counts(engine)[1] == 0
    assert len(engine.log.select(Kind.FINISHED)) == 6
    assert tokens_of(engine.run(asked)) == {request.id: plain(request.prompt, LONG) for request in asked}


def test_leaving_a_run_does_not_touch_what_others_submitted() -> None:
    engine = small_engine()
    engine.submit(NEIGHBOUR)
    running = engine.run([Request("mine", TEXT[30:40], LONG)])
    outputs = [next(running)]
    running.close()
    outputs += drain(engine)
    assert tokens_of(outputs)["neighbour"] == plain(NEIGHBOUR.prompt, LONG)


@pytest.mark.parametrize("step", [1, 2, 3, 5])
def test_a_step_that_fails_is_done_again_and_nothing_of_it_stays(step: int) -> None:
    engine, decoder = watched_engine(token_budget=16)
    done = [0]

    def meanwhile() -> None:
        done[0] += 1
        if done[0] == step:
            engine.pages.tensor.fill_(float("nan"))  # as a machine that fails may leave it
            raise MemoryError("of the machine")

    decoder.meanwhile = meanwhile
    asked = [NEIGHBOUR, Request("other", TEXT[40:70], LONG)]
    for request in asked:
        engine.submit(request)
    outputs: list[Output] = []
    for _ in range(step - 1):
        outputs += engine.step()
    if engine.cache is not None:
        engine.cache.clear()  # what was published before the fault was overwritten by this test as well
    with pytest.raises(MemoryError, match="of the machine"):
        engine.step()
    assert counts(engine)[1] == 0 and not engine.idle
    outputs += drain(engine)
    assert tokens_of(outputs) == {request.id: plain(request.prompt, LONG) for request in asked}
    assert engine.log.requests().complete.all()


def test_an_end_that_a_failing_step_should_have_told_is_told_by_the_next() -> None:
    engine, decoder = watched_engine()
    engine.submit(NEIGHBOUR)
    engine.submit(Request("gone", TEXT[40:50], LONG))
    outputs = engine.step()
    engine.cancel("gone")

    def fail() -> None:
        decoder.meanwhile = lambda: None
        raise MemoryError("of the machine")

    decoder.meanwhile = fail
    with pytest.raises(MemoryError):
        engine.step()
    outputs += drain(engine)
    assert reasons_of(outputs) == {"gone": [FinishReason.CANCELLED], "neighbour": [FinishReason.LENGTH]}
    assert tokens_of(outputs)["neighbour"] == plain(NEIGHBOUR.prompt, LONG)


def test_a_generate_that_failed_can_simply_be_called_again() -> None:
    engine, decoder = watched_engine()

    def fail() -> None:
        decoder.meanwhile = lambda: None
        raise MemoryError("of the machine")

    decoder.meanwhile = fail
    with pytest.raises(MemoryError):
        engine.generate([TEXT[:9]], LONG)
    assert engine.idle and counts(engine)[1] == 0
    assert engine.generate([TEXT[:9]], LONG) == [plain(TEXT[:9], LONG)]


POISON = 200
"""A token whose embedding is not a number, in the model below."""


def poisoned_model(token: int = POISON) -> Model:
    weights = small_model().decoder.weights
    assert weights.embed is not None
    embed = weights.embed.clone()
    embed[token] = float("nan")
    return dataclasses.replace(small_model(), decoder=Decoder(SMALL, dataclasses.replace(weights, embed=embed)))


HEALTHY = [[token for token in TEXT if token != POISON][n : n + 4 + 9 * n] for n in range(3)]


def healthy(number: int) -> Request:
    request = Request(f"healthy{number}", HEALTHY[number], SamplingParams(max_tokens=8, ignore_eos=True))
    assert POISON not in plain(request.prompt, request.sampling)
    return request


@pytest.mark.parametrize("sharing", [True, False])
@pytest.mark.parametrize("turn", [0, 1, 3])
@pytest.mark.parametrize("place", [0, 5, 11])
def test_a_request_whose_logits_are_no_numbers_fails_alone(place: int, turn: int, sharing: bool) -> None:
    engine = small_engine(model=poisoned_model(), token_budget=8, max_batch=4, prefix_sharing=sharing)
    bad = TEXT[50:62]
    bad[place] = POISON
    asked = [healthy(0), healthy(1), healthy(2)]
    asked.insert(turn, Request("bad", bad, LONG))
    for request in asked:
        engine.submit(request)
    outputs = drain(engine)
    made = tokens_of(outputs)
    assert reasons_of(outputs)["bad"] == [FinishReason.FAILED] and made["bad"] == []
    for number in range(3):
        assert made[f"healthy{number}"] == plain(HEALTHY[number], healthy(number).sampling)
    table = engine.log.requests()
    assert table.complete.all() and len(engine.log.token_times("bad")) == 0 and counts(engine)[1] == 0


def test_a_request_that_fails_while_it_decodes_keeps_the_tokens_it_made_and_so_does_its_record() -> None:
    whole = plain(TEXT[:9], LONG)
    place = next(n for n in range(3, 12) if whole[n] not in TEXT[:9] + whole[:n])
    engine = small_engine(model=poisoned_model(whole[place]))
    engine.submit(Request("bad", TEXT[:9], LONG))
    outputs = drain(engine)
    assert tokens_of(outputs) == {"bad": whole[: place + 1]} and reasons_of(outputs) == {"bad": [FinishReason.FAILED]}
    table = engine.log.requests()
    assert table.complete.all() and table.output[0] == place + 1 == len(engine.log.token_times("bad"))
    assert counts(engine)[1] == 0


@pytest.mark.parametrize("ends", ["fails", "is cancelled"])
def test_pages_that_hold_no_numbers_harm_nobody_who_gets_them_next(ends: str) -> None:
    engine = small_engine(model=poisoned_model(), block_size=4, blocks=12, token_budget=4, max_batch=2)
    engine.submit(Request("bad", [POISON] * 40, SamplingParams(max_tokens=8)))
    for _ in range(3):
        engine.step()
    if ends == "is cancelled":
        engine.cancel("bad")
    drain(engine)
    for number in (0, 1, 2):
        request = healthy(number)
        assert served(engine, [request]) == {request.id: plain(request.prompt, request.sampling)}


@pytest.mark.parametrize("shared", [False, True])
def test_memory_handed_in_by_the_caller_is_used_whatever_lies_in_it(shared: bool) -> None:
    memory = torch.full((40 * 2 * 2 * 2 * 4 * 8 * 8 + 100,), 255, dtype=torch.uint8)  # every float is no number
    memory = memory.share_memory_() if shared else memory
    engine = small_engine(block_size=4, memory=memory, blocks=1)
    assert engine.pool.total == 40 and engine.pages.tensor.data_ptr() == memory.data_ptr()
    asked = [Request(str(n), TEXT[n : n + 3 + 7 * n], LONG) for n in range(5)]
    assert served(engine, asked) == {request.id: plain(request.prompt, LONG) for request in asked}
    assert (memory[-100:] == 255).all() and not (memory[:-100] == 255).all()


def test_a_fork_in_the_middle_of_a_step_is_refused_and_can_be_made_after_it() -> None:
    engine, decoder = watched_engine()
    refused: list[str] = []

    def meanwhile() -> None:
        try:
            engine.fork("first", "twin", LONG)
        except RequestError as error:
            refused.append(str(error))

    engine.submit(Request("first", TEXT[:9], LONG))
    outputs = engine.step()
    decoder.meanwhile = meanwhile
    outputs += engine.step()
    assert refused == ["request first is in a step right now: fork it between two steps"]
    decoder.meanwhile = lambda: None
    twin = engine.fork("first", "twin", LONG)
    made = tokens_of(outputs + drain(engine))
    assert made == {"first": plain(TEXT[:9], LONG), "twin": plain(twin.prompt, LONG)}
