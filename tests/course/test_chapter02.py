"""The checks of chapter 02 pass right answers and refuse plausible wrong ones, each for its own reason."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Mapping
from typing import Any, ClassVar

import pytest

from mooncake_edu.course.check import Answer, find, judge
from mooncake_edu.course.checks import streams
from mooncake_edu.course.checks.chapter02 import ASKED
from mooncake_edu.course.checks.streams import Block
from mooncake_edu.course.verdict import PASSED
from mooncake_edu.prefix import PrefixCache, block_keys
from tests.course.wrong_answers import Checks, Wrong

Hash = Callable[[bytes], bytes]
Fields = dict[str, str]
Tokens = list[int]
Keys = list[bytes]
Holders = Mapping[bytes, set[int]]


def encoded(fields: Fields) -> bytes:
    values = {name: value.encode() for name, value in fields.items()}
    return b"".join(b"%s:%d:%s;" % (name.encode(), len(value), value) for name, value in values.items())


def joined(fields: Fields) -> bytes:
    return "".join(fields.values()).encode()


def separated(fields: Fields) -> bytes:
    return "|".join(fields.values()).encode()


def separated_rarely(fields: Fields) -> bytes:
    return "\x1e\x1f".join(f"{name}={value}" for name, value in fields.items()).encode()


def measured_but_unnamed(fields: Fields) -> bytes:
    return "".join(f"{len(value)}:{value}" for value in fields.values() if value).encode()


def as_text(fields: Fields) -> str:
    return json.dumps(fields)


def ascii_only(fields: Fields) -> bytes:
    return b"".join(b"%s:%d:%s;" % (n.encode(), len(v), v.encode("ascii", "ignore")) for n, v in fields.items())


def raw(tokens: Tokens) -> bytes:
    return b"".join(token.to_bytes(4, "little") for token in tokens)


def chained(tokens: Tokens, size: int, root: bytes, hash_: Hash) -> Keys:
    keys, parent = [], root
    for end in range(size, len(tokens) + 1, size):
        parent = hash_(parent + raw(tokens[end - size : end]))
        keys.append(parent)
    return keys


def without_parent(tokens: Tokens, size: int, root: bytes, hash_: Hash) -> Keys:
    return [hash_(root + raw(tokens[end - size : end])) for end in range(size, len(tokens) + 1, size)]


def whole_prefix(tokens: Tokens, size: int, root: bytes, hash_: Hash) -> Keys:
    return [hash_(root + raw(tokens[:end])) for end in range(size, len(tokens) + 1, size)]


def with_rest(tokens: Tokens, size: int, root: bytes, hash_: Hash) -> Keys:
    return chained([*tokens, *[0] * (-len(tokens) % size)], size, root, hash_)


def without_root(tokens: Tokens, size: int, root: bytes, hash_: Hash) -> Keys:
    return chained(tokens, size, b"", hash_)


def with_root_each_time(tokens: Tokens, size: int, root: bytes, hash_: Hash) -> Keys:
    keys: Keys = []
    for end in range(size, len(tokens) + 1, size):
        keys.append(hash_(root + raw(tokens[end - size : end]) + raw(tokens[max(0, end - 2 * size) : end - size])))
    return keys


def with_position(tokens: Tokens, size: int, root: bytes, hash_: Hash) -> Keys:
    return [hash_(root + raw([end, *tokens[end - size : end]])) for end in range(size, len(tokens) + 1, size)]


def as_numbers(tokens: Tokens, size: int, root: bytes, hash_: Hash) -> list[int]:
    return [int.from_bytes(key[:8], "little") for key in chained(tokens, size, root, hash_)]


def off_by_a_block(tokens: Tokens, size: int, root: bytes, hash_: Hash) -> Keys:
    return chained(tokens[: (len(tokens) - 1) // size * size], size, root, hash_)


def longest(length: int, size: int, keys: Keys, cached: set[bytes]) -> int:
    found = 0
    for key in keys[: (length - 1) // size]:
        if key not in cached:
            break
        found += size
    return found


def takes_all(length: int, size: int, keys: Keys, cached: set[bytes]) -> int:
    return next((number for number, key in enumerate(keys) if key not in cached), len(keys)) * size


def leaves_one_token_behind(length: int, size: int, keys: Keys, cached: set[bytes]) -> int:
    return min(takes_all(length, size, keys, cached), length - 1)


def counts_hits(length: int, size: int, keys: Keys, cached: set[bytes]) -> int:
    return sum(key in cached for key in keys[: (length - 1) // size]) * size


def leaves_a_block(length: int, size: int, keys: Keys, cached: set[bytes]) -> int:
    return max(0, min(takes_all(length, size, keys, cached), (len(keys) - 1) * size))


def rounds_twice(length: int, size: int, keys: Keys, cached: set[bytes]) -> int:
    return max(0, (longest(length, size, keys, cached) - 1) // size * size)


def in_blocks(length: int, size: int, keys: Keys, cached: set[bytes]) -> int:
    return longest(length, size, keys, cached) // size


def lengths(keys: Keys, holders: Holders) -> dict[int, int]:
    found: dict[int, int] = {}
    alive = None
    for depth, key in enumerate(keys):
        held = holders.get(key, set())
        alive = set(held) if alive is None else alive & held
        if not alive:
            break
        found.update(dict.fromkeys(alive, depth + 1))
    return found


def one_by_one(keys: Keys, holders: Holders) -> dict[int, int]:
    found = {}
    for instance in holders.get(keys[0], set()) if keys else ():
        depth = 0
        while depth < len(keys) and instance in holders.get(keys[depth], set()):
            depth += 1
        found[instance] = depth
    return found


def with_gaps(keys: Keys, holders: Holders) -> dict[int, int]:
    found: dict[int, int] = {}
    for key in keys:
        for instance in holders.get(key, ()):
            found[instance] = found.get(instance, 0) + 1
    return found


def deepest(keys: Keys, holders: Holders) -> dict[int, int]:
    found: dict[int, int] = {}
    for depth, key in enumerate(keys, 1):
        found.update(dict.fromkeys(holders.get(key, ()), depth))
    return {instance: depth for instance, depth in found.items() if instance in holders.get(keys[0], ())}


def only_the_best(keys: Keys, holders: Holders) -> dict[int, int]:
    found = lengths(keys, holders)
    return {instance: depth for instance, depth in found.items() if depth == max(found.values())}


def spoils_the_holders(keys: Keys, holders: Holders) -> dict[int, int]:
    found: dict[int, int] = {}
    alive = holders.get(keys[0], set()) if keys else set()
    for depth, key in enumerate(keys, 1):
        alive &= holders.get(key, set())
        found.update(dict.fromkeys(alive, depth))
    return found


def recent_if_used_twice(block: Block) -> tuple[bool, int, int]:
    return block.uses > 1, block.last_used, -block.place


def tail_first(block: Block) -> tuple[int, int]:
    return block.last_used, -block.place


def least_often_used(block: Block) -> int:
    return block.uses


def plain_lru(block: Block) -> int:
    return block.last_used


def deepest_first(block: Block) -> int:
    return -block.place


def gives_nothing(block: Block) -> None:
    block.uses + 1


RIGHT: dict[str, Answer] = {
    "2.1": encoded, "2.2": chained, "2.3": longest, "2.4": lengths, "2.5": recent_if_used_twice,
}  # fmt: skip


class TestChapter02(Checks):
    chapter = 2
    right = RIGHT
    wrong: ClassVar = {
        "2.1": (
            Wrong("joins values", joined, "both become"),
            Wrong("separates values", separated, "both become b'X'"),
            Wrong("separates by what nobody types", separated_rarely, "both become"),
            Wrong("names no field", measured_but_unnamed, "both become b'1:X'"),
            Wrong("gives text", as_text, "Return bytes"),
            Wrong("loses letters", ascii_only, "both become", "Pair(one={'salt': 'é'}, other={'salt': 'è'})"),
            Wrong("encodes one field", lambda fields: fields.get("salt", "").encode(), "both become"),
        ),
        "2.2": (
            Wrong("forgets the parent", without_parent, "must have another key", "Prompt(tokens=(1, 2), block_size=1)"),
            Wrong("hashes whole prefixes", whole_prefix, "no token needs to be hashed twice"),
            Wrong("gives the rest a key", with_rest, "1 keys", "Prompt(tokens=(1,), block_size=2)"),
            Wrong("forgets the root", without_root, "Under another root"),
            Wrong("looks one block back", with_root_each_time, "When token 0 changes, block 2"),
            Wrong("hashes the position", with_position, "When token 0 changes, block 1"),
            Wrong("gives numbers", as_numbers, "each of them bytes"),
            Wrong("drops a full last block", off_by_a_block, "gives 0 keys", "Prompt(tokens=(1,), block_size=1)"),
        ),
        "2.3": (
            Wrong("takes all", takes_all, "none is left to compute"),
            Wrong("leaves one token of a block", leaves_one_token_behind, "no whole blocks of 2"),
            Wrong("counts hits behind a gap", counts_hits, "Block 0 is not cached"),
            Wrong("leaves a whole block", leaves_a_block, "your answer says 0"),
            Wrong("rounds twice", rounds_twice, "your answer says 0"),
            Wrong("counts blocks", in_blocks, "no whole blocks of 2"),
        ),
        "2.4": (
            Wrong("asks for each instance", one_by_one, "go through them once",
                  "Fleet(instances=100, blocks=20)"),
            Wrong("counts behind a gap", with_gaps, "must not be in the answer"),
            Wrong("takes the deepest", deepest, "holds 1 blocks"),
            Wrong("only the best", only_the_best, "leaves it out"),
            Wrong("spoils the holders", spoils_the_holders, "leave what you are given"),
        ),
        "2.5": (
            Wrong("least recently used", plain_lru, "not well enough"),
            Wrong("tails first", tail_first, "not well enough"),
            Wrong("least often used", least_often_used, "not well enough"),
            Wrong("deepest first", deepest_first, "not well enough"),
            Wrong("gives nothing", gives_nothing, "Return what the block is worth"),
        ),
    }  # fmt: skip


@pytest.mark.parametrize(
    "answer",
    [
        lambda fields: json.dumps(sorted(fields.items())).encode(),
        lambda fields: repr(sorted(fields.items())).encode(),
        lambda fields: hashlib.sha256(encoded(fields)).digest(),
    ],
    ids=["json", "repr", "digest"],
)
def test_other_encodings_without_collisions_pass(answer: Answer) -> None:
    assert judge(find("2.1"), answer).status == PASSED


def test_keys_of_another_form_pass_as_long_as_they_are_chained() -> None:
    def with_text(tokens: Tokens, size: int, root: bytes, hash_: Hash) -> Keys:
        keys = [root]
        for start in range(0, len(tokens) - size + 1, size):
            keys.append(hash_(keys[-1] + repr(tokens[start : start + size]).encode()))
        return keys[1:]

    assert judge(find("2.2"), with_text).status == PASSED


def test_the_picture_of_keys_is_drawn_from_the_answer() -> None:
    drawn = judge(find("2.2"), without_parent).picture
    assert drawn is not None
    last = {trace.name: [height for height in trace.y if height] for trace in drawn.frames[1].data}
    assert len(last["new key: computed"]) == 1, "without the parent only the changed block has a new key"


def test_the_rule_of_the_longest_prefix_is_that_of_the_package() -> None:
    import numpy as np

    from mooncake_edu.kvcache import BlockPool, BlockTable
    from mooncake_edu.prefix import KeyChain

    tokens = np.arange(12, dtype=np.uint32)
    pool = BlockPool(8)
    cache, table, chain = PrefixCache(pool), BlockTable(pool, 4), KeyChain(b"", 4)
    table.extend(12)
    cache.publish(table, chain, tokens, 0)
    keys = block_keys(tokens, 4, b"")
    for length in range(1, 13):
        found = len(cache.match(KeyChain(b"", 4), tokens[:length]))
        assert longest(length, 4, keys[: length // 4], set(keys)) == 4 * found


def test_the_threshold_lies_between_what_is_naive_and_what_is_good() -> None:
    reached = {order: streams.found_percent(order, streams.HELD_OUT) for order in (plain_lru, tail_first,
               least_often_used, recent_if_used_twice)}  # fmt: skip
    *short, good = reached.values()
    assert max(short) * 1.15 < ASKED < good / 1.1
    assert not set(streams.HELD_OUT) & set(streams.PRACTICE)


def test_without_eviction_everything_that_was_computed_is_found_again() -> None:
    prompts = streams.stream(1, 200)
    tally = streams.replay(plain_lru, prompts, blocks=10**6)
    assert (tally.evicted, tally.found) == (0, tally.blocks - len({key for prompt in prompts for key in prompt}))


def test_a_block_behind_an_evicted_one_is_not_found() -> None:
    heads_first = streams.replay(plain_lru, [[1, 2, 3], [4, 5], [1, 2, 3]], blocks=4)
    tails_first = streams.replay(tail_first, [[1, 2, 3], [4, 5], [1, 2, 3]], blocks=4)
    assert (heads_first.found, tails_first.found) == (0, 2)


def test_a_prompt_larger_than_the_cache_is_refused() -> None:
    with pytest.raises(ValueError, match="3 blocks is more than the cache of 2"):
        streams.replay(plain_lru, [[1, 2, 3]], blocks=2)


def test_an_order_sees_how_often_how_lately_and_before_how_many_blocks_one_was_used() -> None:
    seen: set[Any] = set()
    streams.replay(lambda block: seen.add(block) or block.last_used, [[1, 2], [1, 3], [1, 2]], blocks=9)
    assert {Block(0, 2, 3, 2), Block(1, 2, 2, 0), Block(1, 1, 1, 0)} <= seen
