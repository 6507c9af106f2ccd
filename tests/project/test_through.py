"""`pytest --through N` tests the snapshot that a chapter ends with: nothing of a later layer can be imported."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from mooncake_edu import layers
from tests.through import LAYERS

ROOT = Path(__file__).parents[2]
THERE = [layer for layer in LAYERS if (ROOT / "mooncake_edu" / f"{layer}.py").exists()]

USES_OWN = "def test_own():\n    import mooncake_edu.kvcache\n"
USES_LATER = "def test_later():\n    import mooncake_edu.prefix\n"
STARTS_A_PROCESS = """
import subprocess, sys
def test_child():
    done = subprocess.run([sys.executable, "-c", "import mooncake_edu.prefix"], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
"""
SPAWNS = """
import multiprocessing
def work():
    import mooncake_edu.prefix
def test_spawn():
    child = multiprocessing.get_context("spawn").Process(target=work)
    child.start()
    child.join()
    assert child.exitcode == 0
"""


def run(*arguments: str, cwd: Path = ROOT, limit: float = 240) -> subprocess.CompletedProcess[str]:
    """Run pytest in a process of its own."""
    path = os.pathsep.join([str(ROOT), *filter(None, [os.environ.get("PYTHONPATH")])])
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", *arguments]
    env = os.environ | {"PYTHONPATH": path}
    return subprocess.run(command, cwd=cwd, env=env, capture_output=True, text=True, check=False, timeout=limit)


def snapshot(folder: Path, through: int, **tests: str) -> subprocess.CompletedProcess[str]:
    """Run tests of one's own, each in the folder of its name, as `--through` does the project's."""
    for name, text in tests.items():
        (folder / "tests" / name).mkdir(parents=True)
        (folder / "tests" / name / f"test_{name}.py").write_text(text)
    return run("-p", "tests.through", "--through", str(through), "tests", cwd=folder)


def test_the_layers_are_the_package_s() -> None:
    assert LAYERS == layers.LAYERS


def test_layers_up_to_n_and_the_model_are_tested_and_nothing_else(tmp_path: Path) -> None:
    passes = "def test_it():\n    pass\n"
    done = snapshot(tmp_path, 1, model=passes, kvcache=passes, prefix="1 / 0", engine="1 / 0", course="1 / 0")
    assert done.returncode == 0, done.stdout
    assert "2 passed" in done.stdout


def test_a_later_layer_cannot_be_imported(tmp_path: Path) -> None:
    done = snapshot(tmp_path, 1, kvcache=USES_OWN + USES_LATER)
    assert "1 failed, 1 passed" in done.stdout
    assert "ImportError: mooncake_edu.prefix is a later layer, which `pytest --through` leaves out" in done.stdout


def test_nor_in_processes_that_a_test_starts(tmp_path: Path) -> None:
    done = snapshot(tmp_path, 1, kvcache=STARTS_A_PROCESS + SPAWNS)
    assert "2 failed" in done.stdout and "passed" not in done.stdout
    for name in ("test_child", "test_spawn"):
        told = done.stdout.split(f"_ {name} _", 1)[1].split("\n_____", 1)[0]
        assert "mooncake_edu.prefix is a later layer" in told


def test_a_layer_of_the_snapshot_can_here_and_in_processes(tmp_path: Path) -> None:
    done = snapshot(tmp_path, 2, prefix=USES_LATER + STARTS_A_PROCESS + SPAWNS)
    assert "3 passed" in done.stdout, done.stdout


@pytest.mark.parametrize("through", ["0", "8", "two"])
def test_a_number_that_is_no_chapter_of_a_layer_is_refused(through: str) -> None:
    done = run("--through", through, "--collect-only")
    assert done.returncode == 4
    assert "argument --through" in done.stderr


def test_without_the_option_nothing_is_left_out(tmp_path: Path) -> None:
    (tmp_path / "test_all.py").write_text(USES_OWN + USES_LATER)
    assert run("-p", "tests.through", ".", cwd=tmp_path).returncode == 0


@pytest.mark.slow
@pytest.mark.timeout(2400)
@pytest.mark.parametrize("layer", THERE)
def test_a_layer_s_tests_pass_without_the_layers_after_it(layer: str) -> None:
    """And the model's without those after the first; so a snapshot's tests pass, each with more left out than there.

    All but the slow ones, which the suite runs itself and which would take it over its half hour; `pytest --through N`
    runs those too.
    """
    through = LAYERS.index(layer) + 1
    folders = [f"tests/{layer}", *(["tests/model"] if through == 1 else [])]
    done = run("--through", str(through), "-m", "not slow", *folders, limit=2300)
    assert done.returncode == 0, done.stdout
