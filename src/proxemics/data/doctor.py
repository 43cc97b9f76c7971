"""Look a data set over before hours are spent on it: broken files, copies, leaks, odd pictures, odd classes."""

from __future__ import annotations

import os
import time
import warnings
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from proxemics.data.decode import MAX_PIXELS
from proxemics.data.facts import FileFacts, inspect_files
from proxemics.data.findings import (
    SEVERITIES,
    Finding,
    copy_findings,
    file_findings,
    folder_findings,
    label_findings,
    repeat_findings,
    split_findings,
)
from proxemics.data.folders import FolderScan, Layout, scan_folder
from proxemics.data.hashing import equal_files
from proxemics.data.similar import MIN_CONTRAST, contrast, similar_pictures
from proxemics.data.sources import Source, Where, load_table
from proxemics.data.splits import split_summary

_BROKEN = ("missing", "empty", "unreadable", "truncated", "too_large")


@dataclass
class Diagnosis:
    """What was found.

    Attributes:
        source: what was looked at.
        num_files: rows of the table.
        num_classes: distinct labels.
        histogram: class name to number of pictures, largest first.
        splits: split to its numbers of ``images`` and ``classes``.
        domains: domain to number of pictures.
        modes: Pillow pixel mode to number of files.
        short_side: smallest, median and largest short side of the readable pictures, in pixels.
        decoded: whether all pixels were decoded; if not, damage behind the header and near-duplicates go unseen.
        findings: errors first.
        seconds: wall-clock time of all of it.
    """

    source: str
    num_files: int
    num_classes: int
    histogram: dict[str, int]
    splits: dict[str, dict[str, int]]
    domains: dict[str, int]
    modes: dict[str, int]
    short_side: tuple[int, int, int]
    decoded: bool
    findings: list[Finding] = field(default_factory=list)
    seconds: float = 0.0

    @property
    def files_per_second(self) -> float:
        """Files looked at in a second of wall-clock time."""
        return self.num_files / max(self.seconds, 1e-9)

    @property
    def ok(self) -> bool:
        """Whether there is no error (there may be warnings)."""
        return all(finding.severity != "error" for finding in self.findings)

    @property
    def broken(self) -> list[str]:
        """Files that training cannot read, to leave out: ``frame[~frame.path.isin(diagnosis.broken)]``."""
        return [path for finding in self.findings if finding.code in _BROKEN for path in finding.paths]

    def find(self, code: str) -> Finding | None:
        """Return the first finding with this code, if there is one."""
        return next((finding for finding in self.findings if finding.code == code), None)

    def to_dict(self) -> dict[str, Any]:
        """Return everything as JSON-ready values."""
        content = {name: value for name, value in vars(self).items() if name != "findings"}
        content |= {"schema": 1, "short_side": list(self.short_side), "ok": self.ok}
        content |= {"files_per_second": self.files_per_second, "findings": [f.to_dict() for f in self.findings]}
        return content


