"""A report as one HTML file that needs nothing else: no network, no other file, no plugin."""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import dataclass, field
from html import escape

import plotly.graph_objects as go
from plotly.offline import get_plotlyjs

from mooncake_edu.events import write_whole
from mooncake_edu.pictures.palette import DARK, LIGHT

Cell = str | int | float


@dataclass(frozen=True)
class Table:
    """Rows under named columns; the first cell of a row names it. Numbers stand to the right."""

    caption: str
    columns: Sequence[str]
    rows: Sequence[Sequence[Cell]]


@dataclass(frozen=True)
class Section:
    """A heading, paragraphs of plain text, and figures and tables under them."""

    heading: str
    text: Sequence[str] = ()
    figures: Sequence[go.Figure] = ()
    tables: Sequence[Table] = field(default=())


def write_report(path: str | os.PathLike[str], title: str, lead: str, sections: Sequence[Section]) -> None:
    """Writes the report, all of it or nothing. Raises UserError if it cannot be written."""
    write_whole(path, report_html(title, lead, sections).encode("utf-8", errors="replace"))


def report_html(title: str, lead: str, sections: Sequence[Section]) -> str:
    """The page as text; everything in it that came from outside is escaped."""
    body = "\n".join(_section(number, section) for number, section in enumerate(sections))
    contents = "\n".join(
        f'<li><a href="#section-{number}">{escape(section.heading)}</a></li>' for number, section in enumerate(sections)
    )
    return f"""<!DOCTYPE html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<meta name="color-scheme" content="light dark">
<meta http-equiv="Content-Security-Policy" content="{POLICY}">
<title>{escape(title)}</title>
<style>{STYLE}</style>
<script>{get_plotlyjs()}</script>
</head>
<body>
<a class="skip" href="#main">Skip to the content</a>
<main id="main">
<h1>{escape(title)}</h1>
<p class="lead">{escape(lead)}</p>
<nav aria-label="Contents"><ul>
{contents}
</ul></nav>
{body}
</main>
</body>
</html>
"""


def _section(number: int, section: Section) -> str:
    parts = [f'<section id="section-{number}"><h2>{escape(section.heading)}</h2>']
    parts += [f"<p>{escape(paragraph)}</p>" for paragraph in section.text]
    parts += [_figure(f"figure-{number}-{count}", figure) for count, figure in enumerate(section.figures)]
    parts += [_table(table) for table in section.tables]
    return "\n".join([*parts, "</section>"])


def _figure(name: str, figure: go.Figure) -> str:
    """A figure whose heading and finding are text of the page, so that they can be read, searched and read aloud."""
    shown = go.Figure(figure).update_layout(title=None, margin_t=36)
    drawn = shown.to_html(
        full_html=False,
        include_plotlyjs=False,
        div_id=name,
        default_width="100%",
        default_height=f"{figure.layout.height or 400}px",
        config={"displaylogo": False, "responsive": True, "displayModeBar": False, "scrollZoom": False},
    )
    title = escape(str(figure.layout.title.text or ""))
    meta = figure.layout.meta or {}
    return (
        f'<figure><h3>{title}</h3><div role="img" aria-label="{escape(str(meta.get("alt", title)))}">{drawn}</div>'
        f"<figcaption>{escape(str(meta.get('finding', '')))}</figcaption></figure>"
    )


def _table(table: Table) -> str:
    numeric = [all(not isinstance(cell, str) for cell in column) for column in zip(*table.rows, strict=True)]
    side = [" class=n" if right else "" for right in numeric] or [""] * len(table.columns)
    head = "".join(f'<th scope="col"{s}>{escape(name)}</th>' for s, name in zip(side, table.columns, strict=True))
    rows = "\n".join(f"<tr>{_cells(row, side)}</tr>" for row in table.rows)
    return (
        f'<div class="table" role="region" tabindex="0" aria-label="{escape(table.caption)}">'
        f"<table><caption>{escape(table.caption)}</caption><thead><tr>{head}</tr></thead>\n"
        f"<tbody>{rows}</tbody></table></div>"
    )


def _cells(row: Sequence[Cell], side: Sequence[str]) -> str:
    texts = [escape(cell if isinstance(cell, str) else _number(cell)) for cell in row]
    first = f'<th scope="row">{texts[0]}</th>'
    return first + "".join(f"<td{s}>{text}</td>" for s, text in zip(side[1:], texts[1:], strict=True))


def _number(value: float) -> str:
    if value != value:
        return "–"
    decimals = 0 if isinstance(value, int) or value == 0 or abs(value) >= 100 else 1 if abs(value) >= 10 else 2
    return f"{value:,.{decimals}f}"


POLICY = "default-src 'none'; script-src 'unsafe-inline'; style-src 'unsafe-inline'; img-src data: blob:"
"""The page may run what it carries and load nothing."""

STYLE = f"""
:root {{ color-scheme: light dark; --paper: {LIGHT}; --ink: #1B1F24; --soft: #545B66; --line: #D5D9DF; --link: #0B57B0;
  --raised: #F5F6F8; }}
@media (prefers-color-scheme: dark) {{ :root {{ --paper: {DARK}; --ink: #E8EAED; --soft: #A9B0BA; --line: #373D46;
  --link: #8AB8F5; --raised: #1D2127; }} }}
* {{ box-sizing: border-box; }}
body {{ margin: 0; background: var(--paper); color: var(--ink); font: 17px/1.6 system-ui, sans-serif; }}
main {{ max-width: 62rem; margin: 0 auto; padding: 2rem 1.25rem 4rem; }}
h1 {{ line-height: 1.2; font-size: clamp(1.6rem, 5vw, 2.3rem); margin: 0 0 1rem; }}
h2 {{ line-height: 1.25; margin: 3rem 0 .75rem; padding-top: 1rem; border-top: 1px solid var(--line); }}
h3 {{ font-size: 1.05rem; margin: 0 0 .25rem; }}
p, nav {{ max-width: 46rem; }}
.lead {{ font-size: 1.15rem; }}
a {{ color: var(--link); }}
a:focus-visible, [tabindex]:focus-visible {{ outline: 3px solid var(--link); outline-offset: 2px; }}
.skip {{ position: absolute; left: -99rem; }}
.skip:focus {{ left: 1rem; top: 1rem; background: var(--paper); padding: .5rem; z-index: 2; }}
figure {{ margin: 1.75rem 0; padding: 1rem; background: var(--raised); border-radius: .6rem; }}
figcaption {{ color: var(--soft); margin-top: .5rem; max-width: 46rem; }}
.table {{ overflow-x: auto; margin: 1.5rem 0; }}
table {{ border-collapse: collapse; min-width: 100%; font-size: .95rem; font-variant-numeric: tabular-nums; }}
caption {{ text-align: left; font-weight: 600; padding-bottom: .5rem; }}
th, td {{ padding: .4rem .8rem; border-bottom: 1px solid var(--line); text-align: left; vertical-align: top; }}
tbody th {{ font-weight: 500; white-space: nowrap; }}
th.n, td.n {{ text-align: right; }}
td.n {{ white-space: nowrap; }}
@media (max-width: 40rem) {{ figure {{ padding: .75rem .5rem; }} th, td {{ padding: .4rem; }} }}
.js-plotly-plot :is(.xtick, .ytick, .legend, .g-xtitle, .g-ytitle) text {{ fill: var(--ink) !important; }}
.js-plotly-plot .gridlayer path {{ stroke: var(--line) !important; }}
@media print {{ figure, tr {{ break-inside: avoid; }} nav {{ display: none; }} }}
"""
