"""Layer 2, prefix hashing: a key for every full block of a prompt, and the index of who holds which block.

The key of a block is a hash over its tokens and the key before it (arXiv 2407.00079, fig. 3), so equal keys mean
equal whole prefixes. The first block hashes the namespace instead: everything besides the tokens that the bytes
of the KVCache depend on, or that must keep two users apart.
"""

from __future__ import annotations

import hashlib
import sys
from array import array
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field, fields

import numpy as np
import numpy.typing as npt

from mooncake_edu.kvcache import BlockPool, BlockTable
from mooncake_edu.request import Tokens, as_tokens

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


@dataclass(slots=True, eq=False)
class Entry:
    """A block that somebody holds: the block before it, its tokens, and its place with each holder.

    `parent` is the entry before it where tokens are compared, else the key before it; for a first block it is the
    encoded namespace.
    """

    parent: Entry | bytes
    tokens: bytes | None
    holders: dict[int, int] = field(default_factory=dict)

    def stands_for(self, parent: Entry | bytes, tokens: bytes | None) -> bool:
        """Whether this is the block of these tokens behind that prefix, and not one whose key collides."""
        return self.parent == parent and self.tokens == tokens


class PrefixIndex:
    """Which holder (a pool, a tier, an instance) has which block of which prefix.

    Memory grows with the blocks and the holders of each, not with instances x blocks.
    """

    def __init__(self) -> None:
        self._entries: dict[Key, Entry] = {}

    def __len__(self) -> int:
        """How many distinct blocks are held by anybody."""
        return len(self._entries)

    def get(self, key: Key) -> Entry | None:
        """The entry of a block that somebody holds."""
        return self._entries.get(key)

    def add(self, key: Key, holder: int, place: int, parent: Entry | bytes = b"", tokens: bytes | None = None) -> Entry:
        """Note that `holder` has the block `key` at `place`; a second time, that it is at another place.

        Raises ValueError if the key stands for another block already: check `Entry.stands_for` first.
        """
        entry = self._entries.get(key)
        if entry is None:
            entry = self._entries[key] = Entry(parent, tokens)
        elif not entry.stands_for(parent, tokens):
            raise ValueError(f"key {key.hex()} stands for another block already: a collision, or a wrong parent")
        entry.holders[holder] = place
        return entry

    def remove(self, key: Key, holder: int) -> None:
        """Note that `holder` has the block no more; a block that nobody holds is forgotten."""
        entry = self._entries.get(key)
        if entry is not None:
            entry.holders.pop(holder, None)
            if not entry.holders:
                del self._entries[key]

    def lengths(self, keys: Iterable[Key]) -> dict[int, int]:
        """How many blocks of a prefix, from its first on, each holder of the first block has."""
        lengths: dict[int, int] = {}
        alive: set[int] | None = None
        found = 0
        for depth, key in enumerate(keys):
            entry = self._entries.get(key)
            if entry is None:
                break
            held = set(entry.holders) if alive is None else entry.holders.keys() & alive
            if alive is not None and len(held) < len(alive):
                lengths.update(dict.fromkeys(alive - held, depth))
            alive, found = held, depth + 1
        lengths.update(dict.fromkeys(alive or (), found))
        return lengths


class PrefixCache:
    """What one pool holds of which prefix: looks prompts up, publishes computed blocks, forgets reused ones.

    With `compare`, a hit is a hit only if the tokens of every block are the ones hashed (off: trust the hash).
    """

    def __init__(
        self, pool: BlockPool, index: PrefixIndex | None = None, holder: int = 0, compare: bool = True
    ) -> None:
        self.index = index if index is not None else PrefixIndex()
        self._pool = pool
        self._holder = holder
        self._compare = compare
        self._published: dict[int, tuple[Key, Entry]] = {}
        pool.on_reuse = self._forget

    def match(self, chain: KeyChain, tokens: Tokens) -> list[int]:
        """The blocks that hold the longest cached prefix of `tokens`, at least one token of which is left to compute.

        The caller shares them (`BlockTable(pool, size, blocks)`) before anything else happens to the pool.
        """
        blocks: list[int] = []
        parent: Entry | bytes = chain.root
        keys = chain.cover(tokens)
        for number in range((len(tokens) - 1) // chain.block_size):
            entry = self.index.get(keys[number])
            if entry is None or self._holder not in entry.holders:
                break
            if not entry.stands_for(parent, self._tokens(tokens, number, chain.block_size)):
                break
            blocks.append(entry.holders[self._holder])
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
            entry = self.index.get(key)
            content = self._tokens(tokens, number, table.block_size)
            if entry is not None and not entry.stands_for(parent, content):
                return number
            place = None if entry is None else entry.holders.get(self._holder)
            if place is None:
                self._published[block] = (key, self.index.add(key, self._holder, block, parent, content))
                self._pool.keep(block)
            elif place != block and self._pool.references(block) > 1:
                return number
            else:
                table.replace(number, place)
        return max(start, full)

    def clear(self) -> None:
        """Forget every block, as when weights change under the same name; end the requests under way first."""
        for block in list(self._published):
            self._forget(block)
            self._pool.drop(block)

    def _forget(self, block: int) -> None:
        key, _ = self._published.pop(block)
        self.index.remove(key, self._holder)

    def _parent(self, table: BlockTable, chain: KeyChain, number: int) -> Entry | bytes | None:
        if number == 0:
            return chain.root
        published = self._published.get(table.blocks[number - 1])
        return None if published is None else self._link(*published)

    def _link(self, key: Key, entry: Entry) -> Entry | bytes:
        return entry if self._compare else key

    def _tokens(self, tokens: Tokens, number: int, block_size: int) -> bytes | None:
        return tokens[number * block_size : (number + 1) * block_size].tobytes() if self._compare else None
