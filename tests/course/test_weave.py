"""Chapters and layer files agree line by line; what moves in the package moves in the chapters."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mooncake_edu import layers
from mooncake_edu.course import weave
from mooncake_edu.course.cells import Chapter, ChapterError, chapters, setup_text, source
from tests.cli.conftest import Run, run  # noqa: F401  # a fixture

LAYER = '''"""Says what it is."""

import math


# why
@some.decorator(
    more=1,
)
def first(x):
    """First."""
    return x


class Second:
    """Second."""

    size = 1
    """Its size."""

    def one(self):
        return 1

    # about two
    def two(self):

        return 2


LAST = 3
'''
BORDERS = ((1, 3), (6, 12), (15, 19), (21, 22), (24, 27), (30, 30))


@pytest.fixture
def package(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The layer file `store.py` of a package that has no other."""
    file = tmp_path / "store.py"
    file.write_text(LAYER)
    monkeypatch.setattr(layers, "path", lambda layer: file)
    return file


def notebook(path: Path, text: str = LAYER, borders: tuple[tuple[int, int], ...] = BORDERS, **changes: Any) -> Chapter:
    """A chapter that prints a text in listings with these borders, written to a file."""
    lines = text.split("\n")
    cells: list[dict[str, Any]] = [code("setup", setup_text("store", layers.digest(text)))]
    for first, last in borders:
        cells.append({"cell_type": "markdown", "id": f"p{first}", "metadata": {}, "source": ["## Head\n", "Prose."]})
        cells.append(code(f"l{first}", "\n".join([f"%%layer store {first}-{last}", *lines[first - 1 : last]])))
    content = {"cells": cells, "metadata": {"ä": 1.0}, "nbformat": 4, "nbformat_minor": 5} | changes
    path.write_text(json.dumps(content, indent=1, ensure_ascii=False) + "\n", encoding="utf-8")
    return Chapter(path)


def code(name: str, text: str) -> dict[str, Any]:
    """A code cell, in the order in which Jupyter writes its fields."""
    cell = {"cell_type": "code", "execution_count": None, "id": name, "metadata": {"tags": ["listing"]}, "outputs": []}
    return cell | {"source": text.splitlines(keepends=True)}


@pytest.fixture
def chapter(tmp_path: Path, package: Path) -> Chapter:
    """A chapter that agrees with its layer file."""
    return notebook(tmp_path / "03.ipynb")


def test_a_chapter_of_all_lines_agrees(chapter: Chapter) -> None:
    assert weave.check(chapter) == []


def test_listings_begin_with_a_statement_its_decorators_and_the_comments_above() -> None:
    assert layers.starts(LAYER) == {1, 3, 6, 15, 16, 18, 19, 21, 24, 30}


@pytest.mark.parametrize(
    ("cell", "old", "new", "finding"),
    [
        ("l6", "First.", "Best.", "(store 6-12): its text is not that of store.py"),
        ("l6", "    return x", "    return x ", "(store 6-12): its text is not that of store.py"),
        ("l6", "6-12", "7-12", "(store 7-12): it does not begin where a statement does"),
        ("l6", "6-12", "6-11", "lines 12-12: they stand in no listing"),
        ("l30", "LAST = 3", "LAST = 3\n\n", "(store 30-30): its text is not that of store.py"),
        ("l30", "30-30", "31-31", "(store 31-31): its text is not that"),
        ("l30", "store", "kvcache", "(kvcache 30-30): this chapter prints store"),
        ("p6", "Prose.", "", "(store 6-12): no prose leads it"),
        ("setup", layers.digest(LAYER), "0123456789abcdef", "set-up cell: it is not of this store.py"),
        ("setup", "0.1.0", "0.0.9", "set-up cell: it is not of this store.py"),
        ("setup", "%load_ext mooncake_edu.course\n", "", "set-up cell"),
    ],
)
def test_every_difference_is_found(chapter: Chapter, cell: str, old: str, new: str, finding: str) -> None:
    change(chapter, cell, old, new)
    found = weave.check(Chapter(chapter.path))
    assert any(finding in line and line.startswith("03.ipynb, ") for line in found), found


def change(chapter: Chapter, name: str, old: str, new: str) -> None:
    """Replace a piece of a cell in the file."""
    cell = next(cell for cell in chapter.cells if cell["id"] == name)
    assert old in source(cell)
    cell["source"] = source(cell).replace(old, new).splitlines(keepends=True)
    chapter.write()


