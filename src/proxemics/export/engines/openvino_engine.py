"""The OpenVINO engine: float32, and bfloat16 at about twice the speed on processors that have it."""

from __future__ import annotations

import sys
import threading
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from proxemics.core.errors import ExportError
from proxemics.data.preprocess import Preprocess
from proxemics.export.engines.base import EngineFacts
from proxemics.export.engines.calls import ConcurrentEngine, check_pixels, nothing
from proxemics.export.engines.rounding import round_model

_HINTS = {"float32": "f32", "bf16": "bf16"}
_TELEMETRY = "openvino_telemetry"


class OpenVinoEngine(ConcurrentEngine):
    """An ONNX file, compiled for this processor by OpenVINO.

    With bf16 the filters are rounded here, see :mod:`proxemics.export.engines.rounding`.
    Where the processor has no bfloat16, OpenVINO computes in float32; then ``facts`` say float32, and so does ``why``.

    Args:
        file: written by :func:`proxemics.export.onnx.export_onnx`.
        preprocess: of the model.
        facts: of this engine; precision float32 or bf16.
        calls: how many calls run at once, each on a stream of its own.

    Raises:
        ExportError: openvino is not installed, cannot read the file, or does not have the precision.
    """

    def __init__(self, file: Path, preprocess: Preprocess, facts: EngineFacts, *, calls: int = 1) -> None:
        if facts.precision not in _HINTS:
            raise ExportError(f"The engine openvino has float32 and bf16, not {facts.precision!r}.")
        openvino = import_openvino()
        try:
            core = openvino.Core()
            if facts.precision == "bf16" and "BF16" not in core.get_property("CPU", "OPTIMIZATION_CAPABILITIES"):
                facts = replace(facts, precision="float32", exact=True, why="this processor has no bfloat16")
            self._compiled = _compile(openvino, core, file, facts, calls)
        except Exception as error:  # OpenVINO raises RuntimeError with several lines
            reason = " ".join(str(error).split())[:200]
            raise ExportError(f"OpenVINO cannot use {file}: {reason}. Use --engine onnxruntime or torch.") from error
        self.preprocess, self.facts, self.calls = preprocess, facts, calls
        self._own = threading.local()

    def encode(self, pixels: NDArray[np.float32]) -> tuple[NDArray[np.float32], NDArray[np.float32]]:
        """See :meth:`proxemics.export.engines.base.Engine.encode`."""
        check_pixels(pixels, self.preprocess.size)
        if not len(pixels):
            return nothing(self.facts.dim)
        request = getattr(self._own, "request", None)
        if request is None:
            request = self._own.request = self._compiled.create_infer_request()
        interleaved = np.ascontiguousarray(pixels.transpose(0, 2, 3, 1))  # no copy for channels-last memory
        found = request.infer([interleaved], share_inputs=True)
        return found["embedding"].copy(), found["length"].copy()


def _compile(openvino: Any, core: Any, file: Path, facts: EngineFacts, calls: int) -> Any:
    from openvino.passes import ConstantFolding, Manager
    from openvino.preprocess import PrePostProcessor

    model = core.read_model(str(file))
    if facts.precision == "bf16":
        passes = Manager()
        passes.register_pass(ConstantFolding())
        passes.run_passes(model)
        round_model(model, openvino.op.Constant)
    steps = PrePostProcessor(model)
    steps.input().tensor().set_layout(openvino.Layout("NHWC"))
    steps.input().model().set_layout(openvino.Layout("NCHW"))
    settings = {
        "INFERENCE_PRECISION_HINT": _HINTS[facts.precision],
        "INFERENCE_NUM_THREADS": facts.threads,
        "NUM_STREAMS": calls,
        "ENABLE_CPU_PINNING": False,  # several processes would be pinned to the same core
    }
    return core.compile_model(steps.build(), "CPU", settings)


def import_openvino() -> Any:
    """Import openvino without the package by which it would report its use over the network.

    ``import openvino`` sends an event unless the user has opted out. Hiding the reporting package makes OpenVINO fall
    back to its stub. A program that imported openvino before has decided for itself.

    Raises:
        ExportError: it is not installed.
    """
    hidden = _TELEMETRY not in sys.modules
    if hidden:
        sys.modules[_TELEMETRY] = None  # type: ignore[assignment]  # Python's way of saying that there is no such module
    try:
        import openvino
    except ImportError as error:
        raise ExportError("The engine openvino needs its package: pip install 'proxemics[openvino]'.") from error
    finally:
        if hidden:
            sys.modules.pop(_TELEMETRY, None)
    return openvino
