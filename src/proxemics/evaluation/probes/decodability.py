"""Decodability: how well a linear probe reads a cause, such as the background, from embeddings of unseen classes.

Folds are disjoint in object class. Where causes go with classes, a probe that has seen a class could name its cause by
recognising the class; a probe that is asked about classes it has never seen cannot.

The rows are set to unit length, centred by the mean of the fitted part and divided by one number, the root mean square
of its entries. So the probe does not depend on the scale of the embeddings, and directions keep their share of the
variance: what an embedding holds in a weak direction counts as weakly held.
"""

from __future__ import annotations

import math
import warnings
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias

import numpy as np
import torch
from numpy.typing import NDArray

from proxemics.core.errors import EvaluationError
from proxemics.core.geometry import normalize
from proxemics.core.seeds import numpy_generator
from proxemics.evaluation.inputs import Embeddings, check_embeddings
from proxemics.evaluation.labels import Labels, label_array

Values: TypeAlias = "Sequence[object] | NDArray[np.generic] | torch.Tensor"
_RIDGES = np.logspace(-1, 5, 13)  # tried by leave-one-out; in squared, scaled units a row
_STEPS = 200


@dataclass(frozen=True)
class Decoding:
    """What a probe reads.

    Attributes:
        score: name of ``value``: ``accuracy`` or ``r2``.
        value: over all held-out rows together: share named rightly, or share of the variance explained.
        interval: 95 % interval of the mean over folds (Student's t). The folds share most of their fitted rows, so it
            is rather too narrow; (nan, nan) with one fold.
        folds: the score of each fold.
        chance: of ``value`` without any embedding: the largest share of a value among the rows; 0 for R².
        balanced: mean over values of the share of their rows named rightly; NaN for R².
        balanced_chance: 1 / number of values; NaN for R².
        rows: rows used.
        values: different values used; 0 for numbers.
        missing: rows left out because their value is missing.
        lone: rows left out because their value occurs in one class only, where disjoint folds cannot ask for it.
    """

    score: str
    value: float
    interval: tuple[float, float]
    folds: tuple[float, ...]
    chance: float
    balanced: float
    balanced_chance: float
    rows: int
    values: int
    missing: int
    lone: int

    @property
    def accuracy(self) -> float:
        """``value`` where it is an accuracy; NaN otherwise."""
        return self.value if self.score == "accuracy" else math.nan

    @property
    def above_chance(self) -> float:
        """(value - chance) / (1 - chance): 0 is chance, 1 is perfect, below 0 is worse than chance."""
        return (self.value - self.chance) / (1 - self.chance)


def decode_category(
    embeddings: Embeddings,
    cause: Values,
    classes: Labels,
    *,
    folds: int = 5,
    ridge: float = 1.0,
    seed: int = 0,
) -> Decoding:
    """Read a categorical cause by multinomial logistic regression with an L2 penalty.

    Args:
        embeddings: (N, D); rows are set to unit length.
        cause: (N,) strings or integers; None, NaN and "" are missing.
        classes: (N,) object class of each row, by which the folds are disjoint.
        folds: number of folds, at least 2; fewer where there are fewer classes.
        ridge: weight of half the squared weights beside the *sum* of cross-entropies (scikit-learn's 1 / C), with the
            rows scaled as this module says.
        seed: of the assignment of classes to folds.

    Returns:
        A :class:`Decoding` with ``score="accuracy"``.

    Raises:
        EvaluationError: lengths differ, an option is out of range, embeddings are not finite, fewer than two values or
            classes are left, or scikit-learn is missing.

    Example:
        >>> scenes = np.tile([0, 1, 2], 40)
        >>> found = decode_category(np.eye(3)[scenes] + 0.01, scenes, np.repeat(np.arange(20), 6))
        >>> found.accuracy, round(found.chance, 3), found.values
        (1.0, 0.333, 3)
    """
    matrix, groups = _read(embeddings, cause, classes, folds)
    if not (math.isfinite(ridge) and ridge > 0):
        raise EvaluationError(f"ridge={ridge}; give a positive number.")
    known = np.array([not _is_missing(value) for value in _listed(cause)])
    codes = np.full(len(known), -1)
    names, codes[known] = np.unique(
        [str(v) for v, k in zip(_listed(cause), known, strict=True) if k], return_inverse=True
    )
    spread = np.array([len(np.unique(groups[codes == code])) for code in range(len(names))], dtype=np.int64)
    shared = known & (spread[codes] > 1 if len(names) else False)
    codes, rows = np.unique(codes[shared], return_inverse=True)
    if len(codes) < 2:
        raise EvaluationError(
            f"The cause has {len(codes)} values that occur in two or more classes ({len(names)} in all, "
            f"{int((~known).sum())} rows missing); a probe needs two values to tell apart."
        )
    matrix, groups = matrix[shared], groups[shared]
    parts = _folds(groups, folds, seed)
    told = np.empty(len(rows), dtype=np.int64)
    for fold in range(int(parts.max()) + 1):
        told[parts == fold] = _name(matrix[parts != fold], rows[parts != fold], matrix[parts == fold], ridge)
    right = told == rows
    per_fold = tuple(float(right[parts == fold].mean()) for fold in range(int(parts.max()) + 1))
    sizes = np.bincount(rows)
    return Decoding(
        score="accuracy",
        value=float(right.mean()),
        interval=_t_interval(per_fold),
        folds=per_fold,
        chance=float(sizes.max() / len(rows)),
        balanced=float((np.bincount(rows, weights=right) / sizes).mean()),
        balanced_chance=1 / len(codes),
        rows=len(rows),
        values=len(codes),
        missing=int((~known).sum()),
        lone=int((known & ~shared).sum()),
    )


