"""Names of the files in the folder of an embedded index.

========================  =============================================================================================
``manifest.json``         what the index is; written once
``rows.sqlite``           ids, metadata, checksums, and which state is committed; with ``-wal`` and ``-shm`` while open
``vectors-G.f32``         rows of D float32 numbers of generation G, appended to, never changed
``codes-G.i8``            the same rows in 8 bits, for exact search with ``int8`` only
``scales-G.f32``          two float32 numbers a row for them: the step, and the length of what rounding lost
``graph-G-N.usearch``     a cache that compacting builds again: the graph over the first rows of generation G
``lock``                  held by the writer; it holds its process number
``thumbnails/``           small pictures, where asked for
========================  =============================================================================================

Compacting writes a new generation beside the old one, and one database transaction switches over.
"""

from __future__ import annotations

import hashlib
from pathlib import Path

MANIFEST = "manifest.json"
DATABASE = "rows.sqlite"
LOCK = "lock"
THUMBNAILS = "thumbnails"


def vectors_file(folder: Path, generation: int) -> Path:
    """Where the float32 rows of a generation are."""
    return folder / f"vectors-{generation}.f32"


def codes_file(folder: Path, generation: int) -> Path:
    """Where the 8-bit rows of a generation are."""
    return folder / f"codes-{generation}.i8"


def scales_file(folder: Path, generation: int) -> Path:
    """Where the steps of the 8-bit rows of a generation are."""
    return folder / f"scales-{generation}.f32"


def graph_name(generation: int, number: int) -> str:
    """Name of the ``number``-th graph of a generation."""
    return f"graph-{generation}-{number}.usearch"


def thumbnail_file(folder: Path, name: str) -> Path:
    """Where the thumbnail of the row ``name`` is, if it has one.

    Example:
        >>> thumbnail_file(Path("birds.index"), "a/1.jpg").as_posix()[:27]
        'birds.index/thumbnails/35/3'
    """
    digest = hashlib.sha256(name.encode()).hexdigest()[:32]
    return folder / THUMBNAILS / digest[:2] / f"{digest}.jpg"


def strangers(folder: Path, generation: int, graph: str | None) -> list[Path]:
    """Files of other generations and graphs, which a stopped process or an old state left behind."""
    kept = {vectors_file(folder, generation), codes_file(folder, generation), scales_file(folder, generation)}
    if graph is not None:
        kept.add(folder / graph)
    patterns = ("vectors-*.f32", "codes-*.i8", "scales-*.f32", "graph-*.usearch", ".graph-*.usearch")
    return [path for pattern in patterns for path in folder.glob(pattern) if path not in kept]
