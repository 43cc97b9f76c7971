"""Open a model with the engine that was asked for, or with the fastest exact one that is there."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path

import torch

from proxemics.core.errors import ExportError, ProxemicsError, did_you_mean
from proxemics.export.engines.base import EngineFacts
from proxemics.export.engines.calls import ConcurrentEngine
from proxemics.export.engines.onnx_engine import OnnxEngine
from proxemics.export.engines.onnx_file import digest, find_onnx, int8_file, is_installed, onnx_file, package_version
from proxemics.export.engines.openvino_engine import OpenVinoEngine
from proxemics.export.engines.proof import COUNT, Proof, proof_key, prove, remember, remembered
from proxemics.export.engines.torch_engine import TorchEngine, usable_cores
from proxemics.models.embedder import Embedder
from proxemics.training.evaluate_run import open_model

ENGINES = ("auto", "torch", "onnxruntime", "openvino")
PRECISIONS = ("float32", "bf16", "int8")
FEW = 512
"""For fewer pictures torch is done before an ONNX file would be written."""
LOW_COSINE = 0.995
Notify = Callable[[str], None]


@dataclass(frozen=True)
class _Wish:
    model: Path
    embedder: Embedder
    precision: str
    threads: int
    calls: int
    notify: Notify


def open_engine(
    model: str | Path,
    *,
    engine: str = "auto",
    precision: str = "float32",
    threads: int | None = None,
    calls: int = 1,
    device: str = "auto",
    pictures: int | None = None,
    notify: Notify | None = None,
) -> ConcurrentEngine:
    """Open a run folder or a bundle for embedding.

    The first time that ONNX Runtime or OpenVINO runs a model on a machine, its vectors are compared with those of torch
    on a few pictures. An engine that is off by more than 1e-4 in float32 is refused, or, with ``auto``, passed over
    with one notice.

    Args:
        model: a run folder or a bundle folder.
        engine: ``torch``, ``onnxruntime``, ``openvino``, or ``auto``: on a GPU torch, else the faster of torch and ONNX
            Runtime; with precision bf16 OpenVINO if it is installed, else torch.
        precision: ``float32``, ``bf16``, or ``int8`` for a bundle that was exported with it.
        threads: of this process; None: all cores that it may use.
        calls: how many calls of ``encode`` will run at once; they share the threads.
        device: ``auto``, ``cpu``, ``cuda`` or ``mps``; all but torch run on the CPU.
        pictures: how many there will be, if known; for few of them no ONNX file is written.
        notify: hears of notices, one line each.

    Returns:
        The engine; ``facts.why`` says why it was picked.

    Raises:
        ExportError: no such engine or precision, a package is absent, or the engine is not exact.
        ProxemicsError: the folder holds no model.

    Example:
        >>> import tempfile
        >>> from proxemics.models.bundle import save_bundle
        >>> folder = Path(tempfile.mkdtemp()) / "bundle"
        >>> _ = save_bundle(Embedder("test_resnet", dim=8, weights="none", size=32), folder)
        >>> engine = open_engine(folder, engine="torch")
        >>> engine.facts.engine, engine.facts.dim, engine.facts.why
        ('torch', 8, 'asked for')
    """
    _check(engine, precision, threads, calls)
    place = _device(device)
    if place != "cpu" and engine not in ("auto", "torch"):
        if device != "auto":
            raise ExportError(f"The engine {engine} runs on the CPU, not on {place}; use --engine torch or device=cpu.")
        place = "cpu"
    folder = Path(model)
    cores = max(threads or usable_cores(), 1)
    wish = _Wish(folder, open_model(folder), precision, cores, min(calls, cores), notify or _silent)
    if engine == "auto":
        return _auto(wish, place, pictures)
    return _named(wish, engine, place, "asked for")


def _check(engine: str, precision: str, threads: int | None, calls: int) -> None:
    if engine not in ENGINES:
        raise ExportError(f"Unknown engine {engine!r}.{did_you_mean(engine, ENGINES)} Allowed: {', '.join(ENGINES)}.")
    if precision not in PRECISIONS:
        raise ExportError(
            f"Unknown precision {precision!r}.{did_you_mean(precision, PRECISIONS)} Allowed: {', '.join(PRECISIONS)}."
        )
    if engine == "onnxruntime" and precision == "bf16":
        raise ExportError("The engine onnxruntime has no bf16; use --engine openvino or --engine torch.")
    if precision == "int8" and engine not in ("auto", "onnxruntime"):
        raise ExportError(f"The engine {engine} has no int8; use --engine onnxruntime.")
    if (threads is not None and threads < 1) or calls < 1:
        raise ExportError(f"threads={threads} and calls={calls}: give numbers of at least 1.")


def _device(device: str) -> str:
    if device not in ("auto", "cpu", "cuda", "mps"):
        raise ExportError(f"Unknown device {device!r}. Allowed: auto, cpu, cuda, mps.")
    if device == "cuda" and not torch.cuda.is_available():
        raise ExportError("Device cuda was asked for, but this machine has none; use cpu or auto.")
    if device == "auto":
        return "cuda" if torch.cuda.is_available() else "cpu"
    return device


def _silent(_: str) -> None:
    return


def _auto(wish: _Wish, place: str, pictures: int | None) -> ConcurrentEngine:
    if wish.precision == "int8":
        return _named(wish, "onnxruntime", "cpu", "the one with int8")
    if place != "cpu":
        return _torch(wish, place).because(f"the model runs on {place}")
    if wish.precision == "bf16":
        if is_installed("openvino"):
            return _named(wish, "openvino", place, "the fastest with bf16")
        return _torch(wish, place).because("openvino is not installed")
    absent = [name for name in ("onnxruntime", "onnx", "onnxscript") if not is_installed(name)]
    ready = find_onnx(wish.model, wish.embedder) is not None
    if "onnxruntime" in absent or (absent and not ready):
        return _torch(wish, place).because(f"{absent[0]} is not installed")
    if not ready and pictures is not None and pictures < FEW:
        return _torch(wish, place).because(f"an ONNX file is not worth writing for so few pictures ({pictures})")
    return _faster(wish, place)


def _faster(wish: _Wish, place: str) -> ConcurrentEngine:
    """Take ONNX Runtime if it is exact and faster than torch."""
    try:
        found, proof = _proven(wish, "onnxruntime")
    except ProxemicsError as error:
        wish.notify(f"Notice: {error} The engine torch is used instead.")
        return _torch(wish, place).because("onnxruntime cannot run this model")
    rates = f"onnxruntime {proof.pictures_per_s:.0f}, torch {proof.reference_per_s:.0f} pictures/s on one thread"
    if not proof.exact:
        wish.notify(
            f"Notice: onnxruntime is off by {proof.max_difference:.1e} from torch with this model; torch is used "
            "instead."
        )
        return _torch(wish, place).because("onnxruntime is not exact with this model")
    if proof.pictures_per_s < proof.reference_per_s:
        return _torch(wish, place).because(f"the fastest exact one here: {rates}")
    found.facts = replace(found.facts, why=f"the fastest exact one here: {rates}")
    return found


def _named(wish: _Wish, engine: str, place: str, why: str) -> ConcurrentEngine:
    if engine == "torch":
        return _torch(wish, place).because(why)
    found, proof = _proven(wish, engine)
    if found.facts.precision == "float32" and not proof.exact:
        raise ExportError(
            f"The engine {engine} is off by {proof.max_difference:.1e} from torch with this model, more than 1e-4; use "
            "--engine torch."
        )
    note = why
    if found.facts.precision != wish.precision:
        wish.notify(f"Notice: {found.facts.why}, so {engine} computes in {found.facts.precision}.")
        note = f"{why}; {found.facts.why}"
    elif not found.facts.exact:
        note = f"{why}; cosine to float32 at least {proof.min_cosine:.5f} on {COUNT} test pictures"
        if proof.min_cosine < LOW_COSINE:
            wish.notify(f"Notice: {engine} {wish.precision}: the cosine to float32 falls to {proof.min_cosine:.4f}.")
    found.facts = replace(found.facts, why=note)
    return found


def _torch(wish: _Wish, place: str) -> TorchEngine:
    return TorchEngine(wish.embedder, precision=wish.precision, threads=wish.threads, calls=wish.calls, device=place)


def _proven(wish: _Wish, engine: str) -> tuple[ConcurrentEngine, Proof]:
    """Open an engine and compare it with torch, unless that was done before."""
    build = {"onnxruntime": OnnxEngine, "openvino": OpenVinoEngine}[engine]
    if not is_installed(engine):
        extra = "onnx" if engine == "onnxruntime" else "openvino"
        raise ExportError(
            f"The engine {engine} is not installed: pip install 'proxemics[{extra}]', or use --engine torch."
        )
    file = int8_file(wish.model) if wish.precision == "int8" else onnx_file(wish.model, wish.embedder)
    facts = EngineFacts(
        engine=engine,
        precision=wish.precision,
        exact=wish.precision == "float32",
        fingerprint=wish.embedder.fingerprint(),
        dim=wish.embedder.dim,
        threads=wish.threads,
        basis=digest(file),
    )
    found = build(file, wish.embedder.preprocess, facts, calls=wish.calls)
    key = proof_key(facts.fingerprint, facts.basis, engine, wish.precision, package_version(engine))
    proof = remembered(key)
    if proof is None:
        alone = build(file, wish.embedder.preprocess, replace(facts, threads=1), calls=1)
        proof = prove(alone, TorchEngine(wish.embedder, threads=1))
        remember(key, proof)
    return found, proof
