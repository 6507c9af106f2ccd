"""A listing as printed runs nothing and binds the package's names; an edited one is live until it is run as printed."""

from __future__ import annotations

import re
from collections.abc import Iterator

import nbformat
import pytest
from nbclient import NotebookClient

from mooncake_edu import __version__, layers
from tests.course.shell import ROOT, Printed, Shell, printed, setup

LAYOUT = printed("@dataclass", "class PageTensors")
POOL = printed("class BlockPool", "    @property")
ALLOCATE = printed("    def allocate", "    def _reuse")
SHARE = printed("    def share", "    def release")
KEEP = printed("    def keep", "class Hold")
TOKENS = printed("def token_bytes", "class KeyChain", "prefix")

USERS = """
from mooncake_edu.engine import engine, scheduler
from mooncake_edu.kvcache import BlockPool as Imported
pool = BlockPool(4)
take = pool.allocate
"""


@pytest.fixture(scope="module")
def one() -> Iterator[Shell]:
    """One shell for all tests here; each leaves it as it found it."""
    with Shell() as shell:
        for layer in ("kvcache", "prefix"):
            assert shell.run(setup(layer)).error == ""
        yield shell


@pytest.fixture
def shell(one: Shell) -> Iterator[Shell]:
    """The shell, in which after each test every listing must be as printed."""
    for listing in (LAYOUT, ALLOCATE, TOKENS):
        assert one.run(listing.cell()).error == ""
    assert one.run(USERS).error == ""
    yield one
    for listing in (LAYOUT, POOL, ALLOCATE, SHARE, KEEP, TOKENS):
        assert one.run(listing.cell()).error == ""
    assert one.show("[live_layer(name).edits for name in ('kvcache', 'prefix')]") == "[{}, {}]"


def edit(shell: Shell, listing: Printed, old: str, new: str) -> str:
    """Run a listing with a piece of its text replaced, and return what it prints."""
    ran = shell.run(listing.cell(old, new))
    assert ran.error == "", ran
    return ran.out


def test_a_printed_listing_binds_the_package_s_own_objects_and_runs_nothing(shell: Shell) -> None:
    shell.run(
        "from mooncake_edu.course.live import live_layer; before = dict(vars(live_layer.__globals__['importlib']))"
    )
    shell.run("import mooncake_edu.kvcache as kvcache; before = dict(vars(kvcache)); del BlockPool, BlockLayout")
    ran = shell.run(POOL.cell())
    assert (ran.out, ran.error) == ("", "")
    assert shell.show("BlockPool is kvcache.BlockPool, 'BlockLayout' in globals()") == "True False"
    assert shell.show("all(before[name] is value for name, value in vars(kvcache).items())") == "True"


def test_a_part_of_a_class_binds_the_class(shell: Shell) -> None:
    shell.run("del BlockPool")
    shell.run(SHARE.cell())
    assert shell.show("BlockPool.__module__") == "mooncake_edu.kvcache"


def test_a_listing_below_an_edited_one_binds_its_own_names(shell: Shell) -> None:
    edit(shell, LAYOUT, "    head_dim: int\n", "    head_dim: int\n" + "    # longer\n" * 60)
    shell.run("for name in ('BlockPool', 'PageTensors', 'BlockTable'): globals().pop(name, None)")
    shell.run(POOL.cell())
    assert (
        shell.show("[name for name in ('BlockPool', 'PageTensors', 'BlockTable') if name in globals()]")
        == "['BlockPool']"
    )


def test_imports_of_a_listing_are_bound_without_that_of_the_future(shell: Shell) -> None:
    head = printed("from __future__", "@dataclass")
    shell.run("for name in ('torch', 'deque', 'annotations'): globals().pop(name, None)")
    assert shell.run(head.cell()).error == ""
    assert shell.show("torch.__name__, deque.__name__, 'annotations' in globals()") == "torch deque False"


