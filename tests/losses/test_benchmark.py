"""The loss benchmark runs from the command line and writes the result schema."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]


@pytest.mark.slow
@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="memory is read from /proc")
def test_losses_benchmark(tmp_path):
    pytest.importorskip("pytorch_metric_learning")
    command = [sys.executable, "benchmarks/losses.py", "--rounds", "2", "--classes", "50", "--losses", "norm_softmax"]
    subprocess.run([*command, "--out", str(tmp_path)], cwd=ROOT, check=True, capture_output=True)
    result = json.loads((tmp_path / "losses.json").read_text())
    assert result["schema"] == 1
    assert result["command"].startswith("python benchmarks/losses.py --rounds 2")
    assert set(result) == {"schema", "command", "commit", "versions", "machine", "rows"}
    (row,) = result["rows"]
    assert row["name"] == "loss_norm_softmax_180x512_c50"
    assert row["unit"] == "CPU s"
    assert row["ours"] > row["floor"] > 0
    assert row["peers"]["pytorch-metric-learning"] > 0
    assert row["peak_growth_mb"] > 0
