"""What a pool has of a prompt is used as far as whole blocks go, and never anything else in its place."""

from __future__ import annotations

from collections.abc import Callable, Iterable

import numpy as np
import pytest

from mooncake_edu.kvcache import BlockPool, BlockTable
from mooncake_edu.prefix import Hash, KeyChain, PrefixCache, PrefixIndex, sha256
from mooncake_edu.request import Tokens

ROOT = b"namespace"


class Node:
    """A pool with its cache, used as an engine does: look up, take over, compute, publish."""

    def __init__(self, blocks: int = 16, size: int = 4, hash_: Hash = sha256, compare: bool = True) -> None:
        self.pool = BlockPool(blocks)
        self.cache = PrefixCache(self.pool, compare=compare)
        self.size = size
        self.hash = hash_

    def chain(self, root: bytes = ROOT) -> KeyChain:
        return KeyChain(root, self.size, self.hash)

    def match(self, tokens: Iterable[int], root: bytes = ROOT) -> list[int]:
        return self.cache.match(self.chain(root), row(tokens))

    def compute(self, tokens: Iterable[int], reuse: bool = True, root: bytes = ROOT) -> BlockTable:
        tokens = row(tokens)
        table = BlockTable(self.pool, self.size, self.match(tokens, root) if reuse else ())
        table.extend(len(tokens) - table.length)
        return table

    def publish(self, table: BlockTable, tokens: Iterable[int], start: int = 0, root: bytes = ROOT) -> int:
        return self.cache.publish(table, self.chain(root), row(tokens), start)

    def run(self, tokens: Iterable[int], root: bytes = ROOT) -> BlockTable:
        """Compute a prompt and publish it."""
        tokens = row(tokens)
        table = self.compute(tokens, root=root)
        self.publish(table, tokens, root=root)
        return table

    def evict(self, count: int) -> None:
        """Let somebody else use `count` cached blocks for a moment."""
        blocks = self.pool.allocate(self.pool.free + count)
        self.pool.release(blocks)


def row(tokens: Iterable[int]) -> Tokens:
    return np.array(list(tokens), np.uint32)


@pytest.mark.parametrize("size", [1, 2, 4, 16])
def test_at_least_one_token_is_left_to_compute(size: int) -> None:
    """A1, vllm 11186 and 17999, nano-vllm 144 and 199: a whole prompt in the cache left nothing to compute."""
    for length in {max(1, size - 1), size, size + 1, 2 * size, 5 * size}:
        node = Node(size=size)
        node.run(range(length)).release()
        again = node.compute(range(length))
        cached = len(node.match(range(length))) * size
        assert cached == (length - 1) // size * size
        assert again.length == length


def test_a_prefix_computed_up_to_the_middle_of_a_block_is_used_up_to_its_last_whole_block() -> None:
    """A2, vllm 43494: a hit of n - 1 tokens that is no multiple of the block size was skipped."""
    node = Node(size=4)
    node.run(range(11)).release()
    assert len(node.match(range(12))) == 2
    assert len(node.match([*range(11), 99, 98])) == 2


def test_the_hit_is_rounded_down_to_whole_blocks_once() -> None:
    """A3, vllm 40684: rounded twice, n = 17 with blocks of 16 hit nothing."""
    for size in range(1, 18):
        for length in range(1, 36):
            node = Node(blocks=36, size=size)
            node.run(range(length)).release()
            assert len(node.match(range(length))) == (length - 1) // size, (length, size)


HASHES: dict[str, Hash] = {
    "all collide": lambda data: b"same",
    "blocks of one length collide": lambda data: str(len(data)).encode(),
    "collide with their parent": lambda data: data[:9],
    "collide by their last token": lambda data: data[-4:],
}


@pytest.mark.parametrize("hash_", HASHES.values(), ids=HASHES)
def test_where_keys_collide_no_wrong_block_is_used_at_any_depth(hash_: Hash) -> None:
    """A7, vllm 12621, Megatron 4158: a predictable hash can be made to collide; tokens are compared."""
    node = Node(blocks=64, size=1, hash_=hash_)
    content: dict[int, tuple[bytes, ...]] = {}
    prompts = [(1, 2, 3, 4), (1, 2, 9, 4), (5, 2, 3, 4), (1, 1, 1, 1), (2, 3, 4, 1), (4, 4, 4, 4)]
    for root in (b"namespa-a", b"namespa-b"):
        for prompt in prompts:
            table = node.compute([*prompt, 0], root=root)
            for number in range(len(node.match([*prompt, 0], root)), 4):
                content[table.blocks[number]] = (root, *(bytes([token]) for token in prompt[: number + 1]))
            node.publish(table, prompt, root=root)
            for other_root in (b"namespa-a", b"namespa-b"):
                for other in prompts:
                    for depth, block in enumerate(node.match([*other, 0], other_root), 1):
                        assert content[block] == (other_root, *(bytes([token]) for token in other[:depth]))