def decode_number(embeddings: Embeddings, cause: Values, classes: Labels, *, folds: int = 5, seed: int = 0) -> Decoding:
    """Read a numerical cause, such as the gain of the light, by ridge regression.

    The weight of the ridge is chosen by leave-one-out on the fitted rows (13 values, a factor 10^0.5 apart). R² is
    1 - sum of squared errors / sum of squared distances to the mean of the fitted rows, over all held-out rows:
    constant embeddings give 0 and a useless probe may give less.

    Args:
        embeddings: (N, D); rows are set to unit length.
        cause: (N,) numbers; None, NaN and infinities are missing. Turn angles into sine and cosine first.
        classes: (N,) object class of each row, by which the folds are disjoint.
        folds: number of folds, at least 2; fewer where there are fewer classes.
        seed: of the assignment of classes to folds.

    Returns:
        A :class:`Decoding` with ``score="r2"``.

    Raises:
        EvaluationError: lengths differ, the cause is no number or has one value, fewer than two classes are left,
            embeddings are not finite, or scikit-learn is missing.

    Example:
        >>> angle = np.linspace(0, 1, 60)
        >>> found = decode_number(np.stack([np.cos(angle), np.sin(angle)], 1), angle, np.tile(np.arange(10), 6))
        >>> found.value > 0.98, found.chance
        (True, 0.0)
    """
    matrix, groups = _read(embeddings, cause, classes, folds)
    numbers = _numbers(cause)
    known = np.isfinite(numbers)
    matrix, groups, numbers = matrix[known], groups[known], numbers[known]
    if len(numbers) == 0 or np.ptp(numbers) == 0:
        raise EvaluationError(
            f"The cause has the same value in all {len(numbers)} rows where it is known; there is nothing to decode."
        )
    parts = _folds(groups, folds, seed)
    error, spread = np.empty(len(numbers)), np.empty(len(numbers))
    for fold in range(int(parts.max()) + 1):
        fitted, asked = parts != fold, parts == fold
        told = _estimate(matrix[fitted], numbers[fitted], matrix[asked])
        error[asked] = (numbers[asked] - told) ** 2
        spread[asked] = (numbers[asked] - numbers[fitted].mean()) ** 2
    per_fold = tuple(_r2(error[parts == fold], spread[parts == fold]) for fold in range(int(parts.max()) + 1))
    return Decoding(
        score="r2",
        value=_r2(error, spread),
        interval=_t_interval(per_fold),
        folds=per_fold,
        chance=0.0,
        balanced=math.nan,
        balanced_chance=math.nan,
        rows=len(numbers),
        values=0,
        missing=int((~known).sum()),
        lone=0,
    )


