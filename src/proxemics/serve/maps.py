"""Similarity maps on request: which places of two pictures made them similar to the model."""

from __future__ import annotations

import asyncio
import base64
import io
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray
from PIL import Image

from proxemics.models.embedder import Embedder
from proxemics.serve.errors import Refusal

WAITING = 4
"""Maps that may wait; each costs two passes through the model in torch."""


@dataclass(frozen=True)
class DrawnMaps:
    """Two pictures under their maps.

    Attributes:
        query: WebP as a data URI.
        neighbour: likewise.
        cosine: of the two pictures, as torch computes it.
        how: see :class:`proxemics.evaluation.similarity.SimilarityMaps`.
    """

    query: str
    neighbour: str
    cosine: float
    how: str


class Maps:
    """Loads the model in torch when the first map is asked for, and draws in one thread.

    Args:
        model: a run folder or a bundle folder; without its tensors there are no maps.
    """

    def __init__(self, model: Path) -> None:
        self._model = model
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="maps")
        self._embedder: Embedder | None = None
        self._waiting = 0

    @property
    def available(self) -> bool:
        """Whether the model's tensors are there, which maps need."""
        return any((folder / "model.safetensors").is_file() for folder in (self._model / "bundle", self._model))

    async def draw(self, query: Image.Image, neighbour: Image.Image) -> DrawnMaps:
        """Draw the maps of a pair.

        Args:
            query: RGB.
            neighbour: RGB.

        Raises:
            Refusal: 404 where there is no model for it, 503 when too many wait.
        """
        if not self.available:
            raise Refusal(404, "no_maps", "Similarity maps need the model in torch; this one was exported without it.")
        if self._waiting >= WAITING:
            raise Refusal(503, "overloaded", "Other maps are being drawn; try again in a few seconds.", retry_after=3)
        self._waiting += 1
        try:
            return await asyncio.get_running_loop().run_in_executor(self._thread, self._draw, query, neighbour)
        finally:
            self._waiting -= 1

    def _draw(self, query: Image.Image, neighbour: Image.Image) -> DrawnMaps:
        from proxemics.evaluation.similarity import similarity_map
        from proxemics.training.evaluate_run import open_model

        if self._embedder is None:
            self._embedder = open_model(self._model)
        maps = similarity_map(self._embedder, query, neighbour)
        return DrawnMaps(
            query=_uri(maps.query_picture, maps.query),
            neighbour=_uri(maps.neighbour_picture, maps.neighbour),
            cosine=maps.cosine,
            how=maps.how,
        )

    def close(self) -> None:
        """Let the thread end."""
        self._thread.shutdown(wait=False, cancel_futures=True)


def _uri(picture: NDArray[np.uint8], values: NDArray[np.floating]) -> str:
    from proxemics.report.overlay import overlay

    buffer = io.BytesIO()
    overlay(picture, values).save(buffer, "WEBP", quality=85)
    return f"data:image/webp;base64,{base64.b64encode(buffer.getvalue()).decode('ascii')}"
