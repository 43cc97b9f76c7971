"""Numbers that papers print, and own runs beside them, never two protocols in one column."""

from proxemics.report.published.panels import Panel, lay_out
from proxemics.report.published.rows import DATASETS, Row, find_dataset, published_rows

__all__ = ["DATASETS", "Panel", "Row", "find_dataset", "lay_out", "published_rows"]
