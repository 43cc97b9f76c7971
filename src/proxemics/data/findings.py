"""What the doctor can say: one finding a kind of trouble, each with a way out; functions from facts to findings."""

from __future__ import annotations

import unicodedata
from collections import Counter, defaultdict
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

import pandas as pd

from proxemics.data.facts import FileFacts
from proxemics.data.folders import FolderScan

Severity = Literal["error", "warning", "info"]
SEVERITIES: tuple[Severity, ...] = ("error", "warning", "info")
IMBALANCE = 20
"""Ratio of the largest to the smallest class from which the doctor mentions it."""


@dataclass(frozen=True)
class Finding:
    """One kind of trouble.

    Attributes:
        code: a stable name, such as ``truncated``.
        severity: ``error``: training or the figures will be wrong; ``warning``: probably not what you want; ``info``.
        message: one sentence with counts.
        fix: what to do.
        paths: the files (or folders) concerned.
        groups: where files belong together, such as copies of each other: the same paths, grouped.
        labels: the classes concerned, if it is about classes.
    """

    code: str
    severity: Severity
    message: str
    fix: str
    paths: list[str] = field(default_factory=list)
    groups: list[list[str]] = field(default_factory=list)
    labels: list[str] = field(default_factory=list)

    def to_dict(self) -> dict[str, Any]:
        """Return the fields as JSON-ready values."""
        return dict(vars(self))


def file_findings(facts: Sequence[FileFacts], *, min_side: int, max_aspect: float) -> list[Finding]:
    """Report files that cannot be read, and properties that may surprise.

    Args:
        facts: of every file.
        min_side: a picture whose short side has fewer pixels is small.
        max_aspect: a picture whose long side is more than this many short sides is extreme.
    """
    findings = []
    for code, severity, what, fix, applies in _file_rules(min_side, max_aspect):
        hits = [fact for fact in facts if applies(fact)]
        if hits:
            reason = next((f" ({fact.detail})" for fact in hits if fact.detail), "")
            message = f"{_count(len(hits), 'file')} {what}{reason}."
            findings.append(Finding(code, severity, message, fix, [fact.path for fact in hits]))
    modes = Counter(fact.mode for fact in facts if fact.mode not in ("", "RGB", "L"))
    if modes:
        parts = ", ".join(f"{number} x {mode}" for mode, number in modes.most_common())
        message = f"{_count(sum(modes.values()), 'file')} in other pixel modes than RGB and grey: {parts}."
        fix = "Nothing: they become RGB in the same way everywhere (alpha on white). Check that a few look right."
        findings.append(Finding("modes", "info", message, fix, [fact.path for fact in facts if fact.mode in modes]))
    return findings


_Rule = tuple[str, Severity, str, str, Callable[[FileFacts], bool]]


def _file_rules(min_side: int, max_aspect: float) -> list[_Rule]:
    replace = "Replace them, or remove them from the table."
    return [
        (
            "missing",
            "error",
            "named by the table not found",
            "Check the root folder (root=...), or remove the rows.",
            _has("missing"),
        ),
        ("empty", "error", "of 0 bytes", replace, _has("empty")),
        ("unreadable", "error", "not readable as a picture", replace, _has("unreadable")),
        ("truncated", "error", "cut off or damaged", replace, _has("truncated")),
        ("too_large", "error", "with too many pixels", "Shrink them, or raise max_pixels.", _has("too_large")),
        (
            "small",
            "warning",
            f"with a short side below {min_side} pixels",
            "Remove them, or accept that they are enlarged and blurred.",
            lambda fact: 0 < min(fact.width, fact.height) < min_side,
        ),
        (
            "aspect",
            "warning",
            f"more than {max_aspect:g} times as long as wide",
            "Crop them to the object: the square that the network sees leaves out most of such a picture.",
            lambda fact: max(fact.width, fact.height) > max_aspect * min(fact.width, fact.height) > 0,
        ),
        (
            "orientation",
            "info",
            "with an Exif orientation other than upright",
            "Nothing: they are turned upright everywhere here. Other programs may show them lying.",
            lambda fact: fact.orientation not in (0, 1),
        ),
        (
            "suffix",
            "info",
            "whose suffix names another format than their content",
            "Nothing: the content decides. Rename them if other programs read them.",
            lambda fact: fact.suffix_is_wrong,
        ),
        ("animated", "info", "with several frames", "Nothing: the first frame is used.", lambda fact: fact.animated),
    ]


