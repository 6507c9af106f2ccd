"""What a chapter needs: the magics that run its listings, the check of its exercises, and the size to run at.

A chapter's set-up cell says `%load_ext mooncake_edu.course` and `%chapter LAYER DIGEST VERSION`.
"""

from __future__ import annotations

import os
from typing import Any

from mooncake_edu.course.check import check
from mooncake_edu.errors import UserError

__all__ = ["check", "load_ipython_extension", "size"]

SIZES = ("tiny", "cpu", "gpu")
"""The sizes that chapters run at; the fourth, `cluster`, is for what runs outside notebooks."""


class SizeError(UserError):
    """The environment asks for a size that chapters do not have."""


def size() -> str:
    """The size that the environment variable MOONCAKE_EDU_SIZE asks for, `tiny` if it does not; else SizeError."""
    wanted = os.environ.get("MOONCAKE_EDU_SIZE") or "tiny"
    if wanted not in SIZES:
        raise SizeError(f"MOONCAKE_EDU_SIZE is {wanted!r}: set it to {', '.join(SIZES[:-1])} or {SIZES[-1]}")
    return wanted


def load_ipython_extension(shell: Any) -> None:
    """Make `%chapter` and `%%layer` known to an IPython shell, as `%load_ext` asks."""
    from mooncake_edu.course.magic import Magics

    shell.register_magics(Magics(shell))
