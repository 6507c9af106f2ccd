"""Exercise 1.5: forked sequences write on, and each must go on reading its own tokens."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from dataclasses import replace
from typing import NamedTuple

import plotly.graph_objects as go

from mooncake_edu.course.check import Answer, Trial
from mooncake_edu.pictures.sharing import Scene, sharing

BLOCKS = 12


class Writes(NamedTuple):
    """A sequence of `length` tokens is forked into one for each letter; then they write, one token each time."""

    block_size: int
    length: int
    order: str

    def __repr__(self) -> str:
        *others, last = self.names
        forked = f", forked into {', '.join(others)} and {last}" if others else ""
        tokens = f"{self.length} token" + "s" * (self.length != 1)
        order = ", ".join(self.order)
        return f"A has {tokens} in blocks of {self.block_size}{forked}; then a token is written by {order}"

    @property
    def names(self) -> list[str]:
        """The sequences after the fork."""
        return sorted(set(self.order) | {"A"})


class Memory:
    """Plain lists, as the answer gets them, and what each slot holds."""

    def __init__(self, case: Writes) -> None:
        self.size, self.case = case.block_size, case
        count = -(-case.length // case.block_size)
        self.tables = {name: list(range(count)) for name in case.names}
        self.texts = {name: [str(token) for token in range(case.length)] for name in case.names}
        self.references = [len(case.names)] * count + [0] * (BLOCKS - count)
        self.free = list(range(count, BLOCKS))
        self.slots = {(t // self.size, t % self.size): str(t) for t in range(case.length)}

    def write(self, answer: Answer, name: str) -> tuple[tuple[int, int], ...]:
        """One token of sequence `name`; returns the copy that the answer asked for, if any.

        Raises ValueError, saying what is missing, if there is no place to write to.
        """
        table, text = self.tables[name], self.texts[name]
        copy = answer(table, len(text), self.size, self.references, self.free)
        if copy is not None and not (isinstance(copy, tuple) and len(copy) == 2):
            raise ValueError(f"return None, or the pair (from, to) of the blocks to copy, not {copy!r}")
        if len(table) != len(text) // self.size + 1:
            raise ValueError(f"{len(text) + 1} tokens need {len(text) // self.size + 1} blocks, the table is {table}")
        copies = () if copy is None else (copy,)
        for (source, target), slot in itertools.product(copies, range(self.size)):
            if (source, slot) in self.slots:
                self.slots[target, slot] = self.slots[source, slot]
        text.append(f"{name}{len(text)}")
        self.slots[table[-1], (len(text) - 1) % self.size] = text[-1]
        return copies

    def reads(self, name: str) -> list[str | None]:
        """What a sequence finds where its table says that its tokens are."""
        table = self.tables[name]
        return [self.slots.get((table[t // self.size], t % self.size)) for t in range(len(self.texts[name]))]

    def scene(self, what: str, copies: tuple[tuple[int, int], ...] = ()) -> Scene:
        """The first two sequences, to be drawn; what they read, not what they wrote."""
        names = self.case.names[:2]
        return Scene(
            what,
            {name: tuple(self.tables[name]) for name in names},
            {name: tuple(text or "?" for text in self.reads(name)) for name in names},
            tuple(self.references),
            copies,
        )


def cases() -> Iterator[Writes]:
    """A sequence alone, then two that write in every order, then three."""
    for order in ("A", "AA", "AB", "BA", "AAB", "ABB", "CBA", "ABCABC", "ABAB"):
        for block_size, length in itertools.product((1, 2, 3), (1, 2, 3)):
            yield Writes(block_size, length, order)
    yield Writes(4, 6, "BAABB")


def judge(answer: Answer, case: Writes) -> Trial:
    """Everybody reads their own tokens, counts are right, and nothing is copied without need."""
    memory, copied = Memory(case), 0
    for number, name in enumerate(case.order, 1):
        when = f"Write {number}, by {name}: "
        last = memory.tables[name][-1]
        shared = len(memory.texts[name]) % case.block_size != 0 and memory.references[last] > 1
        try:
            copies = memory.write(answer, name)
        except ValueError as error:
            return Trial(f"{when}{error}.")
        copied += len(copies)
        broken = _copy_rule(memory, copies, last, shared) or _count_rule(memory) or _read_rule(memory)
        if broken:
            return Trial(when + broken)
    return Trial(operations={"blocks copied": copied, "blocks taken": BLOCKS - len(memory.free)})


def _copy_rule(memory: Memory, copies: tuple[tuple[int, int], ...], last: int, shared: bool) -> str | None:
    if shared and not copies:
        return f"block {last} is not full and others refer to it, so it must be copied before it is written."
    if copies and not shared:
        return f"block {copies[0][0]} was copied without need."
    if copies and copies[0][0] != last:
        return f"the copy must be made from block {last}, not from block {copies[0][0]}."
    return None


def _count_rule(memory: Memory) -> str | None:
    wanted = [sum(block in table for table in memory.tables.values()) for block in range(BLOCKS)]
    for block, (count, right) in enumerate(zip(memory.references, wanted, strict=True)):
        if count != right:
            return f"references[{block}] is {count}, and must be {right}, the number of tables that hold block {block}."
    if sorted(memory.free) != [block for block in range(BLOCKS) if wanted[block] == 0]:
        return f"the free blocks are those that no table refers to; `free` is {memory.free}."
    return None


def _read_rule(memory: Memory) -> str | None:
    for name, texts in memory.texts.items():
        for token, (mine, found) in enumerate(zip(texts, memory.reads(name), strict=True)):
            if mine != found:
                return f"{name} reads {found!r} where its token {token} must be {mine!r}."
    return None


def draw(answer: Answer, case: Writes) -> go.Figure:
    """What the first two sequences refer to and read, after each write that the answer prepared."""
    memory = Memory(case)
    scenes = [memory.scene("after the fork")]
    for name in case.order:
        try:
            scenes.append(memory.scene(f"{name} writes", memory.write(answer, name)))
        except ValueError:  # the verdict says what is missing
            break
    names = [*memory.case.names, ""][:2]  # beside a sequence alone there is nobody
    shown = 2 + max(block for each in scenes for table in each.blocks.values() for block in table)
    scenes = [replace(each, references=each.references[:shown]) for each in scenes]
    wrong = _read_rule(memory) or _count_rule(memory) or ""
    return sharing(scenes, (names[0], names[1]), case.block_size, wrong)
