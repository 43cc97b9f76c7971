"""Filling an index: rows in batches, the graph, a measured recall, and small pictures beside the rows."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from proxemics.core.errors import ProxemicsError, SearchError
from proxemics.search.index import Index, Verified
from proxemics.search.items import Items, Scalar

BATCH = 5000
"""Rows of one commit at most."""
BATCH_NUMBERS = 1 << 23
"""Numbers in the vectors of one commit at most: 32 MiB, for databases have a largest message."""
SIDE = 160
"""Longest side of a thumbnail, in pixels."""

Progress = Callable[[int], None]


@dataclass(frozen=True)
class Filled:
    """What came of filling.

    Attributes:
        added: new rows.
        replaced: rows that were there.
    """

    added: int
    replaced: int


def batches(
    ids: Sequence[str],
    vectors: NDArray[np.float32],
    meta: Sequence[Mapping[str, Scalar]] | None = None,
    *,
    size: int | None = None,
) -> Iterator[Items]:
    """Cut rows into items of ``size`` rows; None: as many as one commit should have.

    Example:
        >>> [len(part) for part in batches(["a", "b", "c"], np.eye(3, dtype=np.float32), size=2)]
        [2, 1]
    """
    size = size or rows_of_commit(vectors.shape[1])
    for start in range(0, len(ids), size):
        part = slice(start, start + size)
        yield Items.make(ids[part], vectors[part], None if meta is None else meta[part])


def rows_of_commit(dim: int) -> int:
    """Return how many rows of ``dim`` numbers one commit should have.

    Example:
        >>> rows_of_commit(512), rows_of_commit(4096)
        (5000, 2048)
    """
    return min(BATCH, max(1, BATCH_NUMBERS // max(1, dim)))


def fill(index: Index, parts: Iterable[Items], *, replace: bool = False, progress: Progress | None = None) -> Filled:
    """Write items; each part is kept when it is done.

    Args:
        index: open for writing.
        parts: items.
        replace: whether ids may be taken.
        progress: called with the rows of each part.

    Raises:
        SearchError: an id is taken and ``replace`` is not set; parts before it are kept.
    """
    added = replaced = 0
    for items in parts:
        new, old = index.upsert(items) if replace else (index.add(items), 0)
        added, replaced = added + new, replaced + old
        if progress is not None:
            progress(len(items))
    return Filled(added, replaced)


def finish(index: Index, *, sample: int = 200) -> Verified:
    """Build what searches fast, and measure how well it does."""
    index.compact()
    return index.verify(sample)


def write_thumbnails(index: Index, *, side: int = SIDE, progress: Progress | None = None) -> tuple[int, int]:
    """Write a small JPEG of every row whose ``path`` can be read into the folder of an embedded index.

    Args:
        index: an embedded one.
        side: longest side, pixels.
        progress: called with the rows of each part.

    Returns:
        How many there are now, and how many rows have no picture that can be read.

    Raises:
        SearchError: the index is not a folder.
    """
    from proxemics.search.local.layout import thumbnail_file

    check_thumbnails(index.address)
    folder, written, missing = Path(index.address), 0, 0
    for items in index.scan():
        for name, meta in zip(items.ids, items.meta, strict=True):
            target = thumbnail_file(folder, name)
            if target.exists() or _small(str(meta.get("path") or ""), target, side):
                written += 1
            else:
                missing += 1
        if progress is not None:
            progress(len(items))
    return written, missing


def check_thumbnails(address: str) -> None:
    """Refuse thumbnails where none can be kept.

    Raises:
        SearchError: the index is not a folder.
    """
    from proxemics.search.open import backend_of

    if backend_of(address) != "local":
        raise SearchError("Thumbnails are kept by embedded indexes only; leave --thumbnails out, or give a folder.")


def _small(path: str, target: Path, side: int) -> bool:
    from PIL import Image

    from proxemics.core.files import atomic_path
    from proxemics.data.decode import read_image

    if not path or not Path(path).is_file():
        return False
    try:
        image = read_image(path)
    except ProxemicsError:
        return False
    image.thumbnail((side, side), Image.Resampling.LANCZOS, reducing_gap=2.0)
    with atomic_path(target) as temporary:
        image.save(temporary, "JPEG", quality=85)
    return True
