"""Hot prefixes are copied ahead of demand where their holders are busy sending them, and nothing else is."""

from __future__ import annotations

from dataclasses import replace

from hypothesis import given
from hypothesis import strategies as st

from mooncake_edu.conductor import Copy, Placement, Pool, Query, Spread

QUERY = Query(8192, [b"%d" % number for number in range(16)], 0.0)
PLACED = Placement(1, 9, 4096, 1.0, 1.1, 0.03, source=0, fetched=4096, transfer=0.5)


def pool(cached: list[int], queue: list[float] | None = None, usable: list[bool] | None = None) -> Pool:
    """Instances that hold so many tokens."""
    size = len(cached)
    return Pool(range(size), [1] * size, queue or [0.0] * size, cached, [0] * size, [0] * size, usable or [True] * size)


def asked(spread: Spread, every: float, seconds: float, cached: list[int], times: int = 200) -> list[Copy]:
    """The copies made while a prefix is fetched again and again."""
    queries = [replace(QUERY, arrival=number * every) for number in range(times)]
    found = [spread.copy(query, pool(cached), PLACED, seconds) for query in queries]
    return [each for each in found if each is not None]


def test_a_prefix_that_keeps_its_only_holder_busy_is_copied() -> None:
    copies = asked(Spread(window=60.0, most=0.1), 1.0, 0.5, [4096, 0, 0])
    assert copies and set(copies) == {Copy(0, 2, 4096)}


def test_a_prefix_that_does_not_is_left_to_the_rule_that_whoever_fetches_keeps() -> None:
    assert asked(Spread(window=60.0, most=0.1), 100.0, 0.5, [4096, 0, 0]) == []


def test_with_more_holders_it_takes_more_demand() -> None:
    few, many = (len(asked(Spread(60.0, 0.2), 1.0, 0.5, cached)) for cached in ([4096, 0, 0, 0, 0], [4096] * 4 + [0]))
    assert few > many == 0


def test_where_everybody_has_it_nothing_is_copied() -> None:
    assert asked(Spread(60.0, 0.01), 1.0, 0.5, [4096, 4096, 4096]) == []


def test_the_next_copy_waits_until_the_last_can_be_there() -> None:
    spread = Spread(60.0, 0.0001)
    queries = [replace(QUERY, arrival=number / 8) for number in range(17)]
    copies = [spread.copy(query, pool([4096, 0, 0]), PLACED, 0.5) for query in queries]
    assert [number for number, copy in enumerate(copies) if copy] == [0, 8, 16]  # 0.5 s behind others, 0.5 s of its own


@given(st.lists(st.tuples(st.sampled_from([0, 2048, 4096]), st.floats(0, 9), st.booleans()), min_size=2, max_size=8))
def test_a_copy_goes_to_the_shortest_queue_of_those_usable_that_lack_it(rows: list[tuple[int, float, bool]]) -> None:
    cached, queue, usable = (list(column) for column in zip(*rows, strict=True))
    usable[1] = True
    copy = Spread(60.0, 0.0).copy(QUERY, pool(cached, queue, usable), PLACED, 100.0)
    fit = [place for place, have in enumerate(cached) if usable[place] and have < 4096 and place != PLACED.prefill]
    assert (copy is None) == (not fit)
    assert copy is None or (queue[copy.target] == min(queue[place] for place in fit) and copy.target in fit)


def test_what_is_remembered_is_bounded() -> None:
    spread = Spread(keep=10)
    for number in range(100):
        query = Query(8192, [b"%d" % (1000 * number + block) for block in range(16)], float(number))
        spread.copy(query, pool([4096, 0]), PLACED, 0.1)
    assert len(spread._demand) == 10
