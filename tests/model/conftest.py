"""What the tests of models share: the real model, fetched once into the user's cache."""

from __future__ import annotations

from pathlib import Path

import pytest

from mooncake_edu.model import hub
from mooncake_edu.model.sources import Unavailable


@pytest.fixture(scope="session")
def smollm2() -> Path:
    """The folder of SmolLM2-135M-Instruct."""
    try:
        return hub.fetch("smollm2-135m")
    except Unavailable as error:
        pytest.skip(f"SmolLM2-135M-Instruct cannot be fetched: {error}")
