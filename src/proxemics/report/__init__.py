"""Floor 5: the report of a run, one self-contained HTML file."""

from proxemics.report.write import write_report

__all__ = ["write_report"]
