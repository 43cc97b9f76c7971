"""Similarity maps of pairs of pictures with the model of a run, kept in its folder so that they are computed once."""

from __future__ import annotations

import contextlib
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from proxemics.core.errors import ImageError, ModelError, ProxemicsError
from proxemics.core.files import read_json, write_text
from proxemics.training.log import Reporter, Silent

CACHE = "similarity.json"
_DIGITS = 6


@dataclass(frozen=True)
class PairMaps:
    """The maps of one pair; see :class:`proxemics.evaluation.similarity.SimilarityMaps`.

    Attributes:
        query: path of the query.
        neighbour: path of the other picture.
        cosine: of the two.
        how: ``exact``, ``gradient`` or ``class token``.
        bias: what the bias of the head adds to each map.
        query_map: (h, w) float32.
        neighbour_map: (h, w) float32.
    """

    query: str
    neighbour: str
    cosine: float
    how: str
    bias: tuple[float, float]
    query_map: NDArray[np.float32]
    neighbour_map: NDArray[np.float32]


def similarity_of_run(
    folder: str | Path, pairs: Sequence[tuple[str, str]], *, reporter: Reporter | None = None
) -> list[PairMaps]:
    """Compute the similarity maps of pairs with the model of a run.

    Args:
        folder: the run folder. ``similarity.json`` in it is used where it is of the same model, and written.
        pairs: (query, neighbour) paths.
        reporter: hears of progress.

    Returns:
        One entry a pair, in order. Pairs with a picture that cannot be read are left out; there is none at all when the
        run has no model, or its trunk no map.
    """
    place = Path(folder)
    model = _model_key(place / "bundle")
    if model is None or not pairs:
        return []
    kept = _read(place / CACHE, model)
    absent = [pair for pair in dict.fromkeys(pairs) if pair not in kept]
    if absent:
        computed = _compute(place, absent, reporter or Silent())
        kept = {pair: one for pair, one in {**kept, **computed}.items() if pair in set(pairs)}
        if computed:
            _write(place / CACHE, model, kept)
    return [kept[pair] for pair in pairs if pair in kept]


def _model_key(bundle: Path) -> str | None:
    """Return what names model and preprocessing together, without loading them."""
    try:
        about: Mapping[str, Any] = read_json(bundle / "model.json")
        preprocess = read_json(bundle / "preprocess.json")
        return f"{about['fingerprint']} {json.dumps(preprocess, sort_keys=True)}"
    except (ProxemicsError, KeyError, TypeError):
        return None


def _compute(folder: Path, pairs: Sequence[tuple[str, str]], reporter: Reporter) -> dict[tuple[str, str], PairMaps]:
    from proxemics.evaluation.similarity import similarity_map
    from proxemics.training.evaluate_run import open_model

    found: dict[tuple[str, str], PairMaps] = {}
    try:
        embedder = open_model(folder)
    except ProxemicsError as error:
        reporter.say(f"No similarity maps: {error}")
        return found
    reporter.start("similarity", len(pairs))
    for query, neighbour in pairs:
        try:
            maps = similarity_map(embedder, query, neighbour)
        except ImageError:
            continue
        except ModelError as error:
            reporter.say(f"No similarity maps: {error}")
            break
        finally:
            reporter.advance("similarity")
        found[query, neighbour] = PairMaps(
            query, neighbour, maps.cosine, maps.how, maps.bias, maps.query, maps.neighbour
        )
    reporter.finish("similarity")
    return found


def _write(file: Path, model: str, kept: Mapping[tuple[str, str], PairMaps]) -> None:
    value = {
        "schema": 1,
        "model": model,
        "pairs": [
            {
                "query": one.query,
                "neighbour": one.neighbour,
                "cosine": one.cosine,
                "how": one.how,
                "bias": list(one.bias),
                "query_map": _rounded(one.query_map),
                "neighbour_map": _rounded(one.neighbour_map),
            }
            for one in kept.values()
        ],
    }
    with contextlib.suppress(ProxemicsError):  # a folder that cannot be written must not cost the report
        write_text(file, json.dumps(value, ensure_ascii=False) + "\n")


def _rounded(values: NDArray[np.float32]) -> list[list[float]]:
    return [[round(float(value), _DIGITS) for value in row] for row in values]


def _read(file: Path, model: str) -> dict[tuple[str, str], PairMaps]:
    """Read the maps of this model; none where the file is absent, damaged or of another model."""
    try:
        value = read_json(file)
        if value["model"] != model:
            return {}
        return {(one["query"], one["neighbour"]): _pair(one) for one in value["pairs"]}
    except (ProxemicsError, KeyError, TypeError, ValueError, IndexError):
        return {}


def _pair(one: Mapping[str, Any]) -> PairMaps:
    maps = [np.asarray(one[name], np.float32) for name in ("query_map", "neighbour_map")]
    if any(part.ndim != 2 or not part.size for part in maps):
        raise ValueError("no map")
    return PairMaps(
        str(one["query"]),
        str(one["neighbour"]),
        float(one["cosine"]),
        str(one["how"]),
        (float(one["bias"][0]), float(one["bias"][1])),
        maps[0],
        maps[1],
    )
