"""Fetching: from the cache, from a hub that fails in every way, whole or not at all, and by one process at a time."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from mooncake_edu.errors import ModelError
from mooncake_edu.model import hub
from mooncake_edu.model.config import TINY
from mooncake_edu.model.parallel import whole
from mooncake_edu.model.sources import Unavailable
from mooncake_edu.model.weights import random_weights, save_weights
from tests.model.fake_hub import COMMIT, FakeHub, serving

REPO = "someone/small"
CONFIG = replace(TINY, layers=2)
ROOT = Path(__file__).parents[2]
WEIGHTS = "model.safetensors"


@pytest.fixture(scope="module")
def small(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The files of a small model whose vocabulary is that of bytes, among files that are never wanted."""
    folder = tmp_path_factory.mktemp("repo") / "small"
    save_weights(folder, CONFIG, random_weights(CONFIG, whole(2)))
    for unwanted in ("pytorch_model.bin", "modeling.py", "original/params.json", "consolidated.safetensors"):
        (folder / unwanted).parent.mkdir(exist_ok=True)
        (folder / unwanted).write_bytes(b"never wanted")
    return folder


@pytest.fixture
def repo(small: Path, tmp_path: Path) -> Path:
    """A copy of the model for one test to spoil."""
    return Path(shutil.copytree(small, tmp_path / "repo"))


