"""JupyterLab as `make lab` starts it, on a copy of the notebooks, and one of its notebooks as a reader handles it."""

from __future__ import annotations

import json
import os
import re
import secrets
import shutil
import socket
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import psutil

from tests.browsing import Visit
from tests.notebooks.running import ROOT

START_S = 120
END_S = 20
RUN_MS = 300_000
CELL_MS = 120_000

SETTINGS = {
    "apputils-extension/themes": {"adaptive-theme": True},
}
"""The theme follows the reader's system, so that one notebook is seen in the light and in the dark."""

GIVEN = re.findall(r"(--LabApp\.\w+)='\$\(CURDIR\)/(\S+)'", (ROOT / "Makefile").read_text(encoding="utf-8"))
"""Options that `make lab` gives, and the folders of the repository that they name."""

OPEN = "window.jupyterapp?.shell.currentWidget?.sessionContext?.session?.kernel?.status === 'idle'"
NAME = """() => {
  for (const cell of window.jupyterapp.shell.currentWidget.content.widgets) cell.node.dataset.cell = cell.model.id;
}"""
SHOW = """id => {
  const notebook = window.jupyterapp.shell.currentWidget.content;
  notebook.activeCellIndex = notebook.widgets.findIndex(cell => cell.model.id === id);
  return notebook.scrollToItem(notebook.activeCellIndex, 'start');
}"""
SHOWN = "node => [...node.children].some(child => child.checkVisibility({contentVisibilityAuto: true}))"
COUNT = """id => window.jupyterapp.shell.currentWidget.content.widgets
  .find(cell => cell.model.id === id).model.executionCount"""
RAN_AGAIN = f"([id, count]) => ![null, count].includes(({COUNT})(id))"
CODE = "window.jupyterapp.shell.currentWidget.content.widgets.filter(cell => cell.model.type === 'code')"
FAULTS = f"""{CODE}.flatMap(cell => cell.model.outputs.toJSON().filter(output => output.output_type === 'error')
  .map(output => `${{cell.model.id}}: ${{output.ename}}: ${{output.evalue}}`))"""
ENDED = f"{FAULTS}.length > 0 || {CODE}.every(cell => cell.model.executionCount !== null)"
PICTURES = f"""{CODE}.filter(cell => cell.model.outputs.toJSON().some(
  output => output.data && 'application/vnd.plotly.v1+json' in output.data)).map(cell => cell.model.id)"""


@dataclass(frozen=True)
class Lab:
    """A running server: its address and the token that it asks for."""

    address: str
    token: str


@contextmanager
def jupyter_lab(folder: Path) -> Iterator[Lab]:
    """JupyterLab on loopback, over copies of the notebooks in `folder`; it and its kernels have ended in the end."""
    shutil.copytree(ROOT / "notebooks", folder / "notebooks", ignore=shutil.ignore_patterns(".*"))
    for name, settings in SETTINGS.items():
        path = folder / "settings" / "@jupyterlab" / f"{name}.jupyterlab-settings"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(json.dumps(settings))
    lab = Lab(f"http://127.0.0.1:{_free_port()}", secrets.token_hex(16))
    with (folder / "said").open("w") as said:
        server = subprocess.Popen(
            _command(lab, folder), cwd=folder, env=_environment(folder), stdout=said, stderr=said, text=True
        )
        try:
            _await(lab, server, folder / "said")
            yield lab
        finally:
            _end(server)


def _free_port() -> int:
    with socket.socket() as held:
        held.bind(("127.0.0.1", 0))
        port: int = held.getsockname()[1]
        return port


def _command(lab: Lab, folder: Path) -> list[str]:
    return [
        sys.executable, "-m", "jupyterlab", "--no-browser", "--allow-root", "--expose-app-in-browser",
        "--ServerApp.ip=127.0.0.1", f"--ServerApp.port={lab.address.rpartition(':')[2]}", "--ServerApp.port_retries=0",
        f"--IdentityProvider.token={lab.token}", *(f"{option}={ROOT / folder}" for option, folder in GIVEN),
        "--LabApp.check_for_updates_class=jupyterlab.handlers.announcements.NeverCheckForUpdate",
        str(folder / "notebooks"),
    ]  # fmt: skip