def _has(problem: str) -> Callable[[FileFacts], bool]:
    return lambda fact: fact.problem == problem


def folder_findings(scan: FolderScan, used: set[str] | None) -> list[Finding]:
    """Report what lies in the folder and is not part of the data.

    Args:
        scan: the walked folder.
        used: absolute paths that are in the table; None if the table was filtered.
    """
    unused = [n for n in scan.pictures if used is not None and str(Path(scan.root, n)) not in used]
    rules: list[tuple[str, Severity, list[str], str, str, str]] = [
        (
            "empty_folder",
            "warning",
            scan.empty,
            "folder",
            "without any picture",
            "Fill or delete them; they are no classes.",
        ),
        ("left_out", "warning", unused, "picture", "above the class folders", "Move them into a class folder."),
        ("loop", "info", scan.loops, "link", "to a folder that was visited before", "Nothing: they are not followed."),
        ("hidden", "info", scan.hidden, "hidden or system file", "", "Nothing: they are skipped."),
        ("other_file", "info", scan.other, "file", "without a picture suffix", "Nothing: they are skipped."),
    ]
    return [
        Finding(
            code,
            severity,
            f"{_count(len(names), noun)} {what}".rstrip() + ".",
            fix,
            [str(Path(scan.root, n)) for n in names],
        )
        for code, severity, names, noun, what, fix in rules
        if names
    ]


def label_findings(frame: pd.DataFrame) -> list[Finding]:
    """Report classes that cannot be learnt or measured, and names that look like one class.

    Args:
        frame: a checked table.
    """
    findings = []
    counts = frame["label"].value_counts()
    if len(counts) < 2:
        findings.append(
            Finding(
                "one_class",
                "error",
                f"All pictures have the label {counts.index[0]!r}.",
                "Add a second class.",
                labels=[str(counts.index[0])],
            )
        )
    lone = sorted(str(name) for name in counts.index[counts == 1])
    if lone:
        message = f"{_count(len(lone), 'class', 'classes')} with a single picture, first {_some(lone)}."
        fix = "Add pictures; in training such a class has no positive pair, in a test its picture has no match."
        paths = frame.loc[frame["label"].isin(lone), "path"].tolist()
        findings.append(Finding("singleton", "warning", message, fix, paths, labels=lone))
    if len(counts) > 1 and counts.iloc[0] >= IMBALANCE * counts.iloc[-1]:
        message = (
            f"The largest class {counts.index[0]!r} has {counts.iloc[0]} pictures, the smallest {counts.iloc[-1]}."
        )
        fix = (
            "Train with a fixed number of pictures a class (per_class=...), and read figures that average over classes."
        )
        findings.append(
            Finding("imbalance", "info", message, fix, labels=[str(counts.index[0]), str(counts.index[-1])])
        )
    alike = defaultdict(list)
    for name in sorted(str(name) for name in counts.index):
        alike[_plain(name)].append(name)
    groups = [names for names in alike.values() if len(names) > 1]
    if groups:
        first = " and ".join(repr(name) for name in groups[0])
        message = (
            f"{_count(len(groups), 'group')} of class names differ only in case, spaces or Unicode form, first {first}."
        )
        names = [name for group in groups for name in group]
        paths = frame.loc[frame["label"].isin(names), "path"].tolist()
        findings.append(Finding("similar_labels", "warning", message, "Give one class one name.", paths, labels=names))
    return findings