def test_an_edit_of_a_part_of_a_class_reaches_whoever_has_it_and_goes_back(shell: Shell) -> None:
    out = edit(shell, ALLOCATE, "        return blocks", "        return [-block for block in blocks]")
    lines = f"{ALLOCATE.start}-{ALLOCATE.stop}"
    assert out == f"kvcache {lines} differs from the package's, and is live. Edited listings: {lines}.\n"
    assert shell.show("take(2), pool.allocate(1)") == "[0, -1] [-2]"
    assert shell.show("engine.BlockPool is scheduler.BlockPool is Imported is BlockPool is type(pool)") == "True"
    assert edit(shell, ALLOCATE, "        return blocks", "        return [-block for block in blocks]") == out
    out = shell.run(ALLOCATE.cell()).out
    assert out == f"{ALLOCATE.place} is the package's again. Edited listings: none.\n"
    assert shell.show("take(1)") == "[3]"


def test_edits_of_several_listings_compose_whatever_their_lengths(shell: Shell) -> None:
    edit(shell, SHARE, "        for block in blocks:", "        self.shared = 1\n        for block in blocks:")
    edit(shell, LAYOUT, "    head_dim: int\n", "    head_dim: int\n    # one\n    # two\n    # three\n")
    edit(shell, POOL, "        self.total = blocks", "        self.total = blocks; self.more = 7")
    out = edit(
        shell,
        ALLOCATE,
        "        for block in blocks:\n            self._references[block] = 1\n",
        "        self.took = count\n",
    )
    places = sorted((listing.start, listing.stop) for listing in (LAYOUT, POOL, ALLOCATE, SHARE))
    assert "Edited listings: " + ", ".join(f"{first}-{last}" for first, last in places) in out
    shell.run("pool = BlockPool(4); pool.allocate(2)")
    assert shell.show("pool.more, pool.took, pool.total") == "7 2 4"
    shell.run(POOL.cell())
    shell.run("pool = BlockPool(4); pool.allocate(3)")
    assert shell.show("hasattr(pool, 'more'), pool.took") == "False 3"


def test_source_and_tracebacks_are_those_of_the_edited_text(shell: Shell) -> None:
    edit(shell, LAYOUT, "    head_dim: int\n", "    head_dim: int\n    # one\n    # two\n")
    edit(shell, ALLOCATE, "        return blocks", "        # here\n        raise RuntimeError('edited')")
    shell.run("import inspect, traceback\ntry:\n    take(1)\nexcept RuntimeError:\n    said = traceback.format_exc()")
    assert "raise RuntimeError('edited')" in shell.show("said")
    assert "# here" in shell.show("inspect.getsource(BlockPool.allocate)")
    for listing, name in ((SHARE, "BlockPool.share"), (KEEP, "BlockPool.keep"), (LAYOUT, "BlockLayout.runs")):
        for object_ in name, f"{name}.__code__":
            source = shell.show(f"inspect.getsource({object_})").split("\n")
            assert source[0].startswith(f"    def {name.partition('.')[2]}(")
            assert source[0] in listing.text and source[-1] in listing.text
    assert shell.show("inspect.getsource(BlockPool).count('# here')") == "1"


def test_a_traceback_in_the_shell_shows_the_edited_line(shell: Shell) -> None:
    edit(shell, ALLOCATE, "        return blocks", "        raise RuntimeError('edited')  # marked")
    assert "# marked" in shell.run("take(1)").out


@pytest.mark.parametrize(
    ("old", "new", "said"),
    [
        ("return blocks", "return blocks)", "SyntaxError in line {last} of this cell: unmatched ')'"),
        (
            "    def allocate",
            "    @nothing\n    def allocate",
            "NameError in line 2 of this cell: name 'nothing' is not defined",
        ),
        ("        return blocks", "\treturn blocks", "TabError in line {last} of this cell: inconsistent use of tabs"),
        (
            "        return blocks",
            "      return blocks",
            "IndentationError in line {last} of this cell: unindent does not",
        ),
        (
            "        return blocks",
            "        return (blocks",
            "SyntaxError in line {last} of this cell: '(' was never closed",
        ),
        (
            "return blocks",
            "return blocks\n\n    raise ValueError('a\\n' + 'b' * 999)",
            "ValueError in line {after} of this cell: a b",
        ),
        ("        return blocks", "        '''", "SyntaxError in line {last} of this cell: unterminated triple"),
    ],
)
def test_an_edit_that_fails_says_where_in_the_cell_and_changes_nothing(
    shell: Shell, old: str, new: str, said: str
) -> None:
    edit(shell, LAYOUT, "    head_dim: int\n", "    head_dim: int\n    # one\n")
    ran = shell.run(ALLOCATE.cell(old, new))
    last = ALLOCATE.stop - ALLOCATE.start + 2
    assert ran.error == "EditError" and ran.said.startswith(said.format(last=last, after=last + 2))
    assert ran.said.endswith("kvcache.py is as it was") and "\n" not in ran.said and len(ran.said) < 400
    assert shell.show("take(2)") == "[0, 1]"
    assert shell.show("len(live_layer('kvcache').edits)") == "1"


