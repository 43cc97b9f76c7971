"""The section on what the expansion of a run makes: training pictures beside their generated versions."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from proxemics.core.errors import ProxemicsError
from proxemics.core.files import read_json
from proxemics.data.decode import read_image
from proxemics.report.thumbnails import jpeg_uri

_NO_PICTURES = {
    "style": "Its expander style changes the statistics of features inside the network, so there are no pictures.",
    "embedding": "Its expander embedding moves the embeddings themselves, so there are no pictures.",
}


@dataclass(frozen=True)
class Expanded:
    """A training picture and what became of it.

    Attributes:
        path: of the picture.
        label: its class.
        domain: its domain, or empty.
        tiles: data URIs, the picture first.
    """

    path: str
    label: str
    domain: str
    tiles: tuple[str, ...]


@dataclass(frozen=True)
class ExpandedBy:
    """The pictures of one method.

    Attributes:
        name: of the method.
        learnt: whether its generator has taken a step.
        pictures: with their versions.
    """

    name: str
    learnt: bool
    pictures: tuple[Expanded, ...]


@dataclass(frozen=True)
class ExpansionPart:
    """What the section shows.

    Attributes:
        methods: those that make pictures.
        side: of a tile, pixels.
        sentences: on methods that expand without pictures.
    """

    methods: tuple[ExpandedBy, ...]
    side: int
    sentences: tuple[str, ...]


def expansion_part(folder: Path, methods: Mapping[str, Any] | None) -> ExpansionPart | None:
    """Return the section, or None where the run expanded nothing or left no sheet.

    Args:
        folder: the run folder, which may hold ``expansion.jpg`` and ``expansion.json``.
        methods: as in the configuration of the run.
    """
    options = (methods or {}).get("center_polar", {}) or {}
    sentence = _NO_PICTURES.get(options.get("expander", ""), "")
    sentences = (f"center_polar: {sentence}",) if sentence else ()
    try:
        side, found = _read(folder)
    except (ProxemicsError, KeyError, TypeError, ValueError):  # absent, or not ours
        side, found = 0, ()
    return ExpansionPart(found, side, sentences) if found or sentences else None


def _read(folder: Path) -> tuple[int, tuple[ExpandedBy, ...]]:
    about = read_json(folder / "expansion.json")
    sheet = read_image(folder / "expansion.jpg")
    side, columns, pictures = int(about["tile"]), 1 + int(about["versions"]), about["pictures"]

    def tiles(row: int) -> tuple[str, ...]:
        top = row * side
        cut = [sheet.crop((column * side, top, (column + 1) * side, top + side)) for column in range(columns)]
        return tuple(jpeg_uri(one, quality=85) for one in cut)

    return side, tuple(
        ExpandedBy(
            str(method["name"]),
            bool(method["learnt"]),
            tuple(
                Expanded(str(one["path"]), str(one["label"]), str(one["domain"]), tiles(number * len(pictures) + row))
                for row, one in enumerate(pictures)
            ),
        )
        for number, method in enumerate(about["methods"])
    )
