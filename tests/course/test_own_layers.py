"""Layer files in a folder that MOONCAKE_EDU_LAYERS names take the package's place in every process."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from mooncake_edu import doctor, layers
from mooncake_edu.course import weave
from mooncake_edu.course.cells import Chapter, chapters
from mooncake_edu.doctor import Status
from tests.course.shell import Shell, printed, setup

ROOT = Path(__file__).parents[2]
ALLOCATE = printed("    def allocate", "    def _reuse")


def python(folder: Path | str, *arguments: str, cwd: Path = ROOT) -> subprocess.CompletedProcess[str]:
    """Run Python with its layers from a folder."""
    env = os.environ | {"MOONCAKE_EDU_LAYERS": str(folder), "OMP_NUM_THREADS": "1", "PYTHONPATH": str(ROOT)}
    command = [sys.executable, *arguments]
    return subprocess.run(command, cwd=cwd, env=env, capture_output=True, text=True, timeout=200, check=False)


@pytest.fixture(scope="module")
def own(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The layers of a reader who has edited a listing of chapter 1: `allocate` hands out too many blocks."""
    folder = tmp_path_factory.mktemp("own")
    for chapter in chapters(ROOT / "notebooks"):
        for listing in chapter.listings:
            listing.lines = [
                line.replace("for _ in range(count)]", "for _ in range(count + 1)]") for line in listing.lines
            ]
        weave.write_layers([chapter], folder / "layers") if chapter.layer == "kvcache" else None
    assert [path.name for path in (folder / "layers").iterdir()] == ["kvcache.py"]
    return folder / "layers"


WHERE = """
import mooncake_edu.prefix as p, mooncake_edu.kvcache as k, mooncake_edu.engine.recorder as user
print(k.__file__, p.__file__, user.BlockPool is k.BlockPool)
"""


def test_a_layer_comes_from_the_folder_and_those_that_are_not_there_from_the_package(own: Path) -> None:
    done = python(own, "-c", WHERE)
    assert done.stdout == f"{own / 'kvcache.py'} {layers.path('prefix')} True\n", done.stderr


def test_the_folder_counts_from_where_the_process_began(own: Path) -> None:
    done = python("layers", "-c", f"import mooncake_edu, os; os.chdir('/')\n{WHERE}", cwd=own.parent)
    assert done.stdout.startswith(f"{own / 'kvcache.py'} "), done.stderr


def test_nothing_but_layer_files_is_taken_from_the_folder(own: Path, tmp_path: Path) -> None:
    for name in ("kvcache", "errors", "cli"):
        (tmp_path / f"{name}.py").write_bytes((own / "kvcache.py").read_bytes())
    done = python(
        tmp_path, "-c", "import mooncake_edu.kvcache, mooncake_edu.errors as e, mooncake_edu.cli as c; print(e, c)"
    )
    assert str(tmp_path) not in done.stdout and done.returncode == 0


def test_the_tests_of_a_layer_pass_the_package_s_text_and_fail_a_wrong_one(own: Path, tmp_path: Path) -> None:
    kvcache = next(chapter for chapter in chapters(ROOT / "notebooks") if chapter.layer == "kvcache")
    weave.write_layers([kvcache], tmp_path)
    arguments = ("-m", "pytest", "-q", "-p", "no:cacheprovider", "-k", "allocate", "tests/kvcache/test_block_pool.py")
    assert python(tmp_path, *arguments).returncode == 0
    failed = python(own, *arguments)
    assert failed.returncode == 1 and " failed" in failed.stdout


def test_the_demo_runs_the_reader_s_layers(own: Path, tmp_path: Path) -> None:
    (tmp_path / "kvcache.py").write_text(layers.read(layers.path("kvcache")) + "\nprint('my own layer')\n")
    arguments = ("-m", "mooncake_edu", "demo", "--help")
    done = python(tmp_path, "-c", "import mooncake_edu.demo, mooncake_edu.engine.engine")
    assert done.stdout == "my own layer\n", done.stderr
    assert python(tmp_path, *arguments).returncode == 0


@pytest.mark.parametrize("name", ["missing", "empty", "file"])
def test_a_folder_without_layers_is_refused_in_one_line(tmp_path: Path, name: str) -> None:
    (tmp_path / "empty").mkdir()
    (tmp_path / "file").touch()
    for arguments, status in ((("-m", "mooncake_edu", "bench", "hash"), 2), (("-m", "pytest", "tests/kvcache"), 4)):
        done = python(tmp_path / name, *arguments)
        lines = [line for line in (done.stdout + done.stderr).splitlines() if line]
        assert done.returncode == status and len(lines) == 1, lines
        assert f"MOONCAKE_EDU_LAYERS={tmp_path / name} " in lines[0] and "course weave tangle" in lines[0]


def test_the_doctor_says_where_the_layers_come_from(own: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def fact() -> doctor.Fact:
        return next(fact for fact in doctor.examine() if fact.name == "layers")

    monkeypatch.delenv("MOONCAKE_EDU_LAYERS", raising=False)
    assert fact() == doctor.Fact("layers", Status.OK, "the package's own")
    monkeypatch.setenv("MOONCAKE_EDU_LAYERS", str(own))
    assert fact().status is Status.OK and fact().found.startswith(f"kvcache from {own}")
    monkeypatch.setenv("MOONCAKE_EDU_LAYERS", str(own / "nowhere"))
    assert fact().status is Status.MISSING and "unset MOONCAKE_EDU_LAYERS" in fact().remedy


def test_with_own_layers_printed_listings_run_and_edits_are_refused(own: Path) -> None:
    with Shell(MOONCAKE_EDU_LAYERS=str(own)) as shell:
        assert shell.run(setup()).error == ""
        assert shell.run(printed("class PageTensors", "    def block").cell()).error == ""
        ran = shell.run(ALLOCATE.cell())
        assert ran.error == "EditError" and "unset MOONCAKE_EDU_LAYERS" in ran.said and str(own) in ran.said


def test_a_tangled_edit_does_what_the_live_edit_does(own: Path, tmp_path: Path) -> None:
    say = "pool = BlockPool(9); print(len(pool.allocate(2)))"
    with Shell() as shell:
        shell.run(setup())
        shell.run(ALLOCATE.cell("for _ in range(count)]", "for _ in range(count + 1)]"))
        live = shell.run(say).out
    done = python(own, "-c", f"from mooncake_edu.kvcache import BlockPool; {say}")
    assert done.stdout == live == "3\n"


def test_a_chapter_read_again_is_the_same(tmp_path: Path) -> None:
    for path in sorted((ROOT / "notebooks").glob("*.ipynb")):
        chapter = Chapter(path)
        chapter.path = tmp_path / path.name
        chapter.path.touch()
        chapter.write()
        assert chapter.path.read_bytes() == path.read_bytes()