def test_what_an_edit_adds_is_bound_and_what_it_removes_is_gone(shell: Shell) -> None:
    shell.run("import types; engine.packed = token_bytes; import mooncake_edu.prefix as prefix")
    out = edit(shell, TOKENS, "def token_bytes(", "MARK = 5\n\ndef bytes_of(")
    assert "token_bytes was removed; still with the old one: mooncake_edu.engine.engine." in out
    assert shell.show("MARK, bytes_of([1]), 'token_bytes' in globals()") == r"5 b'\x01\x00\x00\x00' False"
    assert "name 'token_bytes' is not defined" in shell.run("prefix.block_keys([1], 1, b'')").said
    shell.run(TOKENS.cell())
    assert shell.show("token_bytes is engine.packed, len(prefix.block_keys([1], 1, b''))") == "True 1"


def test_an_edit_without_which_the_file_could_not_be_imported_is_refused(shell: Shell) -> None:
    sha256 = printed("Key = bytes", "@dataclass", "prefix")
    said = shell.run(sha256.cell("def sha256(", "def digest(")).said
    assert re.match(r"NameError in line \d+ of the file: name 'sha256' is not defined; prefix.py is as it was", said)


def test_an_edit_that_uses_what_stands_further_down_is_live_and_says_that_the_file_would_not_import(
    shell: Shell,
) -> None:
    out = edit(shell, TOKENS, "def token_bytes(", "EARLY = PrefixCache\n\ndef token_bytes(")
    assert "Line 2 of this cell uses PrefixCache, which is defined further down" in out
    assert "a prefix.py with this listing could not be imported" in out
    assert shell.show("EARLY.__name__") == "PrefixCache"
    assert "further down" not in edit(shell, TOKENS, "def token_bytes(", "def early(): PrefixCache\n\ndef token_bytes(")
    shell.run(TOKENS.cell())


def test_slots_are_rebound_everywhere_and_come_back(shell: Shell) -> None:
    shell.run("layout = BlockLayout(1, 1, 4, 2)")
    out = edit(shell, LAYOUT, "    head_dim: int\n", "    head_dim: int\n    spare: int\n")
    assert "BlockLayout was replaced, since its slots changed; still with the old one: 1 object." in out
    assert shell.show("engine.BlockLayout is BlockLayout, type(layout) is BlockLayout") == "True False"
    shell.run(LAYOUT.cell())
    assert shell.show("engine.BlockLayout is BlockLayout, type(layout) is BlockLayout") == "True True"


@pytest.mark.parametrize(("blank", "end"), [("\n", "\n"), ("\n\n\n", "\n"), ("\n", "\r\n"), ("", "\r\n")])
def test_line_ends_and_blank_lines_at_the_end_are_no_edit(shell: Shell, blank: str, end: str) -> None:
    ran = shell.run((ALLOCATE.cell() + blank).replace("\n", end))
    assert (ran.out, ran.error) == ("", "")


@pytest.mark.parametrize(
    ("start", "stop", "said"),
    [
        (0, -1, "cuts a statement: write the numbers as they were printed"),
        (1, 0, "cuts a statement"),
        (0, 1000, "the file has lines 1-"),
        (-1000, 0, "write %%layer FILE FIRST-LAST"),
        (-300, -300, "write %%layer FILE FIRST-LAST"),
    ],
)
def test_an_edit_of_the_wrong_lines_is_refused(shell: Shell, start: int, stop: int, said: str) -> None:
    lines = f"{ALLOCATE.start + start}-{ALLOCATE.stop + stop}"
    ran = shell.run(f"%%layer kvcache {lines}\n{ALLOCATE.text}")
    assert ran.error and said in ran.said and lines in ran.said


