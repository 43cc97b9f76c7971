"""Writing the report: one HTML file that opens from disk anywhere and asks nothing of any network."""

from __future__ import annotations

import base64
import hashlib
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from proxemics.__about__ import __version__
from proxemics.core.errors import ConfigError
from proxemics.core.files import write_text
from proxemics.report.embedding_map import POINTS, EmbeddingMap, embedding_map_part, map_payload
from proxemics.report.environment import make_environment, plain_text, read_part
from proxemics.report.page import CLASS_SIDE, NEIGHBOUR_SIDE, QUERY_SIDE, build_page, common_root
from proxemics.report.projection import ITERATIONS, ProjectionName, check_projection
from proxemics.report.run_files import read_run
from proxemics.report.similarity import SIDE as SIMILARITY_SIDE
from proxemics.report.similarity import similarity_part
from proxemics.report.sprites import make_sprites
from proxemics.report.thumbnails import Thumbnails
from proxemics.training.log import Reporter, Silent

SCRIPTS = ("report.js", "page.js", "map.js")
WHOLE_PAGE = 24_000_000
"""Bytes that the file should not grow beyond; the thumbnails of the map get what the other parts leave."""
_OTHER_PARTS = 3_000_000  # text, tables, charts and the numbers of the map, of a large run


def write_report(
    run: str | Path,
    *,
    out: str | Path | None = None,
    picture_bytes: int = 8_000_000,
    projection: ProjectionName = "pca",
    perplexity: float = 30.0,
    points: int = POINTS,
    similarity: bool = True,
    reporter: Reporter | None = None,
) -> Path:
    """Write the report of a finished run.

    The page holds the numbers with their intervals beside those of the untrained trunk, the curves, the worst and
    best queries with their neighbours, the places that made the worst confusions similar, which classes are mixed up, a
    map of the embeddings, what the expansion makes, class and domain tables and everything needed to run it again.
    Styles, script, charts and pictures are inside the file; a content security policy forbids every request.

    Args:
        run: the run folder; ``result.json`` must be in it.
        out: where to write; default: ``report.html`` in the run folder.
        picture_bytes: largest sum of encoded thumbnails; those beyond it become placeholders. The thumbnails of the
            map may take half as much again.
        projection: of the map: ``pca``, or ``tsne``, which takes minutes for thousands of pictures and is kept in the
            run folder, so that later reports show it as well.
        perplexity: of t-SNE.
        points: pictures on the map at most, drawn at random where there are more; 0 leaves the map out.
        similarity: compute similarity maps of the worst confusions, for which the model is loaded.
        reporter: hears of progress.

    Returns:
        The path of the report.

    Raises:
        DataError: the folder holds no finished run.
        ConfigError: an option is not allowed.
        ProxemicsError: jinja2 or scikit-learn is needed and not installed, or the file cannot be written.
    """
    environment = make_environment()  # what is not installed is found out before any work
    check_projection(projection, perplexity)
    if points < 0:
        raise ConfigError(f"--points {points}: give 0 for no map, or the number of pictures on it.")
    progress = reporter or Silent()
    found = read_run(run)
    thumbnails = Thumbnails(budget=picture_bytes)
    if projection == "tsne":
        progress.start("t-SNE", ITERATIONS)
    shown = embedding_map_part(
        found,
        projection=projection,
        perplexity=perplexity,
        points=points,
        progress=lambda steps: progress.advance("t-SNE", steps),
    )
    progress.finish("t-SNE")
    page = {
        **build_page(found, thumbnails),
        "similarity": similarity_part(found, reporter=progress) if similarity else None,
        "similarity_side": SIMILARITY_SIDE,
    }
    room = WHOLE_PAGE - _OTHER_PARTS - thumbnails.bytes * 4 // 3
    html = environment.get_template("report.html").render(
        page,
        **map_values(shown, min(room * 3 // 4, picture_bytes * 3 // 2)),
        thumbnails=thumbnails,
        query_side=QUERY_SIDE,
        neighbour_side=NEIGHBOUR_SIDE,
        class_side=CLASS_SIDE,
        **page_values(),
    )
    target = Path(out) if out is not None else found.folder / "report.html"
    write_text(target, plain_text(html))
    return target


def page_values() -> dict[str, str]:
    """Return what the skeleton of every page needs: style, script, its hash for the policy, and the version."""
    script = "".join(read_part(name) for name in SCRIPTS)
    return {
        "style": read_part("report.css"),
        "script": script,
        "script_hash": base64.b64encode(hashlib.sha256(script.encode()).digest()).decode("ascii"),
        "version": __version__,
    }


def map_values(shown: EmbeddingMap | None, budget: int) -> Mapping[str, Any]:
    """Return what the template needs for the map.

    Args:
        shown: the map, or None for none.
        budget: bytes of encoded thumbnails.
    """
    if shown is None:
        return {"map": None, "sprites": None, "map_data": ""}
    sprites = make_sprites(shown.points.paths, budget=max(budget, 0))
    return {
        "map": shown,
        "sprites": sprites,
        "map_data": map_payload(shown, sprites, common_root(shown.points.paths)),
    }
