"""Engines against the embedder itself, and what is said and done where one is absent, wrong or not worth it."""

from __future__ import annotations

import hashlib
import subprocess
import sys
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import onnx
import pytest
import torch

from proxemics.core.errors import ExportError, ModelError
from proxemics.export.engines.base import EngineFacts
from proxemics.export.engines.calls import ConcurrentEngine
from proxemics.export.engines.onnx_file import cached_path, find_onnx
from proxemics.export.engines.open import open_engine
from proxemics.export.quantize import quantize_onnx
from proxemics.models.bundle import load_bundle, save_bundle
from proxemics.models.embedder import Embedder

EXACT = ["torch", "onnxruntime", "openvino"]


def pixels(count: int, size: int = 32) -> np.ndarray:
    return np.random.default_rng(count).normal(size=(count, 3, size, size)).astype(np.float32)


def expected(bundle: Path, batch: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    embedder = load_bundle(bundle)
    with torch.inference_mode():
        encoded = embedder.encode(torch.from_numpy(batch))
    return encoded.unit.numpy(), torch.linalg.vector_norm(encoded.raw, dim=-1).numpy()


@pytest.mark.parametrize("name", EXACT)
def test_every_engine_gives_the_vectors_of_the_embedder(with_onnx: Path, name: str) -> None:
    engine = open_engine(with_onnx, engine=name, threads=1)
    assert (engine.facts.engine, engine.facts.precision, engine.facts.exact) == (name, "float32", True)
    assert engine.facts.fingerprint == load_bundle(with_onnx).fingerprint()
    graph = hashlib.sha256((with_onnx / "onnx" / "model.onnx").read_bytes()).hexdigest()
    assert engine.facts.basis == ("cpu" if name == "torch" else graph)
    for count in (1, 3, 5):
        batch = pixels(count)
        unit, length = engine.encode(batch)
        wanted, wanted_length = expected(with_onnx, batch)
        np.testing.assert_allclose(unit, wanted, atol=1e-5)
        np.testing.assert_allclose(length, wanted_length, rtol=1e-4)
        assert (unit.dtype, length.dtype, unit.shape, length.shape) == (np.float32, np.float32, (count, 8), (count,))


@pytest.mark.parametrize("name", EXACT)
def test_the_order_of_memory_and_an_empty_batch(with_onnx: Path, name: str) -> None:
    engine = open_engine(with_onnx, engine=name, threads=1)
    batch = pixels(2)
    interleaved = np.ascontiguousarray(batch.transpose(0, 2, 3, 1)).transpose(0, 3, 1, 2)
    np.testing.assert_allclose(engine.encode(interleaved)[0], engine.encode(batch)[0], atol=1e-6)
    unit, length = engine.encode(pixels(0))
    assert (unit.shape, length.shape) == ((0, 8), (0,))
    with pytest.raises(ExportError, match=r"Pictures are \(B, 3, 32, 32\) float32, not \(2, 3, 16, 16\)"):
        engine.encode(pixels(2, 16))


@pytest.mark.parametrize("name", EXACT)
def test_several_calls_at_once_do_not_mix(with_onnx: Path, name: str) -> None:
    engine = open_engine(with_onnx, engine=name, threads=2, calls=2)
    assert (engine.calls, engine.facts.threads) == (2, 2)
    batches = [pixels(1 + number % 3) for number in range(24)]
    alone = [engine.encode(batch)[0] for batch in batches]
    with ThreadPoolExecutor(4) as pool:
        together = list(pool.map(lambda batch: engine.encode(batch)[0], batches))
    for one, other in zip(alone, together, strict=True):
        np.testing.assert_allclose(one, other, atol=1e-6)


def test_a_vector_does_not_depend_on_its_batch(with_onnx: Path) -> None:
    engine = open_engine(with_onnx, engine="onnxruntime", threads=1)
    batch = pixels(5)
    np.testing.assert_allclose(engine.encode(batch)[0][2:3], engine.encode(batch[2:3])[0], atol=1e-6)


@pytest.mark.parametrize("name", ["openvino", "torch"])
def test_bf16_is_near_and_says_so(with_onnx: Path, name: str) -> None:
    engine = open_engine(with_onnx, engine=name, precision="bf16", threads=1)
    batch = pixels(4)
    unit = engine.encode(batch)[0]
    cosine = np.sum(unit * expected(with_onnx, batch)[0], axis=1)
    assert cosine.min() > 0.999
    if engine.facts.precision == "bf16":  # OpenVINO falls back where the processor has none
        assert not engine.facts.exact
        assert not np.array_equal(unit, open_engine(with_onnx, engine=name, threads=1).encode(batch)[0])
    if name == "openvino":
        assert "asked for; " in engine.facts.why


def test_int8_of_a_bundle_that_has_it(with_onnx: Path, recorded: Callable[[Path], Path]) -> None:
    source = with_onnx / "onnx" / "model.onnx"
    quantize_onnx(source, with_onnx / "onnx" / "model.int8.onnx", [pixels(4), pixels(5)])
    with pytest.raises(ModelError, match=r"model\.int8\.onnx is not recorded in model\.json"):
        open_engine(with_onnx, precision="int8")
    engine = open_engine(recorded(with_onnx), precision="int8", threads=1)
    assert (engine.facts.engine, engine.facts.precision, engine.facts.exact) == ("onnxruntime", "int8", False)
    assert engine.facts.why.startswith("the one with int8; cosine to float32 at least 0.")
    batch = pixels(4)
    cosine = np.sum(engine.encode(batch)[0] * expected(with_onnx, batch)[0], axis=1)
    assert 0.9 < cosine.min() < 1


def test_auto_takes_torch_for_few_pictures_and_writes_no_file(bundle: Path, cache: Path) -> None:
    engine = open_engine(bundle, pictures=96)
    assert (engine.facts.engine, engine.facts.why) == (
        "torch",
        "an ONNX file is not worth writing for so few pictures (96)",
    )
    assert not list(cache.glob("onnx/*"))


def test_auto_writes_the_file_once_and_measures_once(
    bundle: Path, first_opening: tuple[EngineFacts, Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    facts, cache = first_opening
    monkeypatch.setenv("PROXEMICS_CACHE", str(cache))
    assert facts.engine in ("torch", "onnxruntime")
    assert "the fastest exact one here: onnxruntime " in facts.why
    assert "pictures/s on one thread" in facts.why
    files = sorted(path for path in cache.rglob("*") if path.is_file())
    assert [path.parent.name for path in files] == ["onnx", "proofs"]
    assert files[0] == cached_path(load_bundle(bundle))
    times = [path.stat().st_mtime_ns for path in files]
    assert open_engine(bundle, pictures=3).facts == facts  # the file is there now, so it is used
    assert [path.stat().st_mtime_ns for path in files] == times


def test_a_file_in_the_bundle_is_used_as_it_is(with_onnx: Path, cache: Path) -> None:
    open_engine(with_onnx, engine="onnxruntime")
    assert not list(cache.glob("onnx/*"))
    assert find_onnx(with_onnx, load_bundle(with_onnx)) == with_onnx / "onnx" / "model.onnx"


def test_the_cache_tells_models_and_sizes_apart(cache: Path) -> None:
    small, large = (Embedder("test_efficientnet", dim=8, weights="none", size=size) for size in (32, 64))
    other = Embedder("test_efficientnet", dim=8, weights="none", size=32, seed=1)
    assert small.fingerprint() == large.fingerprint()
    assert len({cached_path(one) for one in (small, large, other)}) == 3


def changed(content: bytes) -> bytes:
    """The same graph with one weight of the head moved a little."""
    graph = onnx.load_from_string(content)
    (head,) = (one for one in graph.graph.initializer if one.name == "embedder.head.weight")
    weights = onnx.numpy_helper.to_array(head).copy()
    weights[0] *= 1.05
    head.CopyFrom(onnx.numpy_helper.from_array(weights, head.name))
    return graph.SerializeToString()


def test_a_file_of_another_model_is_found_out(
    bundle: Path, onnx_bytes: bytes, cache: Path, tmp_path: Path, recorded: Callable[[Path], Path]
) -> None:
    folder = tmp_path / "mixed"
    save_bundle(load_bundle(bundle), folder)
    (folder / "onnx").mkdir()
    (folder / "onnx" / "model.onnx").write_bytes(changed(onnx_bytes))
    recorded(folder)
    for name in ("onnxruntime", "openvino"):
        with pytest.raises(ExportError, match=rf"The engine {name} is off by .* from torch with this model"):
            open_engine(folder, engine=name)
    told: list[str] = []
    engine = open_engine(folder, notify=told.append)
    assert (engine.facts.engine, engine.facts.why) == ("torch", "onnxruntime is not exact with this model")
    assert len(told) == 1
    assert "off by" in told[0]
    batch = pixels(2)
    np.testing.assert_allclose(engine.encode(batch)[0], expected(bundle, batch)[0], atol=1e-6)


def test_a_file_that_was_not_exported_is_refused_and_auto_goes_on(with_onnx: Path, onnx_bytes: bytes) -> None:
    (with_onnx / "onnx" / "model.onnx").write_bytes(onnx_bytes + b"\0")
    for name in ("onnxruntime", "openvino"):
        with pytest.raises(ModelError, match=r"model\.onnx is not the file that was exported: its hash differs"):
            open_engine(with_onnx, engine=name)
    told: list[str] = []
    assert open_engine(with_onnx, notify=told.append).facts.engine == "torch"
    assert len(told) == 1
    assert "its hash differs" in told[0]


def test_a_damaged_file_is_told_and_auto_goes_on(with_onnx: Path, recorded: Callable[[Path], Path]) -> None:
    (with_onnx / "onnx" / "model.onnx").write_bytes(b"no protobuf")
    recorded(with_onnx)
    with pytest.raises(ExportError, match=r"ONNX Runtime cannot open .*model\.onnx: .* Delete the file"):
        open_engine(with_onnx, engine="onnxruntime")
    with pytest.raises(ExportError, match="OpenVINO cannot use"):
        open_engine(with_onnx, engine="openvino")
    told: list[str] = []
    assert open_engine(with_onnx, notify=told.append).facts.engine == "torch"
    assert len(told) == 1


@pytest.mark.parametrize(("package", "extra"), [("onnxruntime", "onnx"), ("openvino", "openvino")])
def test_an_absent_package_is_named(with_onnx: Path, monkeypatch: pytest.MonkeyPatch, package: str, extra: str) -> None:
    monkeypatch.setitem(sys.modules, package, None)
    with pytest.raises(ExportError, match=rf"{package} is not installed: pip install 'proxemics\[{extra}\]'"):
        open_engine(with_onnx, engine=package)
    assert open_engine(with_onnx, precision="bf16" if package == "openvino" else "float32").facts.why == (
        f"{package} is not installed"
    )


@pytest.mark.slow
def test_a_cache_that_cannot_be_written_costs_time_only(
    bundle: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "file").write_text("in the way")
    monkeypatch.setenv("PROXEMICS_CACHE", str(tmp_path / "file" / "cache"))
    assert open_engine(bundle, engine="onnxruntime", threads=1).encode(pixels(1))[0].shape == (1, 8)


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"engine": "onnx"}, r"Unknown engine 'onnx'\..* Allowed: auto, torch, onnxruntime, openvino"),
        ({"precision": "bfloat16"}, r"Unknown precision 'bfloat16'\."),
        ({"engine": "onnxruntime", "precision": "bf16"}, "onnxruntime has no bf16"),
        ({"engine": "openvino", "precision": "int8"}, "openvino has no int8"),
        ({"precision": "int8"}, r"holds no onnx/model\.int8\.onnx\. int8 needs calibration pictures"),
        ({"threads": 0}, "give numbers of at least 1"),
        ({"device": "tpu"}, "Unknown device 'tpu'"),
    ],
)
def test_wrong_wishes_are_refused(bundle: Path, options: dict, words: str) -> None:
    with pytest.raises(ExportError, match=words):
        open_engine(bundle, **options)


def test_torch_keeps_its_threads(bundle: Path) -> None:
    before = torch.get_num_threads()
    open_engine(bundle, engine="torch", threads=before + 1).encode(pixels(1))
    assert torch.get_num_threads() == before


TELEMETRY = """
import sys
from proxemics.export.engines.openvino_engine import import_openvino
assert import_openvino().Core().available_devices
assert not [name for name in sys.modules if name.startswith("openvino_telemetry")], "OpenVINO would report its use"
from openvino.tools.ovc import telemetry_utils
assert telemetry_utils.tm.__name__.endswith("telemetry_stub"), telemetry_utils.tm
"""


def test_openvino_reports_nothing() -> None:
    done = subprocess.run([sys.executable, "-c", TELEMETRY], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr


def test_engines_are_of_one_kind(with_onnx: Path) -> None:
    assert all(isinstance(open_engine(with_onnx, engine=name), ConcurrentEngine) for name in EXACT)
