"""The ONNX files of an export: written, compared with torch, and measured on pictures."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from importlib.metadata import version
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from proxemics.core.errors import ConfigError, ExportError, did_you_mean
from proxemics.export.onnx import export_onnx
from proxemics.export.parity import (
    BATCHES,
    TOLERANCE,
    Encode,
    compare,
    measure_drift,
    onnx_encoder,
    parity_pixels,
    torch_encoder,
)
from proxemics.export.quantize import quantize_onnx
from proxemics.export.sample import Pictures, pixel_batches
from proxemics.models.embedder import Embedder
from proxemics.runtime.layout import ONNX
from proxemics.training.log import Reporter

SCHEMA = 1
_NO_BF16 = "ONNX Runtime has no bf16 convolutions on a CPU; float16 halves the file in the same way"
_ALIASES = {"fp32": "float32", "fp16": "float16", "half": "float16"}


@dataclass(frozen=True)
class Precisions:
    """Which ONNX files to write.

    Attributes:
        wanted: keys of :data:`proxemics.runtime.layout.ONNX`, float32 first.
        left_out: precision to the reason why it is not written.
        required: stop if one of these cannot be written; others are left out then.
    """

    wanted: tuple[str, ...]
    left_out: dict[str, str]
    required: tuple[str, ...] = ("float32",)


def choose_precisions(asked: Sequence[str] | None, pictures: Pictures) -> Precisions:
    """Settle which precisions are written; float32 always is, because the others are made from it.

    Args:
        asked: names, or None for all that can be written.
        pictures: int8 needs some to calibrate on.

    Raises:
        ConfigError: a name is unknown, does not run, or int8 was asked for without pictures.
    """
    calibrated = pictures.calibration is not None and len(pictures.calibration) > 0
    if asked is None:
        if calibrated:
            return Precisions(tuple(ONNX), {})
        wanted = tuple(name for name in ONNX if name != "int8")
        return Precisions(wanted, {"int8": f"it needs pictures to calibrate on ({pictures.said})"})
    names = [_ALIASES.get(name, name) for name in asked]
    for name in names:
        if name in ("bf16", "bfloat16"):
            raise ConfigError(f"precision {name}: {_NO_BF16}. Use --precision float32,float16.")
        if name not in ONNX:
            raise ConfigError(f"Unknown precision {name!r}.{did_you_mean(name, ONNX)} Allowed: {', '.join(ONNX)}.")
    if "int8" in names and not calibrated:
        raise ConfigError(f"int8 needs pictures to calibrate on, but {pictures.said}. Or leave int8 out.")
    wanted = tuple(name for name in ONNX if name == "float32" or name in names)
    return Precisions(wanted, {}, required=wanted)


def write_variants(
    embedder: Embedder, folder: Path, precisions: Precisions, pictures: Pictures, reporter: Reporter
) -> dict[str, Any]:
    """Write the ONNX files into a new bundle and measure them.

    Args:
        embedder: the model, on the CPU.
        folder: of the bundle.
        precisions: what to write.
        pictures: to calibrate on, to compare and to measure with.
        reporter: hears of progress.

    Returns:
        The content of ``parity.json``: ``reference, runtime, batches, compared_on``; ``variants`` (``precision, file,
        bytes, parity``, one row a batch size, and ``drift`` or None); ``drift`` (what was measured, or None),
        ``without`` (why not, or empty) and ``left_out``.

    Raises:
        ExportError: a file cannot be written or run, or float32 is further than 1e-4 from torch.
    """
    reference = torch_encoder(embedder)
    pixels, compared_on = parity_pixels(pictures, embedder.preprocess)
    variants: list[dict[str, Any]] = []
    encoders: dict[str, Encode] = {}
    left_out = dict(precisions.left_out)
    reporter.start("onnx", len(precisions.wanted))
    for name in precisions.wanted:
        try:
            encode, found = _write(name, embedder, folder, pictures, reference, pixels)
        except ExportError as error:
            if name in precisions.required:
                raise ExportError(f"{name}: {error}") from error
            (folder / ONNX[name]).unlink(missing_ok=True)
            left_out[name] = str(error).rstrip(".")
        else:
            encoders[name] = encode
            size = (folder / ONNX[name]).stat().st_size
            variants.append({"precision": name, "file": ONNX[name], "bytes": size, "parity": found, "drift": None})
        reporter.advance("onnx")
    reporter.finish("onnx")
    about = None
    if pictures.tested is not None:
        about, drifts = measure_drift(reference, encoders, pictures, embedder.preprocess, reporter)
        about["calibration_pictures"] = 0 if pictures.calibration is None else len(pictures.calibration)
        for one in variants:
            one["drift"] = drifts[one["precision"]]
    return {
        "schema": SCHEMA,
        "reference": f"torch {torch.__version__.partition('+')[0]} (float32, CPU)",
        "runtime": f"ONNX Runtime {version('onnxruntime')} (CPU, {torch.backends.cpu.get_cpu_capability()})",
        "batches": list(BATCHES),
        "compared_on": compared_on,
        "variants": variants,
        "drift": about,
        "without": "" if about is not None else pictures.said,
        "left_out": {**left_out, "bfloat16": _NO_BF16},
    }


def without_onnx() -> dict[str, Any]:
    """Return the content of ``parity.json`` of an export that was asked for no ONNX."""
    return {"schema": SCHEMA, "variants": [], "drift": None, "without": "it was left out (--no-onnx)", "left_out": {}}


def _write(
    name: str, embedder: Embedder, folder: Path, pictures: Pictures, reference: Encode, pixels: NDArray[np.float32]
) -> tuple[Encode, list[dict[str, float]]]:
    """Write one file; return it as an encoder, and how it compares with torch."""
    path = folder / ONNX[name]
    if name == "int8":
        if pictures.calibration is None:
            raise ExportError("it needs pictures to calibrate on.")
        size, rows = pictures.max_pixels, pictures.calibration
        quantize_onnx(folder / ONNX["float32"], path, pixel_batches(rows, embedder.preprocess, max_pixels=size))
    else:
        export_onnx(embedder, path, half=name == "float16")
    encode = onnx_encoder(path.read_bytes(), ONNX[name])
    found = compare(reference, encode, pixels)
    check_parity(name, found)
    return encode, found


def check_parity(name: str, found: Sequence[dict[str, float]]) -> None:
    """Refuse a float32 file that does not give the vectors of torch; the other precisions are measured only.

    Args:
        name: the precision.
        found: from :func:`proxemics.export.parity.compare`.

    Raises:
        ExportError: a value is more than 1e-4 off.
    """
    apart = max(max(row["max_difference"], row["max_length_difference"]) for row in found)
    if name == "float32" and apart > TOLERANCE:
        raise ExportError(
            f"The ONNX file is {apart:.1e} away from torch, more than {TOLERANCE:g}; nothing was written. Export "
            "without it (--no-onnx), and please report the trunk."
        )
