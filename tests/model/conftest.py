"""The compiled kernels, for tests of what uses them."""

from __future__ import annotations

import pytest

from mooncake_edu.model import native as module
from mooncake_edu.model.native import Kernels, NotAvailable


@pytest.fixture(scope="session")
def native() -> Kernels:
    """The kernels for 64 channels a head."""
    try:
        return module.load(64)
    except NotAvailable as error:
        pytest.skip(f"no compiled kernels: {error}")


@pytest.fixture(params=["torch", "native"])
def kernels(request: pytest.FixtureRequest) -> Kernels | None:
    """None, then the kernels."""
    return None if request.param == "torch" else request.getfixturevalue("native")
