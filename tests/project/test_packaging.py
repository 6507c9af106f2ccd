"""What pyproject.toml, constraints.txt, README and Makefile say agrees."""

from __future__ import annotations

import os
import re
import subprocess
import tomllib
from pathlib import Path

import pytest

from mooncake_edu import doctor

ROOT = Path(__file__).parents[2]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
README = (ROOT / "README.md").read_text(encoding="utf-8")
MAKEFILE = (ROOT / "Makefile").read_text(encoding="utf-8")
EXTRAS: dict[str, list[str]] = PROJECT["optional-dependencies"]


def name_of(requirement: str) -> str:
    """The normalised name of a requirement."""
    match = re.match(r"[A-Za-z0-9._-]+", requirement)
    assert match
    return re.sub(r"[-_.]+", "-", match.group()).lower()


def pins() -> dict[str, str]:
    """Name and version of every line of the constraints."""
    lines = (ROOT / "constraints.txt").read_text(encoding="utf-8").splitlines()
    exact = [line for line in lines if line and not line.startswith("#")]
    assert all(re.fullmatch(r"[a-z0-9-]+==[0-9][0-9a-z.]*", line) for line in exact)
    pairs = [line.split("==") for line in exact]
    assert len({name for name, _ in pairs}) == len(pairs)
    return dict(pairs)


def test_every_direct_requirement_is_pinned_but_pyverbs() -> None:
    # pyverbs has to match the machine's rdma-core, not the project.
    direct = {name_of(line) for line in sum(EXTRAS.values(), PROJECT["dependencies"])} - {"mooncake-edu", "pyverbs"}
    assert direct <= pins().keys()


def test_nothing_that_breaks_the_cpu_build_of_torch_is_asked_for() -> None:
    asked = {name_of(line) for line in sum(EXTRAS.values(), PROJECT["dependencies"])}
    assert not {"torchvision", "torchaudio", "torchcodec"} & (asked | pins().keys())
    assert "torch" in pins()


def test_the_extra_that_must_be_built_for_the_machine_is_in_no_other() -> None:
    others = [line for name, lines in EXTRAS.items() if name != "rdma" for line in lines]
    assert not any("rdma" in line or name_of(line) == "pyverbs" for line in others)


def test_the_doctor_knows_every_extra_and_what_it_brings() -> None:
    assert doctor.EXTRAS.keys() == EXTRAS.keys() - {"all"}
    for extra, modules in doctor.EXTRAS.items():
        named = {name_of(line) for line in EXTRAS[extra]} - {"mooncake-edu"}
        imported = {"xdist": "pytest-xdist"}  # the others are imported under their name
        assert {imported.get(module, module.replace("_", "-")) for module in modules} == named


def test_the_declared_pythons_are_the_doctor_s_and_the_makefile_s() -> None:
    low, high = doctor.PYTHONS
    assert PROJECT["requires-python"] == f">={low[0]}.{low[1]},<{high[0]}.{high[1] + 1}"
    assert MAKEFILE.count(f"{low} <= sys.version_info[:2] <= {high}") == 2


def test_the_readme_s_commands_are_targets_of_the_makefile() -> None:
    targets = set(re.findall(r"^([a-z-]+):", MAKEFILE, re.MULTILINE))
    named = set(re.findall(r"`make ([a-z-]+)", README)) | set(re.findall(r"^make ([a-z-]+)", README, re.MULTILINE))
    assert {"demo", "test", "lab"} <= named <= targets


def test_the_readme_names_only_commands_that_there_are() -> None:
    from mooncake_edu.cli import COMMANDS

    named = set(re.findall(r"`mooncake-edu ([a-z]+)", README))
    assert named
    assert named <= {command.name for command in COMMANDS}


def test_the_readme_s_map_names_only_what_there_is() -> None:
    """Lines of the map name a file or folder of the repository; what comes later stands elsewhere."""
    tree = README.split("```text\n", 1)[1].split("```", 1)[0].splitlines()
    places = [line.split()[0] for line in tree]
    assert len(places) > 10
    folder = ROOT
    for line, place in zip(tree, places, strict=True):
        folder = ROOT if not line.startswith(" ") else folder
        assert (folder / place).exists(), f"{place} is in the map, but not in the repository"
        if not line.startswith(" ") and place.endswith("/"):
            folder = ROOT / place


def test_ci_runs_the_readme_s_test_command() -> None:
    script = (ROOT / ".ci" / "run").read_text(encoding="utf-8")
    assert "\nmake test " in script
    assert "make test" in README


@pytest.mark.parametrize("python", ["python2.7-of-another-world", "false"])
def test_make_refuses_a_python_that_is_none_in_one_line(tmp_path: Path, python: str) -> None:
    done = make(tmp_path, "setup", f"PYTHON={python}")
    assert done.returncode == 2
    said = [line for line in done.stderr.splitlines() if not line.startswith("make: ***")]
    assert said == [f"make: {python} is no Python 3.11, 3.12 or 3.13: name one with PYTHON=..."]


def test_a_failed_installation_leaves_no_stamp(tmp_path: Path) -> None:
    for name in ("pyproject.toml", "constraints.txt"):
        (tmp_path / name).write_text("this is no such file")
    done = make(tmp_path, "setup")
    assert done.returncode == 2
    assert (tmp_path / ".venv" / "bin" / "python").exists()
    assert not list((tmp_path / ".venv").glob(".ready*"))


def test_make_without_a_target_lists_every_target(tmp_path: Path) -> None:
    listed = make(tmp_path).stdout
    for target in re.findall(r"^\.PHONY: (.*)$", MAKEFILE, re.MULTILINE)[0].split():
        assert f"make {target} " in listed


def make(folder: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    """Run the Makefile in a folder of its own."""
    for name in ("pyproject.toml", "constraints.txt", "Makefile"):
        if not (folder / name).exists():
            (folder / name).write_bytes((ROOT / name).read_bytes())
    command = ["make", "--no-print-directory", *arguments]
    outer = ("MAKELEVEL", "MAKEFLAGS", "MFLAGS")  # set where `make test` runs these tests: they change what make says
    env = {name: value for name, value in os.environ.items() if name not in outer}
    return subprocess.run(command, cwd=folder, env=env, capture_output=True, text=True, check=False)
