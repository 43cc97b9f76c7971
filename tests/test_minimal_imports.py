"""Imports on a poor machine: no optional packages, no network, an empty home folder (user-pains 76, 78, 79)."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from importlib.metadata import distribution, packages_distributions
from pathlib import Path

import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

CORE = ["torch", "numpy", "pillow", "pydantic"]
# These must be hidden at least, whatever the metadata of the installed packages says.
HIDDEN = {
    "torchvision", "timm", "pandas", "sklearn", "scipy", "lightning_fabric", "lightning", "typer", "rich", "yaml",
    "simplejpeg", "pyarrow", "safetensors", "jinja2", "matplotlib", "skimage", "tensorboard", "faiss", "usearch",
}  # fmt: skip
# Rooms whose whole content works with the core alone.
SMALL = ["proxemics.core", "proxemics.models", "proxemics.losses", "proxemics.methods", "proxemics.evaluation"]

# What extras other than `train` bring, and what only developers have.
EXTRA = {
    "usearch", "psycopg", "pgvector", "pymilvus", "milvus_lite", "onnx", "onnxscript", "onnxruntime", "openvino", "ray",
    "fastapi", "starlette", "uvicorn", "multipart", "python_multipart", "prometheus_client", "jinja2", "matplotlib",
    "skimage", "resvg_py", "faiss", "hnswlib", "lightning", "pytorch_lightning", "torchmetrics", "httpx",
    "pytorch_metric_learning", "huggingface_hub",
}  # fmt: skip
# Rooms of which every module can be imported with `train` alone; what they need is asked for when it is used.
TRAINED = ["proxemics.search", "proxemics.export"]
# The service is written with FastAPI throughout; its room and what the command line asks of it are not.
SERVICE = ["proxemics.serve", "proxemics.serve.settings", "proxemics.cli.serve"]

HIDE = """
import importlib, importlib.abc, json, pkgutil, sys, traceback
hidden = set(json.loads(sys.argv[1]))

class Hide(importlib.abc.MetaPathFinder):
    # Another finder that finds everything but what is hidden: a look-up answers as it does for an absent package.

    def __init__(self, finder):
        self.finder = finder

    def find_spec(self, name, path=None, target=None):
        return None if name.partition(".")[0] in hidden else self.finder.find_spec(name, path, target)

    def invalidate_caches(self):
        getattr(self.finder, "invalidate_caches", lambda: None)()

    def __getattr__(self, name):
        return getattr(self.finder, name)

sys.meta_path[:] = [Hide(finder) for finder in sys.meta_path]

def walk(package):
    module = importlib.import_module(package)
    yield package
    for found in pkgutil.iter_modules(module.__path__, package + "."):
        if found.ispkg:
            yield from walk(found.name)
        else:
            yield found.name
"""

IMPORT_ALL = (
    HIDE
    + """
failed, done = {}, []
import proxemics
for package in json.loads(sys.argv[2]):
    for name in walk(package):
        try:
            importlib.import_module(name)
            done.append(name)
        except Exception:
            failed[name] = traceback.format_exc(limit=-3)
loaded = sorted({name.partition(".")[0] for name in sys.modules} & hidden)
print(json.dumps({"failed": failed, "done": done, "loaded": loaded}))
"""
)

USE = (
    HIDE
    + """
import torch
from proxemics.evaluation import evaluate_embeddings
from proxemics.losses import ProxyAnchor
loss = ProxyAnchor(num_classes=3, dim=4)
value = loss(torch.eye(4)[:3], torch.arange(3))
value.backward()
result = evaluate_embeddings(torch.eye(4)[[0, 0, 1, 1]], [7, 7, 8, 8], recall_at=(1,))
print(json.dumps({"gradient": bool(loss.proxies.grad.abs().sum() > 0), "recall_at_1": float(result["recall_at_1"])}))
"""
)

HELP = (
    HIDE
    + """
import atexit
atexit.register(lambda: print(json.dumps({"loaded": sorted({"torch", "numpy", "pandas", "timm"} & set(sys.modules))})))
sys.argv = ["proxemics", *json.loads(sys.argv[2])]
from proxemics.cli.main import main
main()
"""
)

# An audit hook sees every connection, also one whose failure a package swallows.
OFFLINE = (
    HIDE
    + """
calls = []
def watch(event, arguments):
    if event in {"socket.connect", "socket.sendto", "socket.getaddrinfo", "socket.gethostbyname"}:
        calls.append(f"{event} {arguments[1:]}")
        raise OSError("no network in this test")
sys.addaudithook(watch)
failed, done = {}, []
for name in walk("proxemics"):
    if name.endswith("__main__"):
        continue
    try:
        importlib.import_module(name)
        done.append(name)
    except Exception:
        failed[name] = traceback.format_exc(limit=-3)
if sys.argv[2] == "connect":
    import socket
    try:
        socket.create_connection(("127.0.0.1", 9))
    except OSError:
        pass