def test_an_edit_that_overlaps_another_is_refused(shell: Shell) -> None:
    edit(shell, ALLOCATE, "return blocks", "return list(blocks)")
    both = printed("class BlockPool", "    def _reuse")
    for cell in (both.cell(), both.cell("return blocks", "return []")):
        ran = shell.run(cell)
        assert ran.error == "EditError" and f"overlaps the edited lines {ALLOCATE.start}-{ALLOCATE.stop}" in ran.said


def test_spaces_in_a_header_do_not_matter(shell: Shell) -> None:
    ran = shell.run(f"%%layer  kvcache {ALLOCATE.start} - {ALLOCATE.stop} \n{ALLOCATE.text}")
    assert (ran.out, ran.error) == ("", "")


def test_lines_are_counted_as_python_counts_them(shell: Shell) -> None:
    edit(shell, ALLOCATE, "Take `count`", "Take\x0c\u2028`count`")
    shell.run("import inspect")
    assert shell.show("inspect.getsource(BlockPool.share)").startswith("    def share(")


@pytest.mark.parametrize("line", ["", "kvcache", "kvcache 5", "nothing 1-2", "errors 1-2", "kvcache 2-1"])
def test_a_header_that_names_no_lines_of_a_layer_is_refused_in_one_line(shell: Shell, line: str) -> None:
    ran = shell.run(f"%%layer {line}\nx = 1")
    assert ran.error in ("ChapterError", "LayerError", "EditError") and "\n" not in ran.said
    assert len(ran.out.strip().split("\n")) == 1 and ran.said in ran.out


def test_an_edit_before_the_set_up_cell_is_refused_and_a_printed_listing_runs() -> None:
    with Shell() as shell:
        assert "not found" in shell.run(ALLOCATE.cell()).said
        shell.run("%load_ext mooncake_edu.course")
        assert shell.run(ALLOCATE.cell()).error == ""
        ran = shell.run(ALLOCATE.cell("return blocks", "return []"))
        assert ran.error == "EditError" and "run the set-up cell first" in ran.said
        assert shell.run("%chapter").error == ""
        assert shell.run("%chapter nothing 0 0").error == "LayerError"
        assert "weave fix" in shell.run("%chapter kvcache").said and "weave fix" in shell.run("%chapter kvcache 0").said


def test_another_version_refuses_edits_and_names_the_one_wanted() -> None:
    with Shell() as shell:
        out = shell.run(setup(version="0.0.7", digest="0123456789abcdef")).out
        assert "0.0.7 (0123456789abcdef)" in out
        assert shell.run(ALLOCATE.cell()).error == ""
        ran = shell.run(ALLOCATE.cell("return blocks", "return []"))
        assert ran.error == "EditError" and ran.said.endswith("pip install mooncake-edu==0.0.7")
        assert f"{__version__} ({layers.digest(layers.read(layers.path('kvcache')))})" in ran.said


def test_in_a_kernel_an_edit_prints_its_note_and_a_refusal_is_one_line() -> None:
    code = [setup(), ALLOCATE.cell("return blocks", "return blocks[::-1]"), "print(BlockPool(3).allocate(3))"]
    code += [ALLOCATE.cell("return blocks", "return )")]
    notebook = nbformat.v4.new_notebook(cells=[nbformat.v4.new_code_cell(text) for text in code])
    NotebookClient(notebook, allow_errors=True, timeout=120, resources={"metadata": {"path": str(ROOT)}}).execute()
    _, edited, shown, failed = [cell.outputs for cell in notebook.cells]
    assert "is live" in edited[0].text and shown[0].text == "[2, 1, 0]\n"
    assert (
        failed[0].ename == "EditError" and len(failed[0].traceback) == 1 and "unmatched ')'" in failed[0].traceback[0]
    )
