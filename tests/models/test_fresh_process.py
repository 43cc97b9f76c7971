"""What a model must do in a process of its own: no network, no home, no original weights."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import timm
import torch
from safetensors.torch import save_file

from proxemics.models import Embedder, save_bundle
from proxemics.models.packaged import find_packaged

CODE = """
import json, socket, sys
def blocked(*arguments, **options):
    raise RuntimeError("the network was used")
socket.socket.connect = socket.create_connection = socket.getaddrinfo = blocked
import proxemics.models
said = {"heavy": sorted({"timm", "torchvision", "pandas", "huggingface_hub"} & set(sys.modules))}
import torch
from safetensors.torch import load_file
from proxemics.core.errors import ModelError
from proxemics.models import Embedder, load_bundle
given, loaded = load_file(sys.argv[2]), load_bundle(sys.argv[1])
said["equal"] = torch.equal(loaded(given["images"]), given["unit"])
said["weights"], said["fingerprint"] = loaded.weights, loaded.fingerprint()
if sys.argv[3] == "True":
    said["default"] = Embedder("auto", dim=4, size=32).eval()(torch.zeros(1, 3, 32, 32)).shape
try:
    Embedder("resnet18")
except ModelError as error:
    said["error"] = str(error)
print(json.dumps(said))
"""


def test_offline_with_a_bundle_and_a_read_only_home(tmp_path: Path) -> None:
    """user-pains 36, 76, scenario 10: sockets blocked, hub offline, home read-only, original weights gone."""
    weights = tmp_path / "weights.pth"
    torch.save(timm.create_model("test_resnet").state_dict(), weights)
    embedder = Embedder("test_resnet", dim=8, weights=weights, size=64).eval()
    images = torch.randn(2, 3, 64, 64)
    save_file({"images": images, "unit": embedder(images).detach()}, tmp_path / "x.safetensors")
    save_bundle(embedder, tmp_path / "first").rename(tmp_path / "moved")
    weights.unlink()
    packaged = find_packaged("tf_efficientnet_lite0") is not None
    environment = {key: value for key, value in os.environ.items() if key != "PROXEMICS_CACHE"}
    environment |= {"HF_HUB_OFFLINE": "1", "HF_HOME": "/proc/none", "HOME": "/proc/none"}
    done = subprocess.run(
        [sys.executable, "-c", CODE, str(tmp_path / "moved"), str(tmp_path / "x.safetensors"), str(packaged)],
        capture_output=True,
        text=True,
        timeout=250,
        cwd="/",
        env={**environment, "OMP_NUM_THREADS": str(torch.get_num_threads())},
    )
    assert done.returncode == 0, done.stderr
    said = json.loads(done.stdout)
    assert said["heavy"] == []
    assert said["equal"]
    assert said["weights"] == "weights.pth"
    assert said["fingerprint"] == embedder.fingerprint()
    assert said.get("default") == ([1, 4] if packaged else None)
    assert said["error"] == (
        "The weights of trunk 'resnet18' (timm/resnet18.a1_in1k) are not on this machine and there is no network: "
        "give weights=<file> (.safetensors, .pth, .pt), or weights='none' for random ones."
    )
