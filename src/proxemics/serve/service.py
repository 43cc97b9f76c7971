"""Everything that one running service holds, opened before the first request and closed after the last."""

from __future__ import annotations

import asyncio
import io
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import TypeAlias, TypeVar

import numpy as np
from numpy.typing import NDArray
from PIL import Image

from proxemics.export.engines.base import Engine
from proxemics.search.items import Hits
from proxemics.search.manifest import ModelKey
from proxemics.search.open import backend_of
from proxemics.serve.batching import Batcher
from proxemics.serve.certainty import CertaintyScale, read_scale
from proxemics.serve.classes import Classes, open_classes
from proxemics.serve.decode import Decoder, prepare
from proxemics.serve.errors import logger
from proxemics.serve.feedback import Feedback
from proxemics.serve.index_thread import IndexQuery, IndexThread
from proxemics.serve.labels import LabelCatalogue, read_rows
from proxemics.serve.maps import Maps
from proxemics.serve.metrics import Metrics
from proxemics.serve.pictures import PictureStore
from proxemics.serve.settings import ServeSettings

R = TypeVar("R")
Pixels: TypeAlias = NDArray[np.float32]
Embedded: TypeAlias = tuple[NDArray[np.float32], float]
"""A vector (D,) of unit length, and the length before it was normalised."""


class Service:
    """The parts of a service. Make one with :func:`open_service`.

    Args:
        settings: all of them.
        engine: the model.
        index: opened with a model key that fits the engine.
        classes: of the same model.
        scale: what lengths mean, or None when they mean nothing.

    Attributes:
        settings: as given.
        engine: as given.
        index: as given.
        classes: as given; touched in the thread of the index only.
        metrics: what Prometheus reads.
        pictures: thumbnails of the index.
        labels: of the index.
        examples: ids of some rows, for a page on which nothing was searched yet.
        feedback: the marks, or None when none are kept.
        scale: as given.
        maps: similarity maps.
        embedding: from pixels to vectors, in batches.
        searching: from vectors to neighbours, in batches.
        decoder: from bytes to pixels.
    """

    def __init__(
        self,
        settings: ServeSettings,
        engine: Engine,
        index: IndexThread,
        classes: Classes,
        scale: CertaintyScale | None,
    ) -> None:
        self.settings, self.engine, self.index, self.classes, self.scale = settings, engine, index, classes, scale
        self.metrics = Metrics()
        self.pictures = PictureStore(settings.pictures, stored=stored_thumbnails(settings))
        self.labels: LabelCatalogue
        self.labels, self.examples = index.call_now(read_rows)
        self.maps = Maps(settings.model)
        place = feedback_file(settings)
        self.feedback = Feedback(place, model=engine.facts.fingerprint) if place is not None else None
        self.decoder = Decoder(settings.decoders, settings.decode_timeout_s)
        self._model_thread = ThreadPoolExecutor(1, thread_name_prefix="model")
        self._feedback_thread = ThreadPoolExecutor(1, thread_name_prefix="feedback")
        self.embedding: Batcher[Pixels, Embedded] = Batcher(
            self._encode,
            thread=self._model_thread,
            size=settings.batch_size,
            wait_s=settings.batch_wait_ms / 1000,
            limit=settings.queue,
            name="The model",
            on_batch=self.metrics.batch_size.observe,
        )
        self.searching: Batcher[IndexQuery, Hits] = Batcher(
            self._search, thread=index.thread, size=settings.batch_size, limit=settings.queue, name="The index"
        )

    def warm_up(self) -> None:
        """Do everything once, so that the first client does not wait for what is loaded on first use."""
        buffer = io.BytesIO()
        Image.new("RGB", (16, 16)).save(buffer, "JPEG")
        pixels = prepare(buffer.getvalue(), self.engine.preprocess, max_pixels=256)
        vectors, _ = self._model_thread.submit(self.engine.encode, pixels[None]).result()
        if np.isfinite(vectors).all() and vectors.any():
            self.index.call_now(lambda index: index.search(vectors, 1))

    def start(self) -> None:
        """Begin to work on requests; call it inside the event loop."""
        self.embedding.start()
        self.searching.start()

    async def stop(self) -> None:
        """Finish what is worked on and close everything."""
        await self.embedding.stop()
        await self.searching.stop()
        self.decoder.close()
        self.maps.close()
        self._model_thread.shutdown(wait=True)
        self._feedback_thread.shutdown(wait=True)
        if self.feedback is not None:
            self.feedback.close()
        await asyncio.get_running_loop().run_in_executor(None, self.index.close)

    async def pixels(self, data: bytes) -> Pixels:
        """Decode and prepare a picture, see :func:`proxemics.serve.decode.prepare`."""
        self.embedding.refuse_when_full()
        with self.embedding.coming():
            return await self.decoder.run(lambda: self._prepare(data))

    def _prepare(self, data: bytes) -> Pixels:
        with self.metrics.stage("decode"):
            return prepare(data, self.engine.preprocess, max_pixels=self.settings.max_pixels)

    def _encode(self, pixels: Sequence[Pixels]) -> list[Embedded]:
        with self.metrics.stage("model"):
            vectors, lengths = self.engine.encode(np.stack(pixels))
        return [(vector, float(length)) for vector, length in zip(vectors, lengths, strict=True)]

    def _search(self, queries: Sequence[IndexQuery]) -> list[Hits | Exception]:
        with self.metrics.stage("index"):
            return self.index.search(queries)

    async def with_feedback(self, work: Callable[[Feedback], R]) -> R | None:
        """Call ``work`` with the marks in their thread; None where none are kept."""
        if self.feedback is None:
            return None
        return await asyncio.get_running_loop().run_in_executor(self._feedback_thread, work, self.feedback)


