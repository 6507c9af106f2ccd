"""The exercises of chapter 01, Paged KVCache."""

from __future__ import annotations

import itertools
import random
from collections.abc import Iterator, Sequence
from typing import NamedTuple

import plotly.graph_objects as go
import torch
from torch import Tensor

from mooncake_edu.course.check import Answer, Exercise, Score, Trial
from mooncake_edu.course.checks import crowd, writes
from mooncake_edu.kvcache import BlockLayout, BlockPool, BlockTable, PageTensors
from mooncake_edu.pictures.figures import bar_marker, finish
from mooncake_edu.pictures.palette import COMPUTED, EVICTED, INK, Paint


class Lengths(NamedTuple):
    """Sequences of so many tokens, each in blocks of its own."""

    lengths: tuple[int, ...]
    block_size: int


def lengths() -> Iterator[Lengths]:
    """All of up to two short sequences, then one larger mix."""
    for count, block_size in itertools.product(range(3), (1, 2, 4)):
        for chosen in itertools.product(range(2 * block_size + 2), repeat=count):
            yield Lengths(chosen, block_size)
    yield Lengths(tuple(range(0, 200, 7)), 16)


def judge_waste(answer: Answer, case: Lengths) -> Trial:
    """Each sequence wastes what its last block has left."""
    got = answer(list(case.lengths), case.block_size)
    wanted = sum(-length % case.block_size for length in case.lengths)
    if got != wanted:
        return Trial(f"These sequences leave {wanted} slots of their blocks empty, your answer says {got!r}.")
    return Trial()


class Place(NamedTuple):
    """One token's key of one head in one layer."""

    layout: BlockLayout
    blocks: tuple[int, ...]
    token: int
    layer: int
    head: int


def places() -> Iterator[Place]:
    """Every token, layer and head of small layouts, with tables that do not begin at block 0."""
    layouts = (
        BlockLayout(1, 1, 2, 1, torch.uint8),
        BlockLayout(2, 1, 2, 1, torch.uint8),
        BlockLayout(1, 2, 2, 1, torch.uint8),
        BlockLayout(2, 3, 4, 8, torch.float32),
    )
    for layout, blocks in itertools.product(layouts, ((0,), (2,), (3, 1, 2))):
        tokens = range(len(blocks) * layout.block_size)
        for token, layer, head in itertools.product(tokens, range(layout.layers), range(layout.kv_heads)):
            yield Place(layout, blocks, token, layer, head)


