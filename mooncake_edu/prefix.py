"""Layer 2, prefix hashing: a key for every full block of a prompt, and the index of who holds which block.

The key of a block is a hash over its tokens and the key before it (arXiv 2407.00079, fig. 3), so equal keys mean
equal whole prefixes. The first block hashes the namespace instead: everything besides the tokens that the bytes
of the KVCache depend on, or that must keep two users apart.
"""

from __future__ import annotations

import hashlib
import sys
from array import array
from collections.abc import Callable, Hashable, Iterable, Iterator, Sequence
from dataclasses import dataclass, fields
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt

from mooncake_edu.request import Tokens, as_tokens

if TYPE_CHECKING:  # a Conductor asks an index, and needs no torch for that
    from mooncake_edu.kvcache import BlockPool, BlockTable

Key = bytes
Hash = Callable[[bytes], bytes]


def sha256(data: bytes) -> bytes:
    """The SHA-256 digest, 32 bytes: nobody can make two prompts collide, which a fast hash would allow."""
    return hashlib.sha256(data).digest()


@dataclass(frozen=True, slots=True)
class Namespace:
    """What KVCache depends on besides tokens; blocks of two namespaces never match.

    `revision` tells weights apart that share a name, `adapter_version` likewise; `salt` keeps tenants apart.
    """

    model: str
    revision: str
    dtype: str
    block_size: int
    adapter: str = ""
    adapter_version: str = ""
    salt: str = ""

    def encode(self) -> bytes:
        """Every field as tag, length and value, so that no two namespaces have the same bytes."""
        parts = []
        for entry in fields(self):
            value = str(getattr(self, entry.name)).encode("utf-8", "surrogatepass")
            parts.append(b"%s:%d:%s;" % (entry.name.encode(), len(value), value))
        return b"".join(parts)


def block_keys(
    tokens: Tokens | Sequence[int] | npt.NDArray[np.integer],
    block_size: int,
    parent: bytes,
    hash_: Hash = sha256,
) -> list[Key]:
    """The chained key of every full block of `tokens`; a partial last block has none.

    `parent` is the encoded namespace, or the key of the block before the first token. Tokens are hashed as
    little-endian unsigned 32-bit integers. Raises RequestError for what is no row of token ids.
    """
    data = token_bytes(tokens)
    step = 4 * block_size
    keys = []
    for start in range(0, len(data) - step + 1, step):
        parent = hash_(parent + data[start : start + step])
        keys.append(parent)
    return keys


def token_bytes(tokens: Tokens | Sequence[int] | npt.NDArray[np.integer]) -> bytes:
    """Token ids as little-endian unsigned 32-bit integers; raises RequestError for what is no row of token ids."""
    if isinstance(tokens, list | tuple) and sys.byteorder == "little":
        try:  # array reads Python integers several times faster than numpy does
            return array("I", tokens).tobytes()
        except (TypeError, OverflowError):
            return as_tokens(tokens).tobytes()
    is_row = isinstance(tokens, np.ndarray) and tokens.dtype == np.dtype("<u4") and tokens.ndim == 1
    return (np.asarray(tokens) if is_row else as_tokens(tokens)).tobytes()


class KeyChain:
    """The keys of one sequence, which grow as it grows; no token is hashed twice."""

    def __init__(self, root: bytes, block_size: int, hash_: Hash = sha256) -> None:
        self.root = root
        self.block_size = block_size
        self.keys: list[Key] = []
        self._hash = hash_

    def cover(self, tokens: Tokens) -> list[Key]:
        """The keys of all full blocks of `tokens`, which begin with those given before."""
        done = len(self.keys) * self.block_size
        if len(tokens) >= done + self.block_size:
            parent = self.keys[-1] if self.keys else self.root
            self.keys += block_keys(tokens[done:], self.block_size, parent, self._hash)
        return self.keys


class PrefixIndex:
    """Which holder (a pool, a tier, an instance) has which block: an integer a block, in which bit n is holder n.

    Memory grows with the blocks; one holder more of a block is one bit more.
    """

    def __init__(self) -> None:
        self._holders: dict[Hashable, int] = {}

    def __len__(self) -> int:
        """How many distinct blocks are held by anybody."""
        return len(self._holders)

    def add(self, holder: int, keys: Iterable[Hashable]) -> None:
        """Note that a holder has these blocks; what was noted before stays as it is."""
        held, bit = self._holders, 1 << holder
        for key in keys:
            held[key] = held.get(key, 0) | bit

    def remove(self, holder: int, keys: Iterable[Hashable]) -> None:
        """Note that a holder has these blocks no more; a block that nobody holds is forgotten."""
        held, others = self._holders, ~(1 << holder)
        for key in keys:
            left = held.get(key, 0) & others
            if left:
                held[key] = left
            else:
                held.pop(key, None)

    def forget(self, holder: int) -> None:
        """Note that a holder is gone, with all it had; every block is gone through for it."""
        self.remove(holder, [key for key, holders in self._holders.items() if holders >> holder & 1])

    def holders(self, key: Hashable) -> list[int]:
        """Who has a block."""
        return list(_bits(self._holders.get(key, 0)))

    def lengths(self, keys: Iterable[Hashable]) -> dict[int, int]:
        """How many blocks of a prefix, from its first on, each holder of the first block has."""
        lengths: dict[int, int] = {}
        holding, depth, held = -1, 0, self._holders
        for key in keys:
            still = holding & held.get(key, 0)
            if still != holding and depth:
                lengths.update(dict.fromkeys(_bits(holding & ~still), depth))
            holding = still
            if not still:
                return lengths
            depth += 1
        if depth:
            lengths.update(dict.fromkeys(_bits(holding), depth))
        return lengths


