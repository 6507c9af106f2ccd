"""Layer 1, the paged KVCache: a pool of equal blocks, the table of blocks behind each sequence, the page tensors.

The pool decides and the pages hold bytes; neither knows the other. A block is free (nothing of value in it),
used (some sequence or transfer refers to it) or cached (nobody refers to it, but it carries a key, so a later
prompt may use it again). At any moment free + used + cached is the number of blocks.
"""

from __future__ import annotations

from collections import OrderedDict, deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor


@dataclass(frozen=True, slots=True)
class BlockLayout:
    """The one layout of a block's bytes on every tier and wire: `[layer][K,V][kv_head][token][head_dim]`.

    A layer of a block is one contiguous run, and so is a head range of a layer's keys or values.
    """

    layers: int
    kv_heads: int
    block_size: int
    head_dim: int
    dtype: torch.dtype = torch.float32

    @property
    def shape(self) -> tuple[int, int, int, int, int]:
        """(layers, 2, kv_heads, block_size, head_dim)."""
        return (self.layers, 2, self.kv_heads, self.block_size, self.head_dim)

    @property
    def head_nbytes(self) -> int:
        """Bytes of one head's keys (or values) in one layer of a block."""
        return self.block_size * self.head_dim * self.dtype.itemsize

    @property
    def layer_nbytes(self) -> int:
        """Bytes of one layer of a block, keys and values."""
        return 2 * self.kv_heads * self.head_nbytes

    @property
    def nbytes(self) -> int:
        """Bytes of a block."""
        return self.layers * self.layer_nbytes

    def runs(self, layers: range, heads: range) -> list[range]:
        """The byte ranges, within a block, of the shard that holds these layers and heads.

        Neighbouring runs are merged, so a shard of all heads is one run. Raises ValueError if the shard is empty
        or reaches outside the block.
        """
        for name, part, count in (("layers", layers, self.layers), ("heads", heads, self.kv_heads)):
            if part.step != 1 or not 0 <= part.start < part.stop <= count:
                raise ValueError(f"{name} {part} are not a run within 0 to {count}")
        if len(heads) == self.kv_heads:
            return [range(layers.start * self.layer_nbytes, layers.stop * self.layer_nbytes)]
        starts = (
            layer * self.layer_nbytes + (kv * self.kv_heads + heads.start) * self.head_nbytes
            for layer in layers
            for kv in (0, 1)
        )
        return [range(start, start + len(heads) * self.head_nbytes) for start in starts]


class PageTensors:
    """The pages: blocks of one layout, side by side in memory handed in by the caller.

    `memory` is a one-dimensional uint8 tensor (plain, pinned, shared or registered; any device) of at least one
    block; what is left over at its end is not used. `tensor` views it as [blocks, layers, 2, kv_heads, block_size,
    head_dim]. Raises ValueError if the memory is of another kind, not aligned or too small.
    """

    def __init__(self, memory: Tensor, layout: BlockLayout) -> None:
        if memory.dtype != torch.uint8 or memory.dim() != 1 or not memory.is_contiguous():
            raise ValueError(f"memory of {memory.dtype} and shape {tuple(memory.shape)}: hand in a flat uint8 tensor")
        if memory.data_ptr() % layout.dtype.itemsize or memory.storage_offset() % layout.dtype.itemsize:
            raise ValueError(f"memory at {memory.data_ptr():#x} is not aligned for {layout.dtype}: begin at a multiple")
        self.layout = layout
        self.blocks = memory.numel() // layout.nbytes
        if self.blocks == 0:
            raise ValueError(f"{memory.numel()} bytes hold no block of {layout.nbytes} bytes: hand in more memory")
        self.memory = memory[: self.blocks * layout.nbytes]
        self.tensor = self.memory.view(layout.dtype).view(self.blocks, *layout.shape)

    def block(self, block: int) -> Tensor:
        """The bytes of one block, as a uint8 view of the memory."""
        return self.memory[block * self.layout.nbytes : (block + 1) * self.layout.nbytes]

    def copy(self, copies: Sequence[tuple[int, int]]) -> None:
        """Copy whole blocks, each from the first to the second of a pair."""
        for source, target in copies:
            self.tensor[target].copy_(self.tensor[source])


