"""The exercises of chapter 02: encode a namespace, chain keys, find a prefix, ask many holders, order evictions."""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

from mooncake_edu.course.check import Answer, Exercise, Score, Trial
from mooncake_edu.course.checks import streams
from mooncake_edu.prefix import KeyChain, Namespace, PrefixCache, PrefixIndex, block_keys, sha256

if TYPE_CHECKING:
    import plotly.graph_objects as go

ASKED = 33.0
"""Percent of the blocks that must be found; least recently used finds about a quarter."""

KEY = 32  # bytes of a SHA-256 digest
TOKEN = 8  # bytes a token may take where it is hashed


class Pair(NamedTuple):
    """Two namespaces that differ, as names and values."""

    one: dict[str, str]
    other: dict[str, str]


class Names(NamedTuple):
    """Two names, whose values are chosen by what an answer puts between them."""

    first: str
    second: str

    def __repr__(self) -> str:
        """What a reader is told."""
        return "two namespaces whose values hold what your answer puts between two values"


def pairs() -> Iterator[Pair | Names]:
    """Another value, a value under another name, values that run together, and values that hold a separator."""
    yield Pair({"salt": "a"}, {"salt": "b"})
    yield Pair({"adapter": "a", "salt": "c"}, {"adapter": "b", "salt": "c"})
    yield Pair({"adapter": "X", "salt": ""}, {"adapter": "", "salt": "X"})
    yield Pair({"adapter": "X"}, {"salt": "X"})
    yield Pair({"adapter": "ab", "salt": "c"}, {"adapter": "a", "salt": "bc"})
    yield Pair({"salt": "é"}, {"salt": "è"})
    for between in (",", ";", ":", "=", "|", "/", "-", "_", " ", "\n", "\0"):
        yield Pair({"adapter": f"a{between}b", "salt": "c"}, {"adapter": "a", "salt": f"b{between}c"})
    yield Names("adapter", "salt")


def judge_encoding(answer: Answer, case: Pair | Names) -> Trial:
    """Two namespaces that differ have different bytes, however the values are chosen."""
    if isinstance(case, Names):
        forged = _forged(answer, case)
        return judge_encoding(answer, forged) if forged else Trial()
    for fields in case:
        given = answer(dict(fields))
        if not isinstance(given, bytes):
            return Trial(f"Return bytes, not {given!r}.")
        if given != answer(dict(fields)):
            return Trial(f"The same namespace must give the same bytes each time: {fields}.")
    if case.one != case.other and answer(dict(case.one)) == answer(dict(case.other)):
        return Trial(f"{case.one} and {case.other} both become {answer(dict(case.one))!r}.")
    return Trial()


def _forged(answer: Answer, names: Names) -> Pair | None:
    """Looks at what the answer puts between two values, and writes just that into a value."""
    first, second = names
    whole = answer({first: "<<", second: ">>"})
    start, end = whole.find(b"<<") + 2, whole.find(b">>")
    if not 2 <= start <= end:
        return None
    between = whole[start:end].decode("utf-8", "replace")
    return Pair({first: f"a{between}b", second: "c"}, {first: "a", second: f"b{between}c"})


class Prompt(NamedTuple):
    """The tokens of a prompt, cut into blocks."""

    tokens: tuple[int, ...]
    block_size: int


def prompts() -> Iterator[Prompt]:
    """Too short for a block, exactly one, several, with a rest, with equal blocks, and a long one."""
    for block_size, length in itertools.product((1, 2, 3), range(8)):
        yield Prompt(tuple(range(1, length + 1)), block_size)
    yield Prompt((7, 7, 7, 7, 7, 7), 2)
    yield Prompt((1, 2, 3, 4, 1, 2, 3, 4), 4)
    yield Prompt(tuple(range(40)), 4)


class CountedHash:
    """SHA-256 that counts the bytes it is given."""

    def __init__(self) -> None:
        self.bytes = 0

    def __call__(self, data: bytes) -> bytes:
        self.bytes += len(data)
        return sha256(data)


