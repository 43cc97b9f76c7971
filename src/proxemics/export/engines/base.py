"""The contract of an engine: something that turns prepared pictures into embeddings, fast."""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from proxemics.data.preprocess import Preprocess


@dataclass(frozen=True)
class EngineFacts:
    """What an engine says of itself.

    Attributes:
        engine: torch, onnxruntime or openvino.
        precision: float32, bf16 or int8.
        exact: whether its vectors equal those of torch in float32 up to rounding (1e-4 a value).
        fingerprint: of the model, 64 hex digits.
        dim: length D of the embeddings.
        threads: of one process.
        why: one clause that says why it was picked.
        basis: SHA-256 of the ONNX file that runs, or the device of torch; another one gives other last digits.
    """

    engine: str
    precision: str
    exact: bool
    fingerprint: str
    dim: int
    threads: int
    why: str = ""
    basis: str = ""


class Engine(ABC):
    """A model ready to embed. One call at a time; several processes may each have one."""

    facts: EngineFacts
    preprocess: Preprocess

    @abstractmethod
    def encode(self, pixels: NDArray[np.float32]) -> tuple[NDArray[np.float32], NDArray[np.float32]]:
        """Embed prepared pictures.

        Args:
            pixels: (B, 3, size, size) float32, normalised by ``preprocess``; any B >= 0, any memory order.

        Returns:
            (B, D) float32 of unit length, and (B,) float32 lengths before they were normalised (κ).
        """
