"""Where a sequence's tokens lie: as many blocks as they need, shared until somebody writes."""

from __future__ import annotations

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from mooncake_edu.kvcache import BlockPool, BlockTable

unhurried = settings(deadline=None, suppress_health_check=[HealthCheck.too_slow])  # the machine may be busy


@unhurried
@given(st.integers(1, 7), st.lists(st.integers(0, 20), max_size=8))
def test_a_table_has_just_the_blocks_that_its_tokens_need(block_size: int, steps: list[int]) -> None:
    pool = BlockPool(200)
    table = BlockTable(pool, block_size)
    for tokens in steps:
        needed, before = table.needs(tokens), pool.available
        assert table.extend(tokens) == []
        assert before - pool.available == needed
        assert table.length <= len(table.blocks) * block_size < table.length + block_size
    assert table.length == sum(steps)
    table.release()
    assert (pool.free, table.blocks, table.length) == (200, [], 0)


def test_room_is_what_fits_and_not_one_token_more() -> None:
    pool = BlockPool(3)
    table = BlockTable(pool, 4)
    table.extend(2)
    assert table.room() == 10
    with pytest.raises(ValueError, match="available"):
        table.extend(11)
    assert (table.length, pool.used) == (2, 1)
    table.extend(10)
    assert (table.room(), table.length, pool.available) == (0, 12, 0)


def test_a_copy_of_a_shared_last_block_counts_as_a_need_and_takes_from_the_room() -> None:
    pool = BlockPool(2)
    table = BlockTable(pool, 4)
    table.extend(2)
    twin = table.fork()
    assert (table.needs(0), table.needs(1), table.room()) == (0, 1, 2)
    table.extend(1)
    assert (twin.needs(1), twin.room(), table.room()) == (0, 2, 1)


def test_a_fork_that_cannot_copy_changes_nothing() -> None:
    pool = BlockPool(1)
    table = BlockTable(pool, 4)
    table.extend(3)
    twin = table.fork()
    assert twin.room() == 0
    with pytest.raises(ValueError, match="available"):
        twin.extend(1)
    assert (twin.blocks, twin.length, pool.references(0)) == (table.blocks, 3, 2)


def test_the_first_of_two_forks_to_write_into_a_shared_block_copies_it_and_the_other_writes_in_place() -> None:
    pool = BlockPool(6)
    table = BlockTable(pool, 4)
    table.extend(6)
    twin = table.fork()
    shared = table.blocks[1]
    assert twin.extend(1) == [(shared, twin.blocks[1])]
    assert table.extend(1) == []
    assert table.blocks[0] == twin.blocks[0] and table.blocks[1] == shared != twin.blocks[1]
    assert [pool.references(block) for block in (*table.blocks, twin.blocks[1])] == [2, 1, 1]


def test_forks_that_end_at_a_block_border_share_all_and_copy_nothing() -> None:
    pool = BlockPool(6)
    table = BlockTable(pool, 4)
    table.extend(8)
    twin = table.fork()
    assert table.extend(1) == twin.extend(1) == []
    assert table.blocks[:2] == twin.blocks[:2] and table.blocks[2] != twin.blocks[2]


def test_a_block_under_transfer_is_copied_before_it_is_written() -> None:
    pool = BlockPool(4)
    table = BlockTable(pool, 4)
    table.extend(2)
    (sent,) = table.blocks
    hold = table.hold()
    assert table.extend(1) == [(sent, table.blocks[0])]
    assert pool.references(sent) == 1
    hold.end()
    assert pool.references(sent) == 0 and table.extend(1) == []


def test_a_hold_keeps_the_pages_after_the_table_is_released_in_whatever_order_holds_end() -> None:
    for first in (0, 1):
        pool = BlockPool(4)
        table = BlockTable(pool, 2)
        table.extend(3)
        holds = [table.hold()]
        table.extend(3)
        holds.append(table.hold())
        table.release()
        assert pool.used > 0
        holds[first].end()
        assert pool.used > 0
        holds[1 - first].end()
        assert pool.free == 4


def test_a_table_that_begins_with_a_prefix_shares_it() -> None:
    pool = BlockPool(4)
    table = BlockTable(pool, 2)
    table.extend(4)
    other = BlockTable(pool, 2, table.blocks)
    assert (other.length, other.blocks) == (4, table.blocks)
    table.release()
    assert pool.used == 2
    other.release()
    assert pool.free == 4


def test_a_block_replaced_by_its_duplicate_goes_back_to_the_pool() -> None:
    pool = BlockPool(4)
    table, other = BlockTable(pool, 2), BlockTable(pool, 2)
    table.extend(2)
    other.extend(2)
    (old,) = other.blocks
    other.replace(0, table.blocks[0])
    assert other.blocks == table.blocks and pool.references(old) == 0 and pool.references(table.blocks[0]) == 2
    before = pool.free, pool.used, pool.references(table.blocks[0])
    other.replace(0, table.blocks[0])
    assert before == (pool.free, pool.used, pool.references(table.blocks[0]))


def test_a_table_released_twice_gives_its_blocks_back_once() -> None:
    """A9: cancelling a sequence that has just ended must not free its blocks a second time."""
    pool = BlockPool(3)
    table = BlockTable(pool, 2)
    table.extend(3)
    table.release()
    others = BlockTable(pool, 2)
    others.extend(6)
    table.release()
    assert (pool.used, [pool.references(block) for block in others.blocks]) == (3, [1, 1, 1])
