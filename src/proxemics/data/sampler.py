"""Batches of row numbers that depend on (seed, epoch) only, so that every rank and every resumed run agrees on them."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator
from typing import Any

import numpy as np
import numpy.typing as npt

from proxemics.core.errors import DataError
from proxemics.core.seeds import derive_seed, numpy_generator

Ints = npt.NDArray[np.int64]


class EpochSampler(ABC):
    """The common part: an epoch is a plan of (steps, batch) row numbers, of which a rank reads its columns.

    Usable as ``batch_sampler`` of a torch ``DataLoader``. ``len`` is what the next pass yields, exactly.
    """

    def __init__(self, batch_size: int, steps: int, seed: int, rank: int, world_size: int) -> None:
        if not 0 <= rank < world_size:
            raise DataError(f"rank {rank} is outside 0..{world_size - 1} (world_size {world_size}).")
        if batch_size % world_size:
            near = max(batch_size // world_size, 1) * world_size
            raise DataError(
                f"A batch of {batch_size} cannot be shared equally by {world_size} processes. "
                f"batch_size counts the joined batch: use {near} or {near + world_size}."
            )
        self.batch_size = batch_size
        self.steps_per_epoch = steps
        self.seed = seed
        self.epoch = 0
        share = batch_size // world_size
        self._columns = slice(rank * share, (rank + 1) * share)
        self._start = 0

    def set_epoch(self, epoch: int) -> None:
        """Choose the epoch (from 0) that the next pass yields."""
        self.epoch = epoch

    def start(self, step: int) -> None:
        """Let the next pass, and only that one, begin at ``step`` of its epoch, as after an interruption.

        Args:
            step: batches of the epoch that are already done, in [0, steps_per_epoch].

        Raises:
            DataError: the epoch is shorter.
        """
        if not 0 <= step <= self.steps_per_epoch:
            raise DataError(f"Cannot start at step {step}: an epoch has {self.steps_per_epoch} steps.")
        self._start = step

    def __len__(self) -> int:
        return self.steps_per_epoch - self._start

    def __iter__(self) -> Iterator[list[int]]:
        # Runs at the first batch, not at iter(): torch's loader calls iter() twice when it has workers.
        first, self._start = self._start, 0
        for rows in self.plan(self.epoch)[first:]:
            yield rows[self._columns].tolist()

    @abstractmethod
    def plan(self, epoch: int) -> Ints:
        """Return the joined batches of an epoch, (steps, batch_size) int64."""


class Shuffled(EpochSampler):
    """All rows in random order, for ``per_class=0``.

    One epoch is ⌊num / batch_size⌋ batches; the rows of the last, incomplete batch are dropped and are other rows in
    each epoch. If there are fewer rows than one batch, the epoch is one smaller batch with as many rows as the ranks
    can share.

    Args:
        num: number of rows.
        batch_size: rows in the joined batch of all ranks.
        seed: another seed, another order.
        rank: which part of the joined batch is yielded.
        world_size: number of equal parts.

    Raises:
        DataError: no rows, or a batch that the ranks cannot share equally.

    Example:
        >>> sampler = Shuffled(10, 4)
        >>> len(sampler), len(set(sum(sampler, [])))
        (2, 8)
    """

    def __init__(self, num: int, batch_size: int, *, seed: int = 0, rank: int = 0, world_size: int = 1) -> None:
        _positive(batch_size=batch_size, world_size=world_size)
        if num < world_size:
            raise DataError(f"There are {num} rows for {world_size} processes; each needs at least one a batch.")
        if num < batch_size:
            batch_size = num // world_size * world_size
        super().__init__(batch_size, num // batch_size, seed, rank, world_size)
        self._num = num

    def plan(self, epoch: int) -> Ints:
        """Return the joined batches of an epoch, (steps, batch_size) int64."""
        rows = numpy_generator(self.seed, "shuffle", epoch).permutation(self._num)
        return rows[: self.steps_per_epoch * self.batch_size].reshape(-1, self.batch_size)


class MPerClass(EpochSampler):
    """Batches of B/m distinct classes with m pictures each (methods §1.5), in which nothing is left out for long.

    With C classes and n pictures an epoch is S = max(⌊n/B⌋, ⌈C·m/B⌉) batches: as many pictures as there are, or one
    draw of every class if that takes longer. Within an epoch every class is drawn ⌊S·B/(m·C)⌋ times or once more;
    the extra draws rotate through the classes over the epochs. A class with n_c pictures goes through all of them in
    ⌈n_c/m⌉ draws before it shuffles them anew, across epochs, too; only the last of these draws may be filled up
    with pictures already seen in this round, and no draw holds a picture twice, unless n_c < m, when each appears
    ⌊m/n_c⌋ times or once more.

    Nothing of this needs a memory: the plan of an epoch is computed from (seed, epoch) alone.

    Args:
        labels: (n,) class of each row; any integers or texts.
        batch_size: B, pictures in the joined batch of all ranks; a multiple of ``per_class`` and of ``world_size``.
        per_class: m, at least 1.
        seed: another seed, another order.
        rank: which part of the joined batch is yielded; parts are contiguous, pictures of a class stand together.
        world_size: number of equal parts.

    Raises:
        DataError: the numbers do not fit; the message says what would.

    Example:
        >>> sampler = MPerClass(np.array([0, 0, 0, 1, 1, 2, 2, 2]), batch_size=4, per_class=2)
        >>> len(sampler), [len(batch) for batch in sampler]
        (2, [4, 4])
    """

    def __init__(
        self,
        labels: npt.NDArray[Any],
        batch_size: int,
        per_class: int,
        *,
        seed: int = 0,
        rank: int = 0,
        world_size: int = 1,
    ) -> None:
        _positive(batch_size=batch_size, per_class=per_class, world_size=world_size)
        labels = np.asarray(labels)
        if labels.ndim != 1 or not len(labels):
            raise DataError(f"labels has shape {labels.shape}; expected (n,), one class a row, n at least 1.")
        _, ids, counts = np.unique(labels, return_inverse=True, return_counts=True)
        _check_fit(batch_size, per_class, len(counts))
        classes_a_batch = batch_size // per_class
        steps = max(len(labels) // batch_size, -(-len(counts) // classes_a_batch))
        super().__init__(batch_size, steps, seed, rank, world_size)
        self.per_class = per_class
        self._rows: Ints = np.argsort(ids, kind="stable").astype(np.int64)
        self._counts: Ints = counts.astype(np.int64)
        self._offsets: Ints = np.cumsum(self._counts) - self._counts

    def plan(self, epoch: int) -> Ints:
        """Return the joined batches of an epoch, (steps, batch_size) int64."""
        num_classes = len(self._counts)
        draws = self.steps_per_epoch * (self.batch_size // self.per_class)
        full, extra = divmod(draws, num_classes)
        rotation = numpy_generator(self.seed, "rotation").permutation(num_classes)
        classes = self._classes(epoch, full, rotation[(epoch * extra + np.arange(extra)) % num_classes])
        # How often each class was drawn before this epoch, in closed form.
        rounds, into = divmod(epoch * extra, num_classes)
        drawn = np.full(num_classes, epoch * full + rounds, dtype=np.int64)
        drawn[rotation[:into]] += 1
        return self._pictures(classes, drawn[classes] + _occurrence(classes)).reshape(-1, self.batch_size)

    def _classes(self, epoch: int, full: int, extras: Ints) -> Ints:
        """Order the classes of an epoch: the extras, then ``full`` permutations; no batch may hold a class twice.

        Only a batch that begins in one permutation and ends in the next could. The next one therefore begins with
        classes that are not in that batch yet; there are enough of them because C ≥ B/m.
        """
        generator = numpy_generator(self.seed, "classes", epoch)
        size, num_classes = self.batch_size // self.per_class, len(self._counts)
        parts = [generator.permutation(extras)]
        begun = len(extras) % size
        for _ in range(full):
            order = generator.permutation(num_classes)
            if begun:
                taken = np.zeros(num_classes, dtype=bool)
                taken[parts[-1][len(parts[-1]) - begun :]] = True
                free = order[~taken[order]]
                need = size - begun
                rest = generator.permutation(np.concatenate([free[need:], order[taken[order]]]))
                order = np.concatenate([free[:need], rest])
            parts.append(order)
            begun = (begun + num_classes) % size
        batches = np.concatenate(parts).reshape(-1, size)
        return generator.permutation(batches, axis=0).ravel()

    def _pictures(self, classes: Ints, draws: Ints) -> Ints:
        """Return (len(classes), m) rows: draw number ``draws[i]`` of class ``classes[i]``.

        ⌈n_c/m⌉ draws make a round, which has one permutation of the class; draw j of a round takes its places j·m ..
        j·m+m-1, counted around its end. Permutations come from sorting hashes of (seed, round, row), all classes at
        once.
        """
        sizes = self._counts[classes]
        rounds, place = np.divmod(draws, -(-sizes // self.per_class))
        keys = np.stack([classes, rounds], axis=1)
        pairs, inverse = np.unique(keys, axis=0, return_inverse=True)
        lengths = self._counts[pairs[:, 0]]
        begins = np.cumsum(lengths) - lengths
        owner = np.repeat(np.arange(len(pairs)), lengths)
        rows: Ints = self._rows[np.arange(len(owner)) - begins[owner] + self._offsets[pairs[owner, 0]]]
        order = np.lexsort((_hash(derive_seed(self.seed, "pictures"), pairs[owner, 1], rows), owner))
        within = (place[:, None] * self.per_class + np.arange(self.per_class)) % sizes[:, None]
        chosen: Ints = rows[order][begins[inverse.ravel()][:, None] + within]
        return chosen


def _positive(**values: int) -> None:
    for name, value in values.items():
        if value < 1:
            raise DataError(f"{name} is {value}; it must be at least 1.")


def _check_fit(batch_size: int, per_class: int, num_classes: int) -> None:
    if batch_size % per_class:
        below = batch_size // per_class * per_class
        sizes = " or ".join(str(size) for size in (below, below + per_class) if size)
        divisors = ", ".join(str(m) for m in range(1, min(batch_size, 17)) if batch_size % m == 0)
        raise DataError(
            f"batch_size {batch_size} is not a multiple of per_class {per_class}. Use batch_size {sizes}, "
            f"or per_class {divisors}."
        )
    if batch_size // per_class > num_classes:
        fitting = [
            m for m in range(per_class + 1, batch_size + 1) if batch_size % m == 0 and batch_size // m <= num_classes
        ]
        raise DataError(
            f"batch_size {batch_size} with per_class {per_class} needs {batch_size // per_class} classes, but there "
            f"are {num_classes}. Use batch_size {num_classes * per_class} or less, or per_class {fitting[0]} or more."
        )


def _occurrence(values: Ints) -> Ints:
    """Return how often each value stood before: ``[7, 7, 3, 7] -> [0, 1, 0, 2]``."""
    order = np.argsort(values, kind="stable")
    ordered = values[order]
    firsts = np.flatnonzero(np.concatenate([[True], ordered[1:] != ordered[:-1]]))
    lengths = np.diff(np.append(firsts, len(values)))
    result = np.empty(len(values), dtype=np.int64)
    result[order] = np.arange(len(values)) - np.repeat(firsts, lengths)
    return result


def _hash(seed: int, first: Ints, second: Ints) -> npt.NDArray[np.uint64]:
    """Mix two integers and a seed to 64 random-looking bits (the finaliser of SplitMix64, applied twice)."""
    mixed = np.uint64(seed) + first.astype(np.uint64) * np.uint64(0x9E3779B97F4A7C15)
    for addend in (second.astype(np.uint64), np.uint64(0xD1B54A32D192ED03)):
        mixed = mixed + addend
        mixed = (mixed ^ (mixed >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
        mixed = (mixed ^ (mixed >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
        mixed ^= mixed >> np.uint64(31)
    return mixed
