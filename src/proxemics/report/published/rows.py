"""The published rows: read from ``rows.json``, each with its protocol and where it comes from.

The tag says how sure a number is: P is printed in the paper, C stands in the authors' code or readme, S is reported by
somebody else who read the paper.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import lru_cache
from importlib.resources import files
from typing import Any, NamedTuple

from proxemics.core.errors import DataError, did_you_mean


class Dataset(NamedTuple):
    """A data set with published numbers: its title, its name in ``proxemics data``, and its retrieval task."""

    title: str
    benchmark: str
    task: str = "zero_shot"


DATASETS: dict[str, Dataset] = {
    "cub": Dataset("CUB-200-2011", "cub200"),
    "cars": Dataset("Cars-196", "cars196"),
    "sop": Dataset("Stanford Online Products", "sop"),
    "inshop": Dataset("In-Shop Clothes Retrieval", "inshop", "query_gallery"),
}


@dataclass(frozen=True)
class Protocol:
    """How numbers were made. Only numbers of one protocol may be compared.

    Attributes:
        key: short name.
        title: for people.
        task: who searches whom, as in the rows of result files; zero_shot stands for the usual task of the data set.
        selection: how the epoch was chosen.
    """

    key: str
    title: str
    task: str
    selection: str


@dataclass(frozen=True)
class Row:
    """One method on one data set.

    Attributes:
        method: name.
        backbone: trunk, or None where the source does not say.
        dim: length of the embedding, or None.
        protocol: how the numbers were made.
        values: in per cent (or points), by metric name.
        source: where they are printed.
        tag: P, C or S; empty for own runs.
        spread: half width or deviation that the source prints, by metric name.
        size: side of the pictures in pixels, for own runs.
        runs: how many own runs the values are the mean of; 0 for published rows.
    """

    method: str
    backbone: str | None
    dim: int | None
    protocol: Protocol
    values: Mapping[str, float]
    source: str
    tag: str = ""
    spread: Mapping[str, float] = field(default_factory=dict)
    size: int | None = None
    runs: int = 0


def find_dataset(name: str) -> str:
    """Return the key of a data set by its key, or by its name in ``proxemics data``.

    Raises:
        DataError: nothing is published here for this name.

    Example:
        >>> find_dataset("cub200"), find_dataset("sop")
        ('cub', 'sop')
    """
    for key, one in DATASETS.items():
        if name in (key, one.benchmark):
            return key
    raise DataError(
        f"No published numbers for {name!r}.{did_you_mean(name, DATASETS)} There are numbers for {', '.join(DATASETS)}."
    )


def published_rows(dataset: str) -> list[Row]:
    """Return all published rows of a data set.

    Args:
        dataset: cub, cars, sop or inshop.

    Example:
        >>> row = published_rows("cub")[0]
        >>> row.method, row.values["recall_at_1"], row.protocol.key, row.tag
        ('CouCE', 73.23, 'couce_table', 'S')
    """
    key, content = find_dataset(dataset), _content()
    protocols = {name: Protocol(name, **one) for name, one in content["protocols"].items()}
    return [
        Row(
            row["method"],
            row["backbone"],
            row["dim"],
            protocols[row["protocol"]],
            row["values"],
            row["source"],
            row["tag"],
            row.get("spread", {}),
        )
        for row in content["rows"]
        if row["dataset"] == key
    ]


@lru_cache(maxsize=1)
def _content() -> dict[str, Any]:
    text = files("proxemics.report.published").joinpath("rows.json").read_text(encoding="utf-8")
    content: dict[str, Any] = json.loads(text)
    return content
