"""Which pictures an export is calibrated on and measured with; the two never share one."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from proxemics.core.config import Config, EvaluationConfig
from proxemics.core.errors import ConfigError
from proxemics.core.seeds import numpy_generator
from proxemics.data.preprocess import Preprocess
from proxemics.data.split_files import load_split
from proxemics.evaluation.probes.measure import balanced_rows
from proxemics.export.source import Source, place_name
from proxemics.runtime.pictures import MAX_PIXELS, read_image
from proxemics.training.tables import settle_protocol

CALIBRATION = 128
"""Pictures that the ranges of int8 are taken from, at most."""
BATCH = 16


@dataclass(frozen=True)
class Pictures:
    """The pictures of an export.

    Attributes:
        tested: rows to measure Recall@1 on; None where there are no pictures.
        calibration: rows for int8; None where there are none.
        evaluation: how ``tested`` is searched.
        said: where the pictures are from, for people; or why there are none.
        max_pixels: larger pictures are refused.
    """

    tested: pd.DataFrame | None
    calibration: pd.DataFrame | None
    evaluation: EvaluationConfig
    said: str
    max_pixels: int = MAX_PIXELS


def choose_pictures(
    source: Source, *, data: str | None, where: Mapping[str, str] | None, images: int, seed: int = 0
) -> Pictures:
    """Choose the pictures of an export.

    Args:
        source: what is exported.
        data: other pictures than those of the run: a folder or a table.
        where: filter on the rows of ``data``.
        images: test pictures at most, classes about equal; 0 for all.
        seed: of the draws.

    Raises:
        ConfigError: ``images`` is out of range.
        DataError: ``data`` cannot be read.
    """
    if images < 0 or 0 < images < 8:
        raise ConfigError(f"images={images}; give 0 for all test pictures, or 8 and more.")
    if data is not None:
        return _named(source, data, where, images, seed)
    if source.run is None or source.config is None or not source.run.split.exists():
        return Pictures(None, None, EvaluationConfig(), "a bundle does not hold its pictures; name some with --data")
    return _of_run(source.config, load_split(source.run.split), images, seed)


def _of_run(config: Config, table: pd.DataFrame, images: int, seed: int) -> Pictures:
    config = settle_protocol(config, table)
    test = table[table["split"] == "test"].reset_index(drop=True)
    seen = table[table["split"] == "train"].reset_index(drop=True)
    tested, whole = _draw(test, images, seed)
    calibration = _some(seen, CALIBRATION, seed)
    gone = [path for rows in (tested, calibration) for path in rows["path"] if not Path(path).is_file()]
    if gone:
        why = f"{len(gone)} pictures of the run are gone, e.g. {gone[0]}; name them with --data"
        return Pictures(None, None, EvaluationConfig(), why)
    evaluation = config.evaluation if whole else EvaluationConfig()
    said = f"{'the' if whole else len(tested)} test pictures of the run"
    return Pictures(tested, calibration, evaluation, said, config.data.max_pixels)


def _named(source: Source, data: str, where: Mapping[str, str] | None, images: int, seed: int) -> Pictures:
    from proxemics.data.sources import load_table

    kept = (source.config or Config()).data
    rows = load_table(data, where=where or None, label=kept.label, domain=kept.domain, layout=kept.layout)
    rows = rows.reset_index(drop=True)
    calibration = _some(rows, min(CALIBRATION, len(rows) // 4), seed)
    rest = rows[~rows["path"].isin(calibration["path"])].reset_index(drop=True)
    tested, whole = _draw(rest, images, seed)
    said = f"{'all' if whole else len(tested)} pictures of {place_name(data)} that int8 was not calibrated on"
    return Pictures(tested, calibration, EvaluationConfig(), said, kept.max_pixels)


def _draw(rows: pd.DataFrame, images: int, seed: int) -> tuple[pd.DataFrame, bool]:
    if images == 0 or len(rows) <= images:
        return rows, True
    codes = np.unique(rows["label"].astype(str).to_numpy(), return_inverse=True)[1].astype(np.int64)
    return rows.iloc[balanced_rows(codes, images, seed)].reset_index(drop=True), False


def _some(rows: pd.DataFrame, count: int, seed: int) -> pd.DataFrame:
    order = numpy_generator(seed, "calibration").permutation(len(rows))
    return rows.iloc[np.sort(order[:count])].reset_index(drop=True)


def pixel_batches(
    rows: pd.DataFrame, preprocess: Preprocess, *, max_pixels: int, size: int = BATCH
) -> Iterator[NDArray[np.float32]]:
    """Read pictures with the exact engine.

    Args:
        rows: with ``path``.
        preprocess: of the model.
        max_pixels: larger pictures are refused.
        size: pictures at a time.

    Yields:
        (b, 3, S, S) float32, normalised, in the order of the rows.

    Raises:
        ImageError: a picture cannot be read; the message names it.
    """
    paths = rows["path"].to_list()
    for start in range(0, len(paths), size):
        part = [preprocess(read_image(path, max_pixels=max_pixels)) for path in paths[start : start + size]]
        yield np.stack(part)