def test_a_line_that_no_listing_prints_is_found(tmp_path: Path, package: Path) -> None:
    for left_out in range(len(BORDERS)):
        part = notebook(tmp_path / "03.ipynb", borders=BORDERS[:left_out] + BORDERS[left_out + 1 :])
        first, last = BORDERS[left_out]
        assert weave.check(part) == [f"03.ipynb, lines {first}-{last}: they stand in no listing"]


def test_a_line_of_spaces_between_listings_is_found(tmp_path: Path, package: Path) -> None:
    text = LAYER.replace('size."""\n\n', 'size."""\n    \n')
    package.write_text(text)
    assert weave.check(notebook(tmp_path / "03.ipynb", text)) == ["03.ipynb, lines 20-20: they stand in no listing"]


def test_listings_out_of_order_or_twice_are_found(tmp_path: Path, package: Path) -> None:
    assert weave.check(notebook(tmp_path / "03.ipynb", LAYER, (*BORDERS[1:], BORDERS[0]))) == [
        "03.ipynb, lines 1-3: they stand in no listing",
        "03.ipynb, cell l1 (store 1-3): it begins before line 30 is over, where the listing before it ends",
    ]
    assert weave.check(notebook(tmp_path / "03.ipynb", LAYER, (*BORDERS[:2], *BORDERS[1:]))) == [
        "03.ipynb, cell l6 (store 6-12): it begins before line 12 is over, where the listing before it ends"
    ]


def test_a_listing_of_more_than_forty_lines_is_found(tmp_path: Path, package: Path) -> None:
    for count, findings in ((40, 0), (41, 1)):
        text = "\n".join(f"x{number} = {number}" for number in range(count)) + "\n"
        package.write_text(text)
        found = weave.check(notebook(tmp_path / "03.ipynb", text, ((1, count),)))
        assert len(found) == findings and all("41 lines, at most 40" in line for line in found)


def test_listings_without_a_set_up_cell_of_their_layer_are_found(chapter: Chapter) -> None:
    change(chapter, "setup", source(chapter.cells[0]), "%load_ext mooncake_edu.course\n%chapter")
    assert len(weave.check(Chapter(chapter.path))) == len(BORDERS)


def test_prose_is_more_than_a_heading_and_stands_right_before() -> None:
    said = [("# Head\n\nWords.", True), ("# Head\n\n## More", False), ("", False), ("- item", True)]
    for text, prose in said:
        assert weave.is_prose({"cell_type": "markdown", "source": text}) is prose
    assert not weave.is_prose({"cell_type": "code", "source": "# no prose\nx = 1"}) and not weave.is_prose(None)


def test_a_chapter_that_agrees_is_not_touched(chapter: Chapter) -> None:
    before = chapter.path.read_bytes()
    assert weave.fix(chapter) is False
    chapter.write()
    assert chapter.path.read_bytes() == before


def test_a_cell_keeps_the_form_of_its_text_and_the_file_its_mode(chapter: Chapter) -> None:
    chapter.cells[2]["source"] = source(chapter.cells[2]).replace("math", "maths")
    chapter.path.chmod(0o640)
    assert weave.fix(chapter)
    chapter.write()
    assert Chapter(chapter.path).cells[2]["source"] == "\n".join(["%%layer store 1-3", *LAYER.split("\n")[:3]])
    assert chapter.path.stat().st_mode & 0o777 == 0o640


def test_what_is_edited_in_a_chapter_is_printed_again_and_nothing_else_changes(chapter: Chapter) -> None:
    before = chapter.path.read_bytes()
    change(chapter, "l6", "First.", "Best.")
    change(chapter, "l24", "        return 2", "        return 3\n\n        # more")
    again = Chapter(chapter.path)
    assert weave.fix(again)
    again.write()
    assert chapter.path.read_bytes() == before
    assert [path.name for path in sorted(chapter.path.parent.iterdir())] == ["03.ipynb", "store.py"]


def fixed(chapter: Chapter, package: Path, text: str) -> list[tuple[str, int, int]]:
    """The listings after the layer file has become another text, each with the cell's name."""
    package.write_text(text)
    assert weave.fix(chapter)
    chapter.write()
    again = Chapter(chapter.path)
    assert weave.check(again) == []
    assert weave.tangle(again.listings) == text
    return [(listing.cell["id"], listing.start, listing.stop) for listing in again.listings]


