"""`pytest --through N`: a chapter's snapshot, the tests of the model and of layers 1 to N, without what comes later.

Whatever imports a later layer fails, in this process and in those that tests start.
"""

from __future__ import annotations

import importlib.abc
import os
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path
from types import ModuleType

import pytest

LAYERS = ("kvcache", "prefix", "store", "transfer", "prefill", "conductor", "admission")
VARIABLE = "MOONCAKE_EDU_TESTS_WITHOUT"
"""Names the refused modules to processes that tests start."""

CHILD = """import os, runpy, sys
refuser = runpy.run_path({file!r})["Refuser"]
sys.meta_path.insert(0, refuser(os.environ[{variable!r}].split()))
"""


class Refuser(importlib.abc.MetaPathFinder):
    """Refuses to import the modules named."""

    def __init__(self, names: Sequence[str]) -> None:
        self.names = frozenset(names)

    def find_spec(self, name: str, path: object = None, target: ModuleType | None = None) -> None:
        """Raise ImportError for a refused module; leave the others to the finders after this one."""
        if name in self.names:
            raise ImportError(f"{name} is a later layer, which `pytest --through` leaves out")


def pytest_addoption(parser: pytest.Parser) -> None:
    """The option itself."""
    parser.addoption(
        "--through", type=int, choices=range(1, len(LAYERS) + 1), metavar="N",
        help="only test the model and layers 1 to N, with later layers un-importable",
    )  # fmt: skip


def pytest_configure(config: pytest.Config) -> None:
    """Refuse later layers here, and by a sitecustomize module in processes to come."""
    through = config.getoption("--through")
    if through is None:
        return
    later = [f"mooncake_edu.{layer}" for layer in LAYERS[through:]]
    loaded = sorted(set(later) & sys.modules.keys())
    if loaded:
        raise pytest.UsageError(f"{', '.join(loaded)} is imported already: nothing that --through loads may need it")
    folder = tempfile.TemporaryDirectory(prefix="through-")
    config.add_cleanup(folder.cleanup)
    Path(folder.name, "sitecustomize.py").write_text(CHILD.format(file=__file__, variable=VARIABLE))
    os.environ[VARIABLE] = " ".join(later)
    os.environ["PYTHONPATH"] = os.pathsep.join([folder.name, *filter(None, [os.environ.get("PYTHONPATH")])])
    sys.meta_path.insert(0, Refuser(later))


def pytest_ignore_collect(collection_path: Path, config: pytest.Config) -> bool | None:
    """Leave out, by the name of its folder, what belongs to no layer of the snapshot."""
    through = config.getoption("--through")
    if through is None or collection_path.is_dir():
        return None
    wanted = {"model", *LAYERS[:through]}
    return None if collection_path.parent.name in wanted else True
