"""Checks that every release shares: files, class numbers, class lists, counts, and splits that do not overlap.

Each check raises :class:`~proxemics.core.errors.DataError` with one line that says what was found, what the official
release has, and what to do.
"""

# Paths are text here: for every picture, a Path takes 3 to 8 times as long to join or take apart,
# and the largest sets have half a million.
# ruff: noqa: PTH118, PTH119, PTH120

from __future__ import annotations

import os
from collections import defaultdict
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Literal

import pandas as pd

from proxemics.core.errors import DataError
from proxemics.data.benchmarks.release import Expected, Part, Release
from proxemics.data.folders import is_picture_name
from proxemics.data.table import check_table


def locate(root: str | Path, release: Release) -> Path:
    """Return the folder that holds the release: the root itself, or a folder in it with one of its usual names.

    Raises:
        DataError: something is missing; the message says what, and which files to put where.
    """
    given = Path(root).expanduser().absolute()
    candidates = [given, *(given / name for name in release.inner)]
    gaps = [[name for name in release.needed if not (folder / name).exists()] for folder in candidates]
    best = min(range(len(candidates)), key=lambda i: len(gaps[i]))
    if not gaps[best]:
        return candidates[best]
    missing = ", ".join(gaps[best][:6]) + (f" and {len(gaps[best]) - 6} more" if len(gaps[best]) > 6 else "")
    raise DataError(f"{release.title} is not complete in {candidates[best]}: missing {missing}. {release.where}")


def read_lines(path: Path) -> list[str]:
    """Read the lines of a text file that are not blank.

    Raises:
        DataError: the file is not UTF-8 text or has no line.
    """
    try:
        lines = [line.strip() for line in path.read_text(encoding="utf-8-sig").splitlines()]
    except (UnicodeDecodeError, OSError) as error:
        raise DataError(f"Cannot read {path}: {error}. Copy it again from the official release.") from error
    kept = [line for line in lines if line]
    if not kept:
        raise DataError(f"{path} is empty. Copy it again from the official release.")
    return kept


def read_fields(path: Path, count: int, *, skip: int = 0) -> list[list[str]]:
    """Read lines of ``count`` fields that are divided by white space; the last field keeps its own.

    Raises:
        DataError: a line has fewer fields.
    """
    rows = []
    for number, line in enumerate(read_lines(path)[skip:], start=skip + 1):
        fields = line.split(maxsplit=count - 1)
        if len(fields) < count:
            raise DataError(f"Line {number} of {path} has {len(fields)} fields and should have {count}: {line[:80]!r}.")
        rows.append(fields)
    return rows


def whole_numbers(texts: Sequence[str], what: str) -> list[int]:
    """Turn texts into whole numbers.

    Raises:
        DataError: one is not a whole number.
    """
    try:
        return [int(text) for text in texts]
    except ValueError as error:
        raise DataError(f"A class number in {what} is not a whole number: {error}.") from error


def check_numbers(numbers: Iterable[int], *, first: Literal[0, 1], count: int, what: str) -> None:
    """Check that class numbers lie in the official range, and name the usual slip: counting from the other end.

    Args:
        numbers: class numbers as the file gives them.
        first: 0 or 1, what the official file counts from.
        count: the number of classes.
        what: the file, for the message.

    Raises:
        DataError: they count from 1 and should count from 0, or the other way round, or are out of range.

    Example:
        >>> check_numbers([0, 1, 2], first=0, count=3, what="list.txt")
        >>> check_numbers([1, 2, 3], first=0, count=3, what="list.txt")
        Traceback (most recent call last):
        proxemics.core.errors.DataError: The class numbers in list.txt are 1-based (1..3); the official file counts
        from 0 (0..2). Subtract 1 from each, or copy the official file again.
    """
    found = set(numbers)
    low, high, last = min(found), max(found), first + count - 1
    if first <= low and high <= last:
        return
    if low >= 1 - first and high <= count - first:
        other = 1 - first
        fix = "Subtract 1 from each" if other else "Add 1 to each"
        raise DataError(
            f"The class numbers in {what} are {other}-based ({low}..{high}); the official file counts from {first} "
            f"({first}..{last}). {fix}, or copy the official file again."
        )
    raise DataError(f"The class numbers in {what} run {low}..{high}; the official ones run {first}..{last}.")


