"""ONNX files: any batch, the vectors of torch, the same bytes every time, and nothing of the machine."""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path

import numpy as np
import onnx
import pytest
import torch

from proxemics import runtime
from proxemics.core.errors import ExportError
from proxemics.export.onnx import export_onnx
from proxemics.export.parity import BATCHES, compare, onnx_encoder, torch_encoder
from proxemics.export.quantize import quantize_onnx, tail_nodes
from proxemics.models import Embedder

MODELS: dict[str, Callable[[], Embedder]] = {
    "convolutional": lambda: Embedder("test_resnet", dim=8, pooling="avg+max", weights="none", size=48),
    "transformer": lambda: Embedder(
        "test_vit", dim=8, pooling="gem", layer_norm=True, weights="none", size=48, freeze_stages=1
    ),
}


@pytest.fixture(scope="module", params=MODELS)
def written(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> tuple[Embedder, Path]:
    embedder = MODELS[request.param]().train()
    return embedder, export_onnx(embedder, tmp_path_factory.mktemp("onnx") / "model.onnx")


def noise(count: int, side: int = 48) -> np.ndarray:
    return np.random.default_rng(count).standard_normal((count, 3, side, side)).astype(np.float32)


def test_batches_of_any_size_give_the_vectors_of_torch(written: tuple[Embedder, Path]) -> None:
    embedder, path = written
    assert embedder.training, "an export must not change the model"
    pixels = noise(17)
    found = compare(torch_encoder(embedder), onnx_encoder(path.read_bytes(), "model.onnx"), pixels)
    assert [row["batch"] for row in found] == [1, 3, 17]
    assert max(row["max_difference"] for row in found) < 1e-5
    assert max(row["max_length_difference"] for row in found) < 1e-5
    assert min(row["min_cosine"] for row in found) > 0.999999
    embedder.train()


def test_the_graph_says_what_goes_in_and_out(written: tuple[Embedder, Path]) -> None:
    session = runtime.open_session(written[1].read_bytes(), name="x")
    (given,) = session.get_inputs()
    assert (given.name, given.type, given.shape[1:]) == ("pixels", "tensor(float)", [3, 48, 48])
    assert isinstance(given.shape[0], str), "the batch must be dynamic"
    assert [one.name for one in session.get_outputs()] == ["embedding", "length"]
    assert session.get_outputs()[0].shape[1] == 8
    units, lengths = session.run(None, {"pixels": noise(2)})
    assert units.dtype == lengths.dtype == np.float32
    np.testing.assert_allclose(np.linalg.norm(units, axis=1), 1, rtol=1e-5)
    assert lengths.shape == (2,)


def test_nothing_of_the_machine_is_in_the_file(written: tuple[Embedder, Path]) -> None:
    content = written[1].read_bytes()
    for word in (b"site-packages", b"proxemics/", b'File "', str(Path.home()).encode() + b"/", b"stack_trace"):
        assert word not in content


@pytest.mark.slow
def test_the_same_model_gives_the_same_bytes(written: tuple[Embedder, Path], tmp_path: Path) -> None:
    embedder, path = written
    again = export_onnx(embedder, tmp_path / "again.onnx")
    assert again.read_bytes() == path.read_bytes()


@pytest.mark.slow
def test_float16_halves_the_file_and_keeps_the_output(written: tuple[Embedder, Path], tmp_path: Path) -> None:
    embedder, path = written
    half = export_onnx(embedder, tmp_path / "half.onnx", half=True)
    trunk = sum(p.numel() for p in embedder.trunk_parameters())
    assert path.stat().st_size - half.stat().st_size > 1.8 * trunk
    found = compare(torch_encoder(embedder), onnx_encoder(half.read_bytes(), "half"), noise(17))
    assert 1e-6 < max(row["max_difference"] for row in found) < 1e-2
    embedder.train()


def test_int8_runs_at_any_batch_and_leaves_pooling_and_head_alone(
    written: tuple[Embedder, Path], tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    embedder, path = written
    small = quantize_onnx(path, tmp_path / "int8.onnx", [noise(8), noise(5)])
    told = capfd.readouterr()
    assert (told.out, told.err) == ("", "")
    model = onnx.load(small)
    kinds = {tensor.data_type for tensor in model.graph.initializer}
    assert onnx.TensorProto.INT8 in kinds
    whole = [onnx.numpy_helper.to_array(one) for one in model.graph.initializer if one.data_type == one.INT8]
    largest = max(int(np.abs(one.astype(int)).max()) for one in whole)
    assert largest in (63, 64), "two products with 255 must fit into 16 bits"
    head = next(tensor for tensor in model.graph.initializer if tensor.name == "embedder.head.weight")
    assert head.data_type == onnx.TensorProto.FLOAT
    assert small.stat().st_size < 0.7 * path.stat().st_size
    found = compare(torch_encoder(embedder), onnx_encoder(small.read_bytes(), "int8"), noise(17))
    assert [row["batch"] for row in found] == list(BATCHES)
    assert 1e-6 < 1 - min(row["min_cosine"] for row in found) < 0.05
    assert b"site-packages" not in small.read_bytes()
    embedder.train()


def test_the_tail_ends_where_the_trunk_does(written: tuple[Embedder, Path]) -> None:
    model = onnx.load(written[1])
    kinds = {node.name: node.op_type for node in model.graph.node}
    tail = [kinds[name] for name in tail_nodes(model)]
    assert {"Div", "ReduceL2", "Gemm", "ReduceMean", "ReduceMax"} <= set(tail)
    assert tail.count("Gemm") == 1
    assert not {"Conv", "MatMul", "Softmax"} & set(tail)
    assert len(tail) < len(kinds) / 2


def test_a_graph_that_cannot_be_quantised_is_told(tmp_path: Path) -> None:
    (tmp_path / "bad.onnx").write_bytes(b"nothing")
    with pytest.raises(ExportError, match=r"The model cannot be written as int8: .*Leave int8 out of --precision"):
        quantize_onnx(tmp_path / "bad.onnx", tmp_path / "int8.onnx", [noise(2)])
    assert not (tmp_path / "int8.onnx").exists()


@pytest.mark.parametrize("package", ["onnx", "onnxscript"])
def test_a_missing_package_is_named(package: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, package, None)
    with pytest.raises(ExportError, match=rf"needs the package {package}: pip install 'proxemics\[onnx\]'"):
        export_onnx(MODELS["convolutional"](), tmp_path / "model.onnx")


class Refuses(torch.nn.Module):
    """Fails at once."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        raise RuntimeError("two\nlines")


class Branches(torch.nn.Module):
    """Lets the pictures decide which way to go, which no graph can hold."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x if x.sum() > 0 else -x


@pytest.mark.parametrize("part", [Refuses, pytest.param(Branches, marks=pytest.mark.slow)])
def test_a_trunk_that_cannot_be_captured_is_told(part: type[torch.nn.Module], tmp_path: Path) -> None:
    embedder = MODELS["convolutional"]()
    embedder.trunk.conv1 = torch.nn.Sequential(embedder.trunk.conv1, part())
    with pytest.raises(ExportError, match=r"^Trunk 'test_resnet' cannot be written as ONNX: .*--no-onnx") as error:
        export_onnx(embedder, tmp_path / "model.onnx")
    assert "\n" not in str(error.value)
    assert list(tmp_path.iterdir()) == []
