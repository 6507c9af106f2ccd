"""The code passes ruff and mypy, and stays within the project's size."""

from __future__ import annotations

import subprocess
import sys
import tokenize
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PACKAGE = ROOT / "mooncake_edu"
LAYERS = ("kvcache", "prefix", "store", "transfer", "prefill", "conductor", "admission")
MOST_LINES_OF_THE_LAYERS = 2_000
MOST_LINES_OF_THE_SYSTEM = 12_000
"""What serves requests, for real or simulated: what an engineer reads."""
AROUND = ("course", "pictures", "bench", "simulation/experiments")
MOST_LINES_AROUND_IT = 8_000
"""What teaches, draws and measures the system, which grows with each chapter and each figure of the paper."""


def run(*command: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run([sys.executable, "-m", *command], cwd=ROOT, capture_output=True, text=True, check=False)


def test_ruff_finds_nothing() -> None:
    done = run("ruff", "check", "--output-format", "concise")
    assert done.returncode == 0, done.stdout + done.stderr


@pytest.mark.slow
def test_mypy_finds_nothing_in_the_package() -> None:
    done = run("mypy")
    assert done.returncode == 0, done.stdout + done.stderr


def test_mypy_would_find_a_missing_type(tmp_path: Path) -> None:
    (tmp_path / "untyped.py").write_text("def double(value):\n    return value * 2\n")
    config = ROOT / "pyproject.toml"
    done = run("mypy", "--config-file", str(config), "--cache-dir", str(tmp_path), str(tmp_path / "untyped.py"))
    assert done.returncode == 1
    assert "no-untyped-def" in done.stdout


def lines_of_code(path: Path) -> int:
    """Lines that hold code; not empty ones, comments or docstrings."""
    lines: set[int] = set()
    with path.open("rb") as file:
        before = tokenize.NEWLINE
        for token in tokenize.tokenize(file.readline):
            blank = token.type in (tokenize.COMMENT, tokenize.NL, tokenize.ENCODING, tokenize.INDENT, tokenize.DEDENT)
            if blank:
                continue
            alone = token.type == tokenize.STRING and before == tokenize.NEWLINE
            if not alone and token.type not in (tokenize.NEWLINE, tokenize.ENDMARKER):
                lines.update(range(token.start[0], token.end[0] + 1))
            before = token.type
    return len(lines)


def test_code_is_counted_without_comments_and_docstrings(tmp_path: Path) -> None:
    path = tmp_path / "some.py"
    path.write_text('"""Says\nmuch."""\n\n# why\nx = 1  # more\n\ndef f():\n    """More."""\n    return """a\nb"""\n')
    assert lines_of_code(path) == 4


def test_the_layers_the_system_and_what_is_around_it_stay_small() -> None:
    layers = [path for name in LAYERS if (path := PACKAGE / f"{name}.py").exists()]
    around = [path for part in AROUND for path in (PACKAGE / part).rglob("*.py")]
    system = set(PACKAGE.rglob("*.py")) - set(around)
    assert layers and around
    assert sum(map(lines_of_code, layers)) <= MOST_LINES_OF_THE_LAYERS
    assert sum(map(lines_of_code, system)) <= MOST_LINES_OF_THE_SYSTEM
    assert sum(map(lines_of_code, around)) <= MOST_LINES_AROUND_IT
