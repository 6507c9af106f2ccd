"""A chapter as a page of the book: run, its figures live, what only a kernel can do explained, solutions folded."""

from __future__ import annotations

import json
import os
import sys
from html import escape
from pathlib import Path
from typing import Any

import nbformat
from nbclient import NotebookClient

Cell = Any  # nbformat's, which have no types
PLOTLY, WIDGET = "application/vnd.plotly.v1+json", "application/vnd.jupyter.widget-view+json"
CELL_S = 300
ROOT = Path(__file__).parents[1]

SOLUTION = {"code_prompt_show": "Show a solution", "code_prompt_hide": "Hide the solution"}
CONTROLS = '<p class="controls">Here the notebook shows controls to turn. They need Python: open it to use them.</p>'


def run(path: Path, size: str, folder: Path) -> Cell:
    """The notebook with its outputs; the record of its checks is kept in `folder`, apart from the user's own."""
    notebook = nbformat.read(path, as_version=4)
    paths = [str(ROOT), *filter(None, [os.environ.get("PYTHONPATH")])]
    env = os.environ | {
        "MOONCAKE_EDU_SIZE": size, "MOONCAKE_EDU_DATA": str(folder), "PYTHONPATH": os.pathsep.join(paths),
        "PLOTLY_RENDERER": "plotly_mimetype",
    }  # fmt: skip
    print(f"running {path.name} at {size}", file=sys.stderr)
    client = NotebookClient(
        notebook, timeout=CELL_S, kernel_name="python3", extra_arguments=["--log-level=ERROR"],
        resources={"metadata": {"path": str(path.parent)}},
    )  # fmt: skip
    return client.execute(env=env)


def to_page(notebook: Cell) -> Cell:
    """The notebook as the book shows it: without the instructor's notes, which have a page of their own."""
    notebook.cells = [cell for cell in notebook.cells if "instructor" not in tags(cell)]
    for cell in notebook.cells:
        if cell.cell_type == "code":
            cell.outputs = [to_html(output) for output in cell.outputs]
            if "exercise" in tags(cell) or cell.metadata.get("jupyter", {}).get("source_hidden"):
                cell.metadata["tags"] = [*tags(cell), "hide-input"]
            if "exercise" in tags(cell):
                cell.metadata["mystnb"] = SOLUTION
    notebook.metadata.pop("widgets", None)
    return notebook


def tags(cell: Cell) -> list[str]:
    """The tags of a cell."""
    return list(cell.metadata.get("tags", []))


def to_html(output: Cell) -> Cell:
    """An output that a page can show: figures as data for plotly, controls as a sentence, all others as they are."""
    data = output.get("data", {})
    if PLOTLY in data:
        html = figure(data[PLOTLY])
    elif WIDGET in data:
        html = CONTROLS
    else:
        return output
    return nbformat.v4.new_output("display_data", {"text/html": html})


def figure(content: dict[str, Any]) -> str:
    """A figure as HTML: its title and finding are text of the page, its data wait for figures.js."""
    layout = dict(content["layout"])
    meta, margin = layout.get("meta") or {}, dict(layout.get("margin", {}))
    title = (layout.pop("title", None) or {}).get("text", "")
    layout["margin"] = margin | {"t": max(24, margin.get("t", 60) - 36)}  # the title stands above it now
    drawn = {"data": content["data"], "layout": layout, "frames": content.get("frames", [])}
    text = json.dumps(drawn).replace("<", "\\u003c")
    alt, height = escape(str(meta.get("alt", title)), quote=True), int(layout.get("height") or 400)
    return (
        f'<figure class="picture"><p class="picture-title">{escape(title)}</p>'
        f'<div class="picture-plot" role="img" aria-label="{alt}" style="height: {height}px">'
        f'<script type="application/json">{text}</script></div>'
        f"<figcaption>{escape(str(meta.get('finding', '')))}</figcaption></figure>"
    )