print(json.dumps({"failed": failed, "done": done, "calls": calls}))
"""
)


def closure(names: list[str]) -> set[str]:
    """Return the distributions that ``names`` need, themselves included, without extras."""
    waiting, found = list(names), set()
    while waiting:
        name = canonicalize_name(waiting.pop())
        if name in found:
            continue
        found.add(name)
        for text in distribution(name).requires or []:
            requirement = Requirement(text)
            if requirement.marker is None or requirement.marker.evaluate({"extra": ""}):
                waiting.append(requirement.name)
    return found


def optional_modules() -> list[str]:
    """Return every installed top-level module that does not come with the core dependencies."""
    needed = closure(CORE) | {"proxemics"}
    owners = packages_distributions()
    outside = {m for m, owned_by in owners.items() if not {canonicalize_name(name) for name in owned_by} & needed}
    # Start-up files of editable installs are no packages.
    return sorted({module for module in outside if not module.startswith("_")} | HIDDEN)


def run(program: str, *arguments: object, home: Path | None = None) -> dict[str, object]:
    environment = {**os.environ, "HF_HUB_OFFLINE": "1", "OMP_NUM_THREADS": "1"}
    if home is not None:
        environment |= {
            "HOME": str(home),
            "XDG_CACHE_HOME": str(home / "cache"),
            "TMPDIR": os.environ.get("TMPDIR", "/tmp"),
        }
    texts = [argument if isinstance(argument, str) else json.dumps(argument) for argument in arguments]
    done = subprocess.run([sys.executable, "-c", program, *texts], capture_output=True, text=True, env=environment)
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout.splitlines()[-1])


def test_the_test_hides_what_it_should() -> None:
    optional = set(optional_modules())
    assert {"pytest", "timm", "pandas"} <= optional
    assert not {"torch", "numpy", "PIL", "pydantic", "typing_extensions"} & optional


def test_rooms_import_with_the_core_dependencies_alone() -> None:
    answer = run(IMPORT_ALL, optional_modules(), SMALL)
    assert answer["failed"] == {}
    assert answer["loaded"] == []
    assert {"proxemics.core.errors", "proxemics.losses.base", "proxemics.evaluation.protocols"} <= set(answer["done"])


def test_rooms_import_without_their_optional_packages() -> None:
    answer = run(IMPORT_ALL, sorted(EXTRA), TRAINED)
    assert answer["failed"] == {}
    assert answer["loaded"] == []
    for room in TRAINED:
        assert sum(name.startswith(f"{room}.") for name in answer["done"]) > 10


def test_the_runtime_imports_without_torch() -> None:
    """A bundle is run with NumPy, Pillow and ONNX Runtime; the last is asked for when it is used."""
    hidden = set(optional_modules()) | {"torch", "pydantic", "pydantic_core"}
    answer = run(IMPORT_ALL, sorted(hidden - {"PIL", "numpy"}), ["proxemics.runtime"])
    assert answer["failed"] == {}
    assert answer["loaded"] == []
    assert "proxemics.runtime.pictures" in answer["done"]


@pytest.mark.parametrize("module", SERVICE)
def test_the_service_is_named_without_its_packages(module: str) -> None:
    program = HIDE + "importlib.import_module(sys.argv[2])\nprint(json.dumps(sorted(set(sys.modules) & hidden)))"
    assert run(program, sorted(EXTRA), module) == []


def test_every_module_is_looked_at() -> None:
    """A module that is no longer there would pass the tests above."""
    assert len({*SMALL, *TRAINED, *SERVICE}) == len(SMALL) + len(TRAINED) + len(SERVICE)
    assert not EXTRA & {"torch", "numpy", "pandas", "timm"}
    program = HIDE + "import importlib.util as u\nprint(json.dumps([u.find_spec(n) is None for n in ('onnx', 'json')]))"
    assert run(program, ["onnx"]) == [True, False]


def test_a_loss_and_an_evaluation_work_with_the_core_dependencies_alone() -> None:
    assert run(USE, optional_modules()) == {"gradient": True, "recall_at_1": 1.0}


@pytest.mark.parametrize("arguments", [["--help"], ["--version"], ["train", "--help"]], ids=" ".join)
def test_help_loads_nothing_heavy(arguments: list[str]) -> None:
    assert run(HELP, [], arguments) == {"loaded": []}


def test_no_module_touches_the_network_or_the_home_folder_on_import(tmp_path: Path) -> None:
    home = tmp_path / "home"
    home.mkdir()
    answer = run(OFFLINE, [], "import", home=home)
    assert answer["failed"] == {}
    assert answer["calls"] == []
    assert len(answer["done"]) > 20
    assert sorted(path.relative_to(home).as_posix() for path in home.rglob("*") if path.is_file()) == []


def test_the_network_watch_sees_a_connection(tmp_path: Path) -> None:
    program = OFFLINE.replace('walk("proxemics")', '["json"]')
    assert [call.split()[0] for call in run(program, [], "connect", home=tmp_path)["calls"]] == ["socket.getaddrinfo"]
