"""What the tests of checks share: both ways in which an answer is run."""

from __future__ import annotations

import pytest

from mooncake_edu.course import limits


@pytest.fixture(params=["copy", "thread"])
def either(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    """Answers run in a copy of the process, or in a thread as where systems lack that."""
    if request.param == "thread":
        monkeypatch.setattr(limits.messages, "__defaults__", (limits.STEP_S, False))
    return str(request.param)
