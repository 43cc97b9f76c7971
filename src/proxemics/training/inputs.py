"""How pictures reach the model in a run: from files, from decoded pixels, or as stored features of frozen stages."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TypeVar

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from proxemics.core.config import Config
from proxemics.data.cache import PixelCache
from proxemics.data.dataset import ImageDataset
from proxemics.data.preprocess import Preprocess
from proxemics.data.transforms import TrainTransform
from proxemics.evaluation.extract import start_method
from proxemics.methods.base import Method
from proxemics.models.embedder import Embedder
from proxemics.models.fingerprint import fingerprint_state
from proxemics.models.stages import PIXEL
from proxemics.training.fabric import Fabric
from proxemics.training.log import Reporter
from proxemics.training.run_folder import RunFolder
from proxemics.training.shards import embed_rows_with_certainty
from proxemics.training.stored_features import FeatureStore, StoredDataset, embed_stored, store_folder

T = TypeVar("T")


class Inputs:
    """The pictures of a run.

    Args:
        config: everything about the run.
        embedder: the model, with the weights it starts from.
        methods: plug-ins; nothing below a stage that one of them changes is stored.
        fabric: a launched Fabric.
        folder: the run folder.
        reporter: hears of progress.
    """

    def __init__(
        self,
        config: Config,
        embedder: Embedder,
        methods: Sequence[Method],
        *,
        fabric: Fabric,
        folder: RunFolder,
        reporter: Reporter,
    ) -> None:
        self.config, self.fabric, self.folder, self.reporter = config, fabric, folder, reporter
        self.preprocess = embedder.preprocess
        self.entry = entry_stage(config, embedder, methods)
        self._own_weights = (
            fingerprint_state(
                embedder.trunk.state_dict(), str(embedder.arguments["trunk"]), embedder.preprocess.model_dump_json()
            )
            if self.stored
            else ""
        )

    @property
    def stored(self) -> bool:
        """Whether batches enter above the pictures."""
        return self.entry != PIXEL

    def training(
        self, embedder: Embedder, rows: pd.DataFrame, ids: NDArray[np.int64], domains: NDArray[np.int64]
    ) -> ImageDataset | StoredDataset:
        """Return the training pictures, augmented.

        Args:
            embedder: its frozen stages make the features, where these are stored.
            rows: the training rows.
            ids: (n,) class numbers.
            domains: (n,) domain numbers.
        """
        if not self.stored:
            return self._pictures(rows, "train", ids, domains)
        views = min(self.config.data.views, max(self.config.train.epochs, 1))
        return StoredDataset(self._store(embedder, rows, "train", views=views), ids, domains)

    def embed(
        self, embedder: Embedder, rows: pd.DataFrame, *, task: str, name: str | None = None
    ) -> tuple[NDArray[np.float32], NDArray[np.float32]]:
        """Embed pictures in evaluation mode.

        Args:
            embedder: the model; its frozen stages must be those of the run.
            rows: N pictures.
            task: shown with the progress.
            name: keep decoded pixels under this name; None reads the files.

        Returns:
            (N, D) float32 unit embeddings and (N,) float32 lengths before normalisation.
        """
        if not self.stored:
            cache = None if name is None else self._pixels(rows, name)
            return embed_rows_with_certainty(
                self.config, embedder, rows, fabric=self.fabric, cache=cache, reporter=self.reporter, task=task
            )
        raw = embed_stored(embedder, self._store(embedder, rows, task), device=self.fabric.device)
        kappa = np.linalg.norm(raw, axis=1)
        return raw / np.maximum(kappa, 1e-12)[:, None], kappa

    def _pictures(
        self, rows: pd.DataFrame, name: str, ids: NDArray[np.int64], domains: NDArray[np.int64]
    ) -> ImageDataset:
        data = self.config.data
        return ImageDataset(
            rows["path"].to_list(),
            ids,
            domains=domains,
            transform=self._transform(),
            seed=self.config.seed,
            cache=self._pixels(rows, name),
            max_pixels=data.max_pixels,
            on_error=data.on_error,
        )

    def _transform(self) -> TrainTransform:
        data, preprocess = self.config.data, self.preprocess
        make = TrainTransform if data.augmentation == "plain" else TrainTransform.strong
        return make(preprocess.size, scale=data.crop_scale, flip=data.flip, interpolation=preprocess.interpolation)

    def _store(self, embedder: Embedder, rows: pd.DataFrame, task: str, *, views: int = 0) -> FeatureStore:
        """Open or build a store; ``views=0`` is one view prepared as for evaluation."""
        data, paths = self.config.data, rows["path"].to_list()
        transform: TrainTransform | Preprocess = self._transform() if views else self.preprocess
        seed = self.config.seed if views else 0
        root = self.folder.path / "cache" / "features" if data.cache_folder is None else Path(data.cache_folder)
        place = store_folder(
            root, paths=paths, transform=transform, seed=seed, weights=self._own_weights, stage=self.entry
        )

        def pictures() -> ImageDataset:
            return ImageDataset(
                paths,
                np.zeros(len(rows), dtype=np.int64),
                transform=transform,
                seed=seed,
                cache=self._pixels(rows, "train") if views > 1 else None,
                max_pixels=data.max_pixels,
            )

        shown = f"features for {task}"
        self.reporter.start(shown, max(views, 1) * len(rows))
        before = [0]

        def progress(done: int, total: int) -> None:
            self.reporter.advance(shown, done - before[0])
            before[0] = done

        def build() -> FeatureStore:
            return FeatureStore.build(
                place,
                embedder,
                pictures,
                stage=self.entry,
                views=max(views, 1),
                workers=data.workers,
                context=start_method(data.worker_start),
                device=self.fabric.device,
                progress=progress,
            )

        try:
            return first_builds(self.fabric, build)
        finally:
            self.reporter.finish(shown)

    def _pixels(self, rows: pd.DataFrame, name: str) -> PixelCache | None:
        """Decode the pictures once, if the configuration says so."""
        if self.config.data.cache == "none":
            return None
        data, preprocess = self.config.data, self.preprocess

        def build() -> PixelCache:
            return PixelCache.build(
                rows["path"].to_list(),
                self.folder.path / "cache" / name,
                short_side=preprocess.resize,
                interpolation=preprocess.interpolation,
                workers=max(data.workers, 1),
                on_error=data.on_error,
                max_pixels=data.max_pixels,
            )

        return first_builds(self.fabric, build)


def first_builds(fabric: Fabric, build: Callable[[], T]) -> T:
    """Let the first process build something on disk while the others wait; then the others open it."""
    made = build() if fabric.is_global_zero else None
    fabric.barrier()
    return build() if made is None else made


def entry_stage(config: Config, embedder: Embedder, methods: Sequence[Method]) -> str:
    """Return the lowest stage that must be computed in training: trained stages lie above it, changed ones not below.

    Args:
        config: ``data.cache`` and ``model.freeze_stages``.
        embedder: the model.
        methods: plug-ins with their stages.

    Example:
        >>> from proxemics.core.config import make_config
        >>> model = Embedder("test_resnet", dim=8, weights="none", size=64, freeze_stages=3)
        >>> entry_stage(make_config({"data": {"cache": "features"}, "model": {"freeze_stages": 3}}), model, [])
        'stage2'
        >>> entry_stage(make_config(), model, [])
        'pixel'
    """
    if config.data.cache != "features":
        return PIXEL
    order = embedder.stages
    wanted = [min(config.model.freeze_stages, len(order) - 1)]
    wanted += [order.index(embedder.stage_name(stage)) for method in methods for stage in method.needs.stages]
    return order[min(wanted)]
