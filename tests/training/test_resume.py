"""Kill -9 and go on: the same final weights, bit for bit (user-pains 32, 38; scenario K3)."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from safetensors.torch import load_file

ENVIRONMENT = {**os.environ, "OMP_NUM_THREADS": "1", "MKL_NUM_THREADS": "1"}


def train_line(settings: list[str], out: Path) -> list[str]:
    sets = [part for one in settings for part in ("--set", one)]
    return [sys.executable, "-m", "proxemics", "train", "--quiet", "--no-report", "--out", str(out), *sets]


def kill_after(line: list[str], log: Path, records: int) -> bool:
    """Start a run and kill it once its log holds so many records; say whether it was killed before it ended."""
    process = subprocess.Popen(line, env=ENVIRONMENT, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE)
    while process.poll() is None:
        if log.exists() and log.read_bytes().count(b"\n") >= records:
            process.send_signal(signal.SIGKILL)
            process.wait()
            return True
        time.sleep(0.005)
    return False


@pytest.fixture(scope="module")
def slow_settings(tiny_folder: Path) -> list[str]:
    return [
        f"data.source={tiny_folder}", "data.size=32", "data.workers=0", "model.trunk=test_resnet.r160_in1k",
        "model.weights=none", "model.dim=16", "model.freeze_bn=false", "train.epochs=4", "train.batch_size=8",
        "train.per_class=2", "train.checkpoint_steps=1", "train.tensorboard=false", "train.ema=0.9",
        "evaluation.bootstrap=0", "evaluation.recall_at=[1, 2]",
    ]  # fmt: skip


def test_killed_in_and_after_the_warm_up_ends_with_the_same_weights(slow_settings: list[str], tmp_path: Path) -> None:
    whole = tmp_path / "whole"
    subprocess.run(train_line(slow_settings, whole), env=ENVIRONMENT, check=True)
    broken = tmp_path / "broken"
    killed = [kill_after(train_line(slow_settings, broken), broken / "metrics.jsonl", records) for records in (2, 9)]
    assert killed == [True, True]
    subprocess.run(train_line(slow_settings, broken), env=ENVIRONMENT, check=True)
    for name in ("bundle/model.safetensors", "checkpoint/best.safetensors"):
        first, second = load_file(whole / name), load_file(broken / name)
        assert set(first) == set(second)
        assert all(first[key].equal(second[key]) for key in first), name
    latest = [next((run / "checkpoint").glob("step-*.safetensors")) for run in (whole, broken)]
    assert latest[0].name == latest[1].name
    first, second = load_file(latest[0]), load_file(latest[1])
    assert set(first) == set(second)
    assert all(first[key].equal(second[key]) for key in first)
    lines = (broken / "metrics.jsonl").read_text().splitlines()
    assert len(lines) == len((whole / "metrics.jsonl").read_text().splitlines())
