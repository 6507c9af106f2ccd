"""How Sphinx builds the book; `book/build.py` prepares its sources and calls it."""

from __future__ import annotations

import os
import sys
from pathlib import Path

import plotly

sys.path.insert(0, str(Path(__file__).parent))

project = "mooncake_edu"
author = "the authors of mooncake_edu"
project_copyright = "the authors of mooncake_edu, Apache-2.0"
html_title = "mooncake_edu"
extensions = ["myst_nb", "sphinx_book_theme", "extension"]
html_theme = "sphinx_book_theme"

nb_execution_mode = "off"  # build.py has run them
nb_ipywidgets_js: dict[str, object] = {}  # what runs in a kernel does not run in a page
nb_code_prompt_show = "Show the {type}"
nb_code_prompt_hide = "Hide the {type}"
nb_render_markdown_format = "myst"  # tables too
myst_enable_extensions = ["dollarmath", "colon_fence", "deflist"]
myst_heading_anchors = 2
html_math_renderer = "mathml"
suppress_warnings = ["mystnb.mime_priority"]

html_static_path = ["static", str(Path(plotly.__file__).parent / "package_data" / "plotly.min.js")]
html_context = {"default_mode": "auto"}  # light or dark, as the reader's system has it
html_css_files = ["book.css"]
html_show_sphinx = False
html_show_search_summary = False  # it fetches pages, which browsers refuse to those opened from disk
html_last_updated_fmt = None
html_theme_options: dict[str, object] = {
    "use_download_button": True,
    "use_fullscreen_button": False,
    "show_toc_level": 2,
    "home_page_in_toc": False,
    "show_navbar_depth": 1,
}

REPOSITORY = os.environ.get("MOONCAKE_EDU_REPOSITORY")
"""The address of the public repository; without one there is nothing that Colab or Binder could open."""
if REPOSITORY:
    html_theme_options |= {
        "repository_url": REPOSITORY,
        "repository_branch": os.environ.get("MOONCAKE_EDU_BRANCH", "main"),
        "use_repository_button": True,
        "launch_buttons": {"colab_url": "https://colab.research.google.com", "binderhub_url": "https://mybinder.org"},
    }
