"""Shared fixtures and command-line options."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image

sys.path.insert(0, str(Path(__file__).parent / "warm"))
from warm_processes import Warm

os.environ.setdefault("GRPC_VERBOSITY", "ERROR")  # or gRPC (of Ray or Milvus) writes on stderr when a test forks

SHARED_DATA = Path(__file__).resolve().parents[2] / "shared" / "data"


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--slow", action="store_true", help="also run the tests marked slow")


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    reasons = []
    if not config.getoption("--slow"):
        reasons.append(("slow", "slow; run with --slow"))
    if not torch.cuda.is_available():
        reasons.append(("gpu", "no GPU on this machine"))
    if not (SHARED_DATA / "index.csv").exists():
        reasons.append(("data", "the real pictures (../shared/data) are not on this machine"))
    for item in items:
        for marker, reason in reasons:
            if item.get_closest_marker(marker) is not None:
                item.add_marker(pytest.mark.skip(reason=reason))


@pytest.fixture(scope="session")
def shared_data() -> Path:
    """The folder of real pictures; use together with ``@pytest.mark.data``."""
    return SHARED_DATA


@pytest.fixture(scope="session")
def warm() -> Iterator[Warm]:
    """Starts processes that need not import torch again, for tests that are about something else."""
    if not hasattr(os, "fork"):
        pytest.skip("no fork on this system")
    server = Warm()
    yield server
    server.close()


@pytest.fixture(scope="session")
def tiny_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Twelve classes of eight 40-pixel pictures: a class-specific colour and stripe pattern under noise."""
    root = tmp_path_factory.mktemp("tiny") / "photos"
    generator = np.random.default_rng(0)
    for number in range(12):
        folder = root / f"class é{number:02d}"
        folder.mkdir(parents=True)
        colour = generator.uniform(60, 200, 3)
        for picture in range(8):
            rows = np.arange(40)[:, None] + generator.integers(40)
            stripes = np.sin(rows * (0.2 + 0.1 * number))[..., None] * 40
            pixels = colour + stripes + generator.normal(0, 15, (40, 40, 3))
            Image.fromarray(pixels.clip(0, 255).astype(np.uint8)).save(folder / f"{picture}.png")
    return root


@pytest.fixture
def tiny_settings(tiny_folder: Path) -> list[str]:
    """Assignments for a run of seconds: a small random trunk on small pictures."""
    return [
        f"data.source={tiny_folder}",
        "data.size=32",
        "data.workers=0",
        "model.trunk=test_resnet.r160_in1k",
        "model.weights=none",
        "model.dim=16",
        "model.freeze_bn=false",
        "train.epochs=3",
        "train.batch_size=8",
        "train.per_class=2",
        "train.checkpoint_steps=1",
        "train.tensorboard=false",
        "evaluation.bootstrap=50",
        "evaluation.recall_at=[1, 2]",
    ]
