"""A small server that speaks what a download needs of the Hugging Face hub's protocol, and can fail on purpose."""

from __future__ import annotations

import hashlib
import json
import re
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from urllib.parse import urlsplit

COMMIT = "c0ffee" + "0" * 34


class FakeHub:
    """Serves the files of folders as repositories.

    `breaks` maps a file to the bytes after which each of its next downloads loses the connection; `delay` is in
    seconds for every 64 KiB sent; `status` answers everything; without `ranges` files are sent whole, whatever is
    asked; `sha256` is told instead of the true one. `downloads` lists (file, first byte) as sent.
    """

    def __init__(self, repos: dict[str, Path]) -> None:
        self.repos = repos
        self.breaks: dict[str, list[int]] = {}
        self.delay = 0.0
        self.status = 200
        self.ranges = True
        self.commit = COMMIT
        self.sha256 = ""
        self.downloads: list[tuple[str, int]] = []
        hub = self

        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def do_HEAD(self) -> None:
                hub.answer(self, body=False)

            def do_GET(self) -> None:
                hub.answer(self, body=True)

            def log_message(self, format: str, *args: object) -> None:
                """Keeps the tests' output quiet."""

        self.server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.url = f"http://127.0.0.1:{self.server.server_port}"

    def answer(self, handler: BaseHTTPRequestHandler, body: bool) -> None:
        path = urlsplit(handler.path).path
        info = re.fullmatch(r"/api/models/([^/]+/[^/]+)(/revision/[^/]+)?", path)
        file = re.fullmatch(r"/([^/]+/[^/]+)/resolve/[^/]+/(.+)", path)
        repo = self.repos.get((info or file or [None, None])[1] or "")
        if self.status != 200 or repo is None:
            code = "RepoNotFound" if self.status == 200 else "GatedRepo" if self.status == 403 else ""
            self.send(handler, 404 if self.status == 200 else self.status, {"X-Error-Code": code}, b"", body)
        elif info:
            self.send(handler, 200, {"Content-Type": "application/json"}, self.about(info[1], repo), body)
        elif file and (repo / file[2]).is_file():
            self.send_file(handler, file[2], (repo / file[2]).read_bytes(), body)
        else:
            self.send(handler, 404, {"X-Error-Code": "EntryNotFound"}, b"", body)

    def about(self, name: str, repo: Path) -> bytes:
        files = sorted(path for path in repo.rglob("*") if path.is_file())
        siblings: list[dict[str, object]] = []
        for path in files:
            size, digest = path.stat().st_size, self.sha256 or hashlib.sha256(path.read_bytes()).hexdigest()
            lfs = {"size": size, "sha256": digest, "pointerSize": 134} if path.suffix == ".safetensors" else None
            siblings.append({"rfilename": str(path.relative_to(repo)), "size": size, "lfs": lfs})
        return json.dumps({"id": name, "modelId": name, "sha": self.commit, "siblings": siblings}).encode()

    def send_file(self, handler: BaseHTTPRequestHandler, name: str, content: bytes, body: bool) -> None:
        asked = re.fullmatch(r"bytes=(\d+)-(\d*)", handler.headers.get("Range", "")) if self.ranges else None
        start = int(asked[1]) if asked else 0
        etag = f'"{hashlib.sha1(content).hexdigest()}"'
        headers = {"ETag": etag, "X-Repo-Commit": self.commit, "Accept-Ranges": "bytes"}
        if asked:
            headers["Content-Range"] = f"bytes {start}-{len(content) - 1}/{len(content)}"
        if body:
            self.downloads.append((name, start))
        limit = self.breaks[name].pop(0) if body and self.breaks.get(name) else None
        self.send(handler, 206 if asked else 200, headers, content[start:], body, limit)

    def send(self, handler: BaseHTTPRequestHandler, status: int, headers: dict[str, str], content: bytes, body: bool,
             limit: int | None = None) -> None:  # fmt: skip
        handler.send_response(status)
        for key, value in (headers | {"Content-Length": str(len(content))}).items():
            handler.send_header(key, value)
        handler.end_headers()
        if not body:
            return
        sent = content if limit is None else content[:limit]
        try:
            for at in range(0, len(sent), 1 << 16):
                handler.wfile.write(sent[at : at + (1 << 16)])
                time.sleep(self.delay)
        except OSError:
            handler.close_connection = True  # the client has gone
        if limit is not None:
            handler.close_connection = True


@contextmanager
def serving(hub: FakeHub) -> Iterator[FakeHub]:
    """Runs the server while the block lasts."""
    thread = threading.Thread(target=hub.server.serve_forever, daemon=True)
    thread.start()
    try:
        yield hub
    finally:
        hub.server.shutdown()
        hub.server.server_close()
        thread.join()