@pytest.mark.parametrize(
    ("old", "new", "borders"),
    [
        ("import math\n", "import math\nimport os\n", [(1, 4), (7, 13), (16, 20), (22, 23), (25, 28), (31, 31)]),
        ("    return x\n", "    y = x\n\n    return y\n", [(1, 3), (6, 14), (17, 21), (23, 24), (26, 29), (32, 32)]),
        ("# why\n", "", [(1, 3), (6, 11), (14, 18), (20, 21), (23, 26), (29, 29)]),
        ("# why\n", "# why\n# not\n", [(1, 3), (6, 13), (16, 20), (22, 23), (25, 28), (31, 31)]),
        ("def first(x)", "def best(y)", [(1, 3), (6, 12), (15, 19), (21, 22), (24, 27), (30, 30)]),
        ("    def one(self)", "    @property\n    def one(self)", [*BORDERS[:3], (21, 23), (25, 28), (31, 31)]),
        ("    # about two\n", "    new = 0\n\n    # about two\n", [*BORDERS[:3], (21, 24), (26, 29), (32, 32)]),
        ("\n\nLAST = 3", "\n\n\n\n# at last\nLAST = 4", [*BORDERS[:5], (32, 33)]),
        ("\n\nLAST = 3", "\nLAST = 3", [*BORDERS[:5], (29, 29)]),
    ],
)  # fmt: skip
def test_borders_move_with_the_text(
    chapter: Chapter, package: Path, old: str, new: str, borders: list[tuple[int, int]]
) -> None:
    assert old in LAYER
    found = fixed(chapter, package, LAYER.replace(old, new))
    assert [(first, last) for _, first, last in found] == borders
    assert [name for name, _, _ in found] == [f"l{first}" for first, _ in BORDERS]


def test_a_listing_whose_lines_are_gone_is_not_emptied(chapter: Chapter, package: Path) -> None:
    before = chapter.path.read_bytes()
    package.write_text(LAYER.replace("    def one(self):\n        return 1\n\n", ""))
    with pytest.raises(ChapterError, match=r"cell l21 \(store 21-22\) would be empty"):
        weave.fix(chapter)
    assert chapter.path.read_bytes() == before


def test_a_listing_whose_head_is_gone_begins_with_what_is_left_of_it(tmp_path: Path, package: Path) -> None:
    lines = [f"x{number} = {number}\n" for number in range(1, 13)]
    chapter = notebook(tmp_path / "03.ipynb", "".join(lines), ((1, 4), (5, 12)))
    assert fixed(chapter, package, "".join(lines[:2] + lines[8:])) == [("l1", 1, 2), ("l5", 3, 6)]


def test_new_listings_are_filled_by_their_numbers(tmp_path: Path, package: Path) -> None:
    chapter = notebook(tmp_path / "03.ipynb")
    change(chapter, "l6", source(chapter.cells[4]), "%%layer store 6-12")
    change(chapter, "setup", source(chapter.cells[0]), "%load_ext mooncake_edu.course\n%chapter store")
    again = Chapter(chapter.path)
    assert weave.fix(again) and weave.check(again) == []


def test_numbers_outside_the_file_are_refused(tmp_path: Path, package: Path) -> None:
    chapter = notebook(tmp_path / "03.ipynb", borders=((1, 3), (6, 99)))
    with pytest.raises(ChapterError, match=r"cell l6 \(store 6-99\): store.py has lines 1-30"):
        weave.fix(chapter)


def test_a_listing_of_another_layer_is_not_rewritten(chapter: Chapter) -> None:
    change(chapter, "l6", "store", "kvcache")
    with pytest.raises(ChapterError, match=r"cell l6 \(kvcache 6-12\): this chapter prints store"):
        weave.fix(Chapter(chapter.path))


PIECES = [
    "import math",
    "X = 1",
    "# about y\nY = {\n    1: 2,\n}",
    "def f(a):\n    return a",
    "def g(a):\n\n    b = a\n\n    return b",
    "@cache\ndef h():\n    return 1",
    "class C:\n    x: int\n\n    def m(self):\n        return 1\n\n    # n\n    def n(self):\n        return 2",
]
files = st.lists(st.sampled_from(PIECES), min_size=1, max_size=9).map("\n\n\n".join).map(lambda text: text + "\n")


