"""Pages live in memory that the caller hands in, of whatever kind, and use nothing but whole blocks of it."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import Tensor

from mooncake_edu.kvcache import BlockLayout, PageTensors

LAYOUT = BlockLayout(layers=2, kv_heads=2, block_size=4, head_dim=8)
BLOCKS = 3


def plain(size: int) -> Tensor:
    return torch.zeros(size, dtype=torch.uint8)


def shared(size: int) -> Tensor:
    return plain(size).share_memory_()


def registered(size: int) -> Tensor:
    """As a transfer engine hands it in: a buffer that somebody else allocated."""
    return torch.frombuffer(bytearray(size), dtype=torch.uint8)


def slice_of_a_larger_buffer(size: int) -> Tensor:
    return plain(size + 128)[64 : 64 + size]


@pytest.mark.parametrize("kind", [plain, shared, registered, slice_of_a_larger_buffer])
def test_pages_are_views_of_the_memory_handed_in(kind: Callable[[int], Tensor]) -> None:
    check_memory(kind(BLOCKS * LAYOUT.nbytes))


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
@pytest.mark.parametrize("device", ["pinned", "cuda"])
def test_pages_are_views_of_pinned_and_of_gpu_memory(device: str) -> None:
    memory = plain(BLOCKS * LAYOUT.nbytes)
    check_memory(memory.pin_memory() if device == "pinned" else memory.cuda())


def check_memory(memory: Tensor) -> None:
    pages = PageTensors(memory, LAYOUT)
    assert pages.blocks == BLOCKS
    assert tuple(pages.tensor.shape) == (BLOCKS, 2, 2, 2, 4, 8)
    assert pages.tensor.data_ptr() == memory.data_ptr()
    pages.tensor[1] = 1.5
    assert memory.view(torch.float32).view(BLOCKS, -1).unique(dim=1).flatten().tolist() == [0.0, 1.5, 0.0]
    assert torch.equal(pages.block(1), memory[LAYOUT.nbytes : 2 * LAYOUT.nbytes])


def test_bytes_that_hold_no_whole_block_are_left_alone() -> None:
    memory = plain(BLOCKS * LAYOUT.nbytes + LAYOUT.nbytes - 1)
    memory[BLOCKS * LAYOUT.nbytes :] = 7
    pages = PageTensors(memory, LAYOUT)
    assert (pages.blocks, pages.memory.numel()) == (BLOCKS, BLOCKS * LAYOUT.nbytes)
    pages.tensor.fill_(1.0)
    assert memory[BLOCKS * LAYOUT.nbytes :].unique().tolist() == [7]


def test_whole_blocks_are_copied_one_after_the_other_and_nothing_else_changes() -> None:
    pages = PageTensors(plain(4 * LAYOUT.nbytes), LAYOUT)
    for block in range(4):
        pages.tensor[block] = block
    pages.copy([(1, 3), (2, 1)])
    assert [pages.tensor[block].unique().tolist() for block in range(4)] == [[0], [2], [2], [1]]


SIZE = BLOCKS * LAYOUT.nbytes
WRONG = {
    "floats": (torch.zeros(SIZE), "flat uint8"),
    "signed bytes": (torch.zeros(SIZE, dtype=torch.int8), "flat uint8"),
    "a matrix": (torch.zeros(2, SIZE, dtype=torch.uint8), "flat uint8"),
    "every second byte": (torch.zeros(2 * SIZE, dtype=torch.uint8)[::2], "flat uint8"),
    "one byte short of a block": (torch.zeros(LAYOUT.nbytes - 1, dtype=torch.uint8), "more memory"),
    "no bytes": (torch.zeros(0, dtype=torch.uint8), "more memory"),
    "a slice that is not aligned": (torch.zeros(SIZE + 1, dtype=torch.uint8)[1:], "aligned"),
    "a buffer that is not aligned": (torch.frombuffer(bytearray(SIZE + 2), dtype=torch.uint8, offset=2), "aligned"),
}


@pytest.mark.parametrize("what", WRONG)
def test_memory_of_the_wrong_kind_is_refused_with_the_remedy(what: str) -> None:
    memory, remedy = WRONG[what]
    with pytest.raises(ValueError, match=remedy):
        PageTensors(memory, LAYOUT)
