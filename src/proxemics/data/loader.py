"""Whole batches from worker processes, with errors that read like errors."""

from __future__ import annotations

import multiprocessing
from collections.abc import Iterable, Iterator, Sequence
from typing import Any, Protocol

import torch
from torch.utils.data import BatchSampler, DataLoader, Dataset

from proxemics.core.errors import DataError, ImageError, did_you_mean
from proxemics.data.dataset import Batch


class Batches(Protocol):
    """Rows that come in batches, such as :class:`~proxemics.data.dataset.ImageDataset`."""

    def __len__(self) -> int:
        """Return how many rows there are."""
        ...

    def batch(self, rows: Sequence[int]) -> Batch:
        """Return several rows."""
        ...


class ImageLoader(DataLoader[Batch]):
    """A torch ``DataLoader`` of :class:`Batch`, made by :func:`make_loader`.

    A picture that cannot be read raises the :class:`ImageError` of the worker as it was, in one line, where torch
    would wrap it in a traceback. No number is drawn from torch's global generator.
    """

    def __iter__(self) -> Iterator[Batch]:  # type: ignore[override]  # torch declares the class of its own iterator; this one ends failed workers
        for batch in super().__iter__():
            if isinstance(batch, _Failure):
                self.close()
                raise ImageError(batch.text)
            yield batch

    def close(self) -> None:
        """End the worker processes now; iterating again starts new ones.

        A loader that goes out of scope does the same. One that is caught in a reference cycle, with a stored exception
        for instance, is ended by the garbage collector, and torch then waits five seconds for each worker.
        """
        self._iterator = None


def make_loader(
    dataset: Batches,
    batches: int | Iterable[Sequence[int]],
    *,
    workers: int = 0,
    context: str | None = None,
    pin_memory: bool = False,
    prefetch: int = 2,
) -> ImageLoader:
    """Load batches of a dataset, in worker processes if asked.

    What comes out does not depend on ``workers`` or ``context``. Workers stay alive between epochs and follow
    ``dataset.set_epoch``.

    Args:
        dataset: what to read.
        batches: a batch size for all rows in order (the last batch may be smaller), or a sampler that yields lists of
            rows, such as :class:`~proxemics.data.sampler.MPerClass`.
        workers: processes that read; 0 reads in this one.
        context: how they start, "fork", "spawn" or "forkserver"; None is the platform's default.
        pin_memory: copy batches to page-locked memory, for a GPU.
        prefetch: batches that each worker keeps ready.

    Returns:
        The loader; its length is the sampler's.

    Raises:
        DataError: an option is out of range.
        ImageError: while iterating, a picture cannot be read.

    Example:
        >>> import tempfile
        >>> from pathlib import Path
        >>> import numpy as np
        >>> from PIL import Image
        >>> from proxemics.data.dataset import ImageDataset
        >>> from proxemics.data.preprocess import Preprocess
        >>> file = Path(tempfile.mkdtemp()) / "a.png"
        >>> Image.new("RGB", (40, 20), "white").save(file)
        >>> dataset = ImageDataset([file] * 3, np.arange(3), transform=Preprocess(size=8, resize=9))
        >>> [batch["id"].tolist() for batch in make_loader(dataset, 2)]
        [[0, 1], [2]]
    """
    if workers < 0 or prefetch < 1:
        raise DataError(f"workers={workers} and prefetch={prefetch}: give workers >= 0 and prefetch >= 1.")
    known = multiprocessing.get_all_start_methods()
    if context is not None and context not in known:
        raise DataError(f"context={context!r} must be one of {', '.join(known)}.{did_you_mean(context, known)}")
    if isinstance(batches, int):
        if batches < 1:
            raise DataError(f"A batch of {batches} pictures is empty; give a batch size of at least 1.")
        batches = BatchSampler(range(len(dataset)), batches, drop_last=False)
    return ImageLoader(
        _Batches(dataset),
        sampler=batches,  # each "index" is a list of rows
        batch_size=None,
        num_workers=workers,
        collate_fn=_as_it_is,
        multiprocessing_context=context if workers else None,
        persistent_workers=workers > 0,
        prefetch_factor=prefetch if workers else None,
        pin_memory=pin_memory,
        generator=torch.Generator(),
    )


class _Failure:
    def __init__(self, text: str) -> None:
        self.text = text


class _Batches(Dataset[Any]):
    """Whole batches by lists of rows; an unreadable picture travels as a value."""

    def __init__(self, dataset: Batches) -> None:
        self.dataset = dataset

    def __len__(self) -> int:
        return len(self.dataset)

    def __getitem__(self, rows: Sequence[int]) -> Batch | _Failure:
        try:
            return self.dataset.batch(rows)
        except ImageError as error:
            return _Failure(str(error))


def _as_it_is(batch: Any) -> Any:
    return batch
