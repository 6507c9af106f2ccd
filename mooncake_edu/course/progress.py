"""The record of checks: one JSON line each, in the user's data folder."""

from __future__ import annotations

from typing import Any

from mooncake_edu.course.verdict import Verdict


def note(verdict: Verdict, answer: Any) -> None:
    """Add a verdict to the record."""
