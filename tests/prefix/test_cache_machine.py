"""Pool, tables, holds and index together, in any order, against a model that knows every byte.

What the keys and values of a token are depends on its namespace and on all tokens before it, so a page slot is
modelled as one number for each distinct (namespace, tokens up to here). A hit is right only if every slot of every
block holds the number of the prefix that was asked for.
"""

from __future__ import annotations

import hashlib
from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt
import pytest
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from mooncake_edu.kvcache import BlockPool, BlockTable, Hold
from mooncake_edu.prefix import Hash, KeyChain, PrefixCache, PrefixIndex, block_keys, sha256

Pages = npt.NDArray[np.int64]
Prefix = tuple[int, ...]  # the namespace's number, then the tokens

NAMESPACES = (b"model:1:a;", b"model:1:b;")
TOKENS = st.lists(st.integers(0, 1), min_size=1, max_size=9)
PICK = st.integers(0, 99)
NAMESPACE = st.sampled_from([0, 0, 0, 1])
GO_ON = st.sampled_from([0, 1, 2, 2])  # what an arrival does at once: wait, compute, compute and publish


@dataclass
class Owner:
    """A sequence as a user of the layers sees it: what is computed so far, and what comes next."""

    node: Node
    table: BlockTable
    chain: KeyChain
    namespace: int
    plan: list[int]
    computed: list[int] = field(default_factory=list)
    visible: int = 0

    def prefix(self, blocks: int) -> Prefix:
        return (self.namespace, *self.computed[: blocks * self.table.block_size])


@dataclass
class Claim:
    """A transfer that may still read these blocks, and what it must find in them."""

    node: Node
    hold: Hold
    blocks: list[int]
    content: Pages


class Node:
    """One pool with its cache, its simulated pages, and what the model says is published."""

    def __init__(self, number: int, blocks: int, size: int, index: PrefixIndex, compare: bool) -> None:
        self.number = number
        self.pool = BlockPool(blocks)
        self.cache = PrefixCache(self.pool, index, number, compare)
        self.pages: Pages = np.full((blocks, size), -1, np.int64)
        self.published: dict[Prefix, int] = {}
        forget = self.pool.on_reuse
        assert forget is not None

        def reused(block: int) -> None:
            self.evicted(block)
            forget(block)

        self.pool.on_reuse = reused

    def evicted(self, block: int) -> None:
        """A cached block goes: it must be a tail, that is, no other published prefix may continue its own."""
        (prefix,) = [known for known, place in self.published.items() if place == block]
        del self.published[prefix]
        longer = [known for known in self.published if known[: len(prefix)] == prefix]
        assert not longer, f"the head {prefix} went before its tails {longer}"

    def snapshot(self) -> tuple[int, int, int, list[int]]:
        pool = self.pool
        return pool.free, pool.used, pool.cached, [pool.references(block) for block in range(pool.total)]


