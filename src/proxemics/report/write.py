"""Writing the report: one HTML file that opens from disk anywhere and asks nothing of any network."""

from __future__ import annotations

import base64
import hashlib
from pathlib import Path

from proxemics.__about__ import __version__
from proxemics.core.files import write_text
from proxemics.report.environment import make_environment, plain_text, read_part
from proxemics.report.page import CLASS_SIDE, NEIGHBOUR_SIDE, QUERY_SIDE, build_page
from proxemics.report.run_files import read_run
from proxemics.report.thumbnails import Thumbnails


def write_report(run: str | Path, *, out: str | Path | None = None, picture_bytes: int = 8_000_000) -> Path:
    """Write the report of a finished run.

    The page holds the numbers with their intervals beside those of the untrained trunk, the curves, the worst and
    best queries with their neighbours, what the expansion makes, class and domain tables and everything needed to run
    it again. Styles, script,
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
    environment = make_environment()
    found = read_run(run)
    thumbnails = Thumbnails(budget=picture_bytes)
    page = build_page(found, thumbnails)
    script = read_part("report.js")
    html = environment.get_template("report.html").render(
        page,
        thumbnails=thumbnails,
        query_side=QUERY_SIDE,
        neighbour_side=NEIGHBOUR_SIDE,
        class_side=CLASS_SIDE,
        style=read_part("report.css"),
        script=script,
        script_hash=base64.b64encode(hashlib.sha256(script.encode()).digest()).decode("ascii"),
        version=__version__,
    )
    target = Path(out) if out is not None else found.folder / "report.html"
    write_text(target, plain_text(html))
    return target
