"""Fail on every skipped test that the list of allowed skips does not name.

Usage: check_skips.py REPORT.xml LIST. The report is pytest's JUnit XML; each line of the list is a pattern of
`folder.module::test` names, how the reason that pytest tells begins, and why that is right; two spaces or more stand
between them. So a test that is skipped for another reason is found, however wide the pattern.
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


def allowed(lines: list[str]) -> list[tuple[str, str]]:
    """Pattern and beginning of the reason of every line; raises ValueError on a line that lacks one of the three."""
    pairs = []
    for line in lines:
        if not line.strip() or line.startswith("#"):
            continue
        pattern, *reasons = re.split(r"\s{2,}", line.strip(), maxsplit=2)
        if len(reasons) != 2:
            raise ValueError(f"{pattern!r} lacks a reason: write the pattern, what pytest says, and why it may be so")
        pairs.append((pattern, reasons[0]))
    return pairs


def unexplained(tests: dict[str, str], pairs: list[tuple[str, str]]) -> dict[str, str]:
    """Those tests that no pattern matches with its reason; brackets in a pattern are plain characters."""
    plain = [(pattern.replace("[", "[[]"), reason) for pattern, reason in pairs]

    def explained(name: str, why: str) -> bool:
        return any(fnmatchcase(name, pattern) and why.startswith(reason) for pattern, reason in plain)

    return {name: why for name, why in tests.items() if not explained(name, why)}


def main(report: str, names: str) -> int:
    """Print what was skipped; 1 if any of it is not on the list."""
    tests = skipped(Path(report))
    wrong = unexplained(tests, allowed(Path(names).read_text(encoding="utf-8").splitlines()))
    for name, why in wrong.items():
        print(f"skipped, but not in {names}: {name} ({why})")
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:3]))
