"""From the configuration to a table whose every row has a split."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from proxemics.core.config import Config
from proxemics.core.errors import ConfigError, DataError, TrainingError, did_you_mean
from proxemics.data.sources import load_table
from proxemics.data.split_files import load_split
from proxemics.data.splits import make_split
from proxemics.data.table import as_text
from proxemics.evaluation.protocols import musgrave_folds, single_domain
from proxemics.evaluation.result import shorten


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
        return fit_protocol(config, load_split(data.split_file, root=data.root))
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
    split = make_split(
        frame,
        how=data.split,
        test_fraction=data.test_fraction,
        val_fraction=data.val_fraction,
        held_out_domain=data.held_out_domain,
        group=data.group,
        seed=config.seed,
    )
    return fit_protocol(config, split)


def fit_protocol(config: Config, table: pd.DataFrame) -> pd.DataFrame:
    """Make the splits what the protocol asks for; doing it twice changes nothing more.

    With musgrave the training classes are cut into four folds anew, and ``evaluation.fold`` is the one that chooses the
    model. With single_domain, and where a source domain is named, training and validation rows of other domains lose
    their split. Test rows are never touched.

    Args:
        config: the protocol, its fold and its source.
        table: rows with splits.

    Raises:
        DataError: too few training classes for four folds, or no training rows in the source domain.
        ConfigError: the source is not named and the training rows have several domains.
    """
    evaluation = config.evaluation
    if evaluation.protocol == "single_domain" or evaluation.source_domain:
        table = _only_source(table, source_domain(config, table))
    if evaluation.protocol == "musgrave":
        seen = table["split"].isin(["train", "val"]).to_numpy()
        fold = musgrave_folds(table["label"].to_numpy(str)[seen])[evaluation.fold]
        split = table["split"].to_numpy(object)
        rows = np.flatnonzero(seen)
        split[rows[fold.train]], split[rows[fold.val]] = "train", "val"
        return _with_split(table, split)
    return table


def _only_source(table: pd.DataFrame, source: str) -> pd.DataFrame:
    seen = table["split"].isin(["train", "val"]).to_numpy()
    inside = (table["domain"] == source).to_numpy()
    if not (seen & inside).any():
        known = [str(one) for one in sorted(set(table["domain"])) if one]
        there = f"there are {', '.join(known)}" if known else "the table has none (data.domain names their column)"
        raise DataError(f"No training picture has the source domain {source!r}; {there}.{did_you_mean(source, known)}")
    return _with_split(table, np.where(seen & ~inside, "", table["split"].to_numpy(object)))


def source_domain(config: Config, table: pd.DataFrame) -> str:
    """Return the training domain: the one that is named, or the only one of the training rows.

    Raises:
        ConfigError: none is named and there are several.
    """
    if config.evaluation.source_domain:
        return config.evaluation.source_domain
    seen = sorted(set(table.loc[table["split"].isin(["train", "val"]), "domain"]))
    if len(seen) != 1 or not seen[0]:
        raise ConfigError(
            f"evaluation.protocol=single_domain needs evaluation.source_domain: the training pictures have "
            f"{len(seen)} domains ({shorten(seen)})."
        )
    return str(seen[0])


def settle_protocol(config: Config, table: pd.DataFrame) -> Config:
    """Write the source domain into a configuration that leaves it open; others come back as they are."""
    evaluation = config.evaluation
    if evaluation.protocol != "single_domain" or evaluation.source_domain:
        return config
    named = evaluation.model_copy(update={"source_domain": source_domain(config, table)})
    return config.model_copy(update={"evaluation": named})


def _with_split(table: pd.DataFrame, split: NDArray[np.object_]) -> pd.DataFrame:
    changed = table.assign(split=as_text(list(split)).to_numpy())
    changed.attrs = dict(table.attrs)
    return changed


def rows_of(frame: pd.DataFrame, split: str) -> pd.DataFrame:
    """Return the rows of one split, numbered from 0.

    Raises:
        DataError: there are none.
    """
    rows = frame[frame["split"] == split].reset_index(drop=True)
    if rows.empty:
        raise DataError(
            f"The split {split!r} has no pictures: there are too few to set some apart. Add pictures, or change "
            "data.val_fraction, data.test_fraction or the split column."
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


def check_unseen(config: Config, table: pd.DataFrame) -> None:
    """Refuse what single_domain must not have: a class that is both seen and tested, or training rows of a target.

    Raises:
        DataError: with the classes or domains that are wrong.
    """
    if config.evaluation.protocol == "single_domain":
        used = table[table["split"] != ""].reset_index(drop=True)
        single_domain(used, source_domain(config, used))
