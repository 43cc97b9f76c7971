"""The ONNX Runtime engine: float32 several times as fast as torch on CPUs; int8 where a file of it is at hand."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from proxemics.core.errors import ExportError
from proxemics.data.preprocess import Preprocess
from proxemics.export.engines.base import EngineFacts
from proxemics.export.engines.calls import ConcurrentEngine, check_pixels, nothing


class OnnxEngine(ConcurrentEngine):
    """An ONNX file on the CPU.

    Args:
        file: written by :func:`proxemics.export.onnx.export_onnx`.
        preprocess: of the model.
        facts: of this engine.
        calls: how many calls run at once; each uses ``facts.threads // calls`` threads.

    Raises:
        ExportError: onnxruntime is not installed, or cannot read the file.
    """

    def __init__(self, file: Path, preprocess: Preprocess, facts: EngineFacts, *, calls: int = 1) -> None:
        runtime = import_onnxruntime()
        options = runtime.SessionOptions()
        options.intra_op_num_threads = max(facts.threads // calls, 1)
        options.inter_op_num_threads = 1
        # Threads that wait for work by spinning take the cores from those that decode pictures.
        options.add_session_config_entry("session.intra_op.allow_spinning", "0")
        options.log_severity_level = 3
        try:
            self._session = runtime.InferenceSession(str(file), options, providers=["CPUExecutionProvider"])
        except Exception as error:  # the runtime raises kinds of its own
            reason = " ".join(str(error).split())[:200]
            raise ExportError(
                f"ONNX Runtime cannot open {file}: {reason}. Delete the file, or use --engine torch."
            ) from error
        self.preprocess, self.facts, self.calls = preprocess, facts, calls

    def encode(self, pixels: NDArray[np.float32]) -> tuple[NDArray[np.float32], NDArray[np.float32]]:
        """See :meth:`proxemics.export.engines.base.Engine.encode`."""
        check_pixels(pixels, self.preprocess.size)
        if not len(pixels):
            return nothing(self.facts.dim)
        plain = torch.from_numpy(pixels).contiguous().numpy()
        unit, length = self._session.run(["embedding", "length"], {"pixels": plain})
        return unit, length


def import_onnxruntime() -> Any:
    """Import onnxruntime, or say how to install it.

    Raises:
        ExportError: it is not installed.
    """
    try:
        import onnxruntime
    except ImportError as error:
        raise ExportError(
            f"The engine onnxruntime needs the package {error.name}: pip install 'proxemics[onnx]', or use "
            "--engine torch."
        ) from error
    return onnxruntime