@pytest.fixture
def server(repo: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[FakeHub]:
    with serving(FakeHub({REPO: repo})) as fake:
        monkeypatch.setenv("HF_ENDPOINT", fake.url)
        monkeypatch.setenv("MOONCAKE_EDU_CACHE", str(tmp_path / "cache"))
        monkeypatch.setenv("HF_HOME", str(tmp_path / "hf"))
        monkeypatch.delenv("HF_HUB_OFFLINE", raising=False)
        yield fake


def left() -> list[str]:
    """What is in the cache, lock files apart."""
    folder = hub.models_folder()
    return sorted(path.name for path in folder.iterdir() if path.suffix != ".lock") if folder.is_dir() else []


Start = Callable[[], "subprocess.Popen[str]"]


@pytest.fixture
def start(server: FakeHub) -> Iterator[Start]:
    """Starts the command line fetching the model, as a process of its own that ends with the test at the latest."""
    started: list[subprocess.Popen[str]] = []

    def run() -> subprocess.Popen[str]:
        command = [sys.executable, "-m", "mooncake_edu", "models", "fetch", REPO]
        pipe = subprocess.PIPE
        started.append(subprocess.Popen(command, cwd=ROOT, stdout=pipe, stderr=pipe, text=True))
        return started[-1]

    yield run
    for process in started:
        process.kill()
        process.communicate(timeout=30)


def wait_for_download(server: FakeHub, deadline_s: float = 200.0) -> None:
    end = time.monotonic() + deadline_s
    while not any(name == WEIGHTS for name, _ in server.downloads):
        assert time.monotonic() < end, "the download never began"
        time.sleep(0.02)
    time.sleep(0.3)  # some bytes on the disk


def test_a_model_is_fetched_from_the_hub_with_only_the_files_that_are_used(server: FakeHub, repo: Path) -> None:
    steps: list[tuple[str, int, int]] = []
    folder = hub.fetch(REPO, lambda *step: steps.append(step))
    assert folder == hub.path(REPO) and left() == ["someone--small"]
    assert sorted(path.name for path in folder.iterdir()) == ["config.json", "model.safetensors", "mooncake_edu.json"]
    assert (folder / WEIGHTS).read_bytes() == (repo / WEIGHTS).read_bytes()
    assert hub.revision(folder) == COMMIT
    size = sum((repo / name).stat().st_size for name in ("config.json", WEIGHTS))
    assert (f"downloading {REPO}", 0, size) in steps


def test_what_is_in_the_cache_is_not_asked_for_again_unless_that_is_wanted(server: FakeHub) -> None:
    folder = hub.fetch(REPO)
    before = len(server.downloads)
    assert hub.fetch(REPO) == folder and len(server.downloads) == before
    (folder / WEIGHTS).write_bytes(b"spoilt")
    assert hub.fetch(REPO, again=True) == folder and (folder / WEIGHTS).stat().st_size > 1000
    assert left() == ["someone--small"]


def test_a_connection_that_breaks_is_taken_up_where_it_broke(
    server: FakeHub, repo: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("huggingface_hub.constants.DOWNLOAD_CHUNK_SIZE", 50_000)  # what is kept of a broken connection
    server.breaks[WEIGHTS] = [100_000, 200_000]
    folder = hub.fetch(REPO)
    assert (folder / WEIGHTS).read_bytes() == (repo / WEIGHTS).read_bytes()
    starts = [first for name, first in server.downloads if name == WEIGHTS]
    assert starts == [0, 100_000, 300_000]


def break_off(server: FakeHub, after: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """A fetch that gets the first bytes of the weights, and then nothing more however often it asks."""
    monkeypatch.setattr("huggingface_hub.constants.DOWNLOAD_CHUNK_SIZE", 1000)
    server.breaks[WEIGHTS] = [after] + [0] * 50
    with pytest.raises(Unavailable, match=r"cannot be fetched now: the Hugging Face hub does not answer") as refusal:
        hub.fetch(REPO)
    assert "\n" not in str(refusal.value)
    server.breaks.clear()
    server.downloads.clear()


def test_a_download_that_keeps_breaking_is_one_line_and_the_next_goes_on_where_it_ended(
    server: FakeHub, repo: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    break_off(server, 100_000, monkeypatch)
    with pytest.raises(ModelError, match="is not in"):
        hub.path(REPO)
    folder = hub.fetch(REPO)
    assert server.downloads == [(WEIGHTS, 100_000)]  # and no configuration again
    assert (folder / WEIGHTS).read_bytes() == (repo / WEIGHTS).read_bytes() and left() == ["someone--small"]


def test_a_hub_that_sends_files_only_whole_starts_over(
    server: FakeHub, repo: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    break_off(server, 100_000, monkeypatch)
    server.ranges = False
    assert (hub.fetch(REPO) / WEIGHTS).read_bytes() == (repo / WEIGHTS).read_bytes()
    assert server.downloads == [(WEIGHTS, 0)]


def test_what_is_left_of_another_commit_is_not_gone_on_from(
    server: FakeHub, repo: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    break_off(server, 100_000, monkeypatch)
    server.commit = "d" * 40
    assert (hub.fetch(REPO) / WEIGHTS).read_bytes() == (repo / WEIGHTS).read_bytes()
    assert server.downloads == [("config.json", 0), (WEIGHTS, 0)] and left() == ["someone--small"]


def test_bytes_that_are_not_what_the_hub_says_never_become_a_model_and_are_fetched_anew(
    server: FakeHub, repo: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    break_off(server, 100_000, monkeypatch)
    (part,) = hub.models_folder().rglob(f"{WEIGHTS}.part")
    part.write_bytes(b"x" * part.stat().st_size)
    with pytest.raises(Unavailable, match=r"safetensors came with sha256 [0-9a-f]{64}, the hub says [0-9a-f]{64}"):
        hub.fetch(REPO)
    server.downloads.clear()
    assert (hub.fetch(REPO) / WEIGHTS).read_bytes() == (repo / WEIGHTS).read_bytes()
    assert server.downloads == [(WEIGHTS, 0)]


@pytest.mark.parametrize(("status", "reason"), [(403, "is gated: accept its licence"), (500, "does not answer")])
def test_a_hub_that_refuses_is_one_line_and_leaves_nothing(server: FakeHub, status: int, reason: str) -> None:
    server.status = status
    with pytest.raises(Unavailable, match=reason) as refusal:
        hub.fetch(REPO)
    assert "\n" not in str(refusal.value) and left() == []


def test_a_repository_that_is_not_there_is_one_line(server: FakeHub) -> None:
    with pytest.raises(Unavailable, match="the hub has no someone/else"):
        hub.fetch("someone/else")


def test_a_hub_that_cannot_be_reached_is_given_up_within_seconds(
    server: FakeHub, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HF_ENDPOINT", "http://127.0.0.1:9")  # nothing listens there
    begin = time.monotonic()
    with pytest.raises(Unavailable, match="does not answer"):
        hub.fetch(REPO)
    assert time.monotonic() - begin < 10 and left() == []


def test_an_unsupported_model_is_refused_before_its_weights_are_fetched(server: FakeHub, repo: Path) -> None:
    (repo / "config.json").write_text('{"model_type": "mamba"}')
    with pytest.raises(ModelError, match="model_type 'mamba' is not supported"):
        hub.fetch(REPO)
    assert [name for name, _ in server.downloads] == ["config.json"] and left() == []


def test_a_repository_with_pickled_weights_alone_is_refused(server: FakeHub, repo: Path) -> None:
    (repo / WEIGHTS).unlink()
    with pytest.raises(ModelError, match=r"no safetensors but pytorch_model.bin: use a model with safetensors"):
        hub.fetch(REPO)
    assert server.downloads == [] and left() == []


def test_weights_that_do_not_fit_the_configuration_never_reach_the_cache(server: FakeHub, repo: Path) -> None:
    changed = CONFIG.to_dict() | {"intermediate_size": 512}
    (repo / "config.json").write_text(json.dumps(changed))
    with pytest.raises(ModelError, match=r"has shape .* config.json says"):
        hub.fetch(REPO)
    assert left() == []


def test_too_little_free_space_is_seen_before_anything_is_fetched(
    server: FakeHub, monkeypatch: pytest.MonkeyPatch
) -> None:
    usage = shutil.disk_usage(".")
    monkeypatch.setattr(shutil, "disk_usage", lambda path: usage._replace(free=1_000_000))
    with pytest.raises(ModelError, match=r"MB are needed in .*, 1 MB are free: free space, or set MOONCAKE_EDU_CACHE"):
        hub.fetch(REPO)
    assert server.downloads == [] and left() == []


@pytest.mark.slow
def test_a_disk_that_fills_up_is_one_line_with_status_2_and_leaves_nothing(server: FakeHub) -> None:
    """A limit on the size of files fails a write as a full disk does, and needs no right to mount one."""
    code = "import resource, runpy; resource.setrlimit(resource.RLIMIT_FSIZE, (500_000, 500_000)); "
    code += "runpy.run_module('mooncake_edu', run_name='__main__')"
    command = [sys.executable, "-c", code, "models", "fetch", REPO]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=250)
    assert done.returncode == 2 and done.stderr.splitlines()[-1].startswith("mooncake-edu: ")
    assert "cannot be written (File too large): free space" in done.stderr and "Traceback" not in done.stderr
    assert left() == []


def test_a_cache_that_cannot_be_written_is_one_line(
    server: FakeHub, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "file").write_text("in the way")
    monkeypatch.setenv("MOONCAKE_EDU_CACHE", str(tmp_path / "file" / "cache"))
    with pytest.raises(ModelError, match=r"cannot be written .*: set MOONCAKE_EDU_CACHE to a folder that can"):
        hub.fetch(REPO)


@pytest.mark.slow
@pytest.mark.parametrize("how", [signal.SIGINT, signal.SIGKILL], ids=lambda how: how.name)
def test_a_fetch_that_is_ended_is_no_model_and_its_leftovers_go_with_the_next(
    server: FakeHub, start: Start, how: signal.Signals
) -> None:
    server.delay = 0.5
    process = start()
    wait_for_download(server)
    process.send_signal(how)
    _, errors = process.communicate(timeout=200)
    assert process.returncode == (130 if how is signal.SIGINT else -how) and "Traceback" not in errors
    assert ".someone--small.download" in left() and "someone--small" not in left()
    with pytest.raises(ModelError, match="is not in"):
        hub.path(REPO)
    server.delay = 0.0
    hub.fetch(REPO)
    assert left() == ["someone--small"]


@pytest.mark.slow
def test_of_two_that_fetch_at_once_the_second_waits_and_uses_what_the_first_brought(
    server: FakeHub, start: Start
) -> None:
    server.delay = 0.05
    processes = [start(), start()]
    outcomes = [process.communicate(timeout=250) for process in processes]
    assert [process.returncode for process in processes] == [0, 0]
    assert {folder.strip() for folder, _ in outcomes} == {str(hub.path(REPO))}
    assert [name for name, _ in server.downloads].count(WEIGHTS) == 1
    assert left() == ["someone--small"]


@pytest.mark.slow
def test_waiting_for_another_process_has_a_limit(server: FakeHub, start: Start) -> None:
    server.delay = 0.5
    start()
    wait_for_download(server)
    with pytest.raises(ModelError, match=r"another process has been fetching someone--small for 0.2 s"):
        hub.fetch(REPO, lock_timeout=0.2)


def test_names_are_found_in_any_case_and_by_repository() -> None:
    entry = hub.CATALOGUE["smollm2-135m"]
    for name in ("smollm2-135m", "SmolLM2-135M", "SmolLM2-135M-Instruct", "HuggingFaceTB/SmolLM2-135M-Instruct"):
        assert hub.find(name) is entry
    assert hub.find("org/Model-1.5").repo == "org/Model-1.5"


@pytest.mark.parametrize("name", ["", "tinny", "../etc", "a/b/c", "a/..", "/etc/passwd", "a b", "org/", "a/b\n"])
def test_names_that_name_nothing_are_refused_with_the_remedy(name: str) -> None:
    with pytest.raises(ModelError, match=r"is unknown: (did you mean 'tiny'|see `mooncake-edu models list`)"):
        hub.find(name)


def test_models_with_random_weights_need_no_files() -> None:
    with pytest.raises(ModelError, match="model tiny has no files: its random weights are made when it is used"):
        hub.path("tiny")
    assert hub.fetch_or_tiny("llama-70b", print) == "llama-70b"


def test_where_no_source_has_the_model_tiny_is_used_and_that_is_said(
    server: FakeHub, monkeypatch: pytest.MonkeyPatch
) -> None:
    server.status = 500
    said: list[str] = []
    assert hub.fetch_or_tiny("qwen3-0.6b", said.append) == "tiny"
    assert len(said) == 1 and "\n" not in said[0]
    assert said[0].startswith("Using `tiny` instead") and "qwen3-0.6b cannot be fetched now" in said[0]


def test_a_fault_of_the_machine_is_never_answered_with_tiny(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "file").write_text("in the way")
    monkeypatch.setenv("MOONCAKE_EDU_CACHE", str(tmp_path / "file"))
    with pytest.raises(ModelError, match="cannot be written"):
        hub.fetch_or_tiny("smollm2-135m", print)


def test_the_revision_of_a_plain_folder_changes_with_any_byte_of_its_weights(repo: Path) -> None:
    before = hub.revision(repo)
    assert before == hub.revision(repo)
    content = bytearray((repo / WEIGHTS).read_bytes())
    content[-1] ^= 1
    (repo / WEIGHTS).write_bytes(content)
    assert hub.revision(repo) != before


def command(*words: str, **environment: str) -> subprocess.CompletedProcess[str]:
    line = [sys.executable, "-m", "mooncake_edu", "models", *words]
    return subprocess.run(line, cwd=ROOT, env=os.environ | environment, capture_output=True, text=True, timeout=250)


@pytest.mark.slow
def test_the_commands_list_fetch_and_find(server: FakeHub) -> None:
    fetched = command("fetch", REPO)
    assert fetched.returncode == 0 and fetched.stdout.strip() == str(hub.path(REPO))
    assert command("path", REPO).stdout == fetched.stdout
    listed = command("list", COLUMNS="200").stdout
    assert all(name in listed for name in [*hub.CATALOGUE, REPO, str(hub.models_folder())])
    assert "needs no files" in command("fetch", "tiny").stdout
    refused = command("path", "smollm2-135m")
    assert refused.returncode == 2 and refused.stderr.count("\n") == 1 and "models fetch smollm2-135m" in refused.stderr
