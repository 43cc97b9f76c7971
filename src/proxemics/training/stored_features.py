"""What frozen stages compute, stored once: the trunk below its lowest trained or intervened stage never runs again.

A store is a folder with one file a view, each (n, ...) float16 in the order of the rows, mapped into memory. Its name
is a hash of everything that decides its content (files, augmentation, seed, preprocessing, trunk weights, stage), so
that runs which differ in what lies above share it and no other run can mistake it for its own. A file appears under its
name only when it is complete: a build that is killed goes on with the view it was at.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Sequence
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from proxemics.core.errors import DataError, ImageError
from proxemics.core.files import atomic_path
from proxemics.data.dataset import Batch, ImageDataset
from proxemics.data.loader import make_loader
from proxemics.data.preprocess import Preprocess
from proxemics.data.transforms import TrainTransform
from proxemics.models.embedder import Embedder

BUILD_BATCH = 128
LIMIT = float(np.finfo(np.float16).max)


class FeatureStore:
    """Features of n pictures in a number of views at one stage; get one from :meth:`build`.

    Attributes:
        folder: where the files are.
        stage: name of the stage.
        num_views: how many views there are.
    """

    def __init__(self, folder: Path, stage: str, files: Sequence[Path]) -> None:
        self.folder = folder
        self.stage = stage
        self.num_views = len(files)
        self._views = [np.load(file, mmap_mode="r", allow_pickle=False) for file in files]

    def __len__(self) -> int:
        return len(self._views[0])

    def read(self, view: int, rows: Sequence[int] | slice) -> Tensor:
        """Return features (len(rows), ...) float16 of one view."""
        return torch.from_numpy(np.array(self._views[view % self.num_views][rows]))

    @classmethod
    def build(
        cls,
        folder: Path,
        embedder: Embedder,
        dataset: Callable[[], ImageDataset],
        *,
        stage: str,
        views: int = 1,
        workers: int = 0,
        context: str | None = None,
        device: torch.device | str = "cpu",
        progress: Callable[[int, int], None] | None = None,
    ) -> FeatureStore:
        """Compute what is missing and open the store.

        Args:
            folder: of this store, from :func:`store_folder`.
            embedder: whose lower stages are frozen; put into evaluation mode and back.
            dataset: makes the pictures when they are needed; view v holds their augmentation of epoch v.
            stage: name of the stage.
            views: how many; 1 for evaluation.
            workers: processes that read pictures.
            context: how they start.
            device: where the model runs.
            progress: called with (pictures done, pictures in all) after each batch.

        Raises:
            ImageError: a picture cannot be read.
            DataError: features do not fit half precision.
        """
        files = [folder / f"view-{view:03d}.npy" for view in range(views)]
        if all(file.exists() for file in files):
            return cls(folder, stage, files)
        pictures = dataset()
        done = sum(file.exists() for file in files) * len(pictures)
        for view, file in enumerate(files):
            if file.exists():
                continue
            pictures.set_epoch(view)
            loader = make_loader(pictures, BUILD_BATCH, workers=workers, context=context)
            try:
                parts: list[NDArray[np.float16]] = []
                for batch in loader:
                    parts.append(_features(embedder, batch, stage, device))
                    done += len(parts[-1])
                    if progress is not None:
                        progress(done, views * len(pictures))
            finally:
                loader.close()
            with atomic_path(file) as temporary:
                np.save(temporary, np.concatenate(parts), allow_pickle=False)
        return cls(folder, stage, files)


class StoredDataset:
    """Stored features by row, in the place of an :class:`~proxemics.data.dataset.ImageDataset` for training.

    Args:
        store: the features; epoch e uses view e modulo their number.
        labels: (n,) integers.
        domains: (n,) integers.
    """

    def __init__(self, store: FeatureStore, labels: NDArray[np.int64], domains: NDArray[np.int64]) -> None:
        self.store, self.labels, self.domains = store, labels, domains
        self.stage = store.stage
        self.epoch = 0

    def __len__(self) -> int:
        return len(self.labels)

    def set_epoch(self, epoch: int) -> None:
        """Choose the view."""
        self.epoch = epoch

    def batch(self, rows: Sequence[int]) -> Batch:
        """Return a batch whose ``image`` holds features (B, ...) float16."""
        index = np.asarray(rows, dtype=np.int64)
        return {
            "image": self.store.read(self.epoch, rows),
            "label": torch.from_numpy(self.labels[index]),
            "domain": torch.from_numpy(self.domains[index]),
            "id": torch.from_numpy(index),
        }


def embed_stored(embedder: Embedder, store: FeatureStore, *, device: torch.device | str = "cpu") -> NDArray[np.float32]:
    """Run the rest of the trunk on stored features, in evaluation mode.

    Returns:
        (n, D) float32 embeddings before normalisation, in the order of the store.
    """
    was_training = embedder.training
    embedder.eval()
    result = np.empty((len(store), embedder.dim), dtype=np.float32)
    try:
        with torch.inference_mode():
            for start in range(0, len(store), BUILD_BATCH):
                rows = slice(start, start + BUILD_BATCH)
                value = store.read(0, rows).to(device).float()
                encoded, _ = embedder.encode_from(embedder.stage_features(store.stage, value))
                result[rows] = encoded.raw.cpu().numpy()
    finally:
        embedder.train(was_training)
    return result


def _features(embedder: Embedder, batch: Batch, stage: str, device: torch.device | str) -> NDArray[np.float16]:
    was_training = embedder.training
    embedder.eval()
    try:
        with torch.inference_mode():
            images = embedder.preprocess.normalize(batch["image"].to(device))
            value = embedder.features_at(images, stage).value.float()
    finally:
        embedder.train(was_training)
    if not value.abs().max() <= LIMIT:
        raise DataError(f"Features of stage {stage!r} exceed half precision (or are NaN); use data.cache=memory.")
    return value.half().cpu().numpy()


def store_folder(
    root: Path, *, paths: Sequence[str], transform: TrainTransform | Preprocess, seed: int, weights: str, stage: str
) -> Path:
    """Name the store of these pictures: a hash of everything that decides its content.

    Args:
        root: folder of all stores.
        paths: the picture files; their sizes and time stamps count as well.
        transform: how they are prepared.
        seed: of the augmentation.
        weights: fingerprint of the weights that the trunk starts from, and of its preprocessing.
        stage: name of the stage.

    Raises:
        ImageError: a file is gone.
    """
    try:
        stats = [(path, Path(path).stat()) for path in paths]
    except OSError as error:
        raise ImageError(f"{error.filename} cannot be read: {error.strerror}.") from None
    files = [(path, stat.st_size, stat.st_mtime_ns) for path, stat in stats]
    facts = json.dumps([files, repr(transform), seed, weights, stage])
    return root / f"{stage}-{hashlib.sha256(facts.encode()).hexdigest()[:24]}"
