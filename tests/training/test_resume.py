"""Kill -9 and go on: the same final weights, bit for bit (user-pains 32, 38; scenario K3)."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from pathlib import Path

import pytest
from safetensors.torch import load_file
from warm_processes import ONE_THREAD, Warm


def train_line(settings: list[str], out: Path) -> list[str]:
    sets = [part for one in settings for part in ("--set", one)]
    return ["-m", "proxemics", "train", "--quiet", "--no-report", "--out", str(out), *sets]


def finish(warm: Warm, line: list[str]) -> None:
    done = warm.run(line)
    assert done.returncode == 0, done.stderr[-2000:]


def kill_after(warm: Warm, line: list[str], log: Path, records: int) -> bool:
    """Start a run and kill it once its log holds so many records; say whether it was killed before it ended."""
    process = warm.start(line)
    while process.poll() is None:
        if log.exists() and log.read_bytes().count(b"\n") >= records:
            process.kill()
            return process.wait() < 0
        time.sleep(0.005)
    return False


@pytest.fixture(scope="module")
def slow_settings(tiny_folder: Path) -> list[str]:
    return [
        f"data.source={tiny_folder}", "data.size=32", "data.workers=0", "model.trunk=test_resnet.r160_in1k",
        "model.weights=none", "model.dim=16", "model.freeze_bn=false", "train.epochs=3", "train.batch_size=8",
        "train.per_class=2", "train.checkpoint_steps=1", "train.tensorboard=false", "train.ema=0.9",
        "evaluation.bootstrap=0", "evaluation.recall_at=[1, 2]",
    ]  # fmt: skip


def same_after_kills(
    warm: Warm, settings: list[str], tmp_path: Path, kills: tuple[int, ...], *, fresh: bool = False
) -> None:
    """Run once in one go and once killed after so many records; both must end alike, down to the last buffer.

    Warm processes share a seed of ``hash``; when fresh, the run in one go has another.
    """
    whole = tmp_path / "whole"
    if fresh:
        environment = {**os.environ, **ONE_THREAD, "PYTHONHASHSEED": "1"}
        subprocess.run([sys.executable, *train_line(settings, whole)], env=environment, check=True)
    else:
        finish(warm, train_line(settings, whole))
    broken = tmp_path / "broken"
    killed = [kill_after(warm, train_line(settings, broken), broken / "metrics.jsonl", records) for records in kills]
    assert killed == [True] * len(kills)
    finish(warm, train_line(settings, broken))
    for name in ("bundle/model.safetensors", "checkpoint/best.safetensors"):
        first, second = load_file(whole / name), load_file(broken / name)
        assert set(first) == set(second)
        assert all(first[key].equal(second[key]) for key in first), name
    latest = [next((run / "checkpoint").glob("step-*.safetensors")) for run in (whole, broken)]
    assert latest[0].name == latest[1].name
    first, second = load_file(latest[0]), load_file(latest[1])
    assert set(first) == set(second)
    assert [key for key in first if not first[key].equal(second[key])] == []
    lines = (broken / "metrics.jsonl").read_text().splitlines()
    assert len(lines) == len((whole / "metrics.jsonl").read_text().splitlines())


def test_killed_in_and_after_the_warm_up_ends_with_the_same_weights(
    warm: Warm, slow_settings: list[str], tmp_path: Path
) -> None:
    same_after_kills(warm, slow_settings, tmp_path, (2, 15), fresh=True)  # an epoch, here the warm-up, has 12 steps


METHODS = {
    "see": "methods.see={num_synthetic: 4, rho_min: 0.4}",
    "probabilistic": "methods.probabilistic={temperature: 0.1}",
    "odba": "methods.odba={atoms: 8}",
    "odba_exchange": "methods.odba={atoms: 8, estimator: exchange}",
    "msrci": "methods.msrci={lambda_a: 0.5}",
    "couce": "methods.couce={odba: {atoms: 8}}",
    "center_polar": "methods.center_polar={refresh_epochs: 2}",
    "center_polar_style": "methods.center_polar={expander: style}",
    "expansion_equalisation": "methods.expansion_equalisation={}",
}
TOGETHER = ("see", "probabilistic", "couce", "center_polar")


def test_all_methods_together_survive_kills(warm: Warm, slow_settings: list[str], tmp_path: Path) -> None:
    settings = [*slow_settings, "model.freeze_bn=true", *(METHODS[name] for name in TOGETHER)]
    same_after_kills(warm, settings, tmp_path, (7, 13))


@pytest.mark.slow
@pytest.mark.parametrize("name", METHODS)
def test_every_method_survives_kills(warm: Warm, name: str, slow_settings: list[str], tmp_path: Path) -> None:
    same_after_kills(warm, [*slow_settings, "model.freeze_bn=true", METHODS[name]], tmp_path, (5, 13))


def test_a_run_on_stored_features_survives_kills(warm: Warm, slow_settings: list[str], tmp_path: Path) -> None:
    settings = [*slow_settings, "model.freeze_bn=true", "model.freeze_stages=3", "data.cache=features", "data.views=2"]
    same_after_kills(warm, settings, tmp_path, (3,))
