"""A Conductor is small to start: whoever only places requests loads no model library."""

from __future__ import annotations

import subprocess
import sys


def test_conductor_and_admission_need_no_torch() -> None:
    script = "import sys, mooncake_edu.conductor, mooncake_edu.admission; print('torch' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=False, timeout=120)
    assert (done.stdout, done.stderr) == ("False\n", "")
