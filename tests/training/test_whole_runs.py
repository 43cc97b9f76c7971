"""Whole runs of every method: switched off they are the base run bit for bit, and nothing of them is in the bundle."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file
from torch.utils.flop_counter import FlopCounterMode

from proxemics.core.config import make_config
from proxemics.models.bundle import load_bundle
from proxemics.training.pipeline import fit

sys.path.insert(0, str(Path(__file__).parent))
from test_methods import OFF, ON


def train(photos: Path, folder: Path, methods: dict[str, Any]) -> Path:
    settings = [
        f"data.source={photos}", "data.size=32", "data.workers=0", "model.trunk=test_resnet.r160_in1k",
        "model.weights=none", "model.dim=16", "train.epochs=5", "train.batch_size=8", "train.per_class=2",
        "train.tensorboard=false", "train.device=cpu", "evaluation.bootstrap=0", "evaluation.recall_at=[1]",
        "optim.warmup_epochs=0", f"methods={json.dumps(methods)}",
    ]  # fmt: skip
    fit(make_config({}, settings), folder)
    return folder


def losses(run: Path) -> list[float]:
    records = [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]
    return [record["terms"]["base"] for record in records if "terms" in record]


def flops(run: Path) -> int:
    counter = FlopCounterMode(display=False)
    with counter, torch.no_grad():
        load_bundle(run / "bundle")(torch.zeros(2, 3, 32, 32))
    return int(counter.get_total_flops())


@pytest.fixture(scope="module")
def base(tiny_folder: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    torch.set_num_threads(1)
    return train(tiny_folder, tmp_path_factory.mktemp("whole") / "base", {})


@pytest.mark.parametrize("name", OFF)
def test_with_all_weights_at_zero_the_run_is_the_base_run(
    name: str, base: Path, tiny_folder: Path, tmp_path: Path
) -> None:
    off = train(tiny_folder, tmp_path / "off", {name: OFF[name]})
    one, other = (load_file(run / "bundle" / "model.safetensors") for run in (base, off))
    assert set(one) == set(other)
    assert all(torch.equal(one[key], other[key]) for key in one)
    assert losses(base) == losses(off)
    assert len(losses(base)) > 12  # the dictionary of ODBA is there from the eleventh step on


@pytest.mark.parametrize("name", ON)
def test_nothing_of_a_method_is_in_the_bundle(name: str, base: Path, tiny_folder: Path, tmp_path: Path) -> None:
    options = {**ON[name], **({"layer": "stage2"} if name == "msrci" else {})}
    run = train(tiny_folder, tmp_path / "on", {name: options})
    assert losses(run) != losses(base), "the method did nothing"
    one, other = (load_file(folder / "bundle" / "model.safetensors") for folder in (base, run))
    assert {key: value.shape for key, value in one.items()} == {key: value.shape for key, value in other.items()}
    assert flops(run) == flops(base) > 0
    names = {path.name for path in (base / "bundle").iterdir()}
    assert {path.name for path in (run / "bundle").iterdir()} == names