def _bits(number: int) -> Iterator[int]:
    """The places of the ones in a number."""
    while number:
        low = number & -number
        yield low.bit_length() - 1
        number ^= low


@dataclass(slots=True, eq=False)
class Entry:
    """A published block: the block before it, its tokens, and its number in the pool.

    `parent` is the entry before it where tokens are compared, else the key before it; for a first block it is the
    encoded namespace.
    """

    parent: Entry | bytes
    tokens: bytes | None
    block: int

    def stands_for(self, parent: Entry | bytes, tokens: bytes | None) -> bool:
        """Whether this is the block of these tokens behind that prefix, and not one whose key collides."""
        return self.parent == parent and self.tokens == tokens


class PrefixCache:
    """What one pool holds of which prefix: looks prompts up, publishes computed blocks, forgets reused ones.

    `index` is told what `holder` has. With `compare`, a hit is a hit only if the tokens of every block are the ones
    hashed (off: trust the hash).
    """

    def __init__(
        self, pool: BlockPool, index: PrefixIndex | None = None, holder: int = 0, compare: bool = True
    ) -> None:
        self.index = index if index is not None else PrefixIndex()
        self._pool = pool
        self._holder = holder
        self._compare = compare
        self.entries: dict[Key, Entry] = {}
        self._published: dict[int, Key] = {}
        pool.on_reuse = self._forget

    def match(self, chain: KeyChain, tokens: Tokens) -> list[int]:
        """The blocks that hold the longest cached prefix of `tokens`, at least one token of which is left to compute.

        The caller shares them (`BlockTable(pool, size, blocks)`) before anything else happens to the pool.
        """
        blocks: list[int] = []
        parent: Entry | bytes = chain.root
        keys = chain.cover(tokens)
        for number in range((len(tokens) - 1) // chain.block_size):
            entry = self.entries.get(keys[number])
            if entry is None or not entry.stands_for(parent, self._tokens(tokens, number, chain.block_size)):
                break
            blocks.append(entry.block)
            parent = self._link(keys[number], entry)
        return blocks

    def publish(self, table: BlockTable, chain: KeyChain, tokens: Tokens, start: int) -> int:
        """Make the full blocks of `table` that hold `tokens` visible, from number `start` on; returns how many are now.

        `tokens` are those whose keys and values are in the pages. A block whose content is published already is
        replaced by the published one, so that every table refers to one and the same chain. Two kinds of block
        stay private, and so do those after them: one whose key collides, and a duplicate that forks or holds refer
        to as well, since these could use what comes after it for longer than anybody uses the published one.
        """
        keys = chain.cover(tokens)
        full = min(table.length, len(tokens)) // table.block_size
        for number in range(start, full):
            parent = self._parent(table, chain, number)
            if parent is None:
                return number
            block, key = table.blocks[number], keys[number]
            entry = self.entries.get(key)
            content = self._tokens(tokens, number, table.block_size)
            if entry is None:
                self.entries[key], self._published[block] = Entry(parent, content, block), key
                self.index.add(self._holder, [key])
                self._pool.keep(block)
            elif not entry.stands_for(parent, content) or (
                entry.block != block and self._pool.references(block) > 1
            ):
                return number
            else:
                table.replace(number, entry.block)
        return max(start, full)

    def clear(self) -> None:
        """Forget every block, as when weights change under the same name; end the requests under way first."""
        for block in list(self._published):
            self._forget(block)
            self._pool.drop(block)

    def _forget(self, block: int) -> None:
        key = self._published.pop(block)
        del self.entries[key]
        self.index.remove(self._holder, [key])

    def _parent(self, table: BlockTable, chain: KeyChain, number: int) -> Entry | bytes | None:
        if number == 0:
            return chain.root
        key = self._published.get(table.blocks[number - 1])
        return None if key is None else self._link(key, self.entries[key])

    def _link(self, key: Key, entry: Entry) -> Entry | bytes:
        return entry if self._compare else key

    def _tokens(self, tokens: Tokens, number: int, block_size: int) -> bytes | None:
        return tokens[number * block_size : (number + 1) * block_size].tobytes() if self._compare else None