def test_the_first_of_two_colliding_blocks_is_still_a_hit() -> None:
    """A7: the comparison refuses the wrong block, not every block."""
    node = Node(size=2, hash_=HASHES["all collide"])
    first = node.run([1, 2, 3])
    assert node.publish(node.compute([7, 8, 9]), [7, 8, 9]) == 0
    assert node.match([1, 2, 5]) == first.blocks[:1]
    assert node.match([7, 8, 9]) == []


def test_without_comparison_the_hash_is_trusted_and_no_tokens_are_kept() -> None:
    node = Node(size=2, compare=False)
    table = node.run([1, 2, 3, 4, 5])
    assert node.match([1, 2, 3, 4, 6]) == table.blocks[:2]
    entry = node.cache.entries.get(node.chain().cover(row([1, 2]))[0])
    assert entry is not None and entry.tokens is None


def plainly(node: Node, prompt: range) -> None:
    node.run(prompt).release()


def behind_a_shared_head(node: Node, prompt: range) -> None:
    first, second = node.run(prompt), node.run([*prompt[:8], 91, 92, 93, 94])
    second.release()
    first.release()
    node.run([*prompt[:8], 95]).release()


def after_a_transfer(node: Node, prompt: range) -> None:
    table = node.compute(prompt)
    hold = table.hold()
    node.publish(table, prompt)
    table.release()
    hold.end()


