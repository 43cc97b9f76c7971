"""Bootstrap intervals of retrieval metrics over classes, because images of one class are not independent."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
from numpy.typing import NDArray

from proxemics.core.seeds import numpy_generator

_DRAWS = 2**20  # class draws at a time


def class_intervals(
    values: Mapping[str, NDArray[np.float64]],
    classes: NDArray[np.int64],
    *,
    resamples: int = 1000,
    level: float = 0.95,
    seed: int = 0,
    weights: NDArray[np.float64] | None = None,
) -> dict[str, tuple[float, float]]:
    """Percentile intervals of the mean over queries, resampling whole classes with replacement.

    Args:
        values: per-query metrics (Q,) by name; NaN queries are left out.
        classes: (Q,) class code of each query.
        resamples: number of bootstrap samples; 0 gives no interval.
        level: coverage in (0, 1).
        seed: of the resampling.
        weights: (Q,) of queries whose values were multiplied by them; a resampled mean is then the sum of the values
            over the sum of the weights. None: all 1.

    Returns:
        (low, high) by name. A single class gives (nan, nan): there is nothing to resample.

    Example:
        >>> low, high = class_intervals({"m": np.array([0.0, 0, 1, 1])}, np.array([0, 0, 1, 1]), seed=1)["m"]
        >>> (low, high)
        (0.0, 1.0)
    """
    names = list(values)
    if resamples == 0 or not names:
        return {}
    table = np.stack([values[name] for name in names], axis=1)
    known = ~np.isnan(table).any(axis=1)
    _, codes = np.unique(classes[known], return_inverse=True)
    count = int(codes.max(initial=-1)) + 1
    if count < 2:
        return {name: (float("nan"), float("nan")) for name in names}
    # One column a metric, and the class sizes (or weights) last: a resampled mean is a ratio of two sums.
    sums = np.stack(
        [np.bincount(codes, weights=column, minlength=count) for column in table[known].T]
        + [np.bincount(codes, None if weights is None else weights[known], minlength=count).astype(np.float64)],
        axis=1,
    )
    means = np.empty((resamples, len(names)))
    generator = numpy_generator(seed, "class_intervals")
    step = max(1, _DRAWS // count)
    for start in range(0, resamples, step):
        rows = min(step, resamples - start)
        drawn = generator.integers(0, count, size=(rows, count), dtype=np.int64)
        drawn += np.arange(rows)[:, None] * count
        times = np.bincount(drawn.ravel(), minlength=rows * count).reshape(rows, count)
        total = times @ sums
        means[start : start + rows] = total[:, :-1] / total[:, -1:]
    tail = 100 * (1 - level) / 2
    low, high = np.percentile(means, [tail, 100 - tail], axis=0)
    return {name: (float(low[i]), float(high[i])) for i, name in enumerate(names)}
