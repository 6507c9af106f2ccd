"""Hot prefixes are copied ahead of demand where their holders are busy sending them, and nothing else is."""

from __future__ import annotations

from dataclasses import replace

from hypothesis import given
from hypothesis import strategies as st

from mooncake_edu.conductor import Copy, Placement, Pool, Query, Spread


class Costs:
    """Only fetching takes time."""

    def prefill(self, prompt: int, prefix: int = 0) -> float:
        """Nothing."""
        return 0.0

    def decode_step(self, batch: int, context: int) -> float:
        """Nothing."""
        return 0.0

    def fetch(self, tokens: int) -> float:
        """A second for two blocks."""
        return tokens / 1024


COSTS = Costs()
QUERY = Query(8192, [b"%d" % number for number in range(16)], 0.0)
PLACED = Placement(1, 9, 4096, 1.0, 1.1, 0.03, source=0, fetched=4096, transfer=4.0)


def pool(
    cached: list[int], queue: list[float] | None = None, usable: list[bool] | None = None,
    sending: list[float] | None = None,
) -> Pool:  # fmt: skip
    """Instances that hold so many tokens."""
    size = len(cached)
    return Pool(range(size), [1] * size, queue or [0.0] * size, cached, [0] * size, [0] * size,
                usable or [True] * size, sending or [0.0] * size)  # fmt: skip


def asked(spread: Spread, every: float, cached: list[int], times: int = 100) -> list[Copy]:
    """The copies made while a prefix of 4 seconds is lacking again and again at instance 1."""
    queries = [replace(QUERY, arrival=number * every) for number in range(times)]
    return [copy for query in queries if (copy := spread.copy(query, pool(cached), PLACED, COSTS)) is not None]


def test_a_prefix_that_keeps_its_only_holder_busy_is_copied() -> None:
    copies = asked(Spread(window=60.0, most=0.5), 5.0, [4096, 0, 0])
    assert copies and set(copies) == {Copy(0, 2, 4096)}


def test_a_prefix_that_does_not_is_left_to_the_rule_that_whoever_fetches_keeps() -> None:
    assert asked(Spread(window=60.0, most=0.5), 100.0, [4096, 0, 0]) == []


def test_with_more_holders_it_takes_more_demand() -> None:
    few, many = (asked(Spread(60.0, 0.5), 5.0, cached) for cached in ([4096, 0, 0, 0], [4096, 0, 4096, 4096]))
    assert few and not many


def test_where_everybody_has_it_nothing_is_copied() -> None:
    assert asked(Spread(60.0, 0.0), 1.0, [4096, 4096, 4096]) == []


def test_a_wish_counts_even_if_the_network_was_too_busy_to_fetch() -> None:
    local = PLACED._replace(source=None, fetched=0, transfer=0.0, cached=0)
    spread = Spread(60.0, 0.0)
    assert spread.copy(QUERY, pool([4096, 0, 0]), local, COSTS) is None  # one request is no demand
    assert spread.copy(QUERY, pool([4096, 0, 0]), local, COSTS) == Copy(0, 2, 4096)


def test_what_is_copied_is_what_all_had_in_common() -> None:
    spread = Spread(60.0, 0.0)
    spread.copy(QUERY, pool([2048, 0, 0]), PLACED, COSTS)
    assert spread.copy(QUERY, pool([8192, 0, 0]), PLACED, COSTS) == Copy(0, 2, 2048)


def test_the_next_copy_waits_until_the_last_can_be_there() -> None:
    spread, busy = Spread(60.0, 0.0), pool([4096, 0, 0], sending=[4.0, 0.0, 0.0])
    queries = [replace(QUERY, arrival=float(number)) for number in range(17)]
    copies = [spread.copy(query, busy, PLACED, COSTS) for query in queries]
    assert [number for number, copy in enumerate(copies) if copy] == [1, 9]  # 4 s behind others, 4 s of its own


rows = st.lists(
    st.tuples(st.sampled_from([0, 2048, 4096]), st.floats(0, 9), st.booleans(), st.floats(0, 9)), min_size=2, max_size=8
)


@given(rows)
def test_a_copy_goes_from_the_idlest_holder_to_the_shortest_queue_of_those_usable_that_lack_it(
    drawn: list[tuple[int, float, bool, float]],
) -> None:
    cached, queue, usable, sending = (list(column) for column in zip(*drawn, strict=True))
    cached[0], cached[1], usable[1] = 4096, 0, True
    spread, now = Spread(60.0, 0.0), pool(cached, queue, usable, sending)
    spread.copy(QUERY, now, PLACED, COSTS)
    copy = spread.copy(QUERY, now, PLACED, COSTS)
    fit = [place for place, have in enumerate(cached) if usable[place] and have < 4096 and place != 1]
    assert (copy is None) == (not fit)
    if copy is not None:
        assert copy.target in fit and queue[copy.target] == min(queue[place] for place in fit)
        assert cached[copy.source] == 4096
        assert sending[copy.source] == min(sending[place] for place, have in enumerate(cached) if have == 4096)


def test_what_is_remembered_is_bounded() -> None:
    spread = Spread(keep=10)
    for number in range(100):
        query = Query(8192, [b"%d" % (1000 * number + block) for block in range(16)], float(number))
        spread.copy(query, pool([4096, 0]), PLACED, COSTS)
    assert len(spread._demand) == 10
