"""Single-domain generalisation: trained on one domain, tested on unseen classes in every other domain.

The papers on the subject give no protocol that can be followed, so this one is our reading; it is the same for PACS,
Office-Home, DomainNet and the synthetic domains of CUB and Cars.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from proxemics.core.errors import DataError, did_you_mean
from proxemics.evaluation.protocols.rows import Selection, Table, column_of, rows_with, select, select_with_gallery
from proxemics.evaluation.result import shorten

NAME = "single_domain"


@dataclass(frozen=True)
class SingleDomain:
    """The retrieval tasks of single-domain generalisation, all over unseen classes.

    Attributes:
        source: the training domain.
        targets: every other domain searched in itself, by its name; the headline is the unweighted mean over them.
        within_source: the unseen classes in the source domain searched in themselves, or None when it has none.
        across: queries of a target in the gallery of the source, by the name of the target; empty unless asked for.
    """

    source: str
    targets: dict[str, Selection]
    within_source: Selection | None
    across: dict[str, Selection]

    @property
    def beside(self) -> dict[str, Selection]:
        """What is reported beside the headline, by a name that says which domain searches which."""
        own = {} if self.within_source is None else {f"{self.source} -> {self.source}": self.within_source}
        return own | {f"{target} -> {self.source}": part for target, part in self.across.items()}


def single_domain(
    table: Table, source: str, *, split: str = "test", across: bool = False, absent: str = "error"
) -> SingleDomain:
    """Choose the retrieval tasks of a model that was trained on one domain.

    Args:
        table: with ``label`` and ``domain``. With a column ``split`` the rows of ``split`` are tested, and those of
            ``train`` and ``val`` are what the model saw; without one all rows are tested and nothing can be said of
            what it saw.
        source: the training domain.
        split: value of the column ``split`` of the tested rows.
        across: also let each target search the source.
        absent: with ``across``, as in :func:`query_gallery`.

    Returns:
        One selection a target, the source beside them, and the cross-domain ones if asked for. No row of the source
        is in a target.

    Raises:
        DataError: an unknown domain, no other domain, a class that is both seen and tested, training rows of another
            domain, or classes absent from a gallery.

    Example:
        >>> table = {"label": list("aabbbb"), "domain": ["photo"] * 4 + ["sketch"] * 2,
        ...          "split": ["train"] * 2 + ["test"] * 4}
        >>> parts = single_domain(table, "photo")
        >>> parts.targets["sketch"].query.tolist(), parts.within_source.query.tolist()
        ([4, 5], [2, 3])
    """
    labels, domains = column_of(table, "label"), column_of(table, "domain")
    known = [str(name) for name in np.unique(domains)]
    if source not in known:
        raise DataError(
            f"{NAME}: no image has the source domain {source!r}; there are {shorten(known, 12)}."
            f"{did_you_mean(source, known)}"
        )
    tested = np.arange(len(labels), dtype=np.int64)
    if "split" in [str(name) for name in table.keys()]:  # noqa: SIM118 - a table need not iterate over its columns
        tested = rows_with(table, "split", split)
        _check_seen(labels, domains, column_of(table, "split"), tested, source)
    others = [str(name) for name in np.unique(domains[tested]) if name != source]
    if not others:
        raise DataError(f"{NAME}: no tested image lies outside the source domain {source!r}; the targets are missing.")
    inside = tested[domains[tested] == source]
    targets = {name: tested[domains[tested] == name] for name in others}
    return SingleDomain(
        source,
        {name: select(f"{NAME}_{name}", rows, rows) for name, rows in targets.items()},
        select(f"{NAME}_{source}", inside, inside) if len(inside) else None,
        {
            name: select_with_gallery(table, f"{NAME}_{name}_{source}", rows, inside, absent=absent)
            for name, rows in targets.items()
            if across
        },
    )


def _check_seen(
    labels: np.ndarray[tuple[int, ...], np.dtype[np.str_]],
    domains: np.ndarray[tuple[int, ...], np.dtype[np.str_]],
    splits: np.ndarray[tuple[int, ...], np.dtype[np.str_]],
    tested: np.ndarray[tuple[int, ...], np.dtype[np.int64]],
    source: str,
) -> None:
    """Refuse tables in which a tested class was seen, or another domain than the source."""
    seen = np.setdiff1d(np.flatnonzero(np.isin(splits, ("train", "val"))), tested)
    both = np.intersect1d(labels[seen], labels[tested])
    if len(both):
        raise DataError(
            f"{NAME}: {len(both)} tested class(es) were also trained or chosen on: {shorten(both.tolist())}. Seen and "
            "unseen classes must be disjoint; split by class, e.g. data.split=class_disjoint."
        )
    strangers = np.unique(domains[seen][domains[seen] != source])
    if len(strangers):
        raise DataError(
            f"{NAME}: the model also saw {shorten(strangers.tolist())}; with the source domain {source!r} the rows of "
            "train and val must be of that domain."
        )
