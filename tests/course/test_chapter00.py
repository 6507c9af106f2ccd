"""The checks of chapter 00 refuse plausible wrong answers, each for its own reason."""

from __future__ import annotations

from itertools import pairwise
from typing import ClassVar

from mooncake_edu.course.checks.chapter00 import HELD_OUT, Machine, Shape, judge_batch
from tests.course.wrong_answers import Checks, Wrong

Latencies = tuple[float, float | None]


def intervals_of(times: list[float]) -> list[float]:
    """Seconds between tokens, the shortest first."""
    return sorted(later - sooner for sooner, later in pairwise(times))


def right_latencies(arrival: float, times: list[float]) -> Latencies:
    between = intervals_of(times)
    slowest = between[len(between) - -(-len(between) // 10) :]
    return times[0] - arrival, sum(slowest) / len(slowest) if slowest else None


def forgets_the_arrival(arrival: float, times: list[float]) -> Latencies:
    return times[0], right_latencies(arrival, times)[1]


def takes_the_mean_of_all(arrival: float, times: list[float]) -> Latencies:
    between = intervals_of(times)
    return times[0] - arrival, sum(between) / len(between) if between else None


def takes_the_longest_only(arrival: float, times: list[float]) -> Latencies:
    return times[0] - arrival, max(intervals_of(times), default=None)


def counts_the_first_token(arrival: float, times: list[float]) -> Latencies:
    return times[0] - arrival, right_latencies(arrival, [arrival, *times])[1]


def says_zero_for_one_token(arrival: float, times: list[float]) -> Latencies:
    return times[0] - arrival, right_latencies(arrival, times)[1] or 0.0


def rounds_the_tenth_down(arrival: float, times: list[float]) -> Latencies:
    between = intervals_of(times)
    slowest = between[len(between) - max(1, len(between) // 10) :]
    return times[0] - arrival, sum(slowest) / len(slowest) if slowest else None


def forgets_the_values(shape: Shape, itemsize: int) -> int:
    return shape.layers * shape.kv_heads * shape.head_dim * itemsize


def counts_query_heads(shape: Shape, itemsize: int) -> int:
    return 2 * shape.layers * shape.heads * shape.head_dim * itemsize


def takes_the_hidden_size(shape: Shape, itemsize: int) -> int:
    return 2 * shape.layers * shape.hidden * itemsize


def counts_one_layer(shape: Shape, itemsize: int) -> int:
    return 2 * shape.kv_heads * shape.head_dim * itemsize


def counts_numbers(shape: Shape, itemsize: int) -> int:
    return 2 * shape.layers * shape.kv_heads * shape.head_dim


def right_intensity(weights: int, batch: int, itemsize: int, kvcache: float) -> float:
    return 2 * weights * batch / (weights * itemsize + batch * kvcache)


def reads_weights_for_each(weights: int, batch: int, itemsize: int, kvcache: float) -> float:
    return 2 * weights * batch / (batch * (weights * itemsize + kvcache))


def forgets_the_kvcache(weights: int, batch: int, itemsize: int, kvcache: float) -> float:
    return 2 * batch / itemsize


def reads_one_kvcache(weights: int, batch: int, itemsize: int, kvcache: float) -> float:
    return 2 * weights * batch / (weights * itemsize + kvcache)


def counts_multiplications_only(weights: int, batch: int, itemsize: int, kvcache: float) -> float:
    return weights * batch / (weights * itemsize + batch * kvcache)


def turns_it_round(weights: int, batch: int, itemsize: int, kvcache: float) -> float:
    return 1 / right_intensity(weights, batch, itemsize, kvcache)


def serves_one(machine: Machine, tbt_slo: float) -> int:
    return 1 if machine.step_time(1) <= tbt_slo else 0


def fills_the_memory(machine: Machine, tbt_slo: float) -> int:
    return int((machine.memory - machine.weights * machine.itemsize) // machine.kvcache)


def minds_only_the_slo(machine: Machine, tbt_slo: float) -> int:
    batch = 0
    while machine.step_time(batch + 1) <= tbt_slo:
        batch += 1
    return batch


def doubles(machine: Machine, tbt_slo: float) -> int:
    batch = serves_one(machine, tbt_slo)
    while batch and machine.fits(2 * batch) and machine.step_time(2 * batch) <= tbt_slo:
        batch *= 2
    return batch


def gives_a_float(machine: Machine, tbt_slo: float) -> float:
    return 1.0


def right_batch(machine: Machine, tbt_slo: float) -> int:
    batch = 0
    while machine.fits(batch + 1) and machine.step_time(batch + 1) <= tbt_slo:
        batch += 1
    return batch


def kvcache(shape: Shape, itemsize: int) -> int:
    return 2 * shape.layers * shape.kv_heads * shape.head_dim * itemsize


class TestChapter00(Checks):
    chapter = 0
    right: ClassVar = {"0.1": right_latencies, "0.2": kvcache, "0.3": right_intensity, "0.4": right_batch}
    wrong: ClassVar = {
        "0.1": (
            Wrong("forgets the arrival", forgets_the_arrival, "from the arrival", "(2.0, [3.0])"),
            Wrong("takes the mean of all", takes_the_mean_of_all, "the longest tenth", "(1.0, [4.0, 4.5, 4.75])"),
            Wrong("takes the longest only", takes_the_longest_only, "here 2, of the 11"),
            Wrong("counts the first token", counts_the_first_token, "one token has no interval".capitalize()),
            Wrong("says zero for one token", says_zero_for_one_token, "TBT is None, not 0.0", "(0.0, [1.0])"),
            Wrong("rounds the tenth down", rounds_the_tenth_down, "here 2, of the 11"),
        ),
        "0.2": (
            Wrong("forgets the values", forgets_the_values, "a key and a value"),
            Wrong("counts query heads", counts_query_heads, "each KV head: 192 bytes, not 384"),
            Wrong("takes the hidden size", takes_the_hidden_size, "each KV head"),
            Wrong("counts one layer", counts_one_layer, "in each layer"),
            Wrong("counts numbers, not bytes", counts_numbers, "8 bytes, not 4"),
        ),
        "0.3": (
            Wrong("reads the weights for each request", reads_weights_for_each, "the weights once", "(10, 3, 4, 0)"),
            Wrong("forgets the KVCache", forgets_the_kvcache, "every request's KVCache", "(10, 1, 2, 20)"),
            Wrong("reads one KVCache", reads_one_kvcache, "every request's KVCache", "(10, 3, 2, 20)"),
            Wrong("counts multiplications only", counts_multiplications_only, "20 operations"),
            Wrong("turns it round", turns_it_round, "0.5 FLOP per byte, not 2"),
        ),
        "0.4": (
            Wrong("serves one", serves_one, "asked: at least 99;"),
            Wrong("fills the memory", fills_the_memory, "the SLO allows 5"),
            Wrong("minds only the SLO", minds_only_the_slo, "bytes, the machine has 100"),
            Wrong("doubles and stops", doubles, "not well enough"),
            Wrong("gives a float", gives_a_float, "a whole number"),
        ),
    }


def test_each_limit_binds_on_one_of_the_inputs_held_out() -> None:
    """So no answer that minds only one of them is scored well."""
    binding = set()
    for machine, slo in HELD_OUT:
        more = right_batch(machine, slo) + 1
        if not machine.fits(more):
            binding.add("memory")
        elif 2 * machine.weights * more / machine.compute_rate > slo:
            binding.add("arithmetic")
        else:
            binding.add("reading")
        assert judge_batch(right_batch, (machine, slo)).broken is None
    assert binding == {"memory", "arithmetic", "reading"}
