"""Class names on one side, the numbers 0..C-1 on the other, and one saved list that ties them together."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from proxemics.core.errors import DataError, did_you_mean
from proxemics.core.files import read_json, write_json

_SCHEMA = 1
ONE_LABEL = (
    "Several labels for one picture are not supported, because a proxy, a positive and a metric are all defined by one "
    "class a picture."
)


def label_text(value: object, row: int | None = None, what: str = "label") -> str:
    """Return a label as text: text stays as it is, whole numbers are written in decimal.

    Args:
        value: one label; ``7``, ``numpy.int64(7)`` and ``"7"`` name the same class.
        row: named in the message.
        what: the kind of value, for the message.

    Raises:
        DataError: the value is empty, a fraction, or several labels at once.

    Example:
        >>> label_text(7), label_text(7.0), label_text("A.1")
        ('7', '7', 'A.1')
    """
    if isinstance(value, np.generic):
        value = value.item()
    where = "" if row is None else f" in row {row}"
    if isinstance(value, str):
        if not value.strip():
            raise DataError(f"The {what}{where} is empty. Every picture needs one; fill it in or remove the row.")
        return value
    if isinstance(value, bool):
        raise DataError(f"The {what}{where} is {value}, a truth value. Write it as text, such as 'yes' or 'no'.")
    if isinstance(value, int):
        return str(value)
    if isinstance(value, float) and value.is_integer():
        return str(int(value))
    if isinstance(value, (list, tuple, set, frozenset, dict, np.ndarray)):
        raise DataError(
            f"The {what}{where} is {_short(value)}. {ONE_LABEL} Choose one column with label=..., or train and "
            "evaluate once for each level."
        )
    raise DataError(
        f"The {what}{where} is {_short(value)} ({type(value).__name__}). Text and whole numbers are allowed."
    )


def _short(value: object) -> str:
    text = repr(value)
    return text if len(text) <= 60 else text[:57] + "..."


@dataclass(frozen=True)
class LabelMap:
    """An ordered list of class names; the position is the class number that losses and metrics see.

    Args:
        names: unique class names.

    Raises:
        DataError: a name is empty or appears twice.

    Example:
        >>> labels = LabelMap.fit(["dog", "cat", "dog"])
        >>> labels.names, labels.encode(["dog", "cat"]).tolist(), labels.decode([0])
        (('cat', 'dog'), [1, 0], ['cat'])
        >>> LabelMap.fit([7, 1000, 3]).encode([3, 7]).tolist()        # whole numbers are names, too
        [1, 2]
    """

    names: tuple[str, ...]
    _ids: dict[str, int] = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        names = tuple(label_text(name) for name in self.names)
        ids = {name: i for i, name in enumerate(names)}
        if len(ids) != len(names):
            twice = next(name for i, name in enumerate(names) if ids[name] != i)
            raise DataError(f"The class name {twice!r} appears twice in the label map. Names must be unique.")
        object.__setattr__(self, "names", names)
        object.__setattr__(self, "_ids", ids)

    @classmethod
    def fit(cls, labels: Iterable[object]) -> LabelMap:
        """Collect the distinct names in sorted (code point) order.

        Args:
            labels: one label a picture, text or whole numbers.

        Returns:
            The map.

        Raises:
            DataError: there is no label, or one is unusable; the message names its row.
        """
        _refuse_text(labels)
        names = sorted({label_text(label, row) for row, label in enumerate(labels)})
        if not names:
            raise DataError("There is no label to make classes from. Give at least one labelled picture.")
        return cls(tuple(names))

    def encode(self, labels: Iterable[object]) -> npt.NDArray[np.int64]:
        """Turn names into class numbers.

        Args:
            labels: N labels.

        Returns:
            (N,) int64 in [0, C).

        Raises:
            DataError: a label is not in the map; the message names it and its row.
        """
        _refuse_text(labels)
        rows = list(labels)
        ids = np.empty(len(rows), dtype=np.int64)
        for row, label in enumerate(rows):
            name = label if type(label) is str else label_text(label, row)
            number = self._ids.get(name)
            if number is None:
                raise DataError(
                    f"Label {name!r} (row {row}) is not among the {len(self)} known classes."
                    f"{did_you_mean(name, self.names)} Fit the label map on a table that holds it, or drop the row."
                )
            ids[row] = number
        return ids

    def decode(self, ids: Iterable[int] | npt.NDArray[np.integer[Any]]) -> list[str]:
        """Turn class numbers back into names.

        Raises:
            DataError: a number is outside [0, C).
        """
        numbers = [int(i) for i in ids]
        for row, number in enumerate(numbers):
            if not 0 <= number < len(self):
                raise DataError(f"Class number {number} (row {row}) is outside 0..{len(self) - 1}.")
        return [self.names[number] for number in numbers]

    def __len__(self) -> int:
        return len(self.names)

    def __contains__(self, name: object) -> bool:
        return name in self._ids

    def save(self, path: str | Path) -> None:
        """Write the names as JSON: ``{"schema": 1, "names": [...]}``."""
        write_json(path, {"schema": _SCHEMA, "names": list(self.names)})

    @classmethod
    def load(cls, path: str | Path) -> LabelMap:
        """Read what :meth:`save` wrote.

        Raises:
            DataError: the file is JSON of another kind.
        """
        content = read_json(path)
        names = content.get("names") if isinstance(content, dict) else None
        if not isinstance(names, Sequence) or isinstance(names, str) or not all(isinstance(n, str) for n in names):
            raise DataError(
                f"{path} is not a label map. Expected {{'schema': 1, 'names': [...]}} as LabelMap.save writes it."
            )
        return cls(tuple(names))


def _refuse_text(labels: Iterable[object]) -> None:
    if isinstance(labels, str):
        raise DataError(f"Got the single text {labels!r} where a list of labels is expected. Write [{labels!r}].")
    if getattr(labels, "ndim", 1) != 1:
        shape = tuple(getattr(labels, "shape", ()))
        raise DataError(f"Got labels of shape {shape} where (N,) is expected, one class a picture. {ONE_LABEL}")
