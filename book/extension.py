"""What the book needs of Sphinx beyond its themes: math without a network, listings in colour, figures where they are.

Math becomes MathML while the book is built (latex2mathml): every browser of today draws it itself, so nothing is
fetched and nothing has to be copied, where MathJax and KaTeX would need several megabytes that no package here brings.
"""

from __future__ import annotations

from typing import Any, ClassVar

from docutils import nodes
from ipython_pygments_lexers import IPython3Lexer
from latex2mathml.converter import convert
from pygments.lexer import bygroups, using
from pygments.lexers.python import Python3Lexer
from pygments.token import Keyword, Operator, Text
from sphinx.application import Sphinx
from sphinx.writers.html5 import HTML5Translator


class ListingLexer(IPython3Lexer):  # type: ignore[misc]  # which has no types
    """A cell of a chapter: what follows `%%layer` is Python too."""

    name = "A chapter's cell"
    aliases: ClassVar = ["chapter"]
    tokens: ClassVar = {
        "root": [
            (
                r"(?s)(\s*)(%%)(layer)([^\n]*\n)(.*)",
                bygroups(Text, Operator, Keyword, Text, using(Python3Lexer)),
            ),
            *IPython3Lexer.tokens["root"],
        ]
    }


def inline_math(translator: HTML5Translator, node: nodes.math) -> None:
    """A formula in a line."""
    translator.body.append(convert(node.astext(), display="inline"))
    raise nodes.SkipNode


def block_math(translator: HTML5Translator, node: nodes.math_block) -> None:
    """A formula of its own."""
    translator.body.append(f'<div class="formula">{convert(node.astext(), display="block")}</div>')
    raise nodes.SkipNode


def add_figures(app: Sphinx, pagename: str, templatename: str, context: dict[str, Any], doctree: Any) -> None:
    """Pages with figures, and only those, load plotly."""
    if 'class="picture-plot"' in context.get("body", ""):
        app.add_js_file("plotly.min.js", loading_method="defer")
        app.add_js_file("figures.js", loading_method="defer")


def setup(app: Sphinx) -> dict[str, bool]:
    """Register all of it."""
    for name in ("ipython3", "ipython", "python"):
        app.add_lexer(name, ListingLexer)
    app.add_html_math_renderer("mathml", (inline_math, None), (block_math, None))
    app.connect("html-page-context", add_figures)
    return {"parallel_read_safe": True, "parallel_write_safe": True}
