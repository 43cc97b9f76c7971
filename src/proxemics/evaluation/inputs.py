"""Embeddings from NumPy, torch or lists to one checked matrix; what cannot be ranked is refused by row and file."""

from __future__ import annotations

import warnings
from collections.abc import Iterator, Sequence
from typing import TypeAlias

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from proxemics.core.errors import EvaluationError

Embeddings: TypeAlias = "Tensor | NDArray[np.generic] | Sequence[Sequence[float]]"
_ROWS = 512  # a chunk of 512-d float64 rows stays in the cache


def row_chunks(count: int, size: int = _ROWS) -> Iterator[slice]:
    """Yield slices that cover ``range(count)`` in order.

    Example:
        >>> list(row_chunks(5, 2))
        [slice(0, 2, None), slice(2, 4, None), slice(4, 5, None)]
    """
    for start in range(0, count, size):
        yield slice(start, min(start + size, count))


def check_embeddings(
    values: Embeddings,
    name: str = "embeddings",
    *,
    paths: Sequence[str] | None = None,
    device: torch.device | str | None = None,
) -> Tensor:
    """Return a contiguous (N, D) float32 or float64 matrix, without a copy where the input is one already.

    Args:
        values: (N, D); half precision and integers are widened, gradients are dropped.
        name: how messages call it.
        paths: N file names, used to name a bad row.
        device: where to compute; the device of ``values`` when None.

    Raises:
        EvaluationError: wrong shape, no rows, NaN or infinity (the message names rows and files).

    Example:
        >>> check_embeddings([[1, 0], [0, 1]]).dtype
        torch.float64
    """
    matrix = _tensor(values)
    if matrix.ndim != 2 or matrix.shape[1] == 0:
        raise EvaluationError(f"{name} has shape {tuple(matrix.shape)}; give one row per image, shape (N, D).")
    if matrix.shape[0] == 0:
        raise EvaluationError(f"{name} is empty: 0 rows of {matrix.shape[1]} numbers; check that the split has images.")
    if paths is not None and len(paths) != matrix.shape[0]:
        raise EvaluationError(f"{len(paths)} paths were given for {matrix.shape[0]} rows of {name}; give one a row.")
    if matrix.is_complex():
        raise EvaluationError(f"{name} has dtype {matrix.dtype}; give real numbers.")
    if not matrix.is_floating_point():
        matrix = matrix.double()
    elif matrix.dtype not in (torch.float32, torch.float64):
        matrix = matrix.float()
    matrix = matrix.to(device=device).contiguous()
    _refuse_non_finite(matrix, name, paths)
    return matrix


def _tensor(values: Embeddings) -> Tensor:
    if isinstance(values, Tensor):
        return values.detach()
    array = np.asarray(values)
    if array.dtype.kind not in "fiub":
        raise EvaluationError(f"Embeddings have dtype {array.dtype}; give numbers.")
    if array.dtype.kind == "u" and array.dtype.itemsize > 1:
        array = array.astype(np.float64)
    with warnings.catch_warnings():
        # A read-only (memory-mapped) array is shared rather than copied; nothing here writes to it.
        warnings.filterwarnings("ignore", message=".*not writable.*")
        return torch.from_numpy(np.ascontiguousarray(array))


def _refuse_non_finite(matrix: Tensor, name: str, paths: Sequence[str] | None) -> None:
    bad: list[int] = []
    for rows in row_chunks(matrix.shape[0]):
        # A sum is finite when all addends are, unless it overflows: only then look at the entries.
        if not bool(torch.isfinite(matrix[rows].sum())):
            wrong = ~torch.isfinite(matrix[rows]).all(dim=1)
            bad.extend((torch.nonzero(wrong).flatten() + rows.start).tolist())
    if not bad:
        return
    shown = ", ".join(f"{row} ({paths[row]})" if paths is not None else str(row) for row in bad[:5])
    more = f" and {len(bad) - 5} more" if len(bad) > 5 else ""
    raise EvaluationError(
        f"{name} holds NaN or infinity in row{'s' if len(bad) > 1 else ''} {shown}{more}; a ranking with them is "
        "meaningless: repair the images or the model, or drop the rows."
    )
