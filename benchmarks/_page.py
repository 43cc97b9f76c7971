"""Tables of result files in the pages of the documentation, between marks that name the file."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from _results import RESULTS

END = "<!-- end -->"


def start(name: str) -> str:
    """Return the mark before the table of ``results/<name>.json``."""
    return f"<!-- table of benchmarks/results/{name}.json -->"


def put_into(page: Path, name: str, shown: str) -> None:
    """Replace what stands between the marks of a page.

    Raises:
        SystemExit: the page has no such marks.
    """
    before, mark, rest = page.read_text(encoding="utf-8").partition(start(name))
    _, end, after = rest.partition(END)
    if not mark or not end:
        raise SystemExit(f"{page} has no line {start(name)} with {END} after it.")
    page.write_text(f"{before}{mark}\n\n{shown}\n\n{end}{after}", encoding="utf-8")


def on_page(page: Path, name: str) -> str:
    """Return what stands between the marks."""
    return page.read_text(encoding="utf-8").partition(start(name))[2].partition(END)[0].strip()


def publish(name: str, tables: Callable[[Mapping[str, Any]], str], page: Path | None) -> None:
    """Print the tables of ``results/<name>.json``, and put them into a page."""
    shown = tables(json.loads((RESULTS / f"{name}.json").read_text(encoding="utf-8")))
    print(shown)
    if page is not None:
        put_into(page, name, shown)
