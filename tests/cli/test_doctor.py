"""The doctor tells one fact a line, and the command that mends what is missing."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest

from mooncake_edu import doctor
from mooncake_edu.doctor import Status
from mooncake_edu.model import native
from mooncake_edu.model.config import SMOLLM2_135M
from tests.cli.conftest import Run


def test_a_machine_that_runs_the_tests_is_healthy(run: Run) -> None:
    ended = run("doctor")
    assert ended.status == 0
    lines = ended.out.splitlines()
    assert all(line.split()[0] in ("OK", "optional") for line in lines)
    assert len(lines) == len(doctor.examine())


def test_json_holds_the_same_facts(run: Run) -> None:
    ended = run("doctor", "--json")
    told = json.loads(ended.out)
    assert told["healthy"] is True
    assert [fact["name"] for fact in told["facts"]] == [fact.name for fact in doctor.examine()]
    assert {"python", "torch", "transformers", "model cache", "memory", "disk", "extra test"} <= {
        fact["name"] for fact in told["facts"] if fact["status"] == "OK" or fact["name"] == "model cache"
    }


def test_a_cache_folder_that_cannot_be_written_is_missing_and_exits_with_1(
    run: Run, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    (tmp_path / "file").touch()
    monkeypatch.setenv("MOONCAKE_EDU_CACHE", str(tmp_path / "file" / "cache"))
    ended = run("doctor")
    assert ended.status == 1
    line = next(line for line in ended.out.splitlines() if "model cache" in line)
    assert line.startswith("missing")
    assert str(tmp_path / "file" / "cache") in line
    assert "export MOONCAKE_EDU_CACHE=" in line


def test_looking_at_a_cache_folder_does_not_make_it(
    run: Run, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("MOONCAKE_EDU_CACHE", str(tmp_path / "cache"))
    assert run("doctor").status == 0
    assert not any(tmp_path.iterdir())


def test_the_models_in_the_cache_are_named(run: Run, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    (tmp_path / "models" / "some-model").mkdir(parents=True)
    (tmp_path / "models" / "some-model" / "config.json").write_text("{}")
    monkeypatch.setenv("MOONCAKE_EDU_CACHE", str(tmp_path))
    assert f"{tmp_path / 'models'}: some-model" in run("doctor").out


@pytest.mark.parametrize(
    ("version", "status"), [((3, 10), "missing"), ((3, 11), "OK"), ((3, 13), "OK"), ((3, 14), "missing")]
)
def test_a_python_outside_the_declared_ones_is_missing(
    monkeypatch: pytest.MonkeyPatch, version: tuple[int, int], status: str
) -> None:
    monkeypatch.setattr(doctor.sys, "version_info", (*version, 0))
    fact = next(fact for fact in doctor.examine() if fact.name == "python")
    assert fact.status == status
    assert bool(fact.remedy) == (status == "missing")


def test_idle_room_is_told_in_tokens_of_kvcache_and_too_little_is_missing() -> None:
    shape = SMOLLM2_135M
    assert 2 * shape.layers * shape.kv_heads * shape.head_dim * 4 == doctor.KVCACHE_TOKEN_BYTES  # float32
    enough = doctor.room("memory", 1000 * doctor.KVCACHE_TOKEN_BYTES, 1, "end other programs")
    assert enough.status is Status.OK
    assert " 1,000 tokens" in enough.found
    little = doctor.room("memory", 2**30, 2 * 2**30, "end other programs")
    assert (little.status, little.remedy) == (Status.MISSING, "end other programs: 2 GiB are needed")


def test_an_absent_extra_is_optional_with_the_command_that_installs_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(doctor.EXTRAS, "book", ("sphinx_of_another_world",))
    fact = doctor.extra("book")
    assert fact.status is Status.OPTIONAL
    assert "sphinx_of_another_world" in fact.found
    assert fact.remedy == "pip install -c constraints.txt -e '.[book]'"


@pytest.mark.parametrize(
    ("does", "found", "remedy"),
    [
        ("echo 'kernels.c: line 3: what is this' >&2; exit 1", "failed: kernels.c: line 3: what is this", "export CC="),
        ("off", f"switched off by {native.SWITCH}=0", f"unset {native.SWITCH}"),
        ("", f"no C compiler on {sys.platform}", "on Linux, install gcc"),
    ],
    ids=["failing", "switched off", "absent"],
)
def test_kernels_that_are_missing_are_told_with_the_reason_and_apart_from_it_the_remedy(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, does: str, found: str, remedy: str
) -> None:
    native._load.cache_clear()
    compiler = tmp_path / "compiler"
    if does == "off":
        monkeypatch.setenv(native.SWITCH, "0")
    elif does:
        compiler.write_text(f"#!/bin/sh\n{does}\n")
        compiler.chmod(0o755)
    else:
        monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.setenv("CC", str(compiler))
    monkeypatch.setenv("MOONCAKE_EDU_CACHE", str(tmp_path / "cache"))
    fact = next(fact for fact in doctor.examine() if fact.name == "kernels")
    native._load.cache_clear()
    assert fact.status is Status.OPTIONAL
    assert fact.found.endswith(found)
    assert fact.remedy.startswith(remedy) and "kernels.c" not in fact.remedy