def _environment(folder: Path) -> dict[str, str]:
    """Nothing of the user's own, and nothing that stays."""
    places = {
        "JUPYTER_CONFIG_DIR": "config", "JUPYTER_DATA_DIR": "jupyter", "JUPYTER_RUNTIME_DIR": "runtime",
        "JUPYTERLAB_SETTINGS_DIR": "settings", "JUPYTERLAB_WORKSPACES_DIR": "workspaces", "IPYTHONDIR": "ipython",
        "MOONCAKE_EDU_DATA": "data",
    }  # fmt: skip
    return os.environ | {name: str(folder / place) for name, place in places.items()} | {
        "MOONCAKE_EDU_SIZE": "tiny", "OMP_NUM_THREADS": "1",
        "PYTHONPATH": os.pathsep.join([str(ROOT), *filter(None, [os.environ.get("PYTHONPATH")])]),
    }  # fmt: skip


def _await(lab: Lab, server: subprocess.Popen[str], said: Path) -> None:
    limit = time.monotonic() + START_S
    while time.monotonic() < limit and server.poll() is None:
        try:
            with urllib.request.urlopen(f"{lab.address}/api/status?token={lab.token}", timeout=5):
                return
        except (urllib.error.URLError, OSError):
            time.sleep(0.2)
    raise RuntimeError(f"JupyterLab did not start within {START_S} s:\n{said.read_text()}")


def _end(server: subprocess.Popen[str]) -> None:
    """Ask the server to end, which ends its kernels too; whatever is left then is killed."""
    family = psutil.Process(server.pid).children(recursive=True) if server.poll() is None else []
    server.terminate()
    try:
        server.wait(END_S)
    except subprocess.TimeoutExpired:
        server.kill()
        server.wait(END_S)
    for left in psutil.wait_procs(family, timeout=END_S)[1]:
        left.kill()


class Notebook(Visit):
    """A notebook that is open in JupyterLab; its cells are known by their ids."""

    def __init__(self, browser: Any, lab: Lab, name: str, scheme: str = "light") -> None:
        """Opens it and waits for its kernel."""
        super().__init__(browser, scheme, (lab.address, lab.address.replace("http:", "ws:")))
        self.page.goto(f"{lab.address}/lab/tree/{name}?token={lab.token}")
        self.page.wait_for_function(OPEN, timeout=CELL_MS)
        self.page.evaluate(NAME)

    def run_all(self) -> list[str]:
        """Choose Run All Cells from the menu and wait for its end; returns the errors that cells ended with."""
        self.page.get_by_role("menuitem", name="Run", exact=True).click()
        self.page.get_by_role("menuitem", name="Run All Cells", exact=True).click()
        self.page.wait_for_function(ENDED, timeout=RUN_MS)
        faults: list[str] = self.page.evaluate(FAULTS)
        return faults

    def pictures(self) -> list[str]:
        """The cells with a plotly figure."""
        found: list[str] = self.page.evaluate(PICTURES)
        return found

    def show(self, cell: str) -> Any:
        """Scroll to a cell and wait until it is on the screen; returns it."""
        self.page.evaluate(SHOW, cell)
        found = self.page.locator(f'[data-cell="{cell}"]')
        self.page.wait_for_function(SHOWN, arg=found.element_handle())
        return found

    def output(self, cell: str) -> Any:
        """What stands under a cell."""
        return self.show(cell).locator(".jp-Cell-outputArea")

    def edit(self, cell: str, *keys: str, text: str = "") -> None:
        """Click into a cell's text, press keys, type a text."""
        self.show(cell).locator(".cm-content").click()
        for key in keys:
            self.page.keyboard.press(key)
        self.page.keyboard.insert_text(text)

    def run(self, cell: str) -> str:
        """Run a cell by the keyboard and wait for its end; returns the words under it."""
        before = self.page.evaluate(COUNT, cell)
        self.show(cell).locator(".cm-content").click()
        self.page.keyboard.press("Control+Enter")
        self.page.wait_for_function(RAN_AGAIN, arg=[cell, before], timeout=CELL_MS)
        words: str = self.output(cell).inner_text()
        return words
