"""A matrix product is the same whichever way it is computed."""

import pytest
import torch

from mooncake_edu.model.linear import FEW, LONG, Linear, packs
from mooncake_edu.model.native import STRIPE, Kernels


@pytest.mark.parametrize("bias", [False, True])
@pytest.mark.parametrize(
    "shape", [(STRIPE, 40), (3 * STRIPE, 130), (2 * STRIPE, 1), (100, 40), (STRIPE, 64), (3 * STRIPE, 800)]
)
@pytest.mark.parametrize("rows", [1, 2, 6, 7, 16, 17, FEW, FEW + 1, 200])
def test_any_number_of_rows_gives_the_exact_product(
    rows: int, shape: tuple[int, int], bias: bool, kernels: Kernels | None
) -> None:
    random = torch.Generator().manual_seed(rows)
    weight, x = torch.randn(shape, generator=random), torch.randn(rows, shape[1], generator=random)
    add = torch.randn(shape[0], generator=random) if bias else None
    exact = x.double() @ weight.double().T + (add.double() if add is not None else 0)
    with torch.inference_mode():
        assert torch.allclose(Linear(weight, add, kernels)(x).double(), exact, atol=1e-4)


def test_rows_that_are_not_side_by_side_in_memory_are_multiplied_all_the_same(kernels: Kernels | None) -> None:
    weight, wide = torch.randn(STRIPE, 24), torch.randn(8, 48)
    with torch.inference_mode():
        for x in (wide[:, :24], wide[:, 24:], torch.randn(24, 8).T):
            assert torch.allclose(Linear(weight, kernels=kernels)(x), x @ weight.T, atol=1e-4)


def test_a_row_has_the_same_product_bit_for_bit_among_few_or_many_others(native: Kernels) -> None:
    linear, x = Linear(torch.randn(2 * STRIPE, 200), kernels=native), torch.randn(FEW, 200)
    together = linear(x)
    for rows in (1, 2, 5, 6, 7, 13, 63):
        assert torch.equal(linear(x[:rows]), together[:rows])


def test_only_weights_of_whole_stripes_get_a_second_copy(native: Kernels) -> None:
    assert packs(torch.empty(2 * STRIPE, 5)) and not packs(torch.empty(STRIPE + 1, 5))
    assert Linear(torch.randn(STRIPE, 8), kernels=native)._packed.shape == (1, 8, STRIPE)
    for plain in (Linear(torch.randn(STRIPE + 1, 8), kernels=native), Linear(torch.randn(STRIPE, 8))):
        assert plain._packed is plain.weight


def test_a_long_product_is_right_whichever_way_wins(native: Kernels) -> None:
    weight, x = torch.randn(640, 800), torch.randn(300, 800)
    exact = x.double() @ weight.double().T
    linear = Linear(weight, kernels=native)
    assert len(x) * weight.numel() >= LONG
    for _ in range(4):
        assert torch.allclose(linear(x).double(), exact, atol=1e-3)
