"""The main job with the network blocked and a home folder that cannot be written (user pains 102, scenario 10)."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

CODE = '''
import json, socket, sys

def blocked(*arguments, **options):
    print("the network was used", file=sys.stderr, flush=True)
    raise RuntimeError("the network was used")

class Local(socket.socket):
    """Sockets of this machine only: processes of one job talk through them."""

    def connect(self, address):
        return super().connect(address) if self.family == socket.AF_UNIX else blocked()

    def connect_ex(self, address):
        return super().connect_ex(address) if self.family == socket.AF_UNIX else blocked()

socket.socket = Local
socket.create_connection = socket.getaddrinfo = blocked
from proxemics.cli.main import main

for line in json.loads(sys.argv[1]):
    sys.argv = ["proxemics", *line]
    try:
        main()
    except SystemExit as stopped:
        if stopped.code:
            sys.exit(f"{line[0]} ended with {stopped.code}")
    print("done:", *line[:2], flush=True)
'''


def test_from_training_to_search_without_network_and_home(tiny_folder: Path, tmp_path: Path) -> None:
    settings = [
        "data.size=32", "data.workers=0", "model.trunk=test_resnet.r160_in1k", "model.weights=none", "model.dim=8",
        "model.freeze_bn=false", "train.epochs=1", "train.batch_size=8", "train.per_class=2", "evaluation.bootstrap=0",
    ]  # fmt: skip
    sets = [part for one in settings for part in ("--set", one)]
    query = next(tiny_folder.rglob("3.png"))
    lines = [
        ["doctor", str(tiny_folder)],
        ["train", str(tiny_folder), "--out", "run", "--quiet", *sets],
        ["probe", "run", "--images", "16", "--only", "geometry", "--quiet"],
        ["export", "run", "--out", "bundle", "--images", "12", "--quiet"],
        ["embed", "bundle", str(tiny_folder), "--out", "vectors.parquet", "--quiet"],
        ["index", "build", "vectors.parquet", "--to", "index", "--quiet"],
        ["index", "search", "index", str(query), "--model", "bundle"],
        ["enrol", "bundle", str(query.parent), "--quiet"],
        ["identify", "bundle", str(query), "--quiet"],
    ]
    environment = {key: value for key, value in os.environ.items() if key not in ("PROXEMICS_CACHE", "XDG_CACHE_HOME")}
    environment |= {"HF_HUB_OFFLINE": "0", "HF_HOME": "/proc/none", "HOME": "/proc/none", "CUDA_VISIBLE_DEVICES": ""}
    done = subprocess.run(
        [sys.executable, "-c", CODE, json.dumps(lines)],
        capture_output=True,
        text=True,
        timeout=280,
        cwd=tmp_path,
        env={**environment, "OMP_NUM_THREADS": "1"},
    )
    assert done.returncode == 0, done.stdout[-2000:] + done.stderr[-2000:]
    assert done.stdout.count("done: ") == len(lines)
    assert "the network was used" not in done.stderr
    assert "Traceback" not in done.stderr
    logged = [json.loads(line) for line in (tmp_path / "run" / "metrics.jsonl").read_text().splitlines()]
    assert logged
    assert list((tmp_path / "run").rglob("events.out.tfevents*"))
    assert (tmp_path / "run" / "report.html").is_file()
