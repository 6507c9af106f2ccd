"""What all tests share: which tests this machine cannot run, how Hypothesis searches, and a real model."""

from __future__ import annotations

import functools
import os
import shutil
import signal
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from filelock import FileLock
from hypothesis import settings

from mooncake_edu import layers
from mooncake_edu.model import hub
from mooncake_edu.model.sources import Unavailable
from tests.through import pytest_addoption, pytest_configure, pytest_ignore_collect

__all__ = ["pytest_addoption", "pytest_configure", "pytest_ignore_collect"]

# Shared machines stall at times, which says nothing about the code; a run of CI can be repeated as it was.
settings.register_profile("project", deadline=None, print_blob=True, derandomize="CI" in os.environ)
settings.load_profile("project")


@functools.cache
def has_gpu() -> bool:
    """Whether torch can use a CUDA device."""
    import torch

    return torch.cuda.is_available()


def has_rdma() -> bool:
    """Whether the kernel shows an RDMA device."""
    devices = Path("/sys/class/infiniband")
    return devices.is_dir() and any(devices.iterdir())


NEEDS: dict[str, tuple[Callable[[], bool], str]] = {
    "gpu": (has_gpu, "no CUDA device"),
    "rdma": (has_rdma, "no RDMA device"),
    "slurm": (lambda: shutil.which("sinfo") is not None, "no Slurm"),
    "browser": (lambda: shutil.which("chromium") is not None, "no Chromium"),
}
"""Per mark: whether this machine has what it needs, and the reason of the skip where it has not."""


def pytest_sessionstart() -> None:
    """Refuse in one line to test a reader's own layers that are not there; let tests press Ctrl-C.

    A shell starts what it runs in the background with Ctrl-C ignored, and whatever tests start would inherit that.
    """
    if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
        signal.signal(signal.SIGINT, signal.default_int_handler)
    try:
        layers.replaced()
    except layers.LayerError as error:
        raise pytest.UsageError(str(error)) from None


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Files whose tests may take longest come first, so that of two processes neither is left with one in the end."""
    longest: dict[Path, float] = {}
    for item in items:
        limit = item.get_closest_marker("timeout")
        seconds = (float(limit.args[0]) if limit else 300.0) if item.get_closest_marker("slow") else 0.0
        longest[item.path] = max(seconds, longest.get(item.path, 0.0))
    items.sort(key=lambda item: -longest[item.path])


def pytest_runtest_setup(item: pytest.Item) -> None:
    """Skip a test whose mark names something that this machine lacks."""
    for mark, (present, reason) in NEEDS.items():
        if item.get_closest_marker(mark) and not present():
            pytest.skip(reason)


@pytest.fixture(scope="session")
def smollm2() -> Path:
    """The folder of SmolLM2-135M-Instruct, fetched once into the user's cache."""
    try:
        return hub.fetch("smollm2-135m")
    except Unavailable as error:
        pytest.skip(f"SmolLM2-135M-Instruct cannot be fetched: {error}")


Once = Callable[[str, Callable[[Path], None]], Path]


@pytest.fixture(scope="session")
def once(tmp_path_factory: pytest.TempPathFactory) -> Once:
    """A folder of a name that the first of the session's processes to ask for it fills; the others wait for that."""
    base = tmp_path_factory.getbasetemp()
    shared = base.parent if "PYTEST_XDIST_WORKER" in os.environ else base

    def filled(name: str, fill: Callable[[Path], None]) -> Path:
        folder, done = shared / name, shared / f"{name}.done"
        with FileLock(shared / f"{name}.lock"):
            if not done.exists():
                shutil.rmtree(folder, ignore_errors=True)
                folder.mkdir()
                fill(folder)
                done.touch()
        return folder

    return filled


@pytest.fixture(autouse=True, scope="session")
def _record_of_checks(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """What tests check, here or in processes that they start, is not noted in the user's own record."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("MOONCAKE_EDU_DATA", str(tmp_path_factory.mktemp("data")))
        yield
