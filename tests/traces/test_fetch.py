"""Fetching traces: whole or not at all, resumed, checked, and one clear line where there is no network."""

from __future__ import annotations

import hashlib
import json
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from mooncake_edu.model.downloads import Unavailable
from mooncake_edu.traces import fetch as module
from mooncake_edu.traces import places
from mooncake_edu.traces.fetch import STEP, fetch
from mooncake_edu.traces.trace import TraceError, read
from tests.cli.conftest import Run
from tests.model.fake_hub import FakeHub, serving

REPO = "kvcache-ai/Mooncake"
ROWS = 20_000
FILE = "conversation_trace.jsonl"


@pytest.fixture
def source(tmp_path: Path) -> Path:
    """The published files of another world, of many rows each."""
    folder = tmp_path / "repo"
    for entry in places.PUBLISHED.values():
        path = folder / entry.path
        path.parent.mkdir(parents=True, exist_ok=True)
        row = {"timestamp": 0, "input_length": 9, "output_length": 1, "hash_ids": [0]}
        path.write_text((json.dumps(row) + "\n") * ROWS)
    return folder


@pytest.fixture
def server(source: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[FakeHub]:
    content = (source / places.PUBLISHED["conversation"].path).read_bytes()
    known = {"size": len(content), "sha256": hashlib.sha256(content).hexdigest()}
    entries = {
        name: replace(entry, rows=ROWS, **(known if entry.sha256 else {})) for name, entry in places.PUBLISHED.items()
    }
    for where in (places, module):
        monkeypatch.setattr(where, "PUBLISHED", entries)
    monkeypatch.setenv("MOONCAKE_EDU_CACHE", str(tmp_path / "cache"))
    monkeypatch.delenv("HF_HUB_OFFLINE", raising=False)
    monkeypatch.setattr(places, "folders", lambda: iter([places.cache()]))
    with serving(FakeHub({REPO: source})) as fake:
        monkeypatch.setattr(module, "BASE", f"{fake.url}/{REPO}/resolve/main/")
        yield fake


def left() -> list[str]:
    """What is in the cache, locks apart."""
    return sorted(path.name for path in places.cache().rglob("*") if path.is_file() and path.suffix != ".lock")


@pytest.mark.parametrize("name", ["conversation", "toolagent"])
def test_a_trace_comes_into_the_cache_once_and_is_found_there(server: FakeHub, name: str) -> None:
    path = fetch(name)
    assert path == places.cache() / places.FILES[name] and len(read(path)) == ROWS
    assert fetch(name) == path
    assert [start for _, start in server.downloads] == [0]
    assert left() == [path.name]
    fetch(name, again=True)
    assert len(server.downloads) == 2


def test_a_broken_connection_is_taken_up_where_it_broke(server: FakeHub) -> None:
    path = places.PUBLISHED["conversation"].path
    server.breaks[path] = [4 * STEP]
    assert len(read(fetch("conversation"))) == ROWS
    assert server.downloads == [(path, 0), (path, 4 * STEP)]


def test_a_fetch_that_failed_leaves_its_part_for_the_next_one(server: FakeHub) -> None:
    path = places.PUBLISHED["conversation"].path
    server.breaks[path] = [4 * STEP] + [0] * 6
    with pytest.raises(Unavailable, match="trace conversation cannot be fetched now"):
        fetch("conversation")
    assert left() == [FILE + ".part"]
    server.breaks.clear()
    server.downloads.clear()
    fetch("conversation")
    assert server.downloads == [(path, 4 * STEP)]
    assert left() == [FILE]


def test_a_file_with_another_content_is_refused_and_not_kept(server: FakeHub, source: Path) -> None:
    path = source / places.PUBLISHED["conversation"].path
    path.write_bytes(path.read_bytes().replace(b"9", b"8"))
    with pytest.raises(Unavailable, match="came with sha256 [0-9a-f]{64}"):
        fetch("conversation")
    assert left() == []


def test_a_file_of_unknown_content_is_refused_if_it_is_no_trace_or_has_other_rows(
    server: FakeHub, source: Path
) -> None:
    path = source / places.PUBLISHED["toolagent"].path
    whole = path.read_bytes()
    path.write_bytes(whole + whole[: whole.index(b"\n") + 1])
    with pytest.raises(TraceError, match=f"came with {ROWS + 1} rows, not {ROWS}"):
        fetch("toolagent")
    path.write_bytes(b"<html>\n")
    with pytest.raises(TraceError, match="row 1: is not JSON"):
        fetch("toolagent")
    assert left() == []


@pytest.mark.parametrize("name", ["conversation", "toolagent"])
def test_no_token_of_the_hub_goes_to_another_host(
    server: FakeHub, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    monkeypatch.setenv("HF_TOKEN", "hf_secret")
    sent: list[str] = []
    answer = server.answer
    monkeypatch.setattr(server, "answer", lambda h, body: (sent.append(str(h.headers)), answer(h, body)))
    fetch(name)
    assert sent and not any("secret" in headers.lower() or "authorization" in headers.lower() for headers in sent)


def test_without_a_network_one_line_says_what_to_do(
    run: Run, server: FakeHub, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "BASE", "http://127.0.0.1:1/")
    ended = run("trace", "fetch", "arxiv")
    assert (ended.status, ended.out, ended.err.count("mooncake-edu:")) == (2, "", 1)
    assert "trace arxiv cannot be fetched now (Connect" in ended.err
    assert "MOONCAKE_EDU_TRACES" in ended.err and "trace generate" in ended.err


def test_a_file_that_is_here_is_not_brought_unless_it_shall_be(
    run: Run, server: FakeHub, source: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = (source / places.PUBLISHED["synthetic"].path).parent
    monkeypatch.setattr(places, "folders", lambda: iter([folder, places.cache()]))
    ended = run("trace", "fetch", "synthetic")
    assert (ended.out, ended.err, server.downloads) == (f"{folder / places.FILES['synthetic']}\n", "", [])
    ended = run("trace", "fetch", "synthetic", "--again")
    assert ended.out == f"{places.cache() / places.FILES['synthetic']}\n" and len(server.downloads) == 1
    assert f"synthetic is read from {folder}" in ended.err


def test_to_bring_again_needs_a_name(run: Run) -> None:
    ended = run("trace", "fetch", "--again")
    assert ended.status == 2 and "--again stands alone: name what is brought again, one of conv" in ended.err


@pytest.mark.parametrize("command", [["fetch"], ["fetch", "synthetic"], ["stats", "synthetic"]])
def test_a_variable_that_names_no_folder_is_refused(
    run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, command: list[str]
) -> None:
    monkeypatch.setenv(places.VARIABLE, f"{tmp_path}/none")
    ended = run("trace", *command)
    assert (ended.status, ended.out) == (2, "")
    assert f"MOONCAKE_EDU_TRACES {tmp_path}/none: is no folder: set it to" in ended.err
    monkeypatch.setenv(places.VARIABLE, "~nobody-of-this-name/traces")
    assert "is in no user's home" in run("trace", *command).err


def test_retries_are_quiet_even_where_the_hubs_library_was_not_yet_loaded() -> None:
    program = (
        "from mooncake_edu.model.sources import quiet_hub\n"
        "with quiet_hub():\n"
        "    from huggingface_hub.file_download import logger\n"
        "    logger.warning('Trying to resume download...')\n"
        "logger.warning('afterwards')\n"
    )
    ended = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=120, check=True)
    assert ended.stderr == "afterwards\n"


def test_a_name_that_is_not_published_is_refused_with_the_nearest(run: Run) -> None:
    ended = run("trace", "fetch", "conversations")
    assert ended.status == 2 and "did you mean 'conversation'?" in ended.err


def test_the_list_says_what_is_here(run: Run, server: FakeHub) -> None:
    path = fetch("synthetic")
    lines = run("trace", "fetch").out.splitlines()
    assert len(lines) == len(places.PUBLISHED)
    assert [line.endswith("not here") for line in lines] == [True, True, False, True]
    assert lines[2].endswith(str(path))


def test_a_name_stands_for_the_file_in_the_named_folder_first(
    tmp_path: Path, source: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(places.VARIABLE, str((source / places.PUBLISHED["conversation"].path).parent))
    assert len(places.open_trace("conversation")) == ROWS


def test_a_published_trace_that_is_not_here_is_refused_with_the_way_to_get_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(places, "folders", lambda: iter([]))
    with pytest.raises(TraceError, match="`mooncake-edu trace fetch arxiv`"):
        places.open_trace("arxiv-1000")