ROOT = b"a namespace"
NOTHING_TO_HASH = (
    "This prompt has no full block, so nothing needs to be hashed; the root itself need not be either: put it in front "
    "of the first block's tokens."
)


def judge_keys(answer: Answer, case: Prompt) -> Trial:
    """A key for every full block; it depends on its block, on all before it and on the root, and on nothing else."""
    hash_ = CountedHash()
    keys = answer(list(case.tokens), case.block_size, ROOT, hash_)
    operations = {"bytes hashed": hash_.bytes}
    blocks = len(case.tokens) // case.block_size
    if not isinstance(keys, list) or not all(isinstance(key, bytes) for key in keys):
        return Trial(f"Return a list of keys, each of them bytes, not {keys!r}.")
    if len(keys) != blocks:
        return Trial(f"This prompt has {blocks} full blocks, your answer gives {len(keys)} keys.", operations)
    if len(set(keys)) < blocks:
        return Trial("Two blocks of one prompt have the same key, though their prefixes differ.", operations)
    if not blocks and hash_.bytes:
        return Trial(NOTHING_TO_HASH, operations)
    broken = _chain_rule(answer, case, keys)
    most = TOKEN * len(case.tokens) + (KEY + len(ROOT)) * blocks
    if broken is None and hash_.bytes > most:
        broken = (
            f"{hash_.bytes:,} bytes were hashed, {most:,} are more than enough: the key before stands for all tokens "
            "before it, so no token needs to be hashed twice."
        )
    return Trial(broken, operations)


def _chain_rule(answer: Answer, case: Prompt, keys: Sequence[bytes]) -> str | None:
    """The rule that a prompt with one token changed, or another root, shows to be broken."""
    if keys != answer(list(case.tokens), case.block_size, ROOT, sha256):
        return "The same prompt must give the same keys each time."
    other = answer(list(case.tokens), case.block_size, b"another namespace", sha256)
    if any(a == b for a, b in zip(keys, other, strict=True)):
        return "Under another root every key must be another one."
    for place in range(len(case.tokens)):
        changed = answer(list(_changed(case.tokens, place)), case.block_size, ROOT, sha256)
        for block, (before, after) in enumerate(zip(keys, changed, strict=True)):
            reaches = block >= place // case.block_size
            if (before != after) != reaches:
                said = "must have another key" if reaches else "must keep its key"
                return f"When token {place} changes, block {block} {said}."
    return None


def _changed(tokens: Sequence[int], place: int) -> list[int]:
    return [token + 1000 * (number == place) for number, token in enumerate(tokens)]


def draw_keys(answer: Answer, case: Prompt) -> go.Figure:
    """The answer's own keys, of a prompt of four blocks and of the same with one token changed."""
    from mooncake_edu.pictures.prefix import Chain, hash_chain

    tokens, size = list(range(10, 22)), 3

    def version(change: str, tokens: list[int]) -> Chain:
        keys = answer(tokens, size, ROOT, sha256)
        known = [key if isinstance(key, bytes) else b"" for key in keys[:4]] if isinstance(keys, list) else []
        texts = [" ".join(map(str, tokens[at : at + size])) for at in range(0, len(tokens), size)]
        return Chain(change, texts, known + [b""] * (4 - len(known)))

    return hash_chain(
        [version("nothing", tokens)]
        + [version(f"token {place}", _changed(tokens, place)) for place in (0, 4, 11)],
        title="Your keys",
    )  # fmt: skip


class Lookup(NamedTuple):
    """A prompt of `length` tokens, and the numbers of its blocks whose keys are in the cache."""

    length: int
    block_size: int
    cached: tuple[int, ...]