def _read(
    embeddings: Embeddings, cause: Values, classes: Labels, folds: int
) -> tuple[NDArray[np.float64], NDArray[np.int64]]:
    """Return unit rows and class codes."""
    matrix = normalize(check_embeddings(embeddings).double()).cpu().numpy()
    labels = label_array(classes, "classes")
    for name, length in (("cause", len(cause)), ("classes", len(labels))):
        if length != len(matrix):
            raise EvaluationError(f"{name} has {length} entries for {len(matrix)} embeddings; give one a row.")
    if isinstance(folds, bool) or not isinstance(folds, int) or folds < 2:
        raise EvaluationError(f"folds={folds!r}; give an integer of at least 2.")
    return matrix, np.unique(labels, return_inverse=True)[1].astype(np.int64)


def _listed(cause: Values) -> list[object]:
    return list(cause.tolist()) if isinstance(cause, (torch.Tensor, np.ndarray)) else list(cause)


def _is_missing(value: object) -> bool:
    # Only NaN differs from itself; pandas' NA refuses the comparison and calls itself so.
    return value is None or str(value) in ("", "<NA>", "NaT") or bool(value != value)


def _numbers(cause: Values) -> NDArray[np.float64]:
    try:
        return np.array([math.nan if _is_missing(v) else float(v) for v in _listed(cause)])  # type: ignore[arg-type]  # refused below
    except (TypeError, ValueError) as error:
        raise EvaluationError(f"The cause holds something that is no number ({error}); use decode_category.") from None


def _folds(groups: NDArray[np.int64], folds: int, seed: int) -> NDArray[np.int64]:
    """Deal whole classes to folds, large ones first, each to the smallest fold; return the fold of each row."""
    classes, sizes = np.unique(groups, return_counts=True)
    if len(classes) < 2:
        raise EvaluationError(
            f"The rows are of {len(classes)} class; folds that are disjoint in class need two or more classes."
        )
    shuffled = numpy_generator(seed, "decodability").permutation(len(classes))
    filled = np.zeros(min(folds, len(classes)), dtype=np.int64)
    fold_of: dict[int, int] = {}
    for place in shuffled[np.argsort(-sizes[shuffled], kind="stable")]:
        fold_of[int(classes[place])] = chosen = int(filled.argmin())
        filled[chosen] += sizes[place]
    return np.array([fold_of[int(group)] for group in groups])


def _scaled(fitted: NDArray[np.float64], asked: NDArray[np.float64]) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    centre = fitted.mean(axis=0)
    size = float(np.sqrt(((fitted - centre) ** 2).mean()))
    factor = 1 / size if size > 1e-9 else 0.0  # unit rows that differ by rounding alone tell nothing
    return (fitted - centre) * factor, (asked - centre) * factor


def _name(
    fitted: NDArray[np.float64], values: NDArray[np.int64], asked: NDArray[np.float64], ridge: float
) -> NDArray[np.int64]:
    linear = _linear_models()
    if len(np.unique(values)) == 1:
        return np.full(len(asked), values[0])
    known, unknown = _scaled(fitted, asked)
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message="lbfgs failed to converge")  # the last digits do not matter here
        warnings.filterwarnings("ignore", message="The number of unique classes is greater")  # few rows of many values
        probe = linear.LogisticRegression(C=1 / ridge, max_iter=_STEPS).fit(known, values)
    named: NDArray[np.int64] = probe.predict(unknown)
    return named


def _estimate(
    fitted: NDArray[np.float64], numbers: NDArray[np.float64], asked: NDArray[np.float64]
) -> NDArray[np.float64]:
    known, unknown = _scaled(fitted, asked)
    estimated: NDArray[np.float64] = _linear_models().RidgeCV(alphas=_RIDGES).fit(known, numbers).predict(unknown)
    return estimated


def _linear_models() -> Any:
    try:
        from sklearn import linear_model
    except ImportError as error:
        raise EvaluationError('Probes need scikit-learn: pip install "proxemics[train]".') from error
    return linear_model


def _r2(error: NDArray[np.float64], spread: NDArray[np.float64]) -> float:
    total = float(spread.sum())
    return 1 - float(error.sum()) / total if total > 0 else math.nan


def _t_interval(scores: tuple[float, ...]) -> tuple[float, float]:
    from scipy.stats import t

    finite = np.array([score for score in scores if math.isfinite(score)])
    if len(finite) < 2:
        return (math.nan, math.nan)
    half = float(t.ppf(0.975, len(finite) - 1) * finite.std(ddof=1) / math.sqrt(len(finite)))
    return (float(finite.mean()) - half, float(finite.mean()) + half)
