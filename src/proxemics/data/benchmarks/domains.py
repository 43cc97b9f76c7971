"""Sets of several domains with the same classes: one protocol for PACS, Office-Home and DomainNet."""

from __future__ import annotations

from collections.abc import Collection, Sequence

import pandas as pd

from proxemics.core.errors import DataError, did_you_mean
from proxemics.data.benchmarks.layout import first_half


def split_by_source(
    frame: pd.DataFrame, source: str | None, domains: Sequence[str], *, unseen: Collection[str] | None = None
) -> pd.DataFrame:
    """Fill ``split`` for single-domain generalisation: one source domain and the seen classes train.

    The test rows are the unseen classes of every domain; evaluate inside each domain, and report the source apart. The
    seen classes are the first half of the sorted names (our reading: the papers give no split).

    Args:
        frame: columns ``label`` and ``domain``.
        source: the training domain; None: every domain trains, so that the split is by class alone.
        domains: all of them.
        unseen: the test classes, when there is a published split.

    Returns:
        A copy with ``split``; seen classes of the other domains have none.

    Raises:
        DataError: the source is unknown.

    Example:
        >>> table = pd.DataFrame({"label": ["a", "b", "a", "b"], "domain": ["photo", "photo", "sketch", "sketch"]})
        >>> split_by_source(table, "photo", ["photo", "sketch"])["split"].tolist()
        ['train', 'test', '', 'test']
    """
    if source is not None and source not in domains:
        raise DataError(
            f"Unknown source domain {source!r}.{did_you_mean(source, domains)} There are: {', '.join(domains)}."
        )
    names = set(frame["label"])
    seen = first_half(names) if unseen is None else names - set(unseen)
    split = [
        "test" if label not in seen else "train" if source is None or domain == source else ""
        for label, domain in zip(frame["label"], frame["domain"], strict=True)
    ]
    return frame.assign(split=split)
