"""The published traces where this machine has them, else traces made for the test."""

from __future__ import annotations

import pytest

from mooncake_edu.traces.places import find
from mooncake_edu.traces.trace import Trace, read


def published(name: str) -> Trace:
    """A published trace; the test is skipped where it is not on this machine."""
    path = find(name)
    if path is None:
        pytest.skip(f"trace {name} is not on this machine")
    return read(path)
