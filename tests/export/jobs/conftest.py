"""A small model, a few pictures in class folders, and a cache folder of their own."""

from __future__ import annotations

import tarfile
import zipfile
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from proxemics.models.bundle import save_bundle
from proxemics.models.embedder import Embedder


@pytest.fixture(scope="session")
def bundle(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("jobs") / "bundle"
    return save_bundle(Embedder("test_resnet", dim=8, weights="none", size=32), folder)


@pytest.fixture
def photos(tmp_path: Path) -> Path:
    """Three classes of seven pictures, JPEG and PNG, with what operating systems leave behind."""
    root = tmp_path / "photos"
    generator = np.random.default_rng(0)
    for name in ("ant", "bée", "cat"):
        (root / name).mkdir(parents=True)
        for number in range(7):
            pixels = generator.integers(0, 255, (40 + number, 50, 3)).astype(np.uint8)
            Image.fromarray(pixels).save(root / name / f"{number}.{'jpg' if number % 2 else 'png'}", quality=90)
    (root / "cat" / ".hidden.jpg").write_bytes(b"x")
    (root / "cat" / "Thumbs.db").write_bytes(b"x")
    (root / "cat" / "notes.txt").write_text("no picture")
    return root


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PROXEMICS_CACHE", str(tmp_path / "cache"))


def _pack(folder: Path, kind: str, *, around: bool = False) -> Path:
    """Pack a folder; ``around`` keeps its own name as the first level."""
    archive = folder.with_name(f"{folder.name}.{kind}")
    files = sorted(path for path in folder.rglob("*") if path.is_file())
    base = folder.parent if around else folder
    if kind == "zip":
        with zipfile.ZipFile(archive, "w", zipfile.ZIP_DEFLATED) as zipped:
            for file in files:
                zipped.write(file, file.relative_to(base))
    else:
        with tarfile.open(archive, f"w:{kind.partition('.')[2]}") as tarred:
            for file in files:
                tarred.add(file, str(file.relative_to(base)))
    return archive


@pytest.fixture
def pack() -> Callable[..., Path]:
    """The function that packs a folder, as `pack(folder, "tar.gz", around=True)`."""
    return _pack
