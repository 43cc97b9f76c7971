"""From the configuration to a table whose every row has a split."""

from __future__ import annotations

from pathlib import Path

import pandas as pd

from proxemics.core.config import Config
from proxemics.core.errors import ConfigError, DataError, TrainingError
from proxemics.data.sources import load_table
from proxemics.data.split_files import load_split
from proxemics.data.splits import make_split


def prepare_table(config: Config) -> pd.DataFrame:
    """Read the source, keep the rows asked for and give each a split.

    Args:
        config: ``data`` says what to read and how to split; ``seed`` seeds the split.

    Returns:
        A frame with ``path, label, domain, split`` and the other columns of the source; ``split`` is train, val
        or test.

    Raises:
        ConfigError: no source is named.
        DataError: the source is absent, empty or cannot be split as asked.
    """
    data = config.data
    if data.split_file is not None:
        return load_split(data.split_file, root=data.root)
    if data.source is None:
        raise ConfigError("No pictures given: name a folder of class folders, or a CSV or Parquet table (data.source).")
    frame = load_table(
        data.source,
        root=data.root,
        where=data.where or None,
        label=data.label,
        domain=data.domain,
        layout=data.layout,
    )
    return make_split(
        frame,
        how=data.split,
        test_fraction=data.test_fraction,
        val_fraction=data.val_fraction,
        held_out_domain=data.held_out_domain,
        group=data.group,
        seed=config.seed,
    )


def rows_of(frame: pd.DataFrame, split: str) -> pd.DataFrame:
    """Return the rows of one split, numbered from 0.

    Raises:
        DataError: there are none.
    """
    rows = frame[frame["split"] == split].reset_index(drop=True)
    if rows.empty:
        raise DataError(
            f"The split {split!r} has no pictures; change data.val_fraction, data.test_fraction or the split column."
        )
    return rows


def refuse_test_rows(frame: pd.DataFrame, purpose: str) -> None:
    """Keep test pictures out of training and of the choice of a model.

    Raises:
        TrainingError: a row of the test split is among them.
    """
    tests = int((frame["split"] == "test").sum())
    if tests:
        raise TrainingError(
            f"{tests} pictures of the test split were given for {purpose}; test classes never train or choose a model. "
            "Pass rows whose split is train or val."
        )


def count_splits(frame: pd.DataFrame) -> dict[str, dict[str, int]]:
    """Count pictures and classes of each split: ``{"train": {"images": ..., "classes": ...}, ...}``."""
    return {
        str(split): {"images": len(rows), "classes": int(rows["label"].nunique())}
        for split, rows in frame.groupby("split", sort=False)
    }


def dataset_name(config: Config) -> str:
    """Name the data for tables: the values of ``data.where``, or the name of the source."""
    if config.data.where:
        return "+".join(config.data.where.values())
    if config.data.source is None:
        return Path(config.data.split_file or "table").stem
    source = Path(config.data.source).resolve()
    # A table called table.csv says nothing; its folder does.
    return source.parent.name if source.stem in ("table", "index", "data", "labels") else source.stem
