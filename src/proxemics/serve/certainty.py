"""Words for certainty, where training gave the length of an embedding that meaning."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from proxemics.core.errors import ProxemicsError
from proxemics.core.files import read_json
from proxemics.runtime.layout import CERTAINTY
from proxemics.serve.schemas import Certainty

FEWEST = 20
"""Test pictures that are needed to say what is high and what is low, and wrong ones to speak of a rate."""


@dataclass(frozen=True)
class CertaintyScale:
    """What lengths meant on the test pictures of the run, see :mod:`proxemics.export.certainty`.

    Attributes:
        levels: (length, share of the pictures at least that long, error rate among those), the longest first.
        has_rates: whether there were enough errors to speak of rates.

    Example:
        >>> scale = CertaintyScale(((9.0, 0.25, 0.0), (7.0, 0.5, 0.1), (4.0, 1.0, 0.3)), has_rates=True)
        >>> [(one.word, one.share, one.error_rate) for one in map(scale.read, (10.0, 8.0, 1.0))]
        [('high', 0.75, 0.0), ('medium', 0.5, 0.1), ('low', 0.0, None)]
    """

    levels: tuple[tuple[float, float, float], ...]
    has_rates: bool

    def read(self, kappa: float) -> Certainty:
        """Put a length into words."""
        reached = next((level for level in self.levels if kappa >= level[0]), None)
        share = 0.0 if reached is None else round(1 - reached[1], 3)
        word: Literal["high", "medium", "low"] = "high" if share >= 2 / 3 else "medium" if share >= 1 / 3 else "low"
        return Certainty(
            word=word,
            share=share,
            error_rate=reached[2] if reached is not None and self.has_rates else None,
            kappa=kappa if math.isfinite(kappa) else 0.0,
        )


def read_scale(model: Path) -> CertaintyScale | None:
    """Read the scale of an exported bundle, or make that of a run.

    Args:
        model: a run folder, or a bundle folder, which may lie in a run.

    Returns:
        None unless a term of the training loss looked at the lengths and enough test pictures were measured.
    """
    for home in (model / "bundle", model):
        if (home / CERTAINTY).is_file():
            return _scale(read_json(home / CERTAINTY))
    return _scale(_of_run(model if (model / "config.yaml").exists() else model.parent))


def _of_run(folder: Path) -> Mapping[str, Any] | None:
    config, queries = folder / "config.yaml", folder / "per_query.parquet"
    if not config.exists() or not queries.exists():
        return None
    import pandas as pd

    from proxemics.core.config import load_config
    from proxemics.evaluation.lengths import length_is_trained
    from proxemics.export.certainty import calibrate_certainty

    try:
        if not length_is_trained(load_config(config).methods):
            return None
        return calibrate_certainty(pd.read_parquet(queries))
    except (ProxemicsError, OSError, ValueError):
        return None


def _scale(found: Mapping[str, Any] | None) -> CertaintyScale | None:
    if not found or found.get("trained") is not True or found.get("queries", 0) < FEWEST:
        return None
    levels = tuple((one["kappa"], one["kept"], one["error_rate"]) for one in found.get("levels", ()))
    few = min(found["errors"], found["queries"] - found["errors"])
    return CertaintyScale(levels, has_rates=few >= FEWEST) if levels else None
