"""The map of the test embeddings: points in the plane with label, domain, right or wrong, and a thumbnail each."""

from __future__ import annotations

import base64
import io
import json
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray
from PIL import Image, ImageDraw

from proxemics.core.seeds import numpy_generator
from proxemics.report.palette import DARK, LIGHT
from proxemics.report.projection import Projection, ProjectionName, cached_tsne, pca, tsne
from proxemics.report.sprites import Sprites

if TYPE_CHECKING:
    import pandas as pd

    from proxemics.report.run_files import RunFiles

POINTS = 20_000
RIGHT, WRONG, NOT_ASKED = 0, 1, 2
CACHE = "map_tsne.json"
_NONE = 2**32 - 1
_TITLES = {"pca": "Principal components", "tsne": "t-SNE"}
_STATIC = (1200, 760)


@dataclass(frozen=True)
class MapPoints:
    """What is known of each point; N rows.

    Attributes:
        paths: of the pictures.
        labels: class names.
        domains: domain names, or empty.
        states: (N,) uint8: the nearest picture of a query is of its class (0) or not (1), or it was no query (2).
        taken_for: class of the nearest picture, empty where there is none.
        nearest: (N,) uint32, row of the nearest picture, or 2**32 - 1.
        total: pictures of the test split, of which these are a part.
    """

    paths: Sequence[str]
    labels: Sequence[str]
    domains: Sequence[str]
    states: NDArray[np.uint8]
    taken_for: Sequence[str]
    nearest: NDArray[np.uint32]
    total: int


@dataclass(frozen=True)
class EmbeddingMap:
    """What the section shows.

    Attributes:
        points: the pictures.
        layouts: one or two projections of them.
        static: a drawing for print and for browsers without scripts, as a data URI.
    """

    points: MapPoints
    layouts: tuple[Projection, ...]
    static: str

    @property
    def has_answers(self) -> bool:
        """Some picture was a query."""
        return bool((self.points.states != NOT_ASKED).any())

    @property
    def has_domains(self) -> bool:
        """There is more than one domain."""
        return len(set(self.points.domains)) > 1


def embedding_map_part(
    run: RunFiles,
    *,
    projection: ProjectionName = "pca",
    perplexity: float = 30.0,
    points: int = POINTS,
    progress: Callable[[int], None] | None = None,
) -> EmbeddingMap | None:
    """Lay out the test embeddings of a run; None when it has none, or they are not those of the split.

    A t-SNE that an earlier report made is shown again beside the principal components.

    Args:
        run: the files of the run.
        projection: ``tsne`` adds a t-SNE.
        perplexity: of the t-SNE.
        points: at most so many pictures, drawn at random where there are more.
        progress: hears of the iterations of the t-SNE.
    """
    found = _rows(run)
    if found is None or points < 1:
        return None
    vectors, rows = found
    kept = np.arange(len(rows))
    if len(rows) > points:
        kept = np.sort(numpy_generator(0, "embedding map").permutation(len(rows))[:points])
    chosen = np.asarray(vectors[kept], np.float32)
    if not np.isfinite(chosen).all():
        return None
    layouts = [pca(chosen)]
    cache = run.folder / CACHE
    more = (
        tsne(chosen, perplexity=perplexity, cache=cache, progress=progress)
        if projection == "tsne"
        else cached_tsne(chosen, cache, perplexity=perplexity)
    )
    if more is not None:
        layouts.insert(0, more)
    table = describe_points(rows.iloc[kept], run.queries, total=len(rows))
    return EmbeddingMap(table, tuple(layouts), draw_static(layouts[0].points, table.states))


def _rows(run: RunFiles) -> tuple[NDArray[np.floating[Any]], pd.DataFrame] | None:
    """Return the embeddings with the rows of the table that they belong to."""
    file = run.folder / "embeddings.npy"
    if run.split is None or not file.is_file() or not {"path", "label", "split"} <= set(run.split.columns):
        return None
    try:
        vectors = np.load(file, mmap_mode="r", allow_pickle=False)
    except (OSError, ValueError):
        return None
    rows = run.split[run.split["split"] == "test"].reset_index(drop=True)
    return (vectors, rows) if vectors.ndim == 2 and len(vectors) == len(rows) > 0 else None


def describe_points(rows: pd.DataFrame, queries: pd.DataFrame | None, *, total: int) -> MapPoints:
    """Join what the split and the queries know of pictures.

    Args:
        rows: N rows with ``path``, ``label`` and perhaps ``domain``.
        queries: ``per_query.parquet``, or None.
        total: pictures that the rows were drawn from.
    """
    paths = rows["path"].astype(str).tolist()
    domains = rows["domain"].fillna("").astype(str).tolist() if "domain" in rows.columns else [""] * len(rows)
    states = np.full(len(rows), NOT_ASKED, np.uint8)
    taken = [""] * len(rows)
    nearest = np.full(len(rows), _NONE, np.uint32)
    place = {path: row for row, path in enumerate(paths)}
    for path, label, other, other_label, counted in _answers(queries):
        row = place.get(path)
        if row is not None and states[row] == NOT_ASKED:
            taken[row] = other_label
            nearest[row] = place.get(other, _NONE)
            if counted:
                states[row] = RIGHT if label == other_label else WRONG
    return MapPoints(paths, rows["label"].astype(str).tolist(), domains, states, taken, nearest, total)


