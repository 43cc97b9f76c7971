"""The torch engine: always there, the reference for the others, and the one that runs on a GPU."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import replace

import numpy as np
import torch
from numpy.typing import NDArray

from proxemics.core.errors import ExportError
from proxemics.export.engines.base import EngineFacts
from proxemics.export.engines.calls import ConcurrentEngine, check_pixels, nothing
from proxemics.models.embedder import Embedder


class TorchEngine(ConcurrentEngine):
    """An embedder in evaluation mode, with channels-last memory as the model says.

    Args:
        embedder: put into evaluation mode, and moved to the device.
        precision: float32, or bf16 (autocast; the trunk runs in bfloat16, what follows in float32).
        threads: of this process; None: all that it may use.
        calls: how many calls run at once; 1 on a GPU.
        device: cpu, cuda or mps.

    Raises:
        ExportError: a precision that torch does not have.

    Example:
        >>> engine = TorchEngine(Embedder("test_resnet", dim=8, weights="none", size=32))
        >>> unit, length = engine.encode(np.zeros((2, 3, 32, 32), np.float32))
        >>> unit.shape, length.shape, engine.facts.exact
        ((2, 8), (2,), True)
    """

    def __init__(
        self,
        embedder: Embedder,
        *,
        precision: str = "float32",
        threads: int | None = None,
        calls: int = 1,
        device: str = "cpu",
    ) -> None:
        if precision not in ("float32", "bf16"):
            raise ExportError(f"The torch engine has float32 and bf16, not {precision!r}.")
        self.device = torch.device(device)
        self.calls = calls if self.device.type == "cpu" else 1
        self.embedder = embedder.eval().to(self.device)
        self.preprocess = embedder.preprocess
        self.facts = EngineFacts(
            engine="torch",
            precision=precision,
            exact=precision == "float32",
            fingerprint=embedder.fingerprint(),
            dim=embedder.dim,
            threads=threads or usable_cores(),
            basis=self.device.type,
        )

    def because(self, why: str) -> TorchEngine:
        """Say why it was picked."""
        self.facts = replace(self.facts, why=why)
        return self

    def encode(self, pixels: NDArray[np.float32]) -> tuple[NDArray[np.float32], NDArray[np.float32]]:
        """See :meth:`proxemics.export.engines.base.Engine.encode`."""
        check_pixels(pixels, self.preprocess.size)
        if not len(pixels):
            return nothing(self.facts.dim)
        each = max(self.facts.threads // self.calls, 1)
        with torch_threads(each if self.device.type == "cpu" else None), torch.inference_mode(), self._precision():
            encoded = self.embedder.encode(torch.from_numpy(pixels).to(self.device))
            length = torch.linalg.vector_norm(encoded.raw.float(), dim=-1)
        return encoded.unit.float().cpu().numpy(), length.cpu().numpy()

    @contextmanager
    def _precision(self) -> Iterator[None]:
        """Run in float32 proper, also where a GPU would round it (TF32), or in bfloat16."""
        autocast: AbstractContextManager[None] = nullcontext()
        if self.facts.precision == "bf16":
            autocast = torch.autocast(self.device.type, dtype=torch.bfloat16)
        proper: AbstractContextManager[None] = nullcontext()
        if self.device.type == "cuda" and self.facts.exact:
            proper = torch.backends.cudnn.flags(enabled=True, allow_tf32=False)
        with autocast, proper:
            yield


def usable_cores() -> int:
    """Return how many cores this process may use."""
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


@contextmanager
def torch_threads(count: int | None) -> Iterator[None]:
    """Let torch use so many threads for one operation of the calling thread; None leaves it as it is.

    Example:
        >>> with torch_threads(1):
        ...     torch.get_num_threads()
        1
    """
    before = torch.get_num_threads()
    if count is None or count == before:
        yield
        return
    torch.set_num_threads(count)
    try:
        yield
    finally:
        torch.set_num_threads(before)
