"""A skipped test that the list of allowed skips does not name with its reason fails the run."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
Check = Callable[[str], "subprocess.CompletedProcess[str]"]
SCRIPT = ROOT / ".ci" / "check_skips.py"

TESTS = """
import pytest

def test_that_runs():
    assert True

@pytest.mark.skip(reason="no dragon")
@pytest.mark.parametrize("beast", ["red", "green"])
def test_of_dragons(beast):
    assert False

@pytest.mark.xfail(reason="not yet")
def test_of_wishes():
    assert False
"""


@pytest.fixture(scope="module")
def report(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """What pytest reports of those tests."""
    folder = tmp_path_factory.mktemp("beasts")
    (folder / "test_beasts.py").write_text(TESTS)
    pytest_run = ["-m", "pytest", "-q", "-p", "no:cacheprovider", "--rootdir", ".", "--junitxml=report.xml"]
    subprocess.run([sys.executable, *pytest_run], cwd=folder, check=True, capture_output=True)
    return folder / "report.xml"


@pytest.fixture
def check(report: Path, tmp_path: Path) -> Check:
    """Runs the check of that report against a list of those lines."""

    def run(lines: str) -> subprocess.CompletedProcess[str]:
        (tmp_path / "list").write_text(lines)
        command = [sys.executable, str(SCRIPT), str(report), "list"]
        return subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=False)

    return run


def test_skips_and_expected_failures_must_be_named(check: Check) -> None:
    done = check("# nothing\n")
    assert done.returncode == 1
    for name, why in (("test_of_dragons[red]", "no dragon"), ("test_of_dragons[green]", "no dragon")):
        assert f"skipped, but not in list: test_beasts::{name} ({why})" in done.stdout
    assert "test_beasts::test_of_wishes" in done.stdout


def test_a_named_skip_passes(check: Check) -> None:
    done = check("test_beasts::test_of_dragons[*  no dragon  they died out\ntest_b*  not yet  it will come\n")
    assert (done.returncode, done.stdout) == (0, "")


def test_a_skip_for_another_reason_than_the_named_one_does_not(check: Check) -> None:
    done = check("test_beasts::*  no dr  they died out\ntest_beasts::test_of_wishes  never  it is so\n")
    assert (done.returncode, done.stdout) == (1, "skipped, but not in list: test_beasts::test_of_wishes (not yet)\n")


@pytest.mark.parametrize("line", ["test_beasts::*", "test_beasts::*  no dragon"])
def test_a_pattern_without_its_reasons_is_refused(line: str, check: Check) -> None:
    done = check(line)
    assert done.returncode == 1
    assert "'test_beasts::*' lacks a reason" in done.stderr


def test_every_line_of_the_list_has_its_reasons_and_there_are_few() -> None:
    lines = (ROOT / ".ci" / "allowed_skips").read_text(encoding="utf-8").splitlines()
    named = [line for line in lines if not line.startswith("#")]
    assert all(len(line.split("  ")) == 3 for line in named)
    assert len(named) < 20


@pytest.mark.parametrize("file", [".ci/run"])
def test_the_scripts_may_be_executed(file: str) -> None:
    assert (ROOT / file).stat().st_mode & 0o100