def open_service(settings: ServeSettings) -> Service:
    """Open the model and the index and check that they belong together.

    Raises:
        ProxemicsError: one of them cannot be opened, or the index holds vectors of another model.
    """
    from proxemics.export.engines.open import open_engine

    engine = open_engine(
        settings.model,
        engine=settings.engine,
        precision=settings.precision,
        threads=settings.threads,
        notify=logger.warning,
    )
    key = ModelKey(model=engine.facts.fingerprint, preprocess=engine.preprocess.fingerprint(), dim=engine.facts.dim)
    index = IndexThread(settings.index, read_only=not settings.allow_enrol)
    try:
        index.call_now(lambda opened: opened.manifest.check(key))
        scale = read_scale(settings.model)
        classes = open_classes(settings.model, settings.classes, key)
        service = Service(settings, engine, index, classes, scale)
        service.warm_up()
        return service
    except BaseException:
        index.close()
        raise


def stored_thumbnails(settings: ServeSettings) -> Callable[[str], bytes | None] | None:
    """Return what reads the thumbnails that an embedded index keeps; None where it keeps none.

    The name of such a file is a digest of the id, so an id leads nowhere else.
    """
    from proxemics.search.local.layout import THUMBNAILS, thumbnail_file

    folder = Path(settings.index)
    if backend_of(settings.index) != "local" or not (settings.allow_enrol or (folder / THUMBNAILS).is_dir()):
        return None

    def read(name: str) -> bytes | None:
        try:
            return thumbnail_file(folder, name).read_bytes()
        except OSError:
            return None

    return read


def feedback_file(settings: ServeSettings) -> Path | None:
    """Return where marks are kept: the file that was named, else one in the folder of the index, else nowhere.

    Example:
        >>> feedback_file(ServeSettings(model=Path("m"), index="postgresql://me@host/db?index=birds")) is None
        True
    """
    if settings.feedback is not None:
        return settings.feedback
    return Path(settings.index) / "feedback.sqlite" if backend_of(settings.index) == "local" else None