def _answers(queries: pd.DataFrame | None) -> list[tuple[str, str, str, str, bool]]:
    """(path, label, nearest path, its label, counted) of each query."""
    names = ("path", "label", "nearest_path", "nearest_label")
    if queries is None or not set(names) <= set(queries.columns):
        return []
    known = queries[queries["nearest_path"].notna()]
    counted = known["recall_at_1"].notna() if "recall_at_1" in known.columns else known["path"].notna()
    columns = [known[name].astype(str).tolist() for name in names]
    return list(zip(*columns, counted.tolist(), strict=True))


def map_payload(shown: EmbeddingMap, sprites: Sprites, root: str) -> str:
    """Return the data of the map as JSON that may stand in HTML text.

    Coordinates are 16-bit numbers of one scale for both axes, rows and classes 32-bit ones, all base64.

    Args:
        shown: the map.
        sprites: thumbnails in the order of the points.
        root: folder that is left out of the paths.
    """
    points = shown.points
    labels = _ranked(points.labels)
    classes = [*labels, *sorted(set(points.taken_for) - set(labels) - {""})]
    domains = _ranked(points.domains)
    number = {name: place for place, name in enumerate(classes)}
    domain_number = {name: place for place, name in enumerate(domains)}
    value = {
        "paths": [path.removeprefix(root) for path in points.paths],
        "root": root,
        "classes": classes,
        "label": _base64(np.array([number[name] for name in points.labels], "<u4")),
        "taken": _base64(np.array([number.get(name, _NONE) for name in points.taken_for], "<u4")),
        "domains": domains,
        "domain": _base64(np.array([domain_number[name] for name in points.domains], "<u4")),
        "state": _base64(points.states),
        "nearest": _base64(points.nearest.astype("<u4")),
        "layouts": [_layout(one) for one in shown.layouts],
        "missing": list(sprites.missing),
        "sprite": {
            "side": sprites.side, "columns": sprites.columns, "perSheet": sprites.per_sheet, "kind": sprites.kind,
        },
        "palette": {"light": LIGHT, "dark": DARK},
    }  # fmt: skip
    text = json.dumps(value, ensure_ascii=False, separators=(",", ":"))
    return text.replace("&", "\\u0026").replace("<", "\\u003c").replace(">", "\\u003e")


def _ranked(names: Sequence[str]) -> list[str]:
    """Names by falling frequency, ties by name."""
    return [name for name, _ in sorted(Counter(names).items(), key=lambda item: (-item[1], item[0]))]


def _layout(one: Projection) -> dict[str, str]:
    x, y = on_grid(one.points)
    return {"name": one.name, "title": _TITLES[one.name], "note": one.note, "x": _base64(x), "y": _base64(y)}


def on_grid(points: NDArray[np.floating]) -> tuple[NDArray[np.uint16], NDArray[np.uint16]]:
    """Bring points to 16-bit numbers with one scale for both axes, the middle in the middle, y downwards.

    Args:
        points: (N, 2) finite.

    Example:
        >>> x, y = on_grid(np.array([[0.0, 0.0], [2.0, 1.0]]))
        >>> x.tolist(), y.tolist()
        ([0, 65535], [49151, 16384])
    """
    low, high = points.min(axis=0), points.max(axis=0)
    span = float((high - low).max()) or 1.0
    unit = 0.5 + (points - (low + high) / 2) / span
    grid = np.round(unit.astype(np.float64) * 65535).clip(0, 65535).astype("<u2")
    return grid[:, 0], 65535 - grid[:, 1]


def _base64(values: NDArray[Any]) -> str:
    return base64.b64encode(np.ascontiguousarray(values).tobytes()).decode("ascii")


def draw_static(points: NDArray[np.floating], states: NDArray[np.uint8]) -> str:
    """Draw the map once, right and wrong answers in their colours, as a data URI of a PNG.

    Args:
        points: (N, 2).
        states: (N,) as in :class:`MapPoints`.
    """
    width, height = _STATIC
    margin = 14
    x, y = on_grid(points)
    wide, high = (max(int(one.max()) - int(one.min()), 1) for one in (x, y))
    scale = min((width - 2 * margin) / wide, (height - 2 * margin) / high)
    left, top = (width - scale * 65535) / 2, (height - scale * 65535) / 2
    radius = 4.0 if len(points) < 1000 else 2.6 if len(points) < 6000 else 1.7
    page = Image.new("P", _STATIC, 0)
    colours = {RIGHT: LIGHT[0], WRONG: LIGHT[1], NOT_ASKED: "#8a8f98"}
    page.putpalette([255, 255, 255, *(int(one[at : at + 2], 16) for one in colours.values() for at in (1, 3, 5))])
    draw = ImageDraw.Draw(page)
    for state, (px, py) in sorted(
        zip(states.tolist(), zip(x.tolist(), y.tolist(), strict=True), strict=True),
        key=lambda item: -item[0] if item[0] == NOT_ASKED else item[0],
    ):
        cx, cy = left + scale * px, top + scale * py
        box = (cx - radius, cy - radius, cx + radius, cy + radius)
        draw.rectangle(box, fill=state + 1) if state == WRONG else draw.ellipse(box, fill=state + 1)
    buffer = io.BytesIO()
    page.save(buffer, "PNG", optimize=True)
    return f"data:image/png;base64,{base64.b64encode(buffer.getvalue()).decode('ascii')}"
