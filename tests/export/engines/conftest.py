"""A small model in a bundle, and a cache folder of its own."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from proxemics.core.files import read_json, write_json
from proxemics.export.engines.base import EngineFacts
from proxemics.export.engines.open import open_engine
from proxemics.models.bundle import load_bundle, save_bundle
from proxemics.models.embedder import Embedder
from proxemics.runtime.layout import file_sha256

Recorded = Callable[[Path], Path]


@pytest.fixture(scope="module")
def bundle(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("engines") / "bundle"
    save_bundle(Embedder("test_efficientnet", dim=8, weights="none", size=32), folder)
    return folder


@pytest.fixture(scope="module")
def first_opening(bundle: Path, tmp_path_factory: pytest.TempPathFactory) -> tuple[EngineFacts, Path]:
    """What `auto` took for many pictures, and the cache folder that it filled; the exporter takes seconds."""
    folder = tmp_path_factory.mktemp("filled")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("PROXEMICS_CACHE", str(folder))
        return open_engine(bundle, pictures=10_000).facts, folder


@pytest.fixture(scope="module")
def onnx_bytes(first_opening: tuple[EngineFacts, Path]) -> bytes:
    """The ONNX file of that bundle."""
    (file,) = (first_opening[1] / "onnx").iterdir()
    return file.read_bytes()


@pytest.fixture
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    folder = tmp_path / "cache"
    monkeypatch.setenv("PROXEMICS_CACHE", str(folder))
    return folder


@pytest.fixture
def with_onnx(bundle: Path, onnx_bytes: bytes, cache: Path, tmp_path: Path, recorded: Recorded) -> Path:
    """The bundle with its ONNX file in it."""
    folder = tmp_path / "with_onnx"
    save_bundle(load_bundle(bundle), folder)
    (folder / "onnx").mkdir()
    (folder / "onnx" / "model.onnx").write_bytes(onnx_bytes)
    return recorded(folder)


@pytest.fixture
def recorded() -> Recorded:
    """A function that records the ONNX files of a bundle in it."""
    return _record


def _record(folder: Path) -> Path:
    """Record the hashes of the ONNX files of a bundle, as an export does."""
    about = read_json(folder / "model.json")
    about["files"].update({f"onnx/{file.name}": file_sha256(file) for file in (folder / "onnx").iterdir()})
    write_json(folder / "model.json", about)
    return folder
