"""A model and pictures of many classes; nothing is trained, the files are those of a run."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image

from proxemics.core.config import make_config, save_config
from proxemics.data.sources import load_table
from proxemics.data.splits import save_split
from proxemics.models.bundle import save_bundle
from proxemics.models.embedder import Embedder


@pytest.fixture(scope="session")
def many_classes(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Thirty-six classes of seven 32-pixel pictures, each class a colour and a grating under noise."""
    root = tmp_path_factory.mktemp("many") / "pictures"
    generator = np.random.default_rng(7)
    for number in range(36):
        folder = root / f"class{number:02d}"
        folder.mkdir(parents=True)
        colour, pitch = generator.uniform(30, 220, 3), generator.uniform(0.2, 1.5, 2)
        for picture in range(7):
            x, y = np.meshgrid(np.arange(32), np.arange(32))
            wave = 50 * np.sin(pitch[0] * x + pitch[1] * y + generator.uniform(0, 6))
            pixels = colour + wave[..., None] + generator.normal(0, 12, (32, 32, 3))
            Image.fromarray(pixels.clip(0, 255).astype(np.uint8)).save(folder / f"{picture}.png")
    return root


@pytest.fixture(scope="session")
def model() -> Embedder:
    torch.manual_seed(0)
    return Embedder("test_resnet", dim=12, weights="none", size=32)


@pytest.fixture
def bundle(tmp_path: Path, model: Embedder) -> Path:
    return save_bundle(model, tmp_path / "bundle")


@pytest.fixture
def run_folder(tmp_path: Path, model: Embedder, many_classes: Path) -> Path:
    """What calibration reads of a run: twelve training, fourteen validation and ten test classes."""
    folder = tmp_path / "run"
    frame = load_table(many_classes)
    code = frame["label"].str[-2:].astype(int)
    frame["split"] = np.select([code < 12, code < 26], ["train", "val"], "test")
    save_bundle(model, folder / "bundle", labels=sorted(set(frame.loc[code < 12, "label"])))
    save_config(make_config({"data": {"source": str(many_classes), "workers": 0}}), folder / "config.yaml")
    save_split(frame, folder / "split.parquet")
    return folder
