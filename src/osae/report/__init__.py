"""Results on the terminal, as Markdown and as one HTML page, all from `osae.measures`. Needs no torch."""

from osae.report.markdown import markdown, markdown_table
from osae.report.page import page, write_experiment, write_page
from osae.report.terminal import show

__all__ = ["markdown", "markdown_table", "page", "show", "write_experiment", "write_page"]
