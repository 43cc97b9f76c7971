"""The bundle that benchmarks/embed.py measures opens in every engine."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
PROGRAM = """
import sys
from pathlib import Path
sys.path.insert(0, sys.argv[1])
import embed
embed.build(Path(sys.argv[2]), Path(sys.argv[3]))
for engine, precision in embed.WANTED.values():
    embed.open_engine(Path(sys.argv[2]), engine=engine, precision=precision, threads=1, device="cpu")
    print(engine, precision)
"""


@pytest.mark.slow
@pytest.mark.data
def test_its_bundle_opens_in_every_engine(shared_data: Path, tmp_path: Path) -> None:
    for needed in ("onnxruntime", "onnxscript", "openvino"):
        pytest.importorskip(needed)
    command = [sys.executable, "-c", PROGRAM, str(ROOT / "benchmarks"), str(tmp_path / "bundle"), str(shared_data)]
    ended = subprocess.run(command, capture_output=True, text=True, check=False)
    assert ended.returncode == 0, ended.stderr
    assert len(ended.stdout.splitlines()) == 6
