"""The class book: classes that were added from a few pictures, without training.

A class is the sum of its unit embeddings, each times a weight, and three numbers. So further pictures are added
exactly, no picture is kept, and a class that is forgotten leaves nothing behind. With weights of 1 the direction of the
sum is the usual class centroid. With the weight κ, the certainty that a model with probabilistic proxies gives a
picture, it is the most probable mean direction of pictures that are von Mises-Fisher densities around it: the sum of
their natural parameters κ·μ.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from proxemics.core.errors import SearchError, did_you_mean
from proxemics.search.classes.concentration import concentration, pair_length
from proxemics.search.items import unit_rows
from proxemics.search.manifest import Manifest, ModelKey

UNKNOWN = "unknown"
"""The answer where no class is near enough; no class may be called so."""
UNSEEN = r"\x00-\x1f\x7f-\x9f\u2028\u2029\u202a-\u202e\u2066-\u2069"
"""What no name of a class may hold, as part of a regular expression: controls, line breaks, turns of the direction."""
BLANK = r"\s\u00ad\u200b-\u200f\u2060-\u2064\ufeff"
"""What nobody sees of a name, likewise; it may stand between other characters, as it does in Persian and in emoji."""
Weighting = Literal["equal", "length"]


@dataclass(frozen=True, eq=False)
class ClassEntry:
    """What is kept of a class.

    Attributes:
        total: (D,) float64, sum of weight times unit embedding.
        weight: sum of the weights.
        squares: sum of the squared weights.
        count: how many pictures.
    """

    total: NDArray[np.float64]
    weight: float
    squares: float
    count: int

    @property
    def centroid(self) -> NDArray[np.float64]:
        """(D,) direction of the sum."""
        direction: NDArray[np.float64] = self.total / np.linalg.norm(self.total)
        return direction

    @property
    def resultant_length(self) -> float:
        """Length of the weighted mean, in (0, 1]: 1 for pictures that are all alike, and for a single one."""
        return float(np.linalg.norm(self.total)) / self.weight

    @property
    def concentration(self) -> float | None:
        """κ of a von Mises-Fisher density of the pictures; None for a single one."""
        length = pair_length(float(self.total @ self.total), self.weight**2, self.squares)
        return None if length is None else concentration(length, len(self.total))

    def joined(self, other: ClassEntry) -> ClassEntry:
        """Return the class with the pictures of both."""
        return ClassEntry(
            self.total + other.total, self.weight + other.weight, self.squares + other.squares, self.count + other.count
        )


@dataclass(frozen=True)
class Enrolled:
    """What :meth:`ClassBook.enrol` did.

    Attributes:
        added: new classes.
        extended: classes that were there and got more pictures.
        near: (class, other class, cosine of their centroids) for each class of this call whose nearest other class is
            at least as near as the threshold that was given.
    """

    added: tuple[str, ...]
    extended: tuple[str, ...]
    near: tuple[tuple[str, str, float], ...] = ()


class ClassBook:
    """Classes by name, of one model.

    Args:
        key: the model whose embeddings are enrolled; others are refused.
        weighting: ``equal``, or ``length``: pictures weigh as much as their raw embeddings are long, for models whose
            training gave the length a meaning (:mod:`proxemics.evaluation.lengths`).
        entries: by name.

    Example:
        >>> book = ClassBook(ModelKey(model="m", dim=2))
        >>> book.enrol(["cat", "cat", "dog"], [[1, 0], [0.8, 0.6], [0, 2]]).added
        ('cat', 'dog')
        >>> book.names, book["cat"].count, book["cat"].centroid.round(3).tolist()
        (['cat', 'dog'], 2, [0.949, 0.316])
        >>> book.forget(["cat"]), book.names
        (['cat'], ['dog'])
    """

    def __init__(
        self, key: ModelKey, *, weighting: Weighting = "equal", entries: dict[str, ClassEntry] | None = None
    ) -> None:
        self.key = key
        self.weighting = weighting
        self._entries = dict(sorted((entries or {}).items()))

    def __len__(self) -> int:
        return len(self._entries)

    def __contains__(self, name: object) -> bool:
        return name in self._entries

    def __getitem__(self, name: str) -> ClassEntry:
        if name not in self._entries:
            raise SearchError(f"No class {name!r} is enrolled.{did_you_mean(name, self._entries)}")
        return self._entries[name]

    @property
    def names(self) -> list[str]:
        """Names of the classes, sorted."""
        return list(self._entries)

    @property
    def counts(self) -> NDArray[np.int64]:
        """(C,) pictures of each class, in the order of the names."""
        return np.array([one.count for one in self._entries.values()], dtype=np.int64)

    def centroids(self) -> NDArray[np.float64]:
        """(C, D) unit centroids, in the order of the names."""
        rows = [one.centroid for one in self._entries.values()]
        return np.stack(rows) if rows else np.empty((0, self.key.dim))

    def check(self, key: ModelKey) -> None:
        """Refuse embeddings of another model.

        Raises:
            SearchError: names both.
        """
        if key == self.key:
            return
        try:
            Manifest(key=self.key).check(key)
        except SearchError as error:
            text = str(error).replace("The index", "The class book").replace("an index", "a class book")
            for one, many in (("comes from", "come from"), ("was prepared", "were prepared"), ("has", "have")):
                text = text.replace(f"the query {one}", f"the pictures {many}")
            raise SearchError(text) from error

    def enrol(
        self,
        names: Sequence[str],
        vectors: NDArray[np.generic] | Sequence[Sequence[float]],
        lengths: NDArray[np.generic] | Sequence[float] | None = None,
        *,
        key: ModelKey | None = None,
        threshold: float | None = None,
    ) -> Enrolled:
        """Add pictures to classes; a class that is not there begins. All or none.

        Args:
            names: N class names, one a picture.
            vectors: (N, D) embeddings of any length but zero.
            lengths: (N,) lengths of the raw embeddings; needed with the weighting ``length``, not looked at else.
            key: the model they come from; None skips the check.
            threshold: report classes whose centroids are at least this similar.

        Returns:
            What was added, and which classes are nearly the same.

        Raises:
            SearchError: another model, shapes that do not fit, a name that cannot be one, or pictures of a class that
                cancel each other out.
        """
        if key is not None:
            self.check(key)
        titles = [str(name) for name in names]
        for name in titles:
            check_name(name)
        rows = unit_rows(vectors, count=len(titles), dim=self.key.dim).astype(np.float64)
        rows /= np.linalg.norm(rows, axis=1, keepdims=True)
        weights = self._weights(lengths, len(titles))
        fresh = _gathered(rows, weights, titles)
        changed = {
            name: self._entries[name].joined(one) if name in self._entries else one for name, one in fresh.items()
        }
        for name, entry in changed.items():
            if np.linalg.norm(entry.total) < 1e-6 * entry.weight:
                raise SearchError(f"The pictures of {name!r} cancel each other out, so they have no common direction.")
        added = tuple(name for name in changed if name not in self._entries)
        self._entries = dict(sorted({**self._entries, **changed}.items()))
        near = () if threshold is None else tuple(self._near(changed, threshold))
        return Enrolled(added, tuple(name for name in changed if name not in added), near)

    def forget(self, names: Iterable[str]) -> list[str]:
        """Remove classes; nothing of them stays.

        Returns:
            The names that were removed.

        Raises:
            SearchError: one of them is not enrolled; then none is removed.
        """
        gone = list(dict.fromkeys(names))
        for name in gone:
            _ = self[name]
        self._entries = {name: one for name, one in self._entries.items() if name not in gone}
        return gone

    def shared_concentration(self) -> float | None:
        """Return κ of the pictures of a class around its centroid, taken as equal for all classes.

        Returns:
            None while every class has a single picture.
        """
        entries = list(self._entries.values())
        length = pair_length(
            sum(float(one.total @ one.total) for one in entries if one.count > 1),
            sum(one.weight**2 for one in entries if one.count > 1),
            sum(one.squares for one in entries if one.count > 1),
        )
        return None if length is None else concentration(length, self.key.dim)

    def _weights(self, lengths: NDArray[np.generic] | Sequence[float] | None, count: int) -> NDArray[np.float64]:
        if self.weighting == "equal":
            return np.ones(count)
        if lengths is None:
            raise SearchError("This class book weighs pictures by the length of their raw embeddings; give lengths.")
        values = np.asarray(lengths, dtype=np.float64)
        if values.shape != (count,) or not np.isfinite(values).all() or bool((values <= 0).any()):
            raise SearchError(f"lengths have shape {values.shape}; give {count} positive numbers, one a picture.")
        return values

    def _near(self, changed: Iterable[str], threshold: float) -> list[tuple[str, str, float]]:
        names, centroids = self.names, self.centroids()
        found = []
        for name in changed:
            own = names.index(name)
            similarity = centroids @ centroids[own]
            similarity[own] = -np.inf
            other = int(similarity.argmax())
            if len(names) > 1 and similarity[other] >= threshold:
                found.append((name, names[other], float(similarity[other])))
        return found


def check_name(name: str) -> None:
    """Refuse what cannot be the name of a class.

    Raises:
        SearchError: it is empty, too long, holds what :data:`UNSEEN` names, or is the word for no class.
    """
    seen = re.sub(f"^[{BLANK}]+|[{BLANK}]+$", "", name[:513])
    if not seen or len(name) > 512 or re.search(rf"[{UNSEEN}\ud800-\udfff]", name):
        raise SearchError(
            f"{name[:40]!r} cannot be the name of a class: give 1 to 512 characters, not only blanks, without control "
            "characters, line breaks and marks that turn the direction of writing."
        )
    if seen == UNKNOWN:
        raise SearchError(f"{name!r} is the answer where no class fits, so no class may be called so; choose another.")


def _gathered(rows: NDArray[np.float64], weights: NDArray[np.float64], titles: list[str]) -> dict[str, ClassEntry]:
    """Add up the pictures of each class, classes in the order of their first picture."""
    places: dict[str, list[int]] = {}
    for place, title in enumerate(titles):
        places.setdefault(title, []).append(place)
    return {
        name: ClassEntry(
            weights[own] @ rows[own], float(weights[own].sum()), float(np.square(weights[own]).sum()), len(own)
        )
        for name, own in places.items()
    }