@given(files, files, st.data())
def test_after_fix_all_lines_stand_in_listings_or_it_refuses(
    tmp_path_factory: pytest.TempPathFactory, old: str, new: str, data: st.DataObject
) -> None:
    folder = tmp_path_factory.mktemp("weave")
    file = folder / "store.py"
    starts = sorted(layers.starts(old))
    chosen = data.draw(st.sets(st.sampled_from(starts)))
    firsts = sorted({starts[0]} | chosen)
    lines = old.rstrip("\n").split("\n")
    ends = [
        max(n for n in range(first, end) if lines[n - 1].strip())
        for first, end in zip(firsts, [*firsts[1:], len(lines) + 1], strict=True)
    ]
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(layers, "path", lambda layer: file)
        file.write_text(old)
        chapter = notebook(folder / "03.ipynb", old, tuple(zip(firsts, ends, strict=True)))
        assert without_length(weave.check(chapter)) == []
        assert weave.tangle(chapter.listings) == old
        file.write_text(new)
        before = [source(cell) for cell in chapter.cells]
        try:
            weave.fix(chapter)
        except ChapterError:
            assert [source(cell) for cell in chapter.cells] == before
        else:
            assert without_length(weave.check(chapter)) == []
            assert weave.tangle(chapter.listings) == new


def without_length(findings: list[str]) -> list[str]:
    """The findings but that a listing has too many lines, which only an author can mend."""
    return [finding for finding in findings if "at most 40 fit" not in finding]


def test_the_package_is_rebuilt_from_its_chapters(tmp_path: Path) -> None:
    found = chapters(Path(__file__).parents[2] / "notebooks")
    written = weave.write_layers(found, tmp_path)
    assert [file.stem for file in written] == [layer for layer in layers.LAYERS if tmp_path / f"{layer}.py" in written]
    for file in written:
        assert file.read_bytes() == layers.path(file.stem).read_bytes()
    assert [finding for chapter in found for finding in weave.check(chapter)] == []


def test_edited_listings_are_tangled_as_they_stand(chapter: Chapter) -> None:
    change(chapter, "l6", "    return x", "    y = x\n    return y")
    assert weave.tangle(Chapter(chapter.path).listings) == LAYER.replace("    return x", "    y = x\n    return y")


def test_no_file_is_written_over(chapter: Chapter, tmp_path: Path) -> None:
    (tmp_path / "out").mkdir()
    (tmp_path / "out" / "store.py").write_text("mine")
    with pytest.raises(ChapterError, match="is there already"):
        weave.write_layers([chapter], tmp_path / "out")
    assert (tmp_path / "out" / "store.py").read_text() == "mine"


def test_listings_that_overlap_are_not_tangled(tmp_path: Path, package: Path) -> None:
    with pytest.raises(ChapterError, match="begins before line 3 is over"):
        weave.tangle(notebook(tmp_path / "03.ipynb", borders=((1, 3), (3, 12))).listings)


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("", "is no notebook"),
        ("[]", "is no notebook"),
        ('{"cells": 1}', "is no notebook"),
        ('{"cells": [{"cell_type": "code", "id": "a"}]}', "is no notebook"),
        ('{"cells": [{"cell_type": "code", "id": "a", "source": "%%layer store"}]}', "cell a begins '%%layer store'"),
        (None, "is no notebook"),
    ],
)
def test_what_is_no_chapter_is_refused_by_its_name(tmp_path: Path, text: str | None, said: str) -> None:
    path = tmp_path / "03.ipynb"
    path.mkdir() if text is None else path.write_text(text)
    with pytest.raises(ChapterError, match=re.escape(said)) as refusal:
        Chapter(path)
    assert str(path) in str(refusal.value)


def test_two_chapters_of_one_layer_are_refused(chapter: Chapter, tmp_path: Path) -> None:
    notebook(tmp_path / "04.ipynb")
    with pytest.raises(ChapterError, match=r"03.ipynb and .*04.ipynb both print store"):
        chapters(tmp_path)


def test_the_commands_check_fix_and_tangle_a_folder(run: Run, chapter: Chapter, package: Path, tmp_path: Path) -> None:  # noqa: F811
    folder, out = ("--from", str(tmp_path)), tmp_path / "out"
    assert run("course", "weave", "check", *folder).out == "1 chapters and 6 listings agree with the package\n"
    package.write_text(LAYER.replace("LAST = 3", "LAST = 4"))
    ended = run("course", "weave", "check", *folder)
    assert ended.status == 1 and "(store 30-30): its text is not that of store.py" in ended.out
    ended = run("course", "weave", "fix", *folder)
    assert ended.status == 0 and "03.ipynb rewritten" in ended.out
    assert run("course", "weave", "check", *folder).status == 0
    assert run("course", "weave", "tangle", str(out), *folder).status == 0
    assert (out / "store.py").read_text() == package.read_text()
    ended = run("course", "weave", "tangle", str(out), *folder)
    assert (ended.status, ended.err.count("\n")) == (2, 1)
    assert run("course", "weave", "check", "--from", str(out)).status == 2
