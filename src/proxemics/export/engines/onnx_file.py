"""The ONNX file of a model: the one in its bundle, or one that is written once into the cache folder."""

from __future__ import annotations

import hashlib
import tempfile
from importlib.metadata import PackageNotFoundError, version
from importlib.util import find_spec
from pathlib import Path

import torch

from proxemics.core.errors import ExportError
from proxemics.export.onnx import export_onnx
from proxemics.models.embedder import Embedder
from proxemics.models.packaged import cache_folder
from proxemics.runtime.layout import ONNX, check_file, read_about

FLOAT32, INT8 = ONNX["float32"], ONNX["int8"]


def find_onnx(model: Path, embedder: Embedder) -> Path | None:
    """Return the float32 ONNX file that is there already, or None.

    Args:
        model: a run folder or a bundle folder.
        embedder: its model.
    """
    exported = in_bundle(model, FLOAT32)
    if exported is not None:
        return exported
    cached = cached_path(embedder)
    return cached if cached is not None and cached.is_file() else None


def in_bundle(model: Path, name: str) -> Path | None:
    """Return a file of the bundle of a run folder or bundle folder, or None when it has none such."""
    for folder in (model / "bundle", model):
        if (folder / name).is_file():
            return folder / name
    return None


def int8_file(model: Path) -> Path:
    """Return the int8 ONNX file that `proxemics export` wrote.

    Raises:
        ExportError: there is none.
        ModelError: it is not the file that was exported.
    """
    found = in_bundle(model, INT8)
    if found is None:
        raise ExportError(
            f"{model} holds no {INT8}. int8 needs calibration pictures: write a bundle with `proxemics export` and "
            "embed with that."
        )
    _check(found, INT8)
    return found


def _check(file: Path, name: str) -> None:
    """Compare a file of a bundle with the hash in its ``model.json``."""
    folder = file.parents[1]
    check_file(folder, name, read_about(folder))


def cached_path(embedder: Embedder) -> Path | None:
    """Return where the cache keeps the ONNX file of a model; None without a cache folder.

    The name holds the fingerprint of the model, the side of its pictures and the version of torch that wrote the graph.
    """
    folder = cache_folder()
    if folder is None:
        return None
    parts = (embedder.fingerprint()[:32], f"{embedder.preprocess.size}px", f"torch{torch.__version__}")
    return folder / "onnx" / f"{'-'.join(parts)}.onnx"


def onnx_file(model: Path, embedder: Embedder) -> Path:
    """Return an ONNX file of a model, written now if there is none.

    Args:
        model: a run folder or a bundle folder; nothing is written there.
        embedder: its model.

    Raises:
        ExportError: the packages that write ONNX are absent, or the trunk cannot be written.
        ModelError: the file in the bundle is not the one that was exported.
    """
    found = find_onnx(model, embedder)
    if found is not None and found == in_bundle(model, FLOAT32):
        _check(found, FLOAT32)
    if found is not None:
        return found
    cached = cached_path(embedder)
    if cached is not None and _is_writable(cached.parent):
        return export_onnx(embedder, cached)
    # A read-only home costs the export at each start and nothing else.
    return export_onnx(embedder, Path(tempfile.mkdtemp(prefix="proxemics-")) / "model.onnx")


def _is_writable(folder: Path) -> bool:
    try:
        folder.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryFile(dir=folder):
            return True
    except OSError:
        return False


def digest(file: Path) -> str:
    """Return the SHA-256 of a file."""
    found = hashlib.sha256()
    with file.open("rb") as stream:
        while block := stream.read(1 << 20):
            found.update(block)
    return found.hexdigest()


def is_installed(package: str) -> bool:
    """Whether a package can be imported, without importing it.

    Example:
        >>> is_installed("json"), is_installed("no_such_package")
        (True, False)
    """
    return find_spec(package) is not None


def package_version(package: str) -> str:
    """Return the version of an installed package, or an empty text."""
    try:
        return version(package)
    except PackageNotFoundError:
        return ""