class BlockPool:
    """Who may use which block: reference counts, a queue of free blocks, a queue of cached ones.

    Every operation on one block costs O(1), a cached block taken from the middle of its queue included. Blocks
    are always taken and returned as chains, a sequence's table from its first block on, and returned tail first:
    so of a cached chain the tail is reused before the head, which more prompts share.
    """

    def __init__(self, blocks: int) -> None:
        if blocks < 1:
            raise ValueError(f"a pool of {blocks} blocks: give it at least 1")
        self.total = blocks
        self.on_reuse: Callable[[int], None] | None = None
        """Called with a cached block, before somebody else gets it: its key must go."""
        self._references = [0] * blocks
        self._free = deque(range(blocks))
        self._cached: OrderedDict[int, None] = OrderedDict()
        self._keyed: set[int] = set()

    @property
    def free(self) -> int:
        """Blocks that hold nothing of value."""
        return len(self._free)

    @property
    def cached(self) -> int:
        """Blocks that nobody refers to, kept for their key."""
        return len(self._cached)

    @property
    def used(self) -> int:
        """Blocks that somebody refers to."""
        return self.total - self.free - self.cached

    @property
    def available(self) -> int:
        """Blocks that `allocate` can hand out."""
        return self.free + self.cached

    def references(self, block: int) -> int:
        """How many tables and holds refer to a block."""
        return self._references[block]

    def allocate(self, count: int) -> list[int]:
        """Take `count` blocks, the free ones first, then those cached for longest; each gets one reference.

        Raises ValueError, and takes nothing, if fewer are available.
        """
        if not 0 <= count <= self.available:
            raise ValueError(f"{count} blocks asked for, {self.available} available: check `available` first")
        blocks = [self._free.popleft() if self._free else self._reuse() for _ in range(count)]
        for block in blocks:
            self._references[block] = 1
        return blocks

    def _reuse(self) -> int:
        block, _ = self._cached.popitem(last=False)
        self._keyed.discard(block)
        if self.on_reuse is not None:
            self.on_reuse(block)
        return block

    def share(self, blocks: Sequence[int]) -> None:
        """Add a reference to each block of a chain; a cached block is in use again and keeps its key.

        Raises ValueError, and changes nothing, if a block is free: its bytes are nobody's.
        """
        for block in blocks:
            if self._references[block] == 0 and block not in self._cached:
                raise ValueError(f"block {block} is free and cannot be shared: look it up again")
        for block in blocks:
            if self._references[block] == 0:
                del self._cached[block]
            self._references[block] += 1

    def release(self, blocks: Sequence[int]) -> None:
        """Drop a reference to each block of a chain, given head first; the unreferenced become cached or free.

        Raises ValueError, and changes nothing, if a block is released more often than it was taken.
        """
        if any(self._references[block] < 1 for block in blocks) or len(set(blocks)) < len(blocks):
            raise ValueError(f"blocks {list(blocks)} hold one that is not in use: it was released twice")
        for block in reversed(blocks):
            self._references[block] -= 1
            if self._references[block] == 0:
                if block in self._keyed:
                    self._cached[block] = None
                else:
                    self._free.append(block)

    def keep(self, block: int) -> None:
        """Note that a used block carries a key, so that it is cached, not freed, when its last reference goes."""
        if self._references[block] < 1:
            raise ValueError(f"block {block} is not in use and cannot get a key")
        self._keyed.add(block)

    def drop(self, block: int) -> None:
        """Note that a block's key is gone; if nobody refers to it, it is free."""
        self._keyed.discard(block)
        if block in self._cached:
            del self._cached[block]
            self._free.append(block)


class BlockTable:
    """The blocks behind one sequence, in order: token i lies in block `blocks[i // block_size]`.

    `length` counts the tokens whose keys and values are in the pages, or will be at the end of the current step.
    """

    def __init__(self, pool: BlockPool, block_size: int, prefix: Sequence[int] = ()) -> None:
        """An empty table, or one that begins with the full blocks of a cached prefix, which it shares."""
        self.pool = pool
        self.block_size = block_size
        pool.share(prefix)
        self.blocks = list(prefix)
        self.length = len(prefix) * block_size

    def needs(self, tokens: int) -> int:
        """How many blocks `extend(tokens)` will allocate, a copy of a shared last block included."""
        more = -(-(self.length + tokens) // self.block_size) - len(self.blocks)
        return more + (1 if tokens and self._must_copy() else 0)

    def room(self) -> int:
        """How many more tokens the pool has blocks for."""
        spare = self.pool.available - (1 if self._must_copy() else 0)
        return max(0, (len(self.blocks) + spare) * self.block_size - self.length)

    def extend(self, tokens: int) -> list[tuple[int, int]]:
        """Make room for `tokens` more; returns the (from, to) block copies that must be made before writing.

        A partly filled last block that others refer to as well is replaced by a copy of its own (copy-on-write).
        Raises ValueError, and changes nothing, if the pool has too few blocks.
        """
        fresh = self.pool.allocate(self.needs(tokens))
        copies: list[tuple[int, int]] = []
        if tokens and self._must_copy():
            shared, own = self.blocks[-1], fresh.pop()
            self.pool.release([shared])
            self.blocks[-1] = own
            copies.append((shared, own))
        self.blocks += fresh
        self.length += tokens
        return copies

    def _must_copy(self) -> bool:
        return self.length % self.block_size != 0 and self.pool.references(self.blocks[-1]) > 1

    def fork(self) -> BlockTable:
        """A second table over the same tokens; both may grow, and the first to write into a shared block copies it."""
        twin = BlockTable(self.pool, self.block_size)
        self.pool.share(self.blocks)
        twin.blocks, twin.length = list(self.blocks), self.length
        return twin

    def replace(self, index: int, block: int) -> None:
        """Use another block with the same content in place of the one at `index`, which loses this reference."""
        if self.blocks[index] != block:
            self.pool.share([block])
            self.pool.release([self.blocks[index]])
            self.blocks[index] = block

    def hold(self) -> Hold:
        """Keep every block of this table from being reused until the hold ends, whatever becomes of the table."""
        return Hold(self.pool, self.blocks)

    def release(self) -> None:
        """Give every reference back; the table is empty afterwards."""
        blocks, self.blocks, self.length = self.blocks, [], 0
        self.pool.release(blocks)


class Hold:
    """A claim on blocks that a transfer can still touch: they are not reused before it ends.

    `blocks` is a chain from its first block on (see `BlockTable.hold`). The sequence may release its table at any
    time; the pages go back to the pool with the last of table and holds.
    """

    def __init__(self, pool: BlockPool, blocks: Sequence[int]) -> None:
        self._pool = pool
        self._blocks = tuple(blocks)
        pool.share(self._blocks)

    def end(self) -> None:
        """Give the blocks back; a second call does nothing, since a transfer may both fail and be fenced."""
        blocks, self._blocks = self._blocks, ()
        self._pool.release(blocks)
