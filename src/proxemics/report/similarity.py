"""The section on why pictures were confused: the worst confusions with the places that made them similar."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray
from PIL import Image

from proxemics.core.errors import ProxemicsError
from proxemics.data.preprocess import Preprocess
from proxemics.report.overlay import relative_heat, veil
from proxemics.report.thumbnails import jpeg_uri, png_uri
from proxemics.training.log import Reporter
from proxemics.training.similarity_run import PairMaps, similarity_of_run

if TYPE_CHECKING:
    from pathlib import Path

    import pandas as pd

    from proxemics.report.run_files import RunFiles

PAIRS, SIDE, VEIL_SIDE = 12, 224, 48
_EACH = 2  # of one pair of classes
_HOW = {
    "exact": (
        "The model pools by averaging, so this is an exact sum: the parts of all places of a picture add up to the "
        "cosine."
    ),
    "gradient": (
        "The model does not pool by averaging, so the parts are gradient × activation at the pooled places; they add "
        "up to the cosine."
    ),
    "class token": (
        "The model answers from a class token, so the parts are gradient × activation at the patches that go into the "
        "last block; they show where the model looked and do not add up to the cosine."
    ),
}


@dataclass(frozen=True)
class MappedPicture:
    """A picture as the model saw it, with its veil, both as data URIs."""

    path: str
    label: str
    picture: str
    veil: str


@dataclass(frozen=True)
class MappedPair:
    """A query and the picture of another class that it was taken for."""

    query: MappedPicture
    neighbour: MappedPicture
    cosine: float


@dataclass(frozen=True)
class SimilarityPart:
    """What the section shows: the pairs, and how their maps were made."""

    pairs: tuple[MappedPair, ...]
    how: str
    bias: str


def worst_confusions(queries: pd.DataFrame | None, *, count: int = PAIRS) -> list[tuple[str, str, str, str]]:
    """Return the wrong answers with the highest cosine, at most two for a pair of classes.

    Args:
        queries: ``per_query.parquet``.
        count: how many.

    Returns:
        (query, nearest, label of the query, label of the nearest) of each.
    """
    names = ["path", "nearest_path", "label", "nearest_label"]
    if queries is None or not {*names, "similarity"} <= set(queries.columns):
        return []
    known = queries[queries["nearest_path"].notna() & queries["similarity"].notna()]
    wrong = known[known["label"].astype(str) != known["nearest_label"].astype(str)]
    order = wrong.sort_values("similarity", ascending=False, kind="stable")
    keep = []
    seen: dict[frozenset[str], int] = {}
    shown: set[frozenset[str]] = set()
    for query, nearest, label, other in zip(*(order[name].astype(str) for name in names), strict=True):
        classes, pictures = frozenset((label, other)), frozenset((query, nearest))
        new = pictures not in shown and seen.get(classes, 0) < _EACH  # two pictures may be each other's nearest
        keep.append(new)
        if new:
            shown.add(pictures)
            seen[classes] = seen.get(classes, 0) + 1
    chosen = order[np.asarray(keep, bool)].head(count)
    columns = [chosen[name].astype(str).tolist() for name in names]
    return list(zip(*columns, strict=True))


def similarity_part(run: RunFiles, *, reporter: Reporter | None = None, count: int = PAIRS) -> SimilarityPart | None:
    """Compute, or read, the similarity maps of the worst confusions; None where there are none to show.

    Args:
        run: the files of the run; without its model or its pictures there are no maps.
        reporter: hears of progress.
        count: pairs at most.
    """
    wanted = worst_confusions(run.queries, count=count)
    names = {(query, nearest): labels for query, nearest, *labels in wanted}
    maps = similarity_of_run(run.folder, [(query, nearest) for query, nearest, *_ in wanted], reporter=reporter)
    preprocess = _preprocess(run.folder)
    if not maps or preprocess is None:
        return None
    pairs = tuple(
        pair for one in maps if (pair := _mapped(one, names[one.query, one.neighbour], preprocess)) is not None
    )
    if not pairs:
        return None
    shares = [share for one in maps for share in one.bias]
    mean = float(np.mean(np.abs(shares)))
    bias = (
        "" if mean < 0.005 else f"The bias of the head belongs to no place and is spread evenly: {mean:.2f} on average."
    )
    return SimilarityPart(pairs, _HOW.get(maps[0].how, ""), bias)


def _preprocess(folder: Path) -> Preprocess | None:
    try:
        return Preprocess.from_json((folder / "bundle" / "preprocess.json").read_text(encoding="utf-8"))
    except (OSError, ProxemicsError):
        return None


def _mapped(maps: PairMaps, labels: list[str], preprocess: Preprocess) -> MappedPair | None:
    try:
        first = _picture(maps.query, labels[0], maps.query_map, preprocess)
        second = _picture(maps.neighbour, labels[1], maps.neighbour_map, preprocess)
    except ProxemicsError:
        return None
    return MappedPair(first, second, maps.cosine)


def _picture(path: str, label: str, values: NDArray[np.float32], preprocess: Preprocess) -> MappedPicture:
    pixels = Image.fromarray(preprocess.crop_exact(path))
    if pixels.width > SIDE:
        pixels = pixels.resize((SIDE, SIDE), Image.Resampling.LANCZOS)
    return MappedPicture(path, label, jpeg_uri(pixels), png_uri(veil(relative_heat(values), VEIL_SIDE)))
