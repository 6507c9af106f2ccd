"""The magics of a chapter: `%chapter` names the layer file that it prints, `%%layer` runs a listing."""

from __future__ import annotations

from typing import Any

from IPython.core.magic import Magics as IPythonMagics
from IPython.core.magic import cell_magic, line_magic, magics_class

from mooncake_edu import layers
from mooncake_edu.course.cells import ChapterError, find_listing, read_setup
from mooncake_edu.course.live import live_layer


@magics_class
class Magics(IPythonMagics):
    """`%chapter` and `%%layer` for one shell."""

    def __init__(self, shell: Any) -> None:
        super().__init__(shell)
        self._wanted: dict[str, tuple[str, str]] = {}

    @line_magic
    def chapter(self, line: str) -> None:
        """`%chapter [LAYER DIGEST VERSION]`: what the listings of this chapter were printed from."""
        layer, digest, version = read_setup(f"%chapter {line}")
        if layer is None:
            return
        if digest is None or version is None:
            raise ChapterError(f"%chapter {line} names no version: let `mooncake-edu course weave fix` complete it")
        live = live_layer(layer)
        self._wanted[layer] = (digest, version)
        if digest != layers.digest(live.printed):
            print(f"This chapter was printed from another version of {layer}.py, {version} ({digest}).")

    @cell_magic
    def layer(self, line: str, cell: str) -> None:
        """`%%layer FILE FIRST-LAST`: bind what a printed listing defines; make an edited one live.

        Text as printed runs nothing. Edited text changes the package in this process, until it is run as printed.
        """
        listing = find_listing({"cell_type": "code", "source": f"%%layer {line}\n{cell}"})
        if listing is None or self.shell is None:
            raise ChapterError("%%layer stands at the head of a cell: write %%layer FILE FIRST-LAST")
        names, notes = live_layer(listing.layer).run(listing, self._wanted.get(listing.layer))
        self.shell.user_ns.update(names)
        print(*notes, sep="\n", end="\n" if notes else "")