def lookups() -> Iterator[Lookup]:
    """Every short prompt against every set of cached blocks, then some longer ones."""
    for block_size in (1, 2, 3):
        for length in range(1, 3 * block_size + 2):
            blocks = range(length // block_size)
            for count in range(len(blocks) + 1):
                for cached in itertools.combinations(blocks, count):
                    yield Lookup(length, block_size, cached)
    for length, block_size in ((16, 16), (17, 16), (32, 16), (33, 16), (1000, 16), (1024, 512)):
        yield Lookup(length, block_size, tuple(range(length // block_size)))


def judge_lookup(answer: Answer, case: Lookup) -> Trial:
    """Whole blocks from the first on, up to the first that is missing, and at least one token left."""
    keys = block_keys(list(range(case.length)), case.block_size, ROOT)
    got = answer(case.length, case.block_size, list(keys), {keys[number] for number in case.cached})
    run = next((number for number in range(len(keys)) if number not in case.cached), len(keys))
    most = (case.length - 1) // case.block_size
    wanted = min(run, most) * case.block_size
    if isinstance(got, bool) or not isinstance(got, int):
        return Trial(f"Return a whole number of tokens, not {got!r}.")
    if got >= case.length:
        return Trial(f"Of {case.length} tokens {got} are reused: none is left to compute, so there is no next token.")
    if got % case.block_size:
        return Trial(f"{got} tokens are no whole blocks of {case.block_size}.")
    if got > wanted:
        return Trial(f"Block {wanted // case.block_size} is not cached, so {wanted} tokens can be reused, not {got}.")
    if got < wanted:
        return Trial(f"{wanted} tokens can be reused, your answer says {got}.")
    return Trial()


class Held(NamedTuple):
    """Per block of a prompt, the instances that hold it."""

    holders: tuple[tuple[int, ...], ...]


class Fleet(NamedTuple):
    """So many instances that all hold a prompt's first block; a few hold more of its blocks."""

    instances: int
    blocks: int

    @property
    def holders(self) -> tuple[tuple[int, ...], ...]:
        """Per block the instances that hold it: all the first one, instance 3 a half, instance 7 all."""
        half = self.blocks // 2
        return (tuple(range(self.instances)), *((3, 7) if block < half else (7,) for block in range(1, self.blocks)))


class CountedHolders(dict[bytes, set[int]]):
    """Key -> instances that hold it, which counts how often it is asked for a key."""

    asked = 0
    behind: set[bytes]

    def __getitem__(self, key: bytes) -> set[int]:
        self.asked += 1
        return super().__getitem__(key)

    def get(self, key: bytes, default: Any = None) -> Any:
        """As of a dict."""
        self.asked += 1
        return super().get(key, default)

    def __contains__(self, key: object) -> bool:
        self.asked += 1
        return super().__contains__(key)

    def values(self) -> Any:
        """As of a dict; looks at every key."""
        self.asked += len(self)
        return super().values()

    def items(self) -> Any:
        """As of a dict; looks at every key."""
        self.asked += len(self)
        return super().items()


def holdings() -> Iterator[Held | Fleet]:
    """Nobody, one, several with gaps, then many instances."""
    subsets = ((), (0,), (1,), (0, 1))
    for count in range(4):
        yield from (Held(chosen) for chosen in itertools.product(subsets, repeat=count))
    yield Held(((0, 1, 2), (0, 2), (2,), (), (2,)))
    yield Held(((5, 9), (5, 9), (9, 5), (9,)))
    yield from (Fleet(100, 20), Fleet(1000, 200))


def judge_lengths(answer: Answer, case: Held | Fleet) -> Trial:
    """How many blocks from the first on each holder of the first block has, asking for each key once."""
    keys = block_keys(list(range(len(case.holders))), 1, ROOT)
    counted = CountedHolders((key, set(held)) for key, held in zip(keys, case.holders, strict=True) if held)
    before = {key: set(held) for key, held in dict.items(counted)}
    got = answer(list(keys), counted)
    operations = {"times a key was asked for": counted.asked}
    if before != {key: set(held) for key, held in dict.items(counted)}:
        return Trial("The holders were changed: leave what you are given as it is.", operations)
    wanted = _lengths(case.holders)
    if not isinstance(got, Mapping):
        return Trial(f"Return a dictionary, instance -> blocks, not {got!r}.", operations)
    broken = _first_difference(got, wanted)
    most = 2 * len(keys) + 2
    if broken is None and counted.asked > most:
        broken = (
            f"Keys were asked for {counted.asked:,} times, {most} are enough: go through them once, whatever the "
            "number of instances."
        )
    return Trial(broken, operations)


def _lengths(holders: Sequence[Sequence[int]]) -> dict[int, int]:
    def length(instance: int) -> int:
        return next((depth for depth, held in enumerate(holders) if instance not in held), len(holders))

    return {instance: length(instance) for instance in (holders[0] if holders else ())}


def _first_difference(got: Mapping[Any, Any], wanted: dict[int, int]) -> str | None:
    for instance in sorted({*got, *wanted}, key=str):
        if instance not in wanted:
            return f"Instance {instance} does not hold the first block, so it must not be in the answer."
        if got.get(instance) != wanted[instance]:
            said = f"your answer says {got[instance]!r}" if instance in got else "your answer leaves it out"
            return f"Instance {instance} holds {wanted[instance]} blocks from the first on, {said}."
    return None


class Stream(NamedTuple):
    """Prompts as the keys of their blocks, and how many blocks the cache has."""

    prompts: tuple[tuple[int, ...], ...]
    blocks: int


def short_streams() -> Iterator[Stream]:
    """One prompt twice, two that do not both fit, and a part of a practice stream."""
    yield Stream(((1, 2), (1, 2)), 4)
    yield Stream(((1, 2, 3), (4, 5), (1, 2, 3)), 4)
    yield Stream(tuple(tuple(prompt[:6]) for prompt in streams.stream(1, 12)), 8)


def judge_order(answer: Answer, case: Stream) -> Trial:
    """What a block is worth can be compared, and is the same each time it is asked."""
    block = streams.Block(0, 0, 1, 0)
    if answer(block) is None:
        return Trial("Return what the block is worth: a number, or a tuple of numbers.")
    if answer(block) != answer(block):
        return Trial("The same block must be worth the same each time.")
    tally = streams.replay(answer, [list(prompt) for prompt in case.prompts], case.blocks)
    return Trial(operations={"blocks found": tally.found, "evicted": tally.evicted})


def draw_order(answer: Answer, case: Stream) -> go.Figure:
    """Blocks found over the first practice stream: the answer, the naive order, and a cache without end."""
    from mooncake_edu.pictures.prefix import found_over_time

    prompts = streams.stream(streams.PRACTICE[0])
    usable = answer(streams.Block(0, 0, 1, 0)) is not None
    runs = {"yours": streams.replay(answer, prompts)} if usable else {}
    runs |= {
        "least recently used": streams.replay(streams.least_recently_used, prompts),
        "no eviction at all": streams.replay(streams.least_recently_used, prompts, blocks=10**9),
    }
    return found_over_time(
        {name: run.found_by for name, run in runs.items()}, sum(map(len, prompts)),
        title="Found in one of the streams to try; the score is from unseen ones",
    )  # fmt: skip


EXERCISES = (
    Exercise("2.1", "Encode a namespace", pairs, judge_encoding, lambda: (Namespace, Namespace.encode)),
    Exercise("2.2", "Chain keys", prompts, judge_keys, lambda: (block_keys, KeyChain), draw_keys),
    Exercise("2.3", "Find the longest prefix", lookups, judge_lookup, lambda: (PrefixCache,)),
    Exercise("2.4", "Ask a thousand holders", holdings, judge_lengths, lambda: (PrefixIndex, PrefixIndex.lengths)),
    Exercise(
        "2.5", "Whom to evict", short_streams, judge_order, lambda: (streams.least_recently_used,), draw_order,
        Score(lambda answer: streams.found_percent(answer, streams.HELD_OUT), ASKED, "% of the blocks found", True,
              lambda: streams.found_percent(streams.least_recently_used, streams.HELD_OUT)),
    ),
)  # fmt: skip