def after_transfers_of_every_part_that_end_in_any_order(node: Node, prompt: range) -> None:
    table, holds = BlockTable(node.pool, node.size), []
    for _ in range(len(prompt) // node.size):
        table.extend(node.size)
        holds.append(table.hold())
    node.publish(table, prompt)
    table.release()
    for number in (1, 4, 0, 3, 2):
        holds[number].end()


def after_forks(node: Node, prompt: range) -> None:
    table = node.compute(prompt)
    twin = table.fork()
    node.publish(table, prompt)
    table.release()
    node.publish(twin, prompt)
    twin.release()


def after_a_duplicate(node: Node, prompt: range) -> None:
    one, other = node.compute(prompt), node.compute(prompt)
    node.publish(one, prompt[:8])
    node.publish(other, prompt)
    node.publish(one, prompt)
    other.release()
    one.release()


def after_a_duplicate_of_the_head_whose_transfer_outlives_both(node: Node, prompt: range) -> None:
    one, other = node.compute(prompt, reuse=False), node.compute(prompt, reuse=False)
    hold = other.hold()
    node.publish(one, prompt[:4])
    node.publish(other, prompt)
    node.publish(one, prompt)
    other.release()
    one.release()
    hold.end()


def after_a_duplicate_of_the_head_whose_fork_outlives_both(node: Node, prompt: range) -> None:
    one, other = node.compute(prompt, reuse=False), node.compute(prompt, reuse=False)
    fork = other.fork()
    node.publish(one, prompt[:4])
    node.publish(other, prompt)
    node.publish(one, prompt)
    other.release()
    one.release()
    fork.release()


HISTORIES = (
    plainly,
    behind_a_shared_head,
    after_a_transfer,
    after_transfers_of_every_part_that_end_in_any_order,
    after_forks,
    after_a_duplicate,
    after_a_duplicate_of_the_head_whose_transfer_outlives_both,
    after_a_duplicate_of_the_head_whose_fork_outlives_both,
)


@pytest.mark.parametrize("history", HISTORIES, ids=lambda history: history.__name__)
def test_each_block_evicted_of_a_chain_costs_one_block_of_the_hit(history: Callable[[Node, range], None]) -> None:
    """A8, llm-d-inference-sim 704, pegaflow 396: the head went before its tail, and a full cache had no hits."""
    node, prompt = Node(blocks=14, size=4), range(20)
    history(node, prompt)
    assert (node.pool.used, len(node.match([*prompt, 0]))) == (0, 5)
    hits = [5]
    while node.pool.cached:
        node.evict(1)
        hits.append(len(node.match([*prompt, 0])))
        assert hits[-1] in (hits[-2], hits[-2] - 1)
    assert hits[-1] == 0


def test_a_duplicate_that_a_transfer_still_reads_stays_private_until_the_transfer_ends() -> None:
    """A8: published, its later blocks would outlive the published head."""
    node, prompt = Node(), range(9)
    one, other = node.compute(prompt, reuse=False), node.compute(prompt, reuse=False)
    hold = other.hold()
    node.publish(one, prompt[:4])
    assert node.publish(other, prompt) == 0
    assert len(node.match(prompt)) == 1
    hold.end()
    assert node.publish(other, prompt) == 2
    assert other.blocks[0] == one.blocks[0]
    assert node.match(prompt) == other.blocks[:2]


def test_two_tables_that_computed_the_same_end_with_one_chain_and_the_spare_blocks_are_free() -> None:
    node, prompt = Node(blocks=8), range(16)
    one, other = node.compute(prompt, reuse=False), node.compute(prompt, reuse=False)
    assert node.publish(one, prompt) == node.publish(other, prompt) == 4
    assert one.blocks == other.blocks
    assert (node.pool.used, node.pool.free) == (4, 4)


def test_after_a_storm_free_used_and_cached_make_the_total_and_each_block_has_its_owners() -> None:
    """A9, vllm 42612, dynamo 13398; any order of events is tried by the state machine of this folder."""
    node = Node(blocks=10, size=2)
    one = node.run(range(7))
    two = node.run([*range(4), 9, 9, 9])
    fork, hold, held = one.fork(), two.hold(), list(two.blocks)
    one.release()
    two.release()
    owners = [(block in fork.blocks) + (block in held) for block in range(10)]
    assert [node.pool.references(block) for block in range(10)] == owners
    assert node.pool.used == sum(count > 0 for count in owners) == 6
    fork.release()
    hold.end()
    assert (node.pool.used, node.pool.cached, node.pool.free) == (0, 4, 6)


def test_a_key_survives_its_hit() -> None:
    """A10, ATOM 902: a hit on a block that nobody used lost its key."""
    node, prompt = Node(), range(9)
    node.run(prompt).release()
    blocks = node.match(prompt)
    for _ in range(3):
        table = node.compute(prompt)
        assert node.match(prompt) == table.blocks[:2] == blocks
        table.release()
        assert node.match(prompt) == blocks and node.pool.cached == 2


def test_no_key_is_visible_before_its_block_is_computed() -> None:
    """A10, ATOM 902: room is made for all, but only what the tokens handed in cover is there to be found."""
    node, prompt = Node(), range(13)
    table = node.compute(prompt)
    for computed, visible in ((0, 0), (3, 0), (4, 1), (11, 2), (13, 3)):
        assert node.publish(table, prompt[:computed]) == visible
        assert node.match(prompt) == table.blocks[:visible]


def test_the_key_of_a_block_goes_before_somebody_else_writes_to_it() -> None:
    """A10."""
    node, prompt = Node(blocks=2), range(9)
    node.run(prompt[:8]).release()
    assert len(node.match(prompt)) == 2
    node.pool.allocate(1)
    assert len(node.match(prompt)) == 1
    node.pool.allocate(1)
    assert node.match(prompt) == [] and len(node.cache.index) == 0


def test_what_is_cleared_is_a_miss_and_its_blocks_are_free_when_nobody_uses_them() -> None:
    node, prompt = Node(blocks=6), range(9)
    node.run(prompt).release()
    running = node.compute(prompt)
    node.run([7, 7, 7, 7, 7]).release()
    node.cache.clear()
    assert (node.match(prompt), len(node.cache.index)) == ([], 0)
    assert (node.pool.cached, node.pool.used) == (0, 3)
    running.release()
    assert node.pool.free == 6


def test_a_chain_of_fifty_thousand_blocks_is_forgotten_without_deep_recursion() -> None:
    tokens = np.arange(50_000, dtype=np.uint32)
    node = Node(blocks=50_000, size=1)
    node.run(tokens).release()
    node.evict(20_000)
    assert len(node.match(tokens)) == 30_000
    node.cache.clear()
    assert (node.pool.free, len(node.cache.index)) == (50_000, 0)


def test_two_pools_share_an_index_and_each_finds_its_own_blocks() -> None:
    index, tokens = PrefixIndex(), row(range(9))
    pools = [BlockPool(4), BlockPool(6)]
    caches = [PrefixCache(pool, index, holder) for holder, pool in enumerate(pools)]
    chain = KeyChain(ROOT, 4)
    pools[1].allocate(2)
    tables = [BlockTable(pool, 4) for pool in pools]
    for table, cache, count in zip(tables, caches, (4, 9), strict=True):
        table.extend(count)
        cache.publish(table, chain, tokens[:count], 0)
    assert index.lengths(chain.keys) == {0: 1, 1: 2}
    assert [cache.match(chain, tokens) for cache in caches] == [tables[0].blocks, tables[1].blocks[:2]]
    caches[1].clear()
    assert index.lengths(chain.keys) == {0: 1}
    assert [cache.match(chain, tokens) for cache in caches] == [tables[0].blocks, []]
