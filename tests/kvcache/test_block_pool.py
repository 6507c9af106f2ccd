"""Who may use which block: nobody twice by mistake, the cached ones oldest and tail first, each in O(1)."""

from __future__ import annotations

import gc
import sys
from collections.abc import Callable
from types import FrameType
from typing import Any

import pytest

from mooncake_edu.kvcache import BlockPool, Hold


def state(pool: BlockPool) -> tuple[int, int, int, list[int]]:
    return pool.free, pool.used, pool.cached, [pool.references(block) for block in range(pool.total)]


def cached_chain(pool: BlockPool, length: int) -> list[int]:
    """A chain of keyed blocks that nobody refers to any more."""
    blocks = pool.allocate(length)
    for block in blocks:
        pool.keep(block)
    pool.release(blocks)
    return blocks


def test_allocated_blocks_are_distinct_and_used() -> None:
    pool = BlockPool(5)
    blocks = pool.allocate(3)
    assert len(set(blocks)) == 3
    assert state(pool)[:3] == (2, 3, 0)


def test_more_blocks_than_available_are_refused_and_none_is_taken() -> None:
    pool = BlockPool(4)
    cached_chain(pool, 2)
    used = pool.allocate(1)
    before = state(pool)
    for count in (4, 5, -1):
        with pytest.raises(ValueError, match=f"{count} blocks asked for, 3 available"):
            pool.allocate(count)
    assert state(pool) == before
    assert len({*pool.allocate(3), *used}) == 4


def test_a_pool_without_blocks_is_refused() -> None:
    with pytest.raises(ValueError, match="at least 1"):
        BlockPool(0)


def test_a_double_free_is_an_error_that_changes_nothing() -> None:
    """A9, vllm 42612 and dynamo 13398: a block freed twice was counted free twice."""
    pool = BlockPool(4)
    blocks = pool.allocate(3)
    pool.release(blocks[2:])
    before = state(pool)
    for wrong in (blocks, blocks[2:], [blocks[0], blocks[0]]):
        with pytest.raises(ValueError, match="released twice"):
            pool.release(wrong)
        assert state(pool) == before
    pool.release(blocks[:2])
    assert state(pool) == (4, 0, 0, [0] * 4)


def test_a_double_free_of_a_cached_block_is_an_error_that_changes_nothing() -> None:
    """A9."""
    pool = BlockPool(2)
    (block,) = cached_chain(pool, 1)
    before = state(pool)
    with pytest.raises(ValueError, match="released twice"):
        pool.release([block])
    assert state(pool) == before


def test_a_block_has_two_owners_only_if_they_share_it() -> None:
    """A9."""
    pool = BlockPool(4)
    first = pool.allocate(2)
    pool.share(first[:1])
    second = pool.allocate(2)
    assert not set(first) & set(second)
    pool.release(first)
    assert [pool.references(block) for block in first] == [1, 0]
    assert pool.allocate(1) == [first[1]]


def test_a_free_block_cannot_be_shared_nor_get_a_key() -> None:
    pool = BlockPool(3)
    used = pool.allocate(1)
    before = state(pool)
    with pytest.raises(ValueError, match="look it up again"):
        pool.share([*used, 2])
    with pytest.raises(ValueError, match="not in use"):
        pool.keep(2)
    assert state(pool) == before


def test_free_blocks_are_taken_before_cached_ones() -> None:
    pool = BlockPool(4)
    chain = cached_chain(pool, 2)
    assert not set(pool.allocate(2)) & set(chain)
    assert pool.cached == 2


def test_cached_blocks_are_reused_oldest_chain_first_and_tail_first() -> None:
    pool = BlockPool(5)
    old, new = cached_chain(pool, 3), cached_chain(pool, 2)
    assert pool.allocate(5) == [*reversed(old), *reversed(new)]