class CacheMachine(RuleBasedStateMachine):
    """Every rule of layers 1 and 2, after every step, whatever the order of steps."""

    hash_: Hash = staticmethod(sha256)
    compare = True
    collides = False

    @initialize(size=st.sampled_from([1, 2, 2, 3]), blocks=st.integers(4, 12), nodes=st.integers(1, 2))
    def begin(self, size: int, blocks: int, nodes: int) -> None:
        self.size = size
        self.index = PrefixIndex()
        self.nodes = [Node(number, blocks, size, self.index, self.compare) for number in range(nodes)]
        self.sequences: list[Owner] = []
        self.claims: list[Claim] = []
        self.numbers: dict[Prefix, int] = {}

    def number(self, prefix: Prefix) -> int:
        return self.numbers.setdefault(prefix, len(self.numbers))

    def key(self, prefix: Prefix) -> bytes:
        """The key of the last block of a prefix."""
        namespace, *tokens = prefix
        return block_keys(tokens, self.size, NAMESPACES[namespace], self.hash_)[-1]

    def content(self, prefix: Prefix) -> Pages:
        """What the slots of the blocks of a prefix must hold."""
        return np.array([self.number(prefix[: end + 1]) for end in range(1, len(prefix))], np.int64)

    def best(self, node: Node, prefix: Prefix) -> list[int]:
        """The blocks that a prompt may reuse: published ones from the first on, one token left to compute."""
        found = []
        for end in range(self.size, len(prefix) - 1, self.size):
            if prefix[: end + 1] not in node.published:
                break
            found.append(node.published[prefix[: end + 1]])
        return found

    def look_up(self, node: Node, namespace: int, tokens: list[int]) -> tuple[KeyChain, list[int]]:
        chain = KeyChain(NAMESPACES[namespace], self.size, self.hash_)
        hit = node.cache.match(chain, np.array(tokens, np.uint32))
        assert hit == self.best(node, (namespace, *tokens))
        prefix = (namespace, *tokens[: len(hit) * self.size])
        assert node.pages[hit].ravel().tolist() == self.content(prefix).tolist()
        return chain, hit

    @precondition(lambda self: len(self.sequences) < 6)
    @rule(pick=PICK, namespace=NAMESPACE, tokens=TOKENS, reuse=st.booleans(), go_on=GO_ON)
    def arrive(self, pick: int, namespace: int, tokens: list[int], reuse: bool, go_on: int) -> None:
        """A prompt comes: it takes over its cached prefix, or (as a duplicate would) computes everything itself."""
        self.join(self.nodes[pick % len(self.nodes)], namespace, tokens, reuse, go_on)

    @precondition(lambda self: 0 < len(self.sequences) < 6)
    @rule(pick=PICK, where=PICK, keep=st.integers(0, 9), more=TOKENS, reuse=st.booleans(), go_on=GO_ON)
    def follow(self, pick: int, where: int, keep: int, more: list[int], reuse: bool, go_on: int) -> None:
        """A prompt comes that begins like a running sequence."""
        like = self.sequences[pick % len(self.sequences)]
        tokens = (like.computed + like.plan)[:keep] + more
        self.join(self.nodes[where % len(self.nodes)], like.namespace, tokens, reuse, go_on)

    def join(self, node: Node, namespace: int, tokens: list[int], reuse: bool, go_on: int) -> None:
        chain, hit = self.look_up(node, namespace, tokens)
        table = BlockTable(node.pool, self.size, hit if reuse else ())
        done = table.length
        sequence = Owner(node, table, chain, namespace, tokens[done:], tokens[:done], done // self.size)
        self.sequences.append(sequence)
        if go_on > 0:
            self.batch([(sequence, sequence.plan)])
        if go_on > 1:
            self.show(sequence, sequence.visible, 0)

    @precondition(lambda self: self.sequences)
    @rule(steps=st.lists(st.tuples(PICK, TOKENS), min_size=1, max_size=3), show=st.booleans())
    def step(self, steps: list[tuple[int, list[int]]], show: bool) -> None:
        """One batch step of some of the sequences, after which an engine would publish what it computed."""
        chosen = {pick % len(self.sequences): tokens for pick, tokens in steps}
        batch = [(self.sequences[number], tokens) for number, tokens in chosen.items()]
        self.batch([(sequence, sequence.plan[: len(tokens)] or tokens) for sequence, tokens in batch])
        for sequence, _ in batch if show else []:
            self.show(sequence, sequence.visible, 0)

    def batch(self, batch: list[tuple[Owner, list[int]]]) -> None:
        """Room for all, then all copies in order, then all writes; who finds no room waits."""
        copies: list[tuple[Node, int, int]] = []
        writes: list[tuple[Owner, list[int]]] = []
        for sequence, tokens in batch:
            table, pool, tokens = sequence.table, sequence.node.pool, list(tokens)
            room = table.room()
            assert table.needs(room) <= pool.available < table.needs(room + 1)
            if len(tokens) > room:
                self.refuse(sequence, len(tokens))
                continue
            left = pool.available - table.needs(len(tokens))
            copies += [(sequence.node, *pair) for pair in table.extend(len(tokens))]
            assert pool.available == left, "it took another number of blocks than it said"
            writes.append((sequence, tokens))
        for node, source, target in copies:
            node.pages[target] = node.pages[source]
        for sequence, tokens in writes:
            self.write(sequence, tokens)

    def refuse(self, sequence: Owner, tokens: int) -> None:
        before = sequence.node.snapshot(), list(sequence.table.blocks), sequence.table.length
        with pytest.raises(ValueError, match="available"):
            sequence.table.extend(tokens)
        assert before == (sequence.node.snapshot(), sequence.table.blocks, sequence.table.length)

    def write(self, sequence: Owner, tokens: list[int]) -> None:
        for token in tokens:
            block, slot = divmod(len(sequence.computed), self.size)
            assert sequence.node.pool.references(sequence.table.blocks[block]) == 1, "a shared block is written"
            sequence.computed.append(token)
            number = self.number((sequence.namespace, *sequence.computed))
            sequence.node.pages[sequence.table.blocks[block], slot] = number
        del sequence.plan[: len(tokens)]
        assert sequence.table.length == len(sequence.computed)

    @precondition(lambda self: self.sequences)
    @rule(pick=PICK, again=st.booleans(), cut=st.integers(0, 2))
    def publish(self, pick: int, again: bool, cut: int) -> None:
        """Publish once more, or (as when later chunks are still under way) only the first part of what is there."""
        sequence = self.sequences[pick % len(self.sequences)]
        self.show(sequence, 0 if again else sequence.visible, cut)

    def show(self, sequence: Owner, start: int, cut: int) -> None:
        tokens = np.array(sequence.computed[: max(0, len(sequence.computed) - cut)], np.uint32)
        expected = self.expect_visible(sequence, start, len(tokens) // self.size)
        visible = sequence.node.cache.publish(sequence.table, sequence.chain, tokens, start)
        assert visible <= expected if self.collides else visible == expected
        published = sequence.node.published
        for number in range(start, visible):
            block = sequence.table.blocks[number]
            assert published.setdefault(sequence.prefix(number + 1), block) == block, "two blocks for one content"
        sequence.visible = visible

    def expect_visible(self, sequence: Owner, start: int, full: int) -> int:
        """Blocks are visible up to one behind a private block, or one whose duplicate somebody else refers to."""
        published, blocks = sequence.node.published, sequence.table.blocks
        if start and published.get(sequence.prefix(start)) != blocks[start - 1]:
            return max(start, full) if start >= full else start
        for number in range(start, full):
            place = published.get(sequence.prefix(number + 1), blocks[number])
            if place != blocks[number] and sequence.node.pool.references(blocks[number]) > 1:
                return number
        return max(start, full)

    @precondition(lambda self: 0 < len(self.sequences) < 6)
    @rule(pick=PICK, tokens=TOKENS)
    def fork(self, pick: int, tokens: list[int]) -> None:
        old = self.sequences[pick % len(self.sequences)]
        chain = KeyChain(NAMESPACES[old.namespace], self.size, self.hash_)
        twin = Owner(old.node, old.table.fork(), chain, old.namespace, tokens, list(old.computed), old.visible)
        self.sequences.append(twin)

    @precondition(lambda self: self.sequences and len(self.claims) < 4)
    @rule(pick=PICK)
    def hold(self, pick: int) -> None:
        sequence = self.sequences[pick % len(self.sequences)]
        blocks = list(sequence.table.blocks)
        content = sequence.node.pages[blocks].ravel()[: len(sequence.computed)].copy()
        self.claims.append(Claim(sequence.node, sequence.table.hold(), blocks, content))

    @precondition(lambda self: self.claims)
    @rule(pick=PICK)
    def end_hold(self, pick: int) -> None:
        claim = self.claims.pop(pick % len(self.claims))
        claim.hold.end()
        before = claim.node.snapshot()
        claim.hold.end()
        assert claim.node.snapshot() == before, "a hold that ended once more changed something"

    @precondition(lambda self: self.sequences)
    @rule(pick=PICK)
    def release(self, pick: int) -> None:
        self.sequences.pop(pick % len(self.sequences)).table.release()

    @rule(pick=PICK, count=st.integers(1, 10))
    def press(self, pick: int, count: int) -> None:
        """Somebody else needs blocks for a moment; what is cached goes tail first (see `Node.evicted`)."""
        node = self.nodes[pick % len(self.nodes)]
        free, cached = node.pool.free, node.pool.cached
        taken = node.pool.allocate(min(count, node.pool.available))
        assert node.pool.cached == cached - max(0, len(taken) - free), "cached blocks went while free ones were left"
        node.pages[taken] = -1
        node.pool.release(taken)

    @precondition(lambda self: any(node.published for node in self.nodes))
    @rule(pick=PICK, sure=st.integers(0, 3))
    def clear(self, pick: int, sure: int) -> None:
        """As when the weights change; seldom, so that the cache has time to fill."""
        node = self.nodes[pick % len(self.nodes)]
        if sure == 3:
            node.cache.clear()
            node.published.clear()
            assert node.pool.cached == 0

    @rule(pick=PICK, block=PICK)
    def misuse(self, pick: int, block: int) -> None:
        """A block that nobody refers to cannot be given back, nor a chain with such a block in it."""
        node = self.nodes[pick % len(self.nodes)]
        block %= node.pool.total
        before = node.snapshot()
        if node.pool.references(block) == 0:
            used = [other for other in range(node.pool.total) if node.pool.references(other)]
            with pytest.raises(ValueError, match="released twice"):
                node.pool.release([*used, block])
            with pytest.raises(ValueError, match="cannot get a key"):
                node.pool.keep(block)
            if block not in node.published.values():
                with pytest.raises(ValueError, match="free"):
                    node.pool.share([*used, block])
        with pytest.raises(ValueError, match="available"):
            node.pool.allocate(node.pool.available + 1)
        assert node.snapshot() == before

    @invariant()
    def every_block_is_free_used_or_cached_and_has_as_many_references_as_owners(self) -> None:
        for node in self.nodes:
            owners = [0] * node.pool.total
            for blocks in [s.table.blocks for s in self.sequences if s.node is node] + [
                claim.blocks for claim in self.claims if claim.node is node
            ]:
                assert len(set(blocks)) == len(blocks), "a table names a block twice"
                for block in blocks:
                    owners[block] += 1
            used = sum(count > 0 for count in owners)
            cached = sum(owners[block] == 0 for block in node.published.values())
            assert node.snapshot() == (node.pool.total - used - cached, used, cached, owners)

    @invariant()
    def the_index_names_exactly_the_published_blocks_and_their_bytes_are_right(self) -> None:
        names = {prefix: self.key(prefix) for node in self.nodes for prefix in node.published}
        assert len(self.index) == len(set(names.values()))
        for prefix, key in names.items():
            alike = [other for other in names if names[other] == key] if self.collides else [prefix]
            holding = {node.number for node in self.nodes if node.published.keys() & set(alike)}
            assert set(self.index.holders(key)) == holding
        for node in self.nodes:
            assert len(set(node.published.values())) == len(node.published), "a block stands for two prefixes"
            for namespace, *tokens in node.published:
                _, hit = self.look_up(node, namespace, [*tokens, 0])
                assert len(hit) == len(tokens) // self.size, "a published block cannot be reached"

    @invariant()
    def no_prompt_hits_more_than_is_computed_and_published(self) -> None:
        for sequence in self.sequences:
            for node in self.nodes:
                self.look_up(node, sequence.namespace, [*sequence.computed, *sequence.plan, 0])

    @invariant()
    def sequences_and_transfers_find_their_own_bytes(self) -> None:
        for sequence in self.sequences:
            found = sequence.node.pages[sequence.table.blocks].ravel()[: len(sequence.computed)]
            assert found.tolist() == self.content((sequence.namespace, *sequence.computed)).tolist()
        for claim in self.claims:
            assert claim.node.pages[claim.blocks].ravel()[: len(claim.content)].tolist() == claim.content.tolist()

    @invariant()
    def the_index_counts_the_blocks_of_each_holder(self) -> None:
        if self.collides:
            return
        for sequence in self.sequences:
            full = len(sequence.computed) // self.size
            prefixes = [sequence.prefix(number + 1) for number in range(full)]
            keys = block_keys(sequence.computed, self.size, NAMESPACES[sequence.namespace], self.hash_)
            expected = {
                node.number: next((n for n, prefix in enumerate(prefixes) if prefix not in node.published), full)
                for node in self.nodes
                if full and prefixes[0] in node.published
            }
            assert self.index.lengths(keys) == expected

    @precondition(lambda self: len(self.sequences) + len(self.claims) > 4)
    @rule()
    def all_ends(self) -> None:
        """When every sequence and transfer is over, nothing is in use; when all is reused, nothing is remembered."""
        for claim in self.claims:
            claim.hold.end()
        for sequence in self.sequences:
            sequence.table.release()
        for node in self.nodes:
            assert node.pool.used == 0
            node.pool.release(node.pool.allocate(node.pool.total))
            assert (node.pool.free, node.published) == (node.pool.total, {})
        assert len(self.index) == 0
        self.claims, self.sequences = [], []


class TrustingMachine(CacheMachine):
    """Tokens are not compared: the hash is trusted."""

    compare = False


class NarrowHashMachine(CacheMachine):
    """One key in four is the same, at any depth and across namespaces: still the right bytes or a miss."""

    collides = True
    hash_ = staticmethod(lambda data: bytes([hashlib.sha256(data).digest()[0] % 4]))


class ConstantHashMachine(CacheMachine):
    """All keys are the same."""

    collides = True
    hash_ = staticmethod(lambda data: b"same")


RULES = settings(max_examples=100, stateful_step_count=40, deadline=None, suppress_health_check=[HealthCheck.too_slow])
TestAnyOrder = CacheMachine.TestCase
TestAnyOrder.settings = RULES
TestAnyOrderTrustingTheHash = TrustingMachine.TestCase
TestAnyOrderTrustingTheHash.settings = RULES
TestAnyOrderWithANarrowHash = NarrowHashMachine.TestCase
TestAnyOrderWithANarrowHash.settings = RULES
TestAnyOrderWithAConstantHash = ConstantHashMachine.TestCase
TestAnyOrderWithAConstantHash.settings = RULES
