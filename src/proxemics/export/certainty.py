"""What a length κ means: how often queries at least that certain were answered wrongly, on the test pictures.

Only where training gave lengths a meaning; see :mod:`proxemics.evaluation.lengths`. Otherwise the file says why not.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from proxemics.core.errors import DataError
from proxemics.evaluation.certainty import certainty_auroc
from proxemics.evaluation.lengths import length_is_trained, length_varies

if TYPE_CHECKING:
    import pandas as pd

    from proxemics.export.source import Source

SCHEMA = 1
LEVELS = 20
"""Rows of the table: queries kept, in steps of 5 %."""
TELLING = 0.55
"""Below this area under the ROC curve a length is said to tell nothing."""
FEW = 20
"""Fewer wrong (or right) queries than this are too few to speak of a rate."""
_UNMEASURED = (
    "A length was trained to mean certainty; the run kept no lengths of its test queries to see whether it does."
)


def certainty_facts(source: Source) -> dict[str, Any]:
    """Return the content of ``certainty.json``.

    Args:
        source: what is exported.

    Returns:
        ``trained``: True where the lengths can be read as certainty, False where not, None where nothing is known of
        the training; ``meaning``: a sentence. Where True and the run has lengths of its test queries, also the rest of
        :func:`calibrate_certainty`.
    """
    if source.run is None:
        return source.certainty or _without(None, "The bundle does not tell how it was trained.")
    if not length_varies(source.embedder):
        return _without(False, "The model ends in a layer norm without a head, so all lengths are equal.")
    methods = None if source.config is None else source.config.methods
    if not length_is_trained(methods):
        return _without(
            False, "No term of the training loss looked at lengths, so a length was not trained to mean certainty."
        )
    if not source.run.per_query.exists():
        return _without(True, _UNMEASURED)
    import pandas as pd

    try:
        queries = pd.read_parquet(source.run.per_query)
    except (OSError, ValueError) as error:  # Arrow's errors are kinds of these
        reason = " ".join(str(error).split()).rstrip(".")
        raise DataError(f"{source.run.per_query} cannot be read: {reason}. Train the run again.") from error
    found = calibrate_certainty(queries)
    return found or _without(True, _UNMEASURED)


def calibrate_certainty(queries: pd.DataFrame) -> dict[str, Any] | None:
    """Measure the error rate among the most certain queries.

    A query is wrong when its nearest picture is of another class. Queries without a picture of their class are left
    out, as they are from the metrics.

    Args:
        queries: ``per_query.parquet`` of a run.

    Returns:
        ``schema, trained, meaning, queries, errors, auroc`` and ``levels``: rows of ``kappa`` (at least this), ``kept``
        (share of the queries), ``queries``, ``errors``, ``error_rate``, from the most certain 5 % to all. None where
        the table has no lengths.

    Example:
        >>> import pandas as pd
        >>> rows = {"label": list("aabb"), "nearest_label": list("abbb"), "kappa": [4.0, 1.0, 3.0, 2.0]}
        >>> found = calibrate_certainty(pd.DataFrame(rows))
        >>> [(row["kappa"], row["errors"], row["queries"]) for row in found["levels"]]
        [(4.0, 0, 1), (3.0, 0, 2), (2.0, 0, 3), (1.0, 1, 4)]
    """
    if not {"label", "nearest_label", "kappa"} <= set(queries.columns):
        return None
    known = queries["kappa"].notna()
    if "average_precision" in queries.columns:
        known &= queries["average_precision"].notna()
    queries = queries[known]
    if queries.empty:
        return None
    kappa = queries["kappa"].to_numpy(dtype=np.float64)
    wrong = (queries["nearest_label"].astype(str) != queries["label"].astype(str)).to_numpy()
    ordered = np.sort(kappa)[::-1]
    levels: list[dict[str, Any]] = []
    for step in range(1, LEVELS + 1):
        bound = float(ordered[max(1, round(len(ordered) * step / LEVELS)) - 1])
        kept = kappa >= bound  # queries of equal length are kept together
        if levels and levels[-1]["queries"] == int(kept.sum()):
            continue
        count, errors = int(kept.sum()), int(wrong[kept].sum())
        share = round(count / len(kappa), 6)
        levels.append(
            {"kappa": bound, "kept": share, "queries": count, "errors": errors, "error_rate": round(errors / count, 6)}
        )
    auroc = certainty_auroc(kappa, wrong)
    return {
        "schema": SCHEMA,
        "trained": True,
        "meaning": _meaning(auroc, int(wrong.sum()), len(kappa)),
        "queries": len(kappa),
        "errors": int(wrong.sum()),
        "auroc": auroc,
        "levels": levels,
    }


def _meaning(auroc: float | None, errors: int, count: int) -> str:
    if auroc is None:
        found = f"All {count} test queries are {'wrong' if errors else 'right'}, so nothing can be said of mistakes."
    else:
        found = f"A right answer had the greater length than a wrong one in {100 * auroc:.0f} % of pairs; chance is 50."
        if auroc < TELLING:
            found = (
                f"On the test queries it tells nothing, so do not read it as certainty: {found[0].lower()}{found[1:]}"
            )
    few = min(errors, count - errors)
    if 0 < few < FEW:
        which = "wrong" if few == errors else "right"
        found += f" Only {few} {'query is' if few == 1 else 'queries are'} {which}, so this may be chance."
    return (
        f"A length was trained to mean certainty. {found} A row of levels says how many test queries had at least this "
        "kappa, and how many of them were answered wrongly by their nearest picture."
    )


def _without(trained: bool | None, meaning: str) -> dict[str, Any]:
    return {"schema": SCHEMA, "trained": trained, "meaning": meaning, "levels": []}