def test_a_cached_chain_used_again_is_reused_last() -> None:
    pool = BlockPool(4)
    old, new = cached_chain(pool, 2), cached_chain(pool, 2)
    pool.share(old)
    pool.release(old)
    assert pool.allocate(4) == [*reversed(new), *reversed(old)]


def test_whoever_watches_reuse_hears_of_each_cached_block_before_it_changes_hands() -> None:
    pool = BlockPool(3)
    heard: list[tuple[int, int]] = []
    pool.on_reuse = lambda block: heard.append((block, pool.references(block)))
    chain = cached_chain(pool, 2)
    pool.allocate(1)
    assert heard == []
    pool.allocate(2)
    assert heard == [(chain[1], 0), (chain[0], 0)]


def test_a_block_whose_key_is_dropped_is_free_at_once_or_with_its_last_reference() -> None:
    pool = BlockPool(2)
    cached, used = cached_chain(pool, 2)
    pool.share([used])
    for block in (cached, used):
        pool.drop(block)
    assert state(pool) == (1, 1, 0, [0, 1])
    pool.release([used])
    assert state(pool)[:3] == (2, 0, 0)


def test_held_blocks_stay_out_of_reach_until_the_hold_ends() -> None:
    pool = BlockPool(3)
    blocks = pool.allocate(2)
    hold = Hold(pool, blocks)
    pool.release(blocks)
    assert pool.available == 1
    hold.end()
    assert pool.free == 3


def test_a_hold_that_both_fails_and_is_fenced_gives_its_blocks_back_once() -> None:
    pool = BlockPool(2)
    blocks = pool.allocate(2)
    first, second = Hold(pool, blocks), Hold(pool, blocks)
    for hold in (first, first, second, second, first):
        hold.end()
    assert state(pool) == (0, 2, 0, [1, 1])


class Counted(int):
    """A block number that counts how often it is compared, so that a search through a queue shows."""

    compared = 0

    def __eq__(self, other: object) -> bool:
        Counted.compared += 1
        return int(self) == other

    def __hash__(self) -> int:
        return int.__hash__(self)


def work(call: Callable[[], object]) -> int:
    """How much is done: lines of Python, plus comparisons of block numbers made inside of C code."""
    lines = 0

    def trace(frame: FrameType, event: str, argument: Any) -> Any:
        nonlocal lines
        lines += event == "line"
        return trace

    compared, old = Counted.compared, sys.gettrace()
    gc.disable()  # a collection that falls into the call would be counted
    sys.settrace(trace)
    try:
        call()
    finally:
        sys.settrace(old)
        gc.enable()
    return lines + Counted.compared - compared


def costs(size: int) -> dict[str, int]:
    """The work of each operation on one block in a pool of which a half is free, a quarter cached, a quarter used."""
    pool = BlockPool(size)
    pool._free.extend(Counted(pool._free.popleft()) for _ in range(size))
    pool.on_reuse = lambda block: None
    quarter = size // 4
    cached = cached_chain(pool, quarter)
    used = pool.allocate(quarter)
    middle = [cached[quarter // 2]]
    result = {
        "take a cached block from the middle": work(lambda: pool.share(middle)),
        "give a cached block back": work(lambda: pool.release(middle)),
        "add an owner": work(lambda: pool.share(used[:1])),
        "remove an owner": work(lambda: pool.release(used[:1])),
        "take a free block": work(lambda: pool.allocate(1)),
        "give a block a key": work(lambda: pool.keep(used[1])),
        "free a block": work(lambda: pool.release(used[2:3])),
        "drop the key of a cached block": work(lambda: pool.drop(cached[quarter // 2 + 1])),
    }
    pool.allocate(pool.free)
    return {**result, "reuse a cached block": work(lambda: pool.allocate(1))}


def test_every_operation_on_a_block_costs_the_same_in_a_pool_a_thousand_times_larger() -> None:
    small, large = costs(16), costs(16_384)
    assert all(small.values())
    assert small == large
