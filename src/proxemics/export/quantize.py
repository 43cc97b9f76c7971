"""From a float32 ONNX file to int8: static quantisation with calibration pictures.

ONNX Runtime measures the range of every activation on the calibration pictures and writes it into the graph as pairs of
quantise and dequantise nodes (QDQ): uint8 activations, int8 weights with one scale a channel, ranges from smallest to
largest. Weights use 7 of the 8 bits: processors without int8 dot products (VNNI and its relatives) add pairs of
products in 16 bits, and there 255 x 64 x 2 is the most that fits, so that every processor gives the same sums. What
stands behind the last convolution or matrix product of the trunk, which is pooling, head and normalisation, stays in
float32.
"""

from __future__ import annotations

import tempfile
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from proxemics.core.errors import ExportError
from proxemics.export.onnx import INPUT, OUTPUTS, import_onnx, quiet, write_graph

_PRODUCTS = ("Conv", "Gemm", "MatMul")


def quantize_onnx(source: Path, target: Path, batches: Iterable[NDArray[np.float32]]) -> Path:
    """Write an int8 version of a float32 ONNX file.

    Args:
        source: written by :func:`proxemics.export.onnx.export_onnx`.
        target: the file to write; it is replaced atomically.
        batches: prepared calibration pictures, (b, 3, size, size) each.

    Returns:
        The target.

    Raises:
        ExportError: onnx or onnxruntime are not installed, or the graph cannot be quantised.
    """
    onnx = import_onnx()
    try:
        from onnxruntime.quantization import QuantFormat, QuantType, quantize_static
        from onnxruntime.quantization.shape_inference import quant_pre_process
    except ImportError as error:
        raise ExportError(f"Writing int8 needs the package {error.name}: pip install 'proxemics[onnx]'.") from error
    with tempfile.TemporaryDirectory(prefix="proxemics-") as work, quiet():
        ready, written = Path(work) / "ready.onnx", Path(work) / "int8.onnx"
        try:
            quant_pre_process(str(source), str(ready), skip_symbolic_shape=True)
            quantize_static(
                str(ready),
                str(written),
                _reader(batches),
                quant_format=QuantFormat.QDQ,
                activation_type=QuantType.QUInt8,
                weight_type=QuantType.QInt8,
                per_channel=True,
                reduce_range=True,  # 7 bits, see above
                nodes_to_exclude=tail_nodes(onnx.load(ready)),
            )
        except ExportError:
            raise
        except Exception as error:  # the quantiser raises what a graph leads it to
            reason = " ".join(str(error).split())[:200]
            raise ExportError(
                f"The model cannot be written as int8: {reason}. Leave int8 out of --precision."
            ) from error
        return write_graph(onnx.load(written), target)


def tail_nodes(model: Any) -> list[str]:
    """Return the names of the nodes behind the trunk: normalisation, head and pooling.

    Args:
        model: an ``onnx.ModelProto`` whose outputs are those of :func:`proxemics.export.onnx.export_onnx`.

    Returns:
        Sorted names, found from the outputs back to the last product or sum of the trunk.
    """
    producer = {name: node for node in model.graph.node for name in node.output}
    waiting, found, passed_head = list(OUTPUTS), set(), False
    while waiting:
        node = producer.get(waiting.pop(0))
        if node is None or node.name in found:
            continue
        if node.op_type == "Gemm" and not passed_head:
            passed_head = True
        elif node.op_type in _PRODUCTS or (node.op_type == "Add" and not _sums_pools(node, producer)):
            continue
        found.add(node.name)
        waiting += list(node.input)
    return sorted(found)


def _sums_pools(node: Any, producer: Mapping[str, Any]) -> bool:
    """Whether an Add is that of mean and maximum pooling, and not one of the trunk."""
    return all(name in producer and producer[name].op_type.startswith("Reduce") for name in node.input)


def _reader(batches: Iterable[NDArray[np.float32]]) -> Any:
    from onnxruntime.quantization import CalibrationDataReader

    class Reader(CalibrationDataReader):  # type: ignore[misc]  # onnxruntime has no types
        def __init__(self) -> None:
            self.batches: Iterator[NDArray[np.float32]] = iter(batches)

        def get_next(self) -> dict[str, NDArray[np.float32]] | None:
            pixels = next(self.batches, None)
            return None if pixels is None else {INPUT: np.ascontiguousarray(pixels)}

    return Reader()
