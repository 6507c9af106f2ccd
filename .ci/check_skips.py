"""Fail on every skipped test that the list of allowed skips does not name.

Usage: check_skips.py REPORT.xml LIST. The report is pytest's JUnit XML; each line of the list is a pattern of
`folder.module::test` names, two spaces or more, and the reason.
"""

from __future__ import annotations

import re
import sys
import xml.etree.ElementTree as ElementTree
from fnmatch import fnmatchcase
from pathlib import Path


def skipped(report: Path) -> dict[str, str]:
    """Name and reason of every test that did not run, or was expected to fail."""
    # The report is the one that pytest has just written on this machine.
    cases = ElementTree.parse(report).iter("testcase")
    found = {}
    for case in cases:
        mark = case.find("skipped")
        if mark is not None:
            found[f"{case.get('classname')}::{case.get('name')}"] = mark.get("message") or "no reason given"
    return found


def allowed(lines: list[str]) -> dict[str, str]:
    """Pattern and reason of every line; raises ValueError on a line without a reason."""
    patterns = {}
    for line in lines:
        if not line.strip() or line.startswith("#"):
            continue
        pattern, *reason = re.split(r"\s{2,}", line.strip(), maxsplit=1)
        if not reason:
            raise ValueError(f"{pattern!r} has no reason: write the pattern, two spaces and why it may be skipped")
        patterns[pattern] = reason[0]
    return patterns


def unexplained(tests: dict[str, str], patterns: dict[str, str]) -> dict[str, str]:
    """Those tests that no pattern matches; brackets in a pattern are plain characters."""
    plain = [pattern.replace("[", "[[]") for pattern in patterns]
    return {name: why for name, why in tests.items() if not any(fnmatchcase(name, pattern) for pattern in plain)}


def main(report: str, names: str) -> int:
    """Print what was skipped; 1 if any of it is not on the list."""
    tests = skipped(Path(report))
    wrong = unexplained(tests, allowed(Path(names).read_text(encoding="utf-8").splitlines()))
    for name, why in wrong.items():
        print(f"skipped, but not in {names}: {name} ({why})")
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:3]))
