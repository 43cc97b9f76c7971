"""The benchmark of the methods runs from the command line and writes the result schema."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]


@pytest.mark.slow
@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="memory is read from /proc")
def test_methods_benchmark(tmp_path: Path) -> None:
    command = [sys.executable, "benchmarks/methods.py", "--rounds", "1", "--only", "see_180x128_n2", "sample"]
    subprocess.run([*command, "--out", str(tmp_path)], cwd=ROOT, check=True, capture_output=True)
    result = json.loads((tmp_path / "methods.json").read_text())
    assert result["schema"] == 1
    assert [row["name"] for row in result["rows"]] == ["sample_vmf_640x512", "see_180x128_n2"]
    for row in result["rows"]:
        assert row["unit"] == "CPU s"
        assert row["ours"] > 0
    assert result["rows"][1]["floor"] > 0
    assert result["rows"][1]["peers"]["qr"] > 0
