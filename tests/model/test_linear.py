"""A matrix product is the same whichever way it is computed."""

import pytest
import torch

from mooncake_edu.model.linear import PACKED_ROWS, Linear


@pytest.mark.parametrize("bias", [False, True])
@pytest.mark.parametrize("pack", [False, True])
@pytest.mark.parametrize("rows", [1, 2, *PACKED_ROWS[:1], 16, 17, *PACKED_ROWS[-1:], PACKED_ROWS.stop, 200])
def test_any_number_of_rows_gives_the_exact_product(rows: int, pack: bool, bias: bool) -> None:
    random = torch.Generator().manual_seed(rows)
    weight, x = torch.randn(96, 40, generator=random), torch.randn(rows, 40, generator=random)
    add = torch.randn(96, generator=random) if bias else None
    exact = x.double() @ weight.double().T + (add.double() if add is not None else 0)
    with torch.inference_mode():
        assert torch.allclose(Linear(weight, add, pack)(x).double(), exact, atol=1e-4)


def test_rows_that_are_not_side_by_side_in_memory_are_multiplied_all_the_same() -> None:
    weight, wide = torch.randn(64, 24), torch.randn(8, 48)
    with torch.inference_mode():
        for x in (wide[:, :24], wide[:, 24:], torch.randn(24, 8).T):
            assert torch.allclose(Linear(weight)(x), x @ weight.T, atol=1e-4)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float64])
def test_only_wide_float32_weights_get_a_second_copy(dtype: torch.dtype) -> None:
    assert Linear(torch.randn(24, 64))._packed is None
    weight = torch.randn(64, 24, dtype=dtype)
    linear = Linear(weight)
    assert linear._packed is None and linear(torch.randn(8, 24, dtype=dtype)).dtype == dtype
    assert Linear(weight.to("meta")).weight.is_meta


def test_without_the_blocked_layout_the_plain_product_is_used(monkeypatch: pytest.MonkeyPatch) -> None:
    def gone(*_: object) -> None:
        raise RuntimeError("no such operator")

    monkeypatch.setattr(torch.ops.mkldnn, "_reorder_linear_weight", gone)
    weight, x = torch.randn(64, 24), torch.randn(8, 24)
    linear = Linear(weight)
    assert linear._packed is None and torch.equal(linear(x), x @ weight.T)
