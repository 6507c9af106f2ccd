"""Runs notebooks as a reader would, in a process of their own with nbmake, and reports what their checks said."""

from __future__ import annotations

import json
import os
import re
import resource
import shutil
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[2]
CHAPTERS = sorted((ROOT / "notebooks").glob("*.ipynb"))
CELL_S = 600


@dataclass(frozen=True)
class Run:
    """One run of a notebook: its output, the seconds it needs, what each check said, and the notebook with outputs.

    `seconds` is the smaller of the time that passed and the processor's, so that other work on the machine and
    pauses of it do not count.
    """

    passed: bool
    said: str
    seconds: float
    verdicts: dict[str, str]
    notebook: dict[str, Any]


def run(notebook: Path, folder: Path, size: str = "tiny", **environment: str) -> Run:
    """Run a copy of a notebook in `folder`, where the record of its checks is kept too."""
    folder.mkdir(parents=True, exist_ok=True)
    copy = folder / notebook.name
    shutil.copy(notebook, copy)
    record = folder / "data" / "progress.jsonl"
    record.unlink(missing_ok=True)
    env = os.environ | {
        "MOONCAKE_EDU_SIZE": size, "MOONCAKE_EDU_DATA": str(record.parent), "OMP_NUM_THREADS": "2",
        "OMP_WAIT_POLICY": "PASSIVE",  # with other work on the machine, threads that wait would hold up those that work
        "PYTHONPATH": os.pathsep.join([str(ROOT), *filter(None, [os.environ.get("PYTHONPATH")])]),
    } | environment  # fmt: skip
    command = [
        sys.executable, "-m", "pytest", "--nbmake", "--overwrite", f"--nbmake-timeout={CELL_S}", "-q", "-p",
        "no:cacheprovider", f"--rootdir={folder}", "-c", os.devnull, str(copy),
    ]  # fmt: skip
    start, used = time.perf_counter(), _processor_s()
    done = subprocess.run(command, cwd=folder, env=env, capture_output=True, text=True, check=False)
    seconds = min(time.perf_counter() - start, _processor_s() - used)
    lines = record.read_text(encoding="utf-8").splitlines() if record.exists() else []
    entries = [json.loads(line) for line in lines]
    return Run(
        done.returncode == 0,
        re.sub(r"\x1b\[[0-9;]*m", "", done.stdout + done.stderr),
        seconds,
        {entry["exercise"]: entry["status"] for entry in entries},
        json.loads(copy.read_text(encoding="utf-8")),
    )


def run_shared(notebook: Path, once: Callable[[str, Callable[[Path], None]], Path]) -> Run:
    """A chapter's run at tiny, which all tests of the session share."""

    def fill(folder: Path) -> None:
        (folder / "run.json").write_text(json.dumps(asdict(run(notebook, folder))), encoding="utf-8")

    return Run(**json.loads((once(f"ran-{notebook.stem}", fill) / "run.json").read_text(encoding="utf-8")))


def _processor_s() -> float:
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime
