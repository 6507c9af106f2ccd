"""The checks of chapter 01 pass right answers and tell wrong ones which rule they break."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, ClassVar

import pytest
from torch import Tensor

from mooncake_edu.course.check import find, judge
from mooncake_edu.course.checks import crowd
from mooncake_edu.course.checks.chapter01 import ASKED
from mooncake_edu.kvcache import BlockLayout
from tests.course.wrong_answers import Checks, Wrong

Function = Callable[..., Any]
BEGINS = "begins at byte"


def waste(lengths: list[int], block_size: int) -> int:
    return sum(-(-length // block_size) * block_size - length for length in lengths)


def key_offset(layout: BlockLayout, blocks: list[int], token: int, layer: int, head: int) -> int:
    block, slot = blocks[token // layout.block_size], token % layout.block_size
    row = layout.head_nbytes // layout.block_size
    return block * layout.nbytes + layer * layout.layer_nbytes + head * layout.head_nbytes + slot * row


def gather(pages: Tensor, blocks: list[int], length: int, layer: int) -> Tensor:
    keys = pages[blocks, layer, 0].transpose(1, 2)
    return keys.reshape(-1, *keys.shape[2:])[:length]


def release(blocks: list[int], references: list[int], queue: list[int]) -> None:
    for block in reversed(blocks):
        references[block] -= 1
        if references[block] == 0:
            queue.append(block)


def append(blocks: list[int], length: int, block_size: int, references: list[int], free: list[int]) -> Any:
    if length % block_size and references[blocks[-1]] == 1:
        return None
    own = free.pop(0)
    references[own] = 1
    if length % block_size == 0:
        blocks.append(own)
        return None
    shared, blocks[-1] = blocks[-1], own
    references[shared] -= 1
    return shared, own


def fewest_tokens(batch: tuple[crowd.Running, ...]) -> int:
    return min(range(len(batch)), key=lambda place: batch[place].prompt + batch[place].made)


RIGHT = {"1.1": waste, "1.2": key_offset, "1.3": gather, "1.4": release, "1.5": append, "1.6": fewest_tokens}


def copy_always(blocks: list[int], length: int, block_size: int, references: list[int], free: list[int]) -> Any:
    own = free.pop(0)
    references[own] = 1
    if length % block_size == 0:
        blocks.append(own)
        return None
    old, blocks[-1] = blocks[-1], own
    references[old] -= 1
    if references[old] == 0:
        free.append(old)
    return old, own


def copy_never(blocks: list[int], length: int, block_size: int, references: list[int], free: list[int]) -> None:
    if length % block_size == 0:
        blocks.append(free.pop(0))
        references[blocks[-1]] = 1


def copy_uncounted(blocks: list[int], length: int, block_size: int, references: list[int], free: list[int]) -> Any:
    before = list(references)
    copy = append(blocks, length, block_size, references, free)
    if copy:
        references[copy[0]] = before[copy[0]]
    return copy


def copy_full_blocks(blocks: list[int], length: int, block_size: int, references: list[int], free: list[int]) -> Any:
    if references[blocks[-1]] == 1:
        return append(blocks, length, block_size, references, free)
    old, blocks[-1] = blocks[-1], free.pop(0)
    references[old], references[blocks[-1]] = references[old] - 1, 1
    if length % block_size == 0:
        append(blocks, length, block_size, references, free)
    return old, blocks[-1]


def copy_from_new(blocks: list[int], length: int, block_size: int, references: list[int], free: list[int]) -> Any:
    copy = append(blocks, length, block_size, references, free)
    return copy and copy[::-1]


def copy_as_list(blocks: list[int], length: int, block_size: int, references: list[int], free: list[int]) -> Any:
    copy = append(blocks, length, block_size, references, free)
    return [copy] if copy else []


def no_new_block(blocks: list[int], length: int, block_size: int, references: list[int], free: list[int]) -> None:
    return None


def release_used(blocks: list[int], references: list[int], queue: list[int]) -> None:
    for block in reversed(blocks):
        references[block] -= 1
        queue.append(block)


def release_in_front(blocks: list[int], references: list[int], queue: list[int]) -> None:
    for block in blocks:
        references[block] -= 1
        if references[block] == 0:
            queue.insert(0, block)


def release_head_first(blocks: list[int], references: list[int], queue: list[int]) -> None:
    release(blocks[::-1], references, queue)


def release_uncounted(blocks: list[int], references: list[int], queue: list[int]) -> None:
    queue += blocks[::-1]


def physical(pages: Tensor, blocks: list[int], length: int, layer: int) -> Tensor:
    return gather(pages, sorted(blocks), length, layer)


def untransposed(pages: Tensor, blocks: list[int], length: int, layer: int) -> Tensor:
    return pages[blocks, layer, 0].reshape(-1, pages.shape[3], pages.shape[5])[:length]


def with_tail(pages: Tensor, blocks: list[int], length: int, layer: int) -> Tensor:
    return gather(pages, blocks, len(blocks) * pages.shape[4], layer)


def values(pages: Tensor, blocks: list[int], length: int, layer: int) -> Tensor:
    return gather(pages.flip(2), blocks, length, layer)


class TestChapter01(Checks):
    """Each wrong answer, and what it is told."""

    chapter = 1
    right = RIGHT
    wrong: ClassVar = {
        "1.1": (
            Wrong("counts a full block as empty", lambda lengths, size: sum(size - n % size for n in lengths),
                  "leave 0 slots", "Lengths(lengths=(0,), block_size=1)"),
            Wrong("lets sequences share a block", lambda lengths, size: -sum(lengths) % size, "empty"),
            Wrong("counts tokens of the last block", lambda lengths, size: sum(n % size for n in lengths), "empty"),
            Wrong("gives an empty sequence a block", lambda lengths, size: waste([max(n, 1) for n in lengths], size),
                  "leave 0 slots", "Lengths(lengths=(0,), block_size=2)"),
        ),
        "1.2": (
            Wrong("ignores the table", lambda layout, _, *rest: key_offset(layout, list(range(99)), *rest), BEGINS),
            Wrong("counts numbers, not bytes",
                  lambda layout, *rest: key_offset(layout, *rest) // layout.dtype.itemsize, BEGINS),
            Wrong("swaps layer and head", lambda layout, blocks, token, layer, head: key_offset(
                layout, blocks, token, head, layer), BEGINS),
            Wrong("forgets the head", lambda *given: key_offset(*given[:-1], 0), BEGINS),
            Wrong("forgets that values lie between two layers' keys",
                  lambda layout, blocks, token, layer, head: key_offset(layout, blocks, token, 0, head)
                  + layer * layout.layer_nbytes // 2, BEGINS),
        ),
        "1.3": (
            Wrong("reads blocks in physical order", physical, "Row 0 must hold the key of token 0; yours holds that"),
            Wrong("mixes heads and tokens up", untransposed, "Row 0 must hold"),
            Wrong("takes the tail along", with_tail, "have the shape (1, 1, 2)"),
            Wrong("takes values for keys", values, "no token of this sequence"),
            Wrong("gives lists", lambda *given: gather(*given).tolist(), "Return a tensor, not list"),
        ),
        "1.4": (
            Wrong("head first", release_head_first, "a head is reused before its tail",
                  "Releases(tables=((0, 1),), waiting=())"),
            Wrong("pushes to the front", release_in_front, "must stay in front"),
            Wrong("frees what others use", release_used, "a table still refers to it"),
            Wrong("does not count", release_uncounted, "have references"),
        ),
        "1.5": (
            Wrong("never copies", copy_never, "must be copied before it is written",
                  "A has 1 token in blocks of 2, forked into A and B; then a token is written by A, B"),
            Wrong("always copies", copy_always, "copied without need"),
            Wrong("keeps the old reference", copy_uncounted, "the number of tables that hold block"),
            Wrong("copies full blocks", copy_full_blocks, "copied without need"),
            Wrong("copies the wrong way", copy_from_new, "must be made from block"),
            Wrong("gives a list", copy_as_list, "return None, or the pair"),
            Wrong("takes no new block", no_new_block, "need 2 blocks"),
        ),
        "1.6": (
            Wrong("youngest", lambda batch: len(batch) - 1, "not well enough yet"),
            Wrong("most blocks", lambda batch: max(range(len(batch)), key=lambda i: batch[i].blocks), "well enough"),
            Wrong("fewest made", lambda batch: min(range(len(batch)), key=lambda i: batch[i].made), "not well enough"),
            Wrong("oldest", lambda batch: 0, "not well enough"),
            Wrong("gives the request itself", lambda batch: min(batch), "is not a place in a batch"),
            Wrong("counts from one", lambda batch: len(batch), "is not a place in a batch"),
        ),
    }  # fmt: skip


def test_a_picture_shows_what_the_wrong_answer_did() -> None:
    drawn = judge(find("1.3"), physical).picture
    assert drawn is not None
    assert {trace.name: list(trace.text) for trace in drawn.data} == {"right": [], "wrong": ["1", "0"]}
    drawn = judge(find("1.5"), copy_never).picture
    assert drawn is not None
    assert list(drawn.frames[-1].data[0].text[0]) == ["0", "B1"]
    assert drawn.layout.meta["finding"].startswith(
        "A reads 'B1' where its token 1 must be 'A1'. After the fork A and B"
    )


def test_a_picture_of_a_sequence_alone_shows_it_once() -> None:
    drawn = judge(find("1.5"), lambda table, length, block_size, references, free: None).picture
    assert drawn is not None
    _, links, entries, *_ = drawn.data
    assert list(entries.text) == ["0"] and len(links.x) == 3
    assert [note.text for note in drawn.layout.annotations if note.opacity] == ["<b>A</b>", "<b>blocks of the pool</b>"]


def test_the_threshold_lies_between_the_naive_choice_and_a_good_one() -> None:
    good, naive = (crowd.again(choose, crowd.HELD_OUT) for choose in (fewest_tokens, crowd.youngest))
    assert 1.05 * good < ASKED < 0.8 * naive
    assert not set(crowd.HELD_OUT) & set(crowd.PRACTICE)


def test_a_crowd_that_sends_the_same_back_for_ever_ends() -> None:
    load = crowd.Load(((4, 6), (4, 6)), 3, 4)
    assert crowd.play(crowd.youngest, load).sent_back == 1
    with pytest.raises(crowd.Endless):
        crowd.play(lambda batch: 0, crowd.Load(((3, 4),), 1, 5))
