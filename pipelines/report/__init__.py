"""The report of a run: one HTML file that opens anywhere, without a network."""

from pipelines.report.page import write_report

__all__ = ["write_report"]