def diagnose(
    source: Source,
    *,
    root: str | Path | None = None,
    where: Where | None = None,
    label: str = "label",
    domain: str = "domain",
    path: str = "path",
    split: str = "split",
    layout: Layout = "class",
    cache: str | Path | None = None,
    decode: bool = True,
    min_side: int = 32,
    max_aspect: float = 4.0,
    max_pixels: int = MAX_PIXELS,
    workers: int = 0,
    progress: Callable[[int, int], None] | None = None,
) -> Diagnosis:
    """Examine a data set.

    Args:
        source: anything that :func:`proxemics.data.sources.load_table` reads, or a table.
        root: as in ``load_table``, like the next six.
        where: see ``load_table``.
        label: see ``load_table``.
        domain: see ``load_table``.
        path: see ``load_table``.
        split: see ``load_table``.
        layout: see ``load_table``.
        cache: see ``load_table``.
        decode: decode all pixels, which finds damage behind the header and near-duplicates. Without it the pass reads
            headers, and contents only of files whose size is not unique.
        min_side: a short side below this many pixels is reported.
        max_aspect: a ratio of long to short side above this is reported.
        max_pixels: more pixels than this are reported and not decoded.
        workers: threads; 0 for one a core, at most 8.
        progress: called with (files done, files in all) now and then.

    Returns:
        The diagnosis; nothing wrong with a single file raises.

    Raises:
        DataError: the source is not a table at all (absent, no picture, a missing column).

    Example:
        >>> import tempfile
        >>> from PIL import Image
        >>> folder = Path(tempfile.mkdtemp())
        >>> for name in ("cat", "dog"):
        ...     (folder / name).mkdir()
        ...     Image.effect_noise((64, 64), 90).convert("RGB").save(folder / name / "1.png")
        >>> _ = (folder / "cat" / "2.jpg").write_bytes(b"")
        >>> for finding in diagnose(folder).findings:
        ...     print(finding.severity, finding.code, finding.message)
        error empty 1 file of 0 bytes (the file has 0 bytes).
        warning singleton 1 class with a single picture, first 'dog'.
    """
    started = time.perf_counter()
    scan = _scan(source)
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message=".*above the class folders")  # a finding says so
        frame = load_table(
            source,
            root=root,
            where=where,
            label=label,
            domain=domain,
            path=path,
            split=split,
            layout=layout,
            cache=cache,
            strict=False,
        )
    findings = repeat_findings(frame)
    frame = frame.drop_duplicates("path", ignore_index=True)
    facts = inspect_files(
        frame["path"].tolist(), decode=decode, max_pixels=max_pixels, workers=workers, progress=progress
    )
    findings += file_findings(facts, min_side=min_side, max_aspect=max_aspect)
    findings += _copies(frame, facts)
    if layout != "flat":
        findings += label_findings(frame)
    findings += split_findings(frame)
    if scan is not None:
        findings += folder_findings(scan, set(frame["path"]) if where is None else None)
    sides = [min(fact.width, fact.height) for fact in facts if fact.width] or [0]
    return Diagnosis(
        source=str(source) if isinstance(source, (str, os.PathLike)) else type(source).__name__,
        num_files=len(frame),
        num_classes=int(frame["label"].nunique()),
        histogram=_counts(frame["label"]),
        splits=split_summary(frame),
        domains=_counts(frame["domain"]),
        modes=_counts(pd.Series([fact.mode for fact in facts if fact.mode], dtype="object")),
        short_side=(min(sides), int(np.median(sides)), max(sides)),
        decoded=decode,
        findings=sorted(findings, key=lambda finding: SEVERITIES.index(finding.severity)),
        seconds=time.perf_counter() - started,
    )


def _scan(source: Source) -> FolderScan | None:
    if isinstance(source, (str, os.PathLike)) and Path(source).expanduser().is_dir():
        return scan_folder(Path(source).expanduser())
    return None


def _counts(values: Any) -> dict[str, int]:
    return {str(name): int(number) for name, number in values.value_counts().items() if name != ""}


def _copies(frame: pd.DataFrame, facts: Sequence[FileFacts]) -> list[Finding]:
    """Find byte-equal files first; nearly equal pictures are looked for among one of each."""
    present = [row for row, fact in enumerate(facts) if fact.num_bytes > 0]
    groups = equal_files([facts[row].path for row in present], [facts[row].num_bytes for row in present])
    equal = [[present[position] for position in group] for group in groups]
    findings = copy_findings(frame, equal, equal=True)
    copies = {row for group in equal for row in group[1:]}
    shown = [(row, fact.thumb) for row, fact in enumerate(facts) if fact.thumb is not None and row not in copies]
    if not shown:
        return findings
    rows = [row for row, _ in shown]
    thumbs = np.stack([thumb for _, thumb in shown])
    also = {group[0]: group for group in equal}
    near = [
        sorted(row for position in group for row in also.get(rows[position], [rows[position]]))
        for group in similar_pictures(thumbs)
    ]
    findings += copy_findings(frame, near, equal=False)
    flat = [facts[rows[position]].path for position in np.flatnonzero(contrast(thumbs) < MIN_CONTRAST)]
    if flat:
        message = f"{len(flat)} file(s) with hardly any contrast, such as one colour."
        findings.append(Finding("flat", "warning", message, "Look at them; they may be failed exposures.", flat))
    return findings
