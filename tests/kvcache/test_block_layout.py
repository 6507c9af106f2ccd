"""A block's bytes have one layout, and its shards (layer range, head range) are runs that tile it."""

from __future__ import annotations

from itertools import pairwise

import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from mooncake_edu.kvcache import BlockLayout, PageTensors
from mooncake_edu.model.parallel import Cut

unhurried = settings(deadline=None, suppress_health_check=[HealthCheck.too_slow])  # the machine may be busy

DTYPES = (torch.float32, torch.bfloat16, torch.float8_e4m3fn)


@st.composite
def layouts(draw: st.DrawFn) -> BlockLayout:
    small = st.integers(1, 6)
    heads = draw(st.sampled_from([1, 2, 3, 4, 6, 8]))
    return BlockLayout(draw(small), heads, draw(small), draw(small), draw(st.sampled_from(DTYPES)))


@st.composite
def cuts(draw: st.DrawFn, layout: BlockLayout) -> list[Cut]:
    """Every worker of a pipeline, cut at any layers, whose stages each have any tensor-parallel size of their own."""
    borders = draw(st.sets(st.integers(1, layout.layers - 1))) if layout.layers > 1 else set()
    edges = [0, *sorted(borders), layout.layers]
    workers = []
    for start, stop in pairwise(edges):
        size = draw(st.sampled_from([n for n in range(1, layout.kv_heads + 1) if layout.kv_heads % n == 0]))
        workers += [Cut(range(start, stop), layout.layers, rank, size) for rank in range(size)]
    return workers


def shard_runs(layout: BlockLayout, cut: Cut) -> list[range]:
    return layout.runs(cut.layers, cut.share("KV heads", layout.kv_heads))


@unhurried
@given(st.data())
def test_shards_of_any_pipeline_and_tensor_parallel_cut_cover_a_block_exactly_once(data: st.DataObject) -> None:
    layout = data.draw(layouts())
    touched = [0] * layout.nbytes
    for cut in data.draw(cuts(layout)):
        for run in shard_runs(layout, cut):
            for byte in run:
                touched[byte] += 1
    assert touched == [1] * layout.nbytes


@unhurried
@given(st.data())
def test_the_runs_of_a_shard_are_the_bytes_of_its_layers_and_heads(data: st.DataObject) -> None:
    layout = data.draw(layouts())
    pages = PageTensors(torch.randint(0, 256, (2 * layout.nbytes,), dtype=torch.uint8), layout)
    for cut in data.draw(cuts(layout)):
        heads = cut.share("KV heads", layout.kv_heads)
        shard = torch.cat([pages.block(1)[run.start : run.stop] for run in shard_runs(layout, cut)])
        expected = pages.tensor[1, cut.layers.start : cut.layers.stop, :, heads.start : heads.stop]
        assert torch.equal(shard, expected.contiguous().view(torch.uint8).flatten())


@unhurried
@given(st.data())
def test_shards_written_by_one_cut_are_read_back_by_any_other(data: st.DataObject) -> None:
    """A6: workers of another tensor-parallel size find their heads in what was written, never a neighbour's."""
    layout = data.draw(layouts())
    written = torch.randint(0, 256, (layout.nbytes,), dtype=torch.uint8)
    stored = torch.zeros(layout.nbytes, dtype=torch.uint8)
    for cut in data.draw(cuts(layout)):
        for run in shard_runs(layout, cut):
            stored[run.start : run.stop] = written[run.start : run.stop]
    page = PageTensors(stored, layout).tensor[0]
    original = PageTensors(written, layout).tensor[0]
    for cut in data.draw(cuts(layout)):
        heads = cut.share("KV heads", layout.kv_heads)
        got, want = (part[cut.layers.start : cut.layers.stop, :, heads.start : heads.stop] for part in (page, original))
        assert torch.equal(got.contiguous().view(torch.uint8), want.contiguous().view(torch.uint8))


def test_a_layer_is_one_run_and_a_share_of_heads_is_one_for_its_keys_and_one_for_its_values() -> None:
    layout = BlockLayout(layers=3, kv_heads=4, block_size=2, head_dim=5, dtype=torch.float16)
    assert layout.head_nbytes == 2 * 5 * 2
    assert layout.layer_nbytes == 2 * 4 * layout.head_nbytes
    assert layout.nbytes == 3 * layout.layer_nbytes
    assert layout.runs(range(1, 2), range(4)) == [range(layout.layer_nbytes, 2 * layout.layer_nbytes)]
    assert layout.runs(range(3), range(4)) == [range(layout.nbytes)]
    start, head = 2 * layout.layer_nbytes, layout.head_nbytes
    assert layout.runs(range(2, 3), range(1, 3)) == [
        range(start + head, start + 3 * head),
        range(start + 5 * head, start + 7 * head),
    ]


def test_a_block_of_512_tokens_of_the_70b_model_has_the_papers_160_mib() -> None:
    """FAST table 1: 320 KiB a token in bfloat16."""
    assert BlockLayout(80, 8, 512, 128, torch.bfloat16).nbytes == 160 * 2**20
    assert BlockLayout(80, 8, 1, 128, torch.bfloat16).nbytes == 327_680


@pytest.mark.parametrize("part", [range(0), range(2, 1), range(5), range(-1, 2), range(0, 4, 2), range(4, 5)])
def test_a_shard_that_is_empty_or_reaches_outside_the_block_is_refused(part: range) -> None:
    layout = BlockLayout(layers=4, kv_heads=4, block_size=1, head_dim=1)
    with pytest.raises(ValueError, match="layers"):
        layout.runs(part, range(4))
    with pytest.raises(ValueError, match="heads"):
        layout.runs(range(4), part)
