"""Labels of any kind (integers of any size, strings) to dense int64 codes; never through floats."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TypeAlias

import numpy as np
from numpy.typing import NDArray
from torch import Tensor

from proxemics.core.errors import EvaluationError

Labels: TypeAlias = "Sequence[int] | Sequence[str] | NDArray[np.generic] | Tensor"


def label_array(labels: Labels, name: str = "labels") -> NDArray[np.generic]:
    """Return labels as a 1-d NumPy array of integers or strings.

    Args:
        labels: (N,) integers of any width, or strings.
        name: how messages call them.

    Returns:
        (N,) array of an integer kind or of kind ``U``.

    Raises:
        EvaluationError: a label matrix, floating labels, or labels of mixed kind.

    Example:
        >>> label_array(["cat", "dog"]).dtype.kind
        'U'
        >>> int(label_array([2**40, 1])[0])
        1099511627776
    """
    array = np.asarray(labels.detach().cpu().numpy() if isinstance(labels, Tensor) else labels)
    if array.ndim != 1:
        raise EvaluationError(
            f"{name} has shape {array.shape}, but one label per image, shape (N,), is needed: multi-label retrieval "
            f"has no single definition of Recall or MAP@R, so evaluate one column at a time, e.g. {name}[:, 0]."
        )
    if array.size == 0:
        return array.astype(np.int64)
    if array.dtype.kind == "O":
        if not all(isinstance(value, str) for value in array):
            kinds = sorted({type(value).__name__ for value in array})
            raise EvaluationError(f"{name} mixes kinds {kinds}; use all strings or all integers.")
        array = array.astype(np.str_)
    if array.dtype.kind == "b":
        array = array.astype(np.int64)
    if array.dtype.kind not in "iuU":
        raise EvaluationError(
            f"{name} has dtype {array.dtype}; use integers (any width) or strings, because floating labels merge "
            "classes above 2**24."
        )
    return array


def encode_labels(
    query: NDArray[np.generic], gallery: NDArray[np.generic]
) -> tuple[NDArray[np.int64], NDArray[np.int64], list[str]]:
    """Give equal labels equal codes 0..C-1, in sorted order of the labels.

    Args:
        query: (Q,) labels from :func:`label_array`.
        gallery: (G,) labels of the same kind.

    Returns:
        Query codes (Q,), gallery codes (G,) and the C names.

    Raises:
        EvaluationError: one side holds strings and the other integers.

    Example:
        >>> encode_labels(np.array([7, 3]), np.array([7, 7, 1000]))
        (array([1, 0]), array([1, 1, 2]), ['3', '7', '1000'])
    """
    if query.size and gallery.size and (query.dtype.kind == "U") != (gallery.dtype.kind == "U"):
        raise EvaluationError(
            f"Query labels are {_kind(query)} and gallery labels are {_kind(gallery)}, so that none can agree; "
            "use one kind for both."
        )
    names, codes = np.unique(_join(query, gallery), return_inverse=True)
    codes = codes.reshape(-1).astype(np.int64)
    return codes[: len(query)], codes[len(query) :], [str(name) for name in names]


def _kind(array: NDArray[np.generic]) -> str:
    return "strings" if array.dtype.kind == "U" else "integers"


def _join(query: NDArray[np.generic], gallery: NDArray[np.generic]) -> NDArray[np.generic]:
    if {query.dtype.kind, gallery.dtype.kind} == {"i", "u"}:
        # NumPy would join int64 and uint64 as float64 and so merge large labels.
        return np.concatenate([query.astype(object), gallery.astype(object)])
    return np.concatenate([query, gallery])
