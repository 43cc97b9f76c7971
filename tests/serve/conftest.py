"""Real services in processes of their own: a small model, an index of drawn pictures, a free port."""

from __future__ import annotations

import io
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import httpx
import numpy as np
import pytest
import torch
from PIL import Image
from warm_processes import Process, Warm

from proxemics.models.bundle import save_bundle
from proxemics.models.embedder import Embedder
from proxemics.search.index import Index
from proxemics.search.items import Items
from proxemics.search.manifest import ModelKey

RUNNER = Path(__file__).with_name("_server.py")


@dataclass(frozen=True)
class Gallery:
    """A model and the pictures that it indexed."""

    bundle: Path
    index: Path
    pictures: Path
    ids: list[str]
    embedder: Embedder

    def settings(self, **changes: Any) -> dict[str, Any]:
        base = {"model": str(self.bundle), "index": str(self.index), "pictures": str(self.pictures), "port": 0}
        return {**base, "engine": "torch", "threads": 1, "rate": 0, **changes}


@dataclass
class Running:
    """A service in a process."""

    process: subprocess.Popen[bytes] | Process
    errors: Path
    address: str
    client: httpx.Client = field(repr=False)

    @property
    def port(self) -> int:
        return int(self.address.rpartition(":")[2])

    def memory_mb(self) -> float:
        text = Path(f"/proc/{self.process.pid}/status").read_text()
        return next(int(line.split()[1]) / 1024 for line in text.splitlines() if line.startswith("VmRSS"))

    def stop(self, how: signal.Signals | None = signal.SIGTERM) -> tuple[int, str]:
        """End it, or wait for its end, and return its exit code and what it wrote to standard error."""
        self.client.close()
        if self.process.poll() is None and how is not None:
            self.process.send_signal(how)
        return self.process.wait(60), self.errors.read_text()


def launch(start: Callable[[Path, Path], subprocess.Popen[bytes] | Process], folder: Path) -> Running:
    """Start a service, given the files that it writes to, and wait until it says where it is."""
    out, errors = folder / "out", folder / "errors"
    process = start(out, errors)
    while process.poll() is None and not (out.exists() and out.read_text().endswith("\n")):
        time.sleep(0.01)
    line = out.read_text().partition("\n")[0]
    if "http://" not in line:
        process.kill()
        raise AssertionError(f"the service did not start: {line}{errors.read_text()}")
    address = line[line.index("http://") :].split()[0]
    return Running(process, errors, address, httpx.Client(base_url=address, timeout=60))


@pytest.fixture(scope="session")
def gallery(tiny_folder: Path, tmp_path_factory: pytest.TempPathFactory) -> Gallery:
    folder = tmp_path_factory.mktemp("gallery")
    torch.manual_seed(0)
    embedder = Embedder("test_resnet", dim=16, weights="none", size=32).eval()
    save_bundle(embedder, folder / "bundle")
    paths = sorted(tiny_folder.rglob("*.png"))
    with torch.inference_mode():
        vectors = embedder.encode(torch.from_numpy(np.stack([embedder.preprocess(path) for path in paths]))).unit
    names = [path.relative_to(tiny_folder).as_posix() for path in paths]
    meta = [{"label": name.partition("/")[0], "path": name, "price": place} for place, name in enumerate(names)]
    key = ModelKey(model=embedder.fingerprint(), preprocess=embedder.preprocess.fingerprint(), dim=16)
    with Index.create(str(folder / "index"), key, title="Stripes") as index:
        index.add(Items.make(names, vectors.numpy(), meta))
    return Gallery(folder / "bundle", folder / "index", tiny_folder, names, embedder)


@pytest.fixture(scope="session")
def serve(warm: Warm, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Callable[[dict[str, Any]], Running]]:
    """Start a service from settings; whatever was started is ended."""
    started: list[Running] = []

    def start(settings: dict[str, Any]) -> Running:
        folder = tmp_path_factory.mktemp("service")
        (folder / "settings.json").write_text(json.dumps(settings))
        line = [str(RUNNER), str(folder / "settings.json")]
        started.append(launch(lambda out, errors: warm.start(line, out=out, err=errors), folder))
        return started[-1]

    yield start
    for one in started:
        if one.process.poll() is None:
            one.stop()


@pytest.fixture(scope="session")
def service(gallery: Gallery, serve: Callable[[dict[str, Any]], Running]) -> Running:
    """The service that most tests talk to."""
    return serve(gallery.settings())


@pytest.fixture(scope="session")
def encode() -> Callable[..., bytes]:
    """Encode a picture: image, format, options of Pillow."""

    def run(image: Image.Image, kind: str = "PNG", **options: Any) -> bytes:
        buffer = io.BytesIO()
        image.save(buffer, kind, **options)
        return buffer.getvalue()

    return run


@pytest.fixture(scope="session")
def photo() -> Callable[..., Image.Image]:
    """Draw a picture in which no two corners look alike: seed, size."""

    def run(seed: int = 0, size: tuple[int, int] = (60, 48)) -> Image.Image:
        small = np.random.default_rng(seed).integers(0, 256, (6, 8, 3), dtype=np.uint8)
        return Image.fromarray(small).resize(size, Image.Resampling.BICUBIC)

    return run


@pytest.fixture(scope="session")
def start_process(tmp_path_factory: pytest.TempPathFactory) -> Callable[[list[str]], Running]:
    """Start a service by a command of Python, which imports all by itself; the caller ends it."""

    def start(command: list[str]) -> Running:
        line, environment = [sys.executable, *command], {**os.environ, "OMP_NUM_THREADS": "1", "PYTHONUNBUFFERED": "1"}

        def begin(out: Path, errors: Path) -> subprocess.Popen[bytes]:
            with out.open("wb") as first, errors.open("wb") as second:
                return subprocess.Popen(line, stdout=first, stderr=second, env=environment)

        return launch(begin, tmp_path_factory.mktemp("service"))

    return start
