"""Whether an engine gives the vectors of torch, and how fast it is: measured on first use and remembered.

The pictures are drawn here: clouds whose spectrum falls as that of photographs does, from soft to sharp, so that no
data set is needed. The result is kept in the cache folder under the model, the ONNX file, the engine, the versions and
the processor, and holds for exactly that.
"""

from __future__ import annotations

import hashlib
import json
import platform
import time
from dataclasses import asdict, dataclass
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray

from proxemics.__about__ import __version__
from proxemics.core.errors import ProxemicsError
from proxemics.core.files import read_json, write_json
from proxemics.data.preprocess import Preprocess
from proxemics.export.engines.base import Engine
from proxemics.models.packaged import cache_folder

TOLERANCE = 1e-4
"""An engine is exact when no value of a unit vector is further from torch's, and no length by more of itself."""
COUNT = 6


@dataclass(frozen=True)
class Proof:
    """What was measured of one engine on one model and one machine.

    Attributes:
        max_difference: the largest difference of a value of a unit vector, or of a length relative to it.
        min_cosine: the smallest cosine between an engine's vector and torch's.
        pictures_per_s: on one thread.
        reference_per_s: torch, float32, on one thread.
    """

    max_difference: float
    min_cosine: float
    pictures_per_s: float
    reference_per_s: float

    @property
    def exact(self) -> bool:
        """Whether the engine gives the vectors of torch."""
        return self.max_difference <= TOLERANCE


def proof_pictures(preprocess: Preprocess) -> NDArray[np.float32]:
    """Draw the pictures of the comparison, the same on every machine.

    Args:
        preprocess: of the model; its size and its normalisation are used.

    Returns:
        (6, 3, size, size) float32 in channels-last memory.

    Example:
        >>> proof_pictures(Preprocess(size=16, resize=16)).shape
        (6, 3, 16, 16)
    """
    side = preprocess.size
    generator = torch.Generator().manual_seed(0)
    falls = torch.linspace(1.5, 0.9, COUNT)[:, None, None, None]
    rows, columns = torch.fft.fftfreq(side)[:, None], torch.fft.rfftfreq(side)[None]
    frequency = (rows.square() + columns.square()).sqrt().clamp_min(0.5 / side)
    spectrum = torch.fft.rfft2(torch.randn(COUNT, 3, side, side, generator=generator)) / frequency**falls
    waves = torch.fft.irfft2(spectrum, s=(side, side))
    waves = 0.3 * waves + 0.7 * waves.mean(dim=1, keepdim=True)  # the colours of photographs go together
    scaled = waves / waves.std(dim=(1, 2, 3), keepdim=True) * 55 + 118
    levels = scaled.clamp(0, 255).round().to(torch.uint8)
    return preprocess.normalize(levels.contiguous(memory_format=torch.channels_last)).numpy()


def prove(engine: Engine, reference: Engine) -> Proof:
    """Compare an engine with torch, and time both.

    Args:
        engine: with one thread a call.
        reference: torch in float32 on the CPU, with one thread a call.
    """
    pixels = proof_pictures(engine.preprocess)
    unit, length = engine.encode(pixels)
    wanted, wanted_length = reference.encode(pixels)
    apart = float(np.abs(unit - wanted).max())
    relative = float((np.abs(length - wanted_length) / np.maximum(wanted_length, 1e-12)).max())
    cosine = np.sum(unit.astype(np.float64) * wanted, axis=1)
    worst = max(apart, relative)
    rate, reference_rate = _rates(engine, reference, pixels)
    return Proof(
        max_difference=worst if np.isfinite(worst) else float(np.finfo(np.float64).max),
        min_cosine=float(cosine.min()) if np.isfinite(cosine).all() else -1.0,
        pictures_per_s=round(rate, 2),
        reference_per_s=round(reference_rate, 2),
    )


def _rates(first: Engine, second: Engine, pixels: NDArray[np.float32], rounds: int = 3) -> tuple[float, float]:
    """Return pictures a second of each in its fastest round; they take turns, and both have been warmed up."""
    fastest = [float("inf"), float("inf")]
    for _ in range(rounds):
        for number, engine in enumerate((first, second)):
            start = time.perf_counter()
            engine.encode(pixels)
            fastest[number] = min(fastest[number], time.perf_counter() - start)
    return len(pixels) / max(fastest[0], 1e-9), len(pixels) / max(fastest[1], 1e-9)


def remembered(key: str) -> Proof | None:
    """Return an earlier proof, or None."""
    place = _place(key)
    if place is None or not place.is_file():
        return None
    try:
        found = read_json(place)
        return Proof(**{name: float(found[name]) for name in Proof.__dataclass_fields__})
    except (ProxemicsError, KeyError, TypeError, ValueError):
        return None


def remember(key: str, proof: Proof) -> None:
    """Keep a proof; where the cache folder cannot be written it is made anew each time."""
    place = _place(key)
    if place is None:
        return
    try:
        write_json(place, asdict(proof))
    except ProxemicsError:
        return


def proof_key(*parts: str) -> str:
    """Return the name of a proof: what it holds for, and this processor.

    Example:
        >>> len(proof_key("model", "onnxruntime 1.20")), proof_key("a") == proof_key("b")
        (32, False)
    """
    return hashlib.sha256(json.dumps([*parts, __version__, torch.__version__, _processor()]).encode()).hexdigest()[:32]


def _place(key: str) -> Path | None:
    folder = cache_folder()
    return None if folder is None else folder / "proofs" / f"{key}.json"


def _processor() -> str:
    """Return model and abilities of the processor."""
    try:
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines()
    except OSError:
        return platform.processor() or platform.machine()
    wanted = ("model name", "flags", "Features", "CPU part")
    return "\n".join(sorted({line for line in lines if line.partition("\t")[0].strip(": ") in wanted}))
