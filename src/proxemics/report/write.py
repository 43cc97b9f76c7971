"""Writing the report: one HTML file that opens from disk anywhere and asks nothing of any network."""

from __future__ import annotations

import base64
import hashlib
import re
from importlib.resources import files
from pathlib import Path
from typing import TYPE_CHECKING

from proxemics.__about__ import __version__
from proxemics.core.errors import ProxemicsError
from proxemics.core.files import write_text
from proxemics.report.page import CLASS_SIDE, NEIGHBOUR_SIDE, QUERY_SIDE, amount, build_page, change, percent
from proxemics.report.run_files import read_run
from proxemics.report.thumbnails import Thumbnails

if TYPE_CHECKING:
    from jinja2 import Environment
    from markupsafe import Markup


def write_report(run: str | Path, *, out: str | Path | None = None, picture_bytes: int = 8_000_000) -> Path:
    """Write the report of a finished run.

    The page holds the numbers with their intervals beside those of the untrained trunk, the curves, the worst and
    best queries with their neighbours, class and domain tables and everything needed to run it again. Styles, script,
    charts and pictures are inside the file; a content security policy forbids every request.

    Args:
        run: the run folder; ``result.json`` must be in it.
        out: where to write; default: ``report.html`` in the run folder.
        picture_bytes: largest sum of encoded thumbnails; those beyond it become placeholders.

    Returns:
        The path of the report.

    Raises:
        DataError: the folder holds no finished run.
        ProxemicsError: jinja2 is not installed, or the file cannot be written.
    """
    environment = _environment()
    found = read_run(run)
    thumbnails = Thumbnails(budget=picture_bytes)
    page = build_page(found, thumbnails)
    script = _part("report.js")
    html = environment.get_template("report.html").render(
        page,
        thumbnails=thumbnails,
        query_side=QUERY_SIDE,
        neighbour_side=NEIGHBOUR_SIDE,
        class_side=CLASS_SIDE,
        style=_part("report.css"),
        script=script,
        script_hash=base64.b64encode(hashlib.sha256(script.encode()).digest()).decode("ascii"),
        version=__version__,
    )
    target = Path(out) if out is not None else found.folder / "report.html"
    write_text(target, html.encode("utf-8", "replace").decode("utf-8"))  # a path may hold bytes that are no text
    return target


def _environment() -> Environment:
    try:
        from jinja2 import Environment, PackageLoader, StrictUndefined
    except ModuleNotFoundError as error:
        raise ProxemicsError(
            "The report needs jinja2, which is not installed. Install it with: pip install 'proxemics[report]'."
        ) from error
    environment = Environment(
        loader=PackageLoader("proxemics.report"),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    environment.filters.update(percent=percent, amount=amount, change=change, breakable=_breakable)
    return environment


def _breakable(text: str) -> Markup:
    """Escape a name and allow line breaks after the marks that join its words."""
    from markupsafe import Markup, escape

    return Markup(re.sub(r"([_/.\\-])", r"\1<wbr>", str(escape(text))))  # noqa: S704 - escaped just before


def _part(name: str) -> str:
    return (files("proxemics.report") / "templates" / name).read_text(encoding="utf-8")