def check_names(found: Iterable[str], expected: Expected | None, release: Release) -> None:
    """Compare class names with the official list.

    Raises:
        DataError: classes are absent or unknown.
    """
    if expected is None or expected.names is None:
        return
    have, want = set(found), set(expected.names)
    absent, unknown = sorted(want - have), sorted(have - want)
    if absent or unknown:
        parts = [
            f"{len(names)} {word} (first {names[0]!r})"
            for names, word in ((absent, "absent"), (unknown, "unknown"))
            if names
        ]
        raise DataError(f"{release.title}: the class list is not the official one: {', '.join(parts)}. {release.where}")


def check_parts(frame: pd.DataFrame, column: str, expected: Expected | None, release: Release) -> None:
    """Compare the numbers of pictures and classes of each part with the official ones.

    Args:
        frame: a table.
        column: the column whose values are the parts.
        expected: the numbers; None to accept any (a subset).
        release: for the message.

    Raises:
        DataError: a number differs.
    """
    if expected is None:
        return
    for name, want in expected.parts.items():
        rows = frame[frame[column] == name]
        have = Part(len(rows), int(rows["label"].nunique()))
        if have != want:
            raise DataError(
                f"{release.title}, {column} {name}: {have.images:,} pictures of {have.classes:,} classes; the official "
                f"release has {want.images:,} of {want.classes:,}. Unpack it again, or give --subset for a part of it."
            )


def check_disjoint(frame: pd.DataFrame, release: Release, *, column: str = "label", what: str = "class") -> None:
    """Check that no class (or picture, with ``column="path"``) is in both train and test.

    Raises:
        DataError: some are; the message names the first.
    """
    train, test = (set(frame[frame["split"] == name][column]) for name in ("train", "test"))
    both = sorted(train & test)
    if both:
        raise DataError(
            f"{release.title}: {len(both)} of the {what} values are in both train and test, first {both[0]!r}. "
            "Training and test classes must be disjoint; copy the official lists again."
        )


def check_files(paths: Iterable[str], release: Release) -> None:
    """Check that listed pictures exist, with one look into each folder.

    Raises:
        DataError: some are missing; the message names the first three.
    """
    folders: dict[str, list[str]] = defaultdict(list)
    for path in paths:
        folders[os.path.dirname(path)].append(os.path.basename(path))
    missing = []
    for folder, names in folders.items():
        try:
            with os.scandir(folder) as entries:
                have = {entry.name for entry in entries}
        except OSError:
            have = set()
        missing += [os.path.join(folder, name) for name in names if name not in have]
    if missing:
        raise DataError(
            f"{release.title}: {len(missing):,} listed pictures are missing, first {', '.join(missing[:3])}. "
            "Unpack the archive again."
        )


def pictures_below(folder: Path) -> list[tuple[str, str]]:
    """Return (class, path) for ``folder/class/picture``, sorted; hidden names are left out."""
    found = []
    for group in sorted(entry.name for entry in os.scandir(folder) if entry.is_dir()):
        if group.startswith((".", "__")):
            continue
        with os.scandir(folder / group) as entries:
            names = sorted(entry.name for entry in entries if _is_picture(entry.name))
        found += [(group, os.path.join(folder, group, name)) for name in names]
    return found


def _is_picture(name: str) -> bool:
    return not name.startswith(".") and is_picture_name(name)


def finish(frame: pd.DataFrame, release: Release, root: Path) -> pd.DataFrame:
    """Bring a table into the common form and record which benchmark it is and where it lies."""
    checked = check_table(frame)
    checked.attrs.update({"benchmark": release.name, "root": str(root)})
    return checked


def first_half(names: Iterable[str]) -> set[str]:
    """Return the first half of the sorted names, the larger one when their number is odd.

    This is the split into seen and unseen classes for single-domain generalisation (our reading; the papers give none).

    Example:
        >>> sorted(first_half(["dog", "elephant", "giraffe", "guitar", "horse", "house", "person"]))
        ['dog', 'elephant', 'giraffe', 'guitar']
    """
    ordered = sorted(set(names))
    return set(ordered[: (len(ordered) + 1) // 2])
