"""An embedder as an ONNX file: prepared pictures in, unit embeddings and lengths out, any batch size.

The graph is captured by ``torch.export`` and starts after the preprocessing: what goes in is what
:class:`~proxemics.data.preprocess.Preprocess` makes, so that one implementation decides the pixels everywhere. The file
holds no names of source files and no time stamps; the same weights and versions give the same bytes.
"""

from __future__ import annotations

import copy
import logging
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from proxemics.core.errors import ExportError
from proxemics.core.files import atomic_path
from proxemics.models.embedder import Embedder

INPUT = "pixels"
OUTPUTS = ("embedding", "length")
OPSET = 18
MAX_BYTES = 2**31 - 1
"""An ONNX file is one protobuf message, which cannot be larger."""


class _Graph(nn.Module):
    def __init__(self, embedder: Embedder) -> None:
        super().__init__()
        self.embedder = embedder

    def forward(self, pixels: Tensor) -> tuple[Tensor, Tensor]:
        encoded = self.embedder.encode(pixels)
        return encoded.unit, torch.linalg.vector_norm(encoded.raw, dim=-1)


def export_onnx(embedder: Embedder, path: Path, *, half: bool = False) -> Path:
    """Write an embedder as an ONNX file with a dynamic batch.

    Args:
        embedder: on any device, in any mode; it is not changed.
        path: the file; it is replaced atomically.
        half: keep the trunk in float16; pooling, head and normalisation stay in float32, as under autocast.

    Returns:
        The path. The graph has the input ``pixels`` (B, 3, size, size) float32, normalised by
        ``embedder.preprocess``, and the outputs ``embedding`` (B, D) float32 of unit length and ``length`` (B,)
        float32, the length before it was normalised; B >= 1.

    Raises:
        ExportError: onnx or onnxscript are not installed, or the trunk cannot be captured or is over 2 GB.
    """
    onnx = import_onnx()
    model = copy.deepcopy(embedder).to("cpu", torch.float32).eval()
    if half:
        model.trunk.to(torch.float16)
    size = model.preprocess.size
    with torch.no_grad(), quiet():
        try:
            program = torch.onnx.export(
                _Graph(model),
                (torch.zeros(2, 3, size, size),),
                dynamo=True,
                dynamic_shapes={"pixels": {0: torch.export.Dim("batch", min=1)}},
                input_names=[INPUT],
                output_names=list(OUTPUTS),
                opset_version=OPSET,
                verbose=False,
            )
        except Exception as error:  # the exporter raises what the operators of a trunk lead it to
            raise ExportError(_reason(embedder, error)) from error
        if program is None:
            raise ExportError(_reason(embedder, "torch.onnx gave nothing back"))
        message = program.model_proto
    if message.ByteSize() > MAX_BYTES:
        raise ExportError(
            f"Trunk {embedder.arguments['trunk']!r} makes an ONNX file of {message.ByteSize() / 2**30:.1f} GB; one "
            "file holds 2 GB at most. Choose a smaller trunk, or export without ONNX (--no-onnx)."
        )
    onnx.checker.check_model(message)
    return write_graph(message, path)


def write_graph(message: Any, path: Path) -> Path:
    """Write an ONNX model without what differs from machine to machine: stack traces and names of source files.

    Args:
        message: an ``onnx.ModelProto``; it is changed.
        path: the file; it is replaced atomically.
    """
    _forget_sources(message)
    with atomic_path(path) as temporary:
        temporary.write_bytes(message.SerializeToString(deterministic=True))
    return Path(path)


def import_onnx() -> Any:
    """Import onnx, or say how to install what the export needs.

    Raises:
        ExportError: onnx or onnxscript is not installed.
    """
    try:
        import onnx
        import onnxscript  # noqa: F401 -- torch.onnx needs it; better missed here than in the middle of an export
    except ImportError as error:
        raise ExportError(f"Writing ONNX needs the package {error.name}: pip install 'proxemics[onnx]'.") from error
    return onnx


def _forget_sources(message: Any) -> None:
    graphs = [message.graph, *message.functions]
    for holder in (message, *graphs):
        del holder.metadata_props[:]
    for graph in graphs:
        for node in graph.node:
            del node.metadata_props[:]
            node.doc_string = ""
        for value in (*graph.value_info, *getattr(graph, "input", ()), *getattr(graph, "output", ())):
            if hasattr(value, "metadata_props"):
                del value.metadata_props[:]
    for tensor in message.graph.initializer:
        del tensor.metadata_props[:]


def _reason(embedder: Embedder, error: object) -> str:
    text = " ".join(str(error).split())[:200]
    return (
        f"Trunk {embedder.arguments['trunk']!r} cannot be written as ONNX: {text}. "
        "Export without it (--no-onnx), or choose another trunk."
    )


@contextmanager
def quiet() -> Iterator[None]:
    """Silence the exporter and the quantiser, which report on their own inner workings."""
    names = (None, "torch.onnx", "torch.export", "onnxscript", "onnx_ir", "torch.fx")  # None: the root
    levels = {name: logging.getLogger(name).level for name in names}
    try:
        for name in names:
            logging.getLogger(name).setLevel(logging.ERROR)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            yield
    finally:
        for name, level in levels.items():
            logging.getLogger(name).setLevel(level)
