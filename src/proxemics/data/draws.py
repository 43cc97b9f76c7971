"""Drawing classes (or groups) for a split so that new ones do not move old ones.

Each class has a fixed number in [0, 1), a hash of the seed and its own name; it is drawn when the number is below the
wanted fraction. So a class never changes side because other classes were added or removed, and shares are met on
average: of 200 classes at 0.5 about 100 ± 7 are drawn. Only if a side would get fewer than it needs, the classes
nearest to the threshold are moved; with about ten classes that happens, and there a new class can move an old one.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from proxemics.core.errors import DataError
from proxemics.core.seeds import derive_seed

Texts = npt.NDArray[np.object_]


def draw(
    units: Texts, fraction: float, *, purpose: str, seed: int, what: str, least: int, rest: int
) -> npt.NDArray[np.bool_]:
    """Tell the rows whose unit's number is below ``fraction``.

    Args:
        units: (N,) name of the class or group of each row.
        fraction: expected share of units, in [0, 1].
        purpose: ``test`` or ``val``; part of the hash, so that the two draws are independent.
        seed: another seed, another draw.
        what: what a unit is, for the message.
        least: units that are drawn at least.
        rest: units that are left at least.

    Returns:
        (N,) bool; rows of one unit agree.

    Raises:
        DataError: there are fewer than ``least + rest`` units.

    Example:
        >>> options = {"purpose": "test", "seed": 0, "what": "classes", "least": 1, "rest": 1}
        >>> draw(np.array(["a", "b", "c", "d"]), 0.5, **options).tolist()
        [False, False, True, True]
        >>> draw(np.array(["a", "b", "c", "d", "new", "a"]), 0.5, **options).tolist()
        [False, False, True, True, False, False]
    """
    names = sorted(set(units))
    if len(names) < least + rest:
        raise DataError(
            f"There are {len(names)} {what}, and {least + rest} are needed to set some apart for {purpose}. "
            "Add others, or name the splits yourself in a split column: data.split=column (in Python how='column')."
        )
    numbers = {name: derive_seed(seed, "split", purpose, name) / 2**63 for name in names}
    order = sorted(names, key=lambda name: (numbers[name], name))
    count = sum(number < fraction for number in numbers.values())
    chosen = set(order[: min(max(count, least), len(names) - rest)])
    return np.array([unit in chosen for unit in units], dtype=bool)


def join_classes(labels: Texts, groups: Texts | None) -> Texts:
    """Join classes that share a group.

    Args:
        labels: (N,) class of each row.
        groups: (N,) group of each row, or None for none.

    Returns:
        (N,) unit of each row, named after its first class in sorted order.

    Example:
        >>> labels = np.array(["a", "b", "b", "c"], dtype=object)
        >>> join_classes(labels, np.array(["1", "1", "2", "3"], dtype=object)).tolist()
        ['a', 'a', 'a', 'c']
    """
    if groups is None:
        return labels
    parent: dict[Any, Any] = {}

    def find(node: Any) -> Any:
        while parent.setdefault(node, node) != node:
            parent[node] = parent[parent[node]]
            node = parent[node]
        return node

    for label, group in zip(labels, groups, strict=True):
        # A class sorts before a group, so the root is always the first class.
        first, second = sorted((find((0, label)), find((1, group))))
        parent[second] = first
    return np.array([find((0, label))[1] for label in labels], dtype=object)
