"""Six tables from one index of real pictures: who trains, who chooses, who tests.

The split is the same for every seed. Test classes are those of the index (the official halves); validation classes are
drawn from the training classes by the package's own hash with seed 0. So a class that chose settings or an epoch under
one seed is never tested under another, and seeds differ in their initial weights, batches and augmentation alone.
"""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pandas as pd

from proxemics.core.files import atomic_path
from proxemics.core.seeds import derive_seed
from proxemics.data.draws import draw

SPLIT_SEED = 0
SOURCE = {"emoji": "noto", "pacs_unseen": "photo", "pacs_all": "photo"}
"""The one domain that single-domain generalisation trains on."""
PACS_TRAIN = ("dog", "elephant", "giraffe", "guitar")
"""Seen classes of ``pacs_unseen``: the first half of the sorted names."""
COLUMNS = ["path", "label", "domain", "split"]


def cub200_2010(index: pd.DataFrame) -> pd.DataFrame:
    """Classes 1-100 train, of which a fifth chooses; 101-200 test."""
    return _by_class(index, "cub200_2010")


def cars196(index: pd.DataFrame) -> pd.DataFrame:
    """Classes 1-98 train, of which a fifth chooses; 99-196 test."""
    return _by_class(index, "cars196")


def grocery(index: pd.DataFrame) -> pd.DataFrame:
    """Shop photos and studio pictures of classes 0-40 train, of which a fifth chooses; 41-80 test."""
    return _by_class(index, "grocery")


def emoji(index: pd.DataFrame) -> pd.DataFrame:
    """One style of the training classes trains; the test classes in all styles test.

    Most classes have one picture in a style, and a class with one picture cannot be a query. So validation takes half
    of the classes with several pictures in the source style (skin tones), and a tenth of the others to search among.
    No picture of another style trains or chooses.
    """
    rows = index[index["dataset"] == "emoji"]
    source = rows[(rows["split"] == "train") & (rows["domain"] == SOURCE["emoji"])]
    test = rows[rows["split"] == "test"]
    several = source.groupby("label")["path"].transform("size") > 1
    parts = [_carve(source[several], 0.5), _carve(source[~several], 0.1), test]
    return pd.concat(parts)[COLUMNS]


def pacs_unseen(index: pd.DataFrame) -> pd.DataFrame:
    """Photos of four classes train; the three other classes test, in the other domains and, for reference, in photos.

    Four classes leave none to choose with: a fifth of the training pictures of each class is set aside instead, and
    settings are chosen on another set.
    """
    rows = index[index["dataset"] == "pacs"]
    seen = rows["label"].isin(PACS_TRAIN)
    source = rows[seen & (rows["domain"] == SOURCE["pacs_unseen"])]
    return pd.concat([_carve_pictures(source), rows[~seen].assign(split="test")])[COLUMNS]


def pacs_all(index: pd.DataFrame) -> pd.DataFrame:
    """Photos of all seven classes train, a fifth of each set aside; the same classes in the other domains test."""
    rows = index[index["dataset"] == "pacs"]
    inside = rows["domain"] == SOURCE["pacs_all"]
    return pd.concat([_carve_pictures(rows[inside]), rows[~inside].assign(split="test")])[COLUMNS]


SETS = {one.__name__: one for one in (cub200_2010, cars196, grocery, emoji, pacs_unseen, pacs_all)}
"""Name to the function that makes its table of ``path, label, domain, split``."""
SHARES_CLASSES = ("pacs_all",)
"""Sets whose test classes are those that train; what is unseen is the domain."""


def write_tables(data: Path, folder: Path, names: list[str]) -> dict[str, Path]:
    """Write ``<name>.csv`` for each set, with paths relative to the data root; a table that is there as it is stays.

    Args:
        data: folder with ``index.csv``.
        folder: where the tables go.
        names: keys of :data:`SETS`.
    """
    index = pd.read_csv(data / "index.csv", dtype=str)
    places = {}
    for name in names:
        table = SETS[name](index)
        check(name, table)
        text, place = table.to_csv(index=False), folder / f"{name}.csv"
        if not place.exists() or place.read_text(encoding="utf-8") != text:
            with atomic_path(place) as temporary:
                temporary.write_text(text, encoding="utf-8")
        places[name] = place
    return places


def check(name: str, table: pd.DataFrame) -> None:
    """Refuse a table with an empty split, a picture in two splits or a test class that was trained or chosen on."""
    missing = {"train", "val", "test"} - set(table["split"])
    if missing:
        raise SystemExit(f"{name}: no pictures for {', '.join(sorted(missing))}; is the index complete?")
    if table["path"].duplicated().any():
        raise SystemExit(f"{name}: a picture is listed twice.")
    used = set(table.loc[table["split"] != "test", "label"])
    leaked = used & set(table.loc[table["split"] == "test", "label"])
    if leaked and name not in SHARES_CLASSES:
        raise SystemExit(f"{name}: {len(leaked)} test classes are among those that train or choose.")


def counts(table: pd.DataFrame) -> dict[str, tuple[int, int]]:
    """Return split to (pictures, classes)."""
    return {str(split): (len(rows), rows["label"].nunique()) for split, rows in table.groupby("split")}


def _by_class(index: pd.DataFrame, name: str) -> pd.DataFrame:
    rows = index[index["dataset"] == name]
    return pd.concat([_carve(rows[rows["split"] == "train"], 0.2), rows[rows["split"] == "test"]])[COLUMNS]


def _carve(rows: pd.DataFrame, fraction: float) -> pd.DataFrame:
    """Move a share of the classes to val."""
    labels = rows["label"].to_numpy(dtype=object)
    chosen = draw(labels, fraction, purpose="val", seed=SPLIT_SEED, what="training classes", least=2, rest=2)
    return rows.assign(split=np.where(chosen, "val", "train"))


def _carve_pictures(rows: pd.DataFrame, fraction: float = 0.2) -> pd.DataFrame:
    """Move a share of the pictures of each class to val."""
    keys = rows["path"].map(lambda path: derive_seed(SPLIT_SEED, "split", "val", path))
    rank = keys.groupby(rows["label"]).rank(method="first")
    size = rows.groupby("label")["path"].transform("size")
    return rows.assign(split=np.where(rank <= (size * fraction).round(), "val", "train"))
