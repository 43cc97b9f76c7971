"""A finished run of seconds, whose lengths were trained, and its whole export."""

from __future__ import annotations

from pathlib import Path
from typing import NamedTuple

import pytest
import torch

from proxemics.core.config import make_config
from proxemics.core.files import write_json
from proxemics.export.write import export
from proxemics.training.pipeline import fit
from proxemics.training.probe_run import probe


class Exported(NamedTuple):
    """A run, the bundle that was exported from it, and what ``export`` returned."""

    run: Path
    bundle: Path
    written: dict


@pytest.fixture(scope="session")
def run(tiny_folder: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Tests that change it copy it first."""
    torch.set_num_threads(1)
    settings = [
        f"data.source={tiny_folder}", "data.size=32", "data.workers=0", "model.trunk=test_resnet.r160_in1k",
        "model.weights=none", "model.dim=16", "model.freeze_bn=false", "train.epochs=2", "train.batch_size=8",
        "train.per_class=2", "train.tensorboard=false", "evaluation.bootstrap=20", "evaluation.recall_at=[1, 2]",
        "methods.probabilistic={}",
    ]  # fmt: skip
    folder = tmp_path_factory.mktemp("export") / "run"
    fit(make_config({}, settings), folder)
    write_json(folder / "probe.json", probe(folder, only=["geometry"], untrained=False))
    return folder


@pytest.fixture(scope="session")
def exported(run: Path) -> Exported:
    """Tests that change it copy it first."""
    bundle = run.parent / "bundle"
    return Exported(run, bundle, export(run, bundle, licence="Apache-2.0"))
