"""Results (plain dicts and arrays) as tables, figures and one HTML page. Needs no torch."""

from osae.report.page import page, write_report
from osae.report.table import markdown, rich_table, rich_tables, write_csv

__all__ = ["markdown", "page", "rich_table", "rich_tables", "write_csv", "write_report"]
