"""Who trains, who validates, who tests; val is a class-disjoint piece of the training classes, never of the test.

How classes are drawn is written in :mod:`proxemics.data.draws`.
"""

# Paths are text here: for every picture, a Path takes 3 to 10 times as long to make, join or look up.
# ruff: noqa: PTH116

from __future__ import annotations

import os
import warnings
from collections.abc import Sequence
from typing import Any, Literal

import numpy as np
import pandas as pd

from proxemics.core.errors import DataError, did_you_mean
from proxemics.core.seeds import derive_seed
from proxemics.data.draws import Texts, draw, join_classes
from proxemics.data.split_files import load_split, save_split
from proxemics.data.table import check_table, common_root

How = Literal["auto", "class_disjoint", "domain_held_out", "grouped", "images", "column"]
HOWS: tuple[How, ...] = ("auto", "class_disjoint", "domain_held_out", "grouped", "images", "column")
__all__ = ["HOWS", "How", "check_leaks", "load_split", "make_split", "save_split", "split_summary"]


def make_split(
    frame: pd.DataFrame,
    *,
    how: How = "auto",
    test_fraction: float = 0.5,
    val_fraction: float = 0.2,
    held_out_domain: str | Sequence[str] | None = None,
    unseen_classes: bool = False,
    group: str | None = None,
    seed: int = 0,
) -> pd.DataFrame:
    """Fill the column ``split`` with train, val, test or nothing (not used).

    Args:
        frame: a table.
        how: what is unseen in the test:

            * ``class_disjoint``: the test classes;
            * ``domain_held_out``: the pictures of ``held_out_domain``, and with ``unseen_classes`` only those of the
              test classes, which then do not train (they come from the column if it says train and test, else by
              hash);
            * ``grouped``: the groups (a burst, a session, a patient); classes may be shared;
            * ``images``: only the pictures; every class is in each split;
            * ``column``: what the column ``split`` says;
            * ``auto``: ``domain_held_out`` if a domain is given, else ``column`` if it has train and test, else
              ``class_disjoint``, else, with fewer than 6 classes, ``images`` with a warning.
        test_fraction: expected share of classes (groups, pictures) in the test, in (0, 1).
        val_fraction: expected share of the **training** classes that go to val, in [0, 1); 0 for no val. Not used
            when the column has val rows. ``images``: share of the remaining pictures of each class.
        held_out_domain: one or more values of ``domain``.
        unseen_classes: for ``domain_held_out``, see there.
        group: a column; rows with the same non-empty value never fall into two splits, whatever ``how``.
        seed: another seed, other classes.

    Returns:
        A new checked table; ``attrs["split"]`` records the arguments, and ``attrs["split"]["how"]`` the choice of
        ``auto``.

    Raises:
        DataError: an argument does not fit the table, there are too few classes, or a leak was found.

    Example:
        >>> table = pd.DataFrame({"path": [f"/p/{i}.jpg" for i in range(16)], "label": list("aabbccddeeffgghh")})
        >>> split = make_split(table, seed=1)
        >>> split.groupby("split")["label"].unique().map(list).to_dict()
        {'test': ['b', 'e', 'f', 'g'], 'train': ['c', 'h'], 'val': ['a', 'd']}
    """
    frame = check_table(frame)
    _check_arguments(frame, how, test_fraction, val_fraction, held_out_domain, group)
    domains = [held_out_domain] if isinstance(held_out_domain, str) else list(held_out_domain or [])
    chosen = _choose(frame, how, domains)
    labels = frame["label"].to_numpy(dtype=object)
    groups = None if group is None else _groups(frame, group)
    if chosen == "class_disjoint":
        split = _by_class(labels, groups, test_fraction, val_fraction, seed)
    elif chosen == "domain_held_out":
        split = _by_domain(frame, domains, unseen_classes, groups, test_fraction, val_fraction, seed)
    elif chosen == "grouped":
        assert groups is not None
        split = np.where(
            draw(groups, test_fraction, purpose="test", seed=seed, what="groups", least=1, rest=1), "test", "train"
        ).astype(object)
    elif chosen == "images":
        split = _by_image(frame, groups, test_fraction, "test", seed)
    else:
        split = np.array(frame["split"], dtype=object)
    val = _carve_val(frame, split, groups, val_fraction, seed, by_image=chosen == "images", forgiving=how == "auto")
    frame["split"] = pd.Series(split, dtype="object").astype(str)
    frame.attrs["split"] = {
        **{"how": chosen, "test_fraction": test_fraction, "val_fraction": val_fraction, "held_out_domain": domains},
        **{"unseen_classes": unseen_classes, "group": group, "seed": seed, "val": val},
    }
    _check_result(frame)
    check_leaks(
        frame,
        class_disjoint=chosen == "class_disjoint" or (chosen == "domain_held_out" and unseen_classes),
        group=group,
    )
    return frame


