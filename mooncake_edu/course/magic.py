"""The magics of a chapter: `%chapter` names the layer file that it prints, `%%layer` runs a listing."""

from __future__ import annotations

import importlib

from IPython.core.magic import Magics as IPythonMagics
from IPython.core.magic import cell_magic, line_magic, magics_class

from mooncake_edu import layers
from mooncake_edu.course.cells import find_listing
from mooncake_edu.errors import UserError


@magics_class
class Magics(IPythonMagics):
    """`%chapter` and `%%layer` for one shell."""

    @line_magic
    def chapter(self, line: str) -> None:
        """`%chapter [LAYER DIGEST VERSION]`: what the listings of this chapter were printed from."""

    @cell_magic
    def layer(self, line: str, cell: str) -> None:
        """`%%layer FILE FIRST-LAST`: run the listing of these lines."""
        listing = find_listing({"cell_type": "code", "source": f"%%layer {line}\n{cell}"})
        assert listing is not None
        text = layers.read(layers.path(listing.layer))
        if text.split("\n")[listing.start - 1 : listing.stop] != listing.lines:
            raise UserError(f"{listing} is not as printed")
        module = importlib.import_module(f"mooncake_edu.{listing.layer}")
        assert self.shell is not None
        self.shell.push({name: getattr(module, name) for name in layers.names(text, listing.start, listing.stop)})
