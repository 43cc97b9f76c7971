"""Pictures, labels and domains by row, augmented by (seed, epoch, row) and by nothing else."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from operator import index as as_index
from os import PathLike, fspath
from typing import TypedDict

import numpy as np
import torch
from torch import Tensor
from torch.utils.data import Dataset

from proxemics.core.errors import DataError, ImageError
from proxemics.core.seeds import numpy_generator
from proxemics.data.cache import PixelCache
from proxemics.data.decode import MAX_PIXELS, decode_tensor
from proxemics.data.preprocess import Preprocess
from proxemics.data.transforms import TrainTransform


class Sample(TypedDict):
    """One picture: ``image`` (3, S, S) uint8 and its label, domain and row."""

    image: Tensor
    label: int
    domain: int
    id: int


class Batch(TypedDict):
    """B pictures: ``image`` (B, 3, S, S) uint8 in channels-last memory; the others (B,) int64."""

    image: Tensor
    label: Tensor
    domain: Tensor
    id: Tensor


class ImageDataset(Dataset[Sample]):
    """Pictures for training (random crops) or evaluation (the one preprocessing), as uint8 before normalisation.

    The epoch lives in shared memory: workers that stay alive between epochs see :meth:`set_epoch` of the main process.

    Args:
        paths: one file a row.
        labels: (N,) integers, 0..C-1.
        transform: :class:`TrainTransform` for training, :class:`Preprocess` for evaluation.
        size: checked against the transform's when given.
        domains: (N,) integers; None counts as one domain 0.
        seed: of the augmentation.
        cache: decoded pictures, which must hold every path. Evaluation reads the file where the cached picture would
            not give the same pixels.
        on_error: "raise", or "skip" (training only): an unreadable picture is replaced by the next readable one of
            its class, whose row becomes the ``id``, and listed in ``skipped``.
        max_pixels: as in :func:`proxemics.data.decode.read_image`.

    Raises:
        DataError: lengths or options that do not fit together.

    Example:
        >>> import tempfile
        >>> from pathlib import Path
        >>> from PIL import Image
        >>> file = Path(tempfile.mkdtemp()) / "a.png"
        >>> Image.new("RGB", (40, 20), "white").save(file)
        >>> dataset = ImageDataset([file], np.array([7]), transform=TrainTransform(size=8))
        >>> dataset[0]["image"].shape, dataset[0]["label"], dataset.batch([0, 0])["image"].shape
        (torch.Size([3, 8, 8]), 7, torch.Size([2, 3, 8, 8]))
    """

    def __init__(
        self,
        paths: Sequence[str | PathLike[str]],
        labels: np.ndarray,
        *,
        transform: TrainTransform | Preprocess,
        size: int | None = None,
        domains: np.ndarray | None = None,
        seed: int = 0,
        cache: PixelCache | None = None,
        on_error: str = "raise",
        max_pixels: int = MAX_PIXELS,
    ) -> None:
        self.paths = tuple(fspath(path) for path in paths)
        self.labels = _column(labels, len(self.paths), "labels")
        self.domains = _column(
            np.zeros(len(self.paths), int) if domains is None else domains, len(self.paths), "domains"
        )
        if size is not None and size != transform.size:
            raise DataError(f"size={size} differs from the transform's size={transform.size}; give one of them.")
        if on_error not in ("raise", "skip"):
            raise DataError(f"on_error={on_error!r} must be 'raise' or 'skip'.")
        if on_error == "skip" and isinstance(transform, Preprocess):
            raise DataError(
                "on_error='skip' would evaluate some pictures twice; take unreadable files out of the table instead "
                "(proxemics doctor lists them)."
            )
        self.transform = transform
        self.seed = seed
        self.on_error = on_error
        self.max_pixels = max_pixels
        self.cache = cache
        self._positions = None if cache is None else cache.positions(self.paths)
        # Shared, because workers that live on must see the epoch and tell failures. torch leaves share_memory_ untyped.
        self._epoch = torch.zeros(1, dtype=torch.int64).share_memory_()  # type: ignore[no-untyped-call]
        self._failed = torch.zeros(len(self.paths), dtype=torch.uint8).share_memory_()  # type: ignore[no-untyped-call]

    def __len__(self) -> int:
        return len(self.paths)

    @property
    def stage(self) -> str:
        """Where its batches enter the trunk: ``pixel``."""
        return "pixel"

    @property
    def epoch(self) -> int:
        """The epoch that augmentation follows, in every process."""
        return int(self._epoch[0])

    def set_epoch(self, epoch: int) -> None:
        """Set the epoch; call it between two passes over a loader, not inside one."""
        self._epoch[0] = epoch

    @property
    def skipped(self) -> list[str]:
        """Paths that could not be read so far, in any worker (``on_error="skip"``)."""
        return [self.paths[row] for row in torch.nonzero(self._failed).flatten().tolist()]

    def __getitem__(self, row: int) -> Sample:
        image, source = self._pixels(row)
        return {"image": image, "label": int(self.labels[source]), "domain": int(self.domains[source]), "id": source}

    def batch(self, rows: Sequence[int]) -> Batch:
        """Read several rows straight into one tensor.

        Args:
            rows: B rows, repeats allowed (equal rows give equal pictures).

        Returns:
            The batch; its pictures equal those of ``self[row]``.

        Raises:
            ImageError: a picture cannot be read.
        """
        side = self.transform.size
        images = torch.empty((len(rows), side, side, 3), dtype=torch.uint8).permute(0, 3, 1, 2)
        sources = np.empty(len(rows), dtype=np.int64)
        for slot, row in enumerate(rows):
            images[slot], sources[slot] = self._pixels(row)
        return {
            "image": images,
            "label": torch.from_numpy(self.labels[sources]),
            "domain": torch.from_numpy(self.domains[sources]),
            "id": torch.from_numpy(sources),
        }

    def _pixels(self, row: int) -> tuple[Tensor, int]:
        row = as_index(row)
        if not 0 <= row < len(self.paths):
            raise IndexError(f"row {row} is outside 0..{len(self.paths) - 1}")
        decoded, source = self._decode(row)
        if isinstance(self.transform, Preprocess):
            return self.transform.crop(decoded), source
        return self.transform(decoded, numpy_generator(self.seed, "augment", self.epoch, row)), source

    def _decode(self, row: int) -> tuple[Tensor, int]:
        if self.on_error == "raise":
            return self._read(row), row
        for candidate in self._same_class(row):
            image = self._try_read(candidate)
            if image is not None:
                return image, candidate
        raise ImageError(
            f"No picture of the class of {self.paths[row]} can be read ({len(self.skipped)} unreadable files so far). "
            "Take the class out of the table, or replace its files; proxemics doctor lists them."
        )

    def _try_read(self, row: int) -> Tensor | None:
        try:
            return self._read(row)
        except ImageError:
            self._failed[row] = 1
            return None

    def _same_class(self, row: int) -> Iterator[int]:
        """Yield the row, then the other rows of its class in cyclic order, known failures left out."""
        if not self._failed[row]:
            yield row
        others = np.flatnonzero(self.labels == self.labels[row])
        start = int(np.searchsorted(others, row))
        for other in np.roll(others, -start - 1).tolist():
            if other != row and not self._failed[other]:
                yield other

    def _read(self, row: int) -> Tensor:
        if self.cache is not None and self._positions is not None:
            position = int(self._positions[row])
            if not isinstance(self.transform, Preprocess) or self.cache.exact_for(position, self.transform):
                return self.cache.get(position)
        return decode_tensor(self.paths[row], max_pixels=self.max_pixels)


def _column(values: np.ndarray, length: int, name: str) -> np.ndarray:
    column = np.asarray(values)
    if column.shape != (length,) or not np.issubdtype(column.dtype, np.integer):
        raise DataError(
            f"{name} must be {length} integers, one a path, not {column.shape} {column.dtype}; "
            "encode names with LabelMap first."
        )
    return column.astype(np.int64)