def check_leaks(frame: pd.DataFrame, *, class_disjoint: bool = False, group: str | None = None) -> None:
    """Refuse a split in which one file, one group or (if asked) one class is on two sides.

    Files are compared by identity on disk, so links to the same file count as the same. Copies are found by
    ``doctor``.

    Args:
        frame: a checked table with splits; rows without a split are ignored.
        class_disjoint: whether no class may be in two splits.
        group: a column whose non-empty values may not be in two splits.

    Raises:
        DataError: a leak; the message names the first three.
    """
    used = frame[frame["split"] != ""]
    identities = [_identity(path) for path in used["path"]]
    _refuse_shared(used, pd.Series(identities, index=used.index), "path", "picture")
    if class_disjoint:
        _refuse_shared(used, used["label"], "label", "class")
    if group is not None:
        named = used[used[group].notna() & (used[group].astype(str) != "")]
        _refuse_shared(named, named[group].astype(str), group, "group")


def split_summary(frame: pd.DataFrame) -> dict[str, dict[str, int]]:
    """Count pictures and classes of each split that has any.

    Example:
        >>> split_summary(pd.DataFrame({"label": list("aab"), "split": ["train", "train", "test"]}))
        {'train': {'images': 2, 'classes': 1}, 'test': {'images': 1, 'classes': 1}}
    """
    parts = {name: frame[frame["split"] == name] for name in ("train", "val", "test", "")}
    return {
        name or "unused": {"images": len(part), "classes": int(part["label"].nunique())}
        for name, part in parts.items()
        if len(part)
    }


def _check_arguments(
    frame: pd.DataFrame,
    how: str,
    test_fraction: float,
    val_fraction: float,
    held_out: str | Sequence[str] | None,
    group: str | None,
) -> None:
    if how not in HOWS:
        raise DataError(f"Unknown split {how!r}. Allowed are {', '.join(HOWS)}.{did_you_mean(how, HOWS)}")
    if not 0 < test_fraction < 1:
        raise DataError(f"test_fraction is {test_fraction}; it must be above 0 and below 1.")
    if not 0 <= val_fraction < 1:
        raise DataError(f"val_fraction is {val_fraction}; it must be at least 0 and below 1 (0 makes no val split).")
    if group is not None and group not in frame.columns:
        columns = [str(name) for name in frame.columns]
        raise DataError(
            f"There is no group column {group!r}; columns are {', '.join(columns)}.{did_you_mean(group, columns)}"
        )
    if how == "grouped" and group is None:
        raise DataError("The split 'grouped' needs group=..., the column whose values must not be in two splits.")
    if (how == "domain_held_out") != (held_out is not None) and how != "auto":
        raise DataError(
            "The split 'domain_held_out' and the argument held_out_domain=... belong together; give both or none."
        )
    if frame["label"].nunique() < 2:
        raise DataError(
            f"All pictures ({len(frame)}) have the label {frame['label'].iloc[0]!r}. Learning needs at least 2 classes."
        )


def _choose(frame: pd.DataFrame, how: How, domains: list[str]) -> How:
    have = set(frame["split"])
    if how == "column" and not {"train", "test"} <= have:
        names = ", ".join(sorted(have - {""})) or "nothing"
        raise DataError(
            f"The split column has {names}; the split 'column' needs train and test rows. Use how='class_disjoint'."
        )
    for domain in domains:
        known = sorted(set(frame["domain"]) - {""})
        if domain not in known:
            raise DataError(
                f"No picture has the domain {domain!r}; domains are {', '.join(known) or 'none'}."
                f"{did_you_mean(domain, known)}"
            )
    if how != "auto":
        return how
    if domains:
        return "domain_held_out"
    if {"train", "test"} <= have:
        return "column"
    classes = frame["label"].nunique()
    if classes >= 6:
        return "class_disjoint"
    warnings.warn(
        f"{classes} classes are too few to test on unseen classes (6 are needed), so the test holds unseen pictures of "
        "the same classes. Figures of such a split say nothing about new classes.",
        stacklevel=3,
    )
    return "images"


def _by_class(labels: Texts, groups: Texts | None, fraction: float, val_fraction: float, seed: int) -> Texts:
    units, rest = join_classes(labels, groups), 4 if val_fraction else 2  # two for val, two to train on
    return np.where(
        draw(units, fraction, purpose="test", seed=seed, what=_what(groups, "classes"), least=2, rest=rest),
        "test",
        "train",
    ).astype(object)