def judge_place(answer: Answer, case: Place) -> Trial:
    """Where the pages themselves have it."""
    layout = case.layout
    pages = PageTensors(torch.empty(layout.nbytes * (max(case.blocks) + 1), dtype=torch.uint8), layout)
    block, slot = case.blocks[case.token // layout.block_size], case.token % layout.block_size
    wanted = pages.tensor[block, case.layer, 0, case.head, slot].storage_offset() * layout.dtype.itemsize
    got = answer(layout, list(case.blocks), case.token, case.layer, case.head)
    if got != wanted:
        return Trial(f"This key begins at byte {wanted} of the memory, your answer says {got!r}.")
    return Trial()


class Gathering(NamedTuple):
    """A sequence of `length` tokens in these blocks."""

    blocks: tuple[int, ...]
    length: int
    block_size: int
    layer: int = 0
    layers: int = 1
    kv_heads: int = 1


def gatherings() -> Iterator[Gathering]:
    """One block, several in any order, a last block that is not full, several layers and heads."""
    for block_size, blocks in itertools.product((1, 2, 4), ((0,), (1,), (0, 1), (2, 0), (3, 1, 2))):
        for length in range((len(blocks) - 1) * block_size + 1, len(blocks) * block_size + 1):
            yield Gathering(blocks, length, block_size)
    yield Gathering((1,), 2, 2, kv_heads=2)
    for layer, kv_heads in itertools.product(range(3), (1, 2)):
        yield Gathering((3, 0, 2), 10, 4, layer, 3, kv_heads)


def _pages(case: Gathering) -> Tensor:
    """Four blocks in which every number occurs once."""
    shape = (4, case.layers, 2, case.kv_heads, case.block_size, 2)
    return torch.arange(torch.Size(shape).numel(), dtype=torch.float32).view(shape)


def _keys(case: Gathering) -> Tensor:
    pages = _pages(case)
    rows = [pages[case.blocks[t // case.block_size], case.layer, 0, :, t % case.block_size] for t in range(case.length)]
    return torch.stack(rows)


def judge_gathering(answer: Answer, case: Gathering) -> Trial:
    """Row t is the key of token t."""
    got, wanted = answer(_pages(case), list(case.blocks), case.length, case.layer), _keys(case)
    if not isinstance(got, Tensor):
        return Trial(f"Return a tensor, not {type(got).__name__}.")
    if got.shape != wanted.shape:
        return Trial(
            f"The keys of {case.length} tokens have the shape {tuple(wanted.shape)}, [tokens, kv_heads, head_dim]; "
            f"yours have {tuple(got.shape)}."
        )
    for token, (mine, right) in enumerate(zip(got, wanted, strict=True)):
        if not torch.equal(mine, right):
            return Trial(f"Row {token} must hold the key of token {token}; yours holds {_found(mine, case)}.")
    return Trial()


def _found(row: Tensor, case: Gathering) -> str:
    for token, right in enumerate(_keys(case)):
        if torch.equal(row, right):
            return f"that of token {token}"
    return "something that is the key of no token of this sequence in this layer"


def draw_gathering(answer: Answer, case: Gathering) -> go.Figure:
    """Which token's key stands in each row of the answer."""
    got, wanted = answer(_pages(case), list(case.blocks), case.length, case.layer), _keys(case)
    rows = list(got[: len(wanted)]) if isinstance(got, Tensor) and got.dim() == 3 else []
    same = [[token for token, right in enumerate(wanted) if torch.equal(row, right)] for row in rows]
    texts = [str(tokens[0]) if tokens else "?" for tokens in same] + ["–"] * (len(wanted) - len(rows))
    right = [text == str(token) for token, text in enumerate(texts)]
    figure = go.Figure()
    for paint, good in ((COMPUTED._replace(label="right"), True), (EVICTED._replace(label="wrong"), False)):
        chosen = [token for token, fine in enumerate(right) if fine is good]
        figure.add_bar(
            x=chosen, y=[1] * len(chosen), name=paint.label, marker=bar_marker(paint), width=0.92,
            text=[texts[token] for token in chosen], textposition="inside", insidetextanchor="middle", textangle=0,
            insidetextfont={"color": "white", "size": 14}, hoverinfo="skip",
        )  # fmt: skip
    figure.update_xaxes(title="row of your answer; in it, the token whose key it holds", dtick=1)
    figure.update_yaxes(visible=False).update_layout(height=210, barmode="overlay")
    return finish(figure, "What you gathered", f"{sum(right)} of {len(right)} rows hold the key of their token.")


class Releases(NamedTuple):
    """Tables that are released one after another, head first; `waiting` are the blocks in the queue before."""

    tables: tuple[tuple[int, ...], ...]
    waiting: tuple[int, ...] = ()


def releases() -> Iterator[Releases]:
    """One table, several, and some that share their first blocks."""
    yield from (Releases((tuple(range(count)),)) for count in range(4))
    yield Releases(((1, 2),), (0,))
    yield Releases(((0, 1), (2, 3)))
    for shared, own in itertools.product((1, 2), (0, 1, 2)):
        head = tuple(range(shared))
        yield Releases((head + tuple(range(9, 9 - own, -1)), (*head, 5, 4)), (6,))
    yield Releases(((4, 0, 3), (4, 0, 1), (4, 2)), (6, 5))


def judge_release(answer: Answer, case: Releases) -> Trial:
    """Counts go down; what nobody refers to is queued behind the rest, tails before heads."""
    references = [sum(block in table for table in case.tables) for block in range(10)]
    queue = list(case.waiting)
    for table in case.tables:
        before, wanted = list(queue), [count - (block in table) for block, count in enumerate(references)]
        answer(list(table), references, queue)
        if references != wanted:
            return Trial(f"After releasing {list(table)}, blocks 0 to 9 have references {wanted}, not {references}.")
        broken = _queue_rule(table, before, queue, references)
        if broken:
            return Trial(f"After releasing {list(table)}: {broken}")
    return Trial()


def _queue_rule(table: Sequence[int], before: list[int], queue: list[int], references: list[int]) -> str | None:
    """The rule that a queue breaks after `table` was released."""
    free = [block for block in table if references[block] == 0]
    for block in queue:
        if references[block]:
            return f"block {block} is queued, but a table still refers to it."
    if sorted(queue) != sorted([*before, *free]):
        return f"the queue is {queue}, and must hold {before} and {free}, each block once."
    if queue[: len(before)] != before:
        return f"blocks {before} waited before and must stay in front, the queue is {queue}."
    if queue[len(before) :] != free[::-1]:
        return f"the queue is {queue}: a head is reused before its tail, so a prompt finds nothing of what is left."
    return None


def draw_policy(answer: Answer, case: crowd.Load) -> go.Figure:
    """The held-out loads one by one, the answer beside the naive choice."""
    figure = go.Figure()
    names = [f"load {number}" for number in range(1, len(crowd.HELD_OUT) + 1)]
    totals, sound = {}, judge_policy(answer, case).broken is None
    series: tuple[tuple[Paint, crowd.Choose], ...] = (
        (EVICTED._replace(label="youngest first"), crowd.youngest), (COMPUTED._replace(label="yours"), answer),
    )  # fmt: skip
    for paint, choose in series:
        if choose is answer and not sound:
            continue
        values = [crowd.play(choose, crowd.load(seed)).again for seed in crowd.HELD_OUT]
        totals[paint.label] = sum(values) / len(values)
        figure.add_bar(x=names, y=values, name=paint.label, marker=bar_marker(paint))
    figure.add_scatter(
        x=names, y=[ASKED] * len(names), mode="lines", name="asked, on average", line={"dash": "dot", "color": INK}
    )
    figure.update_yaxes(title="tokens computed again").update_layout(height=340, barmode="group")
    said = ", ".join(f"{name} {total:,.0f}" for name, total in totals.items())
    return finish(figure, "Tokens computed again on loads you have not seen", f"On average: {said}.")


def loads() -> Iterator[crowd.Load]:
    """One request alone, two that cannot both stay, and a mixed load on a small memory."""
    yield crowd.Load(((3, 2),), 2, 4)
    yield crowd.Load(((4, 6), (4, 6)), 3, 4)
    source = random.Random(7)
    mixed = tuple((source.randint(1, 30), source.randint(1, 30)) for _ in range(20))
    yield crowd.Load(mixed, 16, 4)


def judge_policy(answer: Answer, case: crowd.Load) -> Trial:
    """Names a member of the batch, and lets every load come to an end."""
    try:
        tally = crowd.play(answer, case)
    except crowd.Endless:
        return Trial("The load is never done: the same requests are sent back over and over.")
    except ValueError as error:
        return Trial(f"{error}.")
    return Trial(operations={"requests sent back": tally.sent_back, "tokens computed again": tally.again})


ASKED = 1_900.0
"""Tokens computed again that are good enough; sending back the youngest costs about half as much again."""

EXERCISES = (
    Exercise("1.1", "Count what is wasted", lengths, judge_waste, lambda: ()),
    Exercise("1.2", "Find a key in memory", places, judge_place, lambda: (BlockLayout.runs, PageTensors)),
    Exercise("1.3", "Gather a sequence", gatherings, judge_gathering, lambda: (PageTensors,), draw_gathering),
    Exercise("1.4", "Give blocks back in the right order", releases, judge_release, lambda: (BlockPool,)),
    Exercise("1.5", "Copy on write", writes.cases, writes.judge, lambda: (BlockTable, BlockPool), writes.draw),
    Exercise(
        "1.6", "Whom to send back", loads, judge_policy, lambda: (crowd.youngest,), draw_policy,
        Score(lambda answer: crowd.again(answer, crowd.HELD_OUT), ASKED,
              "tokens computed again, on average over unseen loads", False,
              lambda: crowd.again(crowd.youngest, crowd.HELD_OUT)),
    ),
)  # fmt: skip
