"""Sphinx's configuration: `nox -s docs` builds the site, with every warning an error.

The pages under `docs/reference/` are written from the code when a build begins (`docs/reference_pages.py`).
"""

from __future__ import annotations

import sys
from pathlib import Path

from sphinx.application import Sphinx

HERE = Path(__file__).parent
sys.path[:0] = [str(HERE), str(HERE.parent)]

import reference_pages  # noqa: E402

from hloscope.version import __version__  # noqa: E402

project = "hloscope"
author = "the authors of hloscope"
release = version = __version__
extensions = ["myst_parser", "sphinx.ext.autodoc", "sphinx.ext.napoleon", "sphinx_copybutton"]


html_theme = "sphinx_book_theme"
html_title = f"hloscope {release}"
html_static_path = ["_static"]
html_css_files = ["site.css"]
html_theme_options = {"show_toc_level": 2, "home_page_in_toc": True, "navbar_persistent": []}
smartquotes_action = "D"  # dashes; quotes in prose are mostly those of code

myst_enable_extensions = ["deflist"]
myst_heading_anchors = 3
default_role = "code"  # a single backtick marks code in docstrings
autodoc_typehints = "none"  # docstrings say what each parameter is
autodoc_member_order = "bysource"
napoleon_google_docstring = True
napoleon_numpy_docstring = False
napoleon_use_ivar = True
copybutton_prompt_text = r"\$ |>>> |\.\.\. "
copybutton_prompt_is_regexp = True
copybutton_only_copy_prompt_lines = True
highlight_language = "none"
linkcheck_timeout = 20
linkcheck_retries = 2


def setup(app: Sphinx) -> None:
    """Writes the generated pages when a build begins."""
    app.connect("config-inited", lambda *_: reference_pages.write())
    app.connect("autodoc-process-docstring", _keep_summary, priority=400)  # before napoleon


def _keep_summary(_app: Sphinx, what: str, _name: str, _of: object, _options: object, lines: list[str]) -> None:
    """Keeps napoleon from taking what stands before a colon, in the summary of a property, for its type."""
    if what == "property" and lines:
        lines[0] = lines[0].replace(": ", " \N{EN DASH} ")
