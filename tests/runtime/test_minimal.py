"""A bundle where nothing is installed but ONNX Runtime, Pillow and NumPy."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import venv
from collections.abc import Callable
from importlib.metadata import distribution, packages_distributions
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
import torch
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name
from PIL import Image

from proxemics.models import Embedder, save_bundle

ROOT = Path(__file__).resolve().parents[2]
NEEDED = ("onnxruntime", "numpy", "pillow")

USE = """
import json, sys, time
hidden = set(json.loads(sys.argv[3]))
import importlib.abc
class Hide(importlib.abc.MetaPathFinder):
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] in hidden:
            raise ModuleNotFoundError(f"No module named {name!r} (hidden by the test)", name=name)
sys.meta_path.insert(0, Hide())
import numpy as np
import proxemics.runtime
model = proxemics.runtime.load(sys.argv[1], threads=1)
units, lengths = model.embed_with_lengths(json.load(open(sys.argv[2])))
np.save(sys.argv[4], np.concatenate([units, lengths[:, None]], 1))
loaded = sorted({name.partition(".")[0] for name in sys.modules} & {"torch", "pydantic", "timm", "pandas", "onnx"})
print(json.dumps({"loaded": loaded, "from": proxemics.runtime.__file__, "fingerprint": model.fingerprint}))
"""


def closure() -> set[str]:
    """Return the distributions that the three need, themselves included, without extras."""
    waiting, found = list(NEEDED), set()
    while waiting:
        name = canonicalize_name(waiting.pop())
        if name not in found:
            found.add(name)
            wanted = [Requirement(text) for text in distribution(name).requires or []]
            waiting += [one.name for one in wanted if one.marker is None or one.marker.evaluate({"extra": ""})]
    return found


def other_modules() -> list[str]:
    """Return every installed top-level module that does not come with the three or with this package."""
    kept = closure() | {"proxemics"}
    owners = packages_distributions()
    others = {name for name, owned in owners.items() if not {canonicalize_name(one) for one in owned} & kept}
    return sorted({name for name in others if not name.startswith("_")} | {"torch", "pydantic"})


def embed_in(
    python: Path | str, bundle: Path, paths: list[Path], work: Path, hidden: list[str]
) -> tuple[np.ndarray, dict]:
    """Embed in a process of its own; return (N, D + 1) unit embeddings and lengths, and what the process said."""
    (work / "paths.json").write_text(json.dumps([str(path) for path in paths]))
    done = subprocess.run(
        [python, "-c", USE, bundle, work / "paths.json", json.dumps(hidden), work / "units.npy"],
        capture_output=True,
        text=True,
        cwd=work,
        env={**os.environ, "OMP_NUM_THREADS": "1", "PYTHONPATH": ""},
    )
    assert done.returncode == 0, done.stderr
    return np.load(work / "units.npy", allow_pickle=False), json.loads(done.stdout.splitlines()[-1])


def reference(embedder: Embedder, paths: list[Path]) -> np.ndarray:
    with torch.inference_mode():
        parts = [embedder.encode(torch.from_numpy(embedder.preprocess(path))[None]) for path in paths]
    rows = [torch.cat([part.unit, part.raw.norm(dim=1, keepdim=True)], 1) for part in parts]
    return torch.cat(rows).numpy()


def assert_same(found: np.ndarray, wanted: np.ndarray) -> None:
    assert found.shape == wanted.shape
    assert np.abs(found[:, :-1] - wanted[:, :-1]).max() < 1e-4
    assert (found[:, :-1] * wanted[:, :-1]).sum(1).min() > 0.99999
    np.testing.assert_allclose(found[:, -1], wanted[:, -1], rtol=1e-4)
    assert np.ptp(wanted[:, :-1], axis=0).max() > 0.01, "the pictures must not all look alike to the model"


def test_three_packages_are_enough(embedder: Embedder, bundle: Path, odd_pictures: list[Path], tmp_path: Path) -> None:
    hidden = other_modules()
    assert {"torch", "pydantic", "timm", "pandas", "onnx", "safetensors", "typer"} <= set(hidden)
    assert not {"numpy", "PIL", "onnxruntime"} & set(hidden)
    found, said = embed_in(sys.executable, bundle, odd_pictures, tmp_path, hidden)
    assert said["loaded"] == []
    assert said["fingerprint"] == embedder.fingerprint()
    assert_same(found, reference(embedder, odd_pictures))


@pytest.mark.slow
@pytest.mark.data
@pytest.mark.timeout(1200)
def test_an_empty_environment_gives_the_same_vectors(
    shared_data: Path, write_odd: Callable[[Path, list[Image.Image]], list[Path]], tmp_path: Path
) -> None:
    """The acceptance test: wheel without dependencies, three packages, 200 real pictures in every kind of file."""
    table = pd.read_csv(shared_data / "index.csv")
    names = table[table["dataset"].isin(["cub200_2010", "cars196", "grocery"])].sample(200, random_state=0)["path"]
    originals = [shared_data / name for name in names]
    pictures = [Image.open(path).convert("RGB") for path in originals]
    # Half as they are, half as other kinds of file.
    paths = originals[:100] + write_odd(tmp_path / "odd", pictures[100:])
    embedder = Embedder("auto", dim=128, size=160).eval()
    assert embedder.weights != "none"
    save_bundle(embedder, tmp_path / "trained")
    line = ["-m", "proxemics", "export", tmp_path / "trained", "--out", tmp_path / "made", "--quiet", "--images", "100"]
    line += ["--data", shared_data / "index.csv", "--where", "dataset=cub200_2010"]
    subprocess.run([sys.executable, *line], check=True)
    bundle = (tmp_path / "made").rename(tmp_path / "moved here")

    pip = [sys.executable, "-m", "pip", "--disable-pip-version-check", "-q"]
    subprocess.run([*pip, "wheel", "--no-deps", "-w", tmp_path / "wheel", ROOT], check=True)
    (wheel,) = (tmp_path / "wheel").glob("*.whl")
    venv.create(tmp_path / "empty", with_pip=True)
    python = tmp_path / "empty" / "bin" / "python"
    inside = [python, "-m", "pip", "--disable-pip-version-check", "-q", "install"]
    subprocess.run([*inside, *NEEDED], check=True)
    subprocess.run([*inside, "--no-deps", wheel], check=True)

    found, said = embed_in(python, bundle, paths, tmp_path, [])
    assert Path(said["from"]).is_relative_to(tmp_path / "empty"), "the installed wheel must be what runs"
    assert said["loaded"] == []
    assert_same(found, reference(embedder, paths))