def _by_domain(
    frame: pd.DataFrame,
    domains: list[str],
    unseen: bool,
    groups: Texts | None,
    fraction: float,
    val_fraction: float,
    seed: int,
) -> Texts:
    held = frame["domain"].isin(domains).to_numpy()
    if held.all():
        raise DataError(f"All pictures are in the held-out domains {', '.join(domains)}; none is left to train on.")
    if not unseen:
        return np.where(held, "test", "train").astype(object)
    given = frame["split"].to_numpy(dtype=object)
    labels = frame["label"].to_numpy(dtype=object)
    by_class = given if {"train", "test"} <= set(given) else _by_class(labels, groups, fraction, val_fraction, seed)
    return np.where(held, np.where(by_class == "test", "test", ""), np.where(by_class == "test", "", by_class)).astype(
        object
    )


def _by_image(frame: pd.DataFrame, groups: Texts | None, fraction: float, purpose: str, seed: int) -> Texts:
    """Draw pictures of each class, two or more or none, never its last one; whole groups if there are any.

    Where the fraction of every class is under two pictures, the classes of four and more give two each.
    """
    root = common_root(frame)
    units = np.array([os.path.relpath(path, root) for path in frame["path"]], dtype=object)
    if groups is not None:
        return np.where(
            draw(groups, fraction, purpose=purpose, seed=seed, what="groups", least=1, rest=1), purpose, "train"
        ).astype(object)
    split = np.full(len(frame), "train", dtype=object)
    classes = list(frame.groupby("label").indices.values())
    counts = [min(round(len(rows) * fraction), len(rows) - 1) for rows in classes]
    if max(counts, default=0) < 2:
        counts = [2 if len(rows) >= 4 else 0 for rows in classes]
    for rows, count in zip(classes, counts, strict=True):
        if count >= 2:
            order = sorted((int(row) for row in rows), key=lambda row: derive_seed(seed, purpose, str(units[row])))
            split[order[:count]] = purpose
    return split


def _carve_val(
    frame: pd.DataFrame,
    split: Texts,
    groups: Texts | None,
    fraction: float,
    seed: int,
    *,
    by_image: bool,
    forgiving: bool,
) -> str:
    """Move training rows to val in ``split``; return what val is made of."""
    if (split == "val").any():
        return "column"
    if fraction == 0:
        return "none"
    train = np.flatnonzero(split == "train")
    part = frame.iloc[train]
    inside = None if groups is None else groups[train]
    labels = part["label"].to_numpy(dtype=object)
    if not by_image and forgiving and len(set(join_classes(labels, inside))) < 4:
        warnings.warn("Fewer than 4 training classes: val holds unseen pictures of the training classes.", stacklevel=3)
        by_image = True
    if by_image:
        split[train[_by_image(part, inside, fraction, "val", seed) == "val"]] = "val"
        return "images"
    units = join_classes(labels, inside)
    split[
        train[draw(units, fraction, purpose="val", seed=seed, what=_what(inside, "training classes"), least=2, rest=2)]
    ] = "val"
    return "classes"


def _what(groups: Texts | None, what: str) -> str:
    return what if groups is None else f"{what} that share no group"


def _groups(frame: pd.DataFrame, column: str) -> Texts:
    """Return group names; a picture without a group is a group of its own."""
    values = frame[column].fillna("").astype(str)
    return np.array([value or f"\x00{path}" for value, path in zip(values, frame["path"], strict=True)], dtype=object)


def _check_result(frame: pd.DataFrame) -> None:
    counts = split_summary(frame)
    if counts.get("train", {"classes": 0})["classes"] < 2:
        have = counts.get("train", {"images": 0, "classes": 0})
        raise DataError(
            f"Training has {have['images']} pictures of {have['classes']} classes; it needs at least 2 classes."
        )
    test = counts.get("test", {"images": 0, "classes": 0})
    if test["classes"] < 2:
        raise DataError(
            f"The test has {test['images']} pictures of {test['classes']} classes; retrieval is only defined with at "
            "least 2. Choose another seed, fraction or domain, or add pictures."
        )


def _identity(path: str) -> object:
    try:
        status = os.stat(path)
    except OSError:
        return path
    return (status.st_dev, status.st_ino)


def _refuse_shared(frame: pd.DataFrame, keys: pd.Series[Any], column: str, what: str) -> None:
    splits_of = frame["split"].groupby(keys.to_numpy(), sort=False).nunique()
    shared = set(splits_of[splits_of > 1].index)
    if not shared:
        return
    rows = frame[keys.isin(shared)]
    some = ", ".join(f"{row[column]} ({row['split']})" for _, row in rows.head(3).iterrows())
    raise DataError(f"{len(shared)} {what}(s) are in more than one split, first {some}. Keep each {what} in one split.")
