"""Show results in the terminal, as Markdown and as one HTML page, all based on `osae.measures`.

Does not need torch.

Names are imported when first used: printing a table does not import the page.
"""

from importlib import import_module
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from osae.report.markdown import markdown_table, render_markdown
    from osae.report.page import render_page, write_experiment, write_page
    from osae.report.terminal import show

__all__ = ["markdown_table", "render_markdown", "render_page", "show", "write_experiment", "write_page"]

_HOME_OF = {
    "markdown_table": "markdown",
    "render_markdown": "markdown",
    "render_page": "page",
    "show": "terminal",
    "write_experiment": "page",
    "write_page": "page",
}


def __getattr__(name: str):
    if name not in _HOME_OF:
        raise AttributeError(f"module 'osae.report' has no attribute {name!r}")
    return getattr(import_module(f"osae.report.{_HOME_OF[name]}"), name)