def split_findings(frame: pd.DataFrame) -> list[Finding]:
    """Report classes that train and test share.

    Args:
        frame: a checked table.
    """
    splits = {name: set(frame.loc[frame["split"] == name, "label"]) for name in ("train", "val", "test")}
    findings = []
    for first, second in (("train", "test"), ("val", "test"), ("train", "val")):
        shared = sorted(splits[first] & splits[second])
        if shared:
            message = f"{_count(len(shared), 'class', 'classes')} in both {first} and {second}, first {_some(shared)}."
            fix = "Let make_split draw the split for figures on unseen classes; keep it if these classes are meant."
            findings.append(Finding("shared_classes", "warning", message, fix, labels=shared))
    return findings


def copy_findings(frame: pd.DataFrame, groups: Sequence[Sequence[int]], *, equal: bool) -> list[Finding]:
    """Report copies: between splits, between classes, and the rest.

    Args:
        frame: a checked table.
        groups: positions of rows that are copies of each other.
        equal: byte-equal copies (errors where they cross) or nearly equal pictures (warnings).
    """
    label, split, path = (frame[name].tolist() for name in ("label", "split", "path"))
    sorts: dict[str, list[Sequence[int]]] = {"across_splits": [], "across_classes": [], "": []}
    for group in groups:
        if len({split[row] for row in group} - {""}) > 1:
            sorts["across_splits"].append(group)
        if len({label[row] for row in group}) > 1:
            sorts["across_classes"].append(group)
        elif len({split[row] for row in group} - {""}) < 2:
            sorts[""].append(group)
    name, adverb = ("duplicate", "byte-identical") if equal else ("near_duplicate", "nearly identical")
    severities: tuple[Severity, Severity] = ("error", "warning") if equal else ("warning", "info")
    findings = []
    for sort, found in sorts.items():
        if found:
            where, fix = _COPIES[sort]
            paths = [[path[row] for row in group] for group in found]
            first = " = ".join("/".join(Path(p).parts[-2:]) for p in paths[0][:2])
            message = f"{_count(len(found), 'group')} of {adverb} pictures {where}, first {first}."
            code = f"{name}_{sort}" if sort else name
            severity = severities[0] if sort else severities[1]
            findings.append(Finding(code, severity, message, fix, [p for group in paths for p in group], paths))
    return findings


_COPIES = {
    "across_splits": (
        "in different splits",
        "Remove all but one of each, or keep them together: a test on training pictures proves nothing.",
    ),
    "across_classes": ("under different labels", "Decide which label is right and remove the others."),
    "": (
        "within one class and split",
        "Remove copies that are not meant; a query that finds its own copy is too easy.",
    ),
}


def repeat_findings(frame: pd.DataFrame) -> list[Finding]:
    """Report paths that are listed more than once.

    Args:
        frame: a table that was read with ``strict=False``.
    """
    repeated = frame[frame["path"].duplicated(keep=False)]
    if repeated.empty:
        return []
    kinds = repeated.groupby("path", sort=False)[["split", "label"]].nunique()
    apart = kinds[(kinds > 1).any(axis=1)].index.tolist()
    message = f"{_count(len(kinds), 'path')} listed more than once"
    message += f", {len(apart)} of them in different splits or with different labels." if apart else "."
    paths = apart + [path for path in kinds.index if path not in set(apart)]
    return [Finding("repeated_path", "error", message, "Keep one row a picture.", paths)]


def _plain(name: str) -> str:
    return " ".join(unicodedata.normalize("NFKC", name).casefold().replace("_", " ").replace("-", " ").split())


def _count(number: int, noun: str, plural: str | None = None) -> str:
    return f"{number} {noun if number == 1 else plural or noun + 's'}"


def _some(names: Sequence[str]) -> str:
    return ", ".join(repr(name) for name in names[:3])
