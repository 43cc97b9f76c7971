"""The embedder as a whole, with tiny random trunks."""

from __future__ import annotations

import copy
import json

import pytest
import torch
from torch import nn

from proxemics.core.errors import ModelError
from proxemics.data.preprocess import Preprocess
from proxemics.models import Embedder


def build(trunk: str = "test_resnet", **options: object) -> Embedder:
    return Embedder(trunk, **{"dim": 8, "weights": "none", "size": 64, **options}).eval()  # type: ignore[arg-type]


def pictures(rows: int = 2, size: int = 64) -> torch.Tensor:
    return torch.randn(rows, 3, size, size, generator=torch.Generator().manual_seed(0))


@pytest.mark.parametrize("pooling", ["avg", "max", "avg+max", "gem", "cls"])
@pytest.mark.parametrize("dim", [0, 8])
def test_parameters_are_disjoint_and_complete(pooling: str, dim: int) -> None:
    """user-pains 30, 31: every parameter is in exactly one of the two groups."""
    embedder = build("test_vit", pooling=pooling, dim=dim)
    trunk = {id(p) for p in embedder.trunk_parameters()}
    head = {id(p) for p in embedder.head_parameters()}
    assert not trunk & head
    assert trunk | head == {id(p) for p in embedder.parameters()}
    assert len(head) == (2 if dim else 0) + (pooling == "gem")


def test_outputs() -> None:
    embedder = build()
    encoded = embedder.encode(pictures())
    assert encoded.raw.shape == (2, 8)
    torch.testing.assert_close(encoded.unit.norm(dim=1), torch.ones(2))
    torch.testing.assert_close(encoded.unit * encoded.raw.norm(dim=1, keepdim=True), encoded.raw)
    torch.testing.assert_close(embedder(pictures()), encoded.unit, rtol=0, atol=0)
    assert build(dim=0)(pictures()).shape == (2, 96)
    assert build(dim=0).dim == 96


def test_pooling_choices_reach_the_embedding() -> None:
    vit = build("test_vit", dim=0, pooling="cls")
    encoded = vit.encode(pictures())
    torch.testing.assert_close(encoded.raw, encoded.prefix[:, 0])
    both = build(dim=0, pooling="avg+max").encode(pictures())
    torch.testing.assert_close(both.raw, both.tokens.mean(1) + both.tokens.amax(1))


def test_head_initialisation() -> None:
    orthogonal, kaiming = build(dim=16).head, build(dim=2048, head_init="kaiming").head
    assert orthogonal is not None
    assert kaiming is not None
    torch.testing.assert_close(orthogonal.weight @ orthogonal.weight.T, torch.eye(16), atol=1e-5, rtol=0)
    assert abs(float(kaiming.weight.detach().std()) - (2 / 2048) ** 0.5) < 0.02 * (2 / 2048) ** 0.5
    assert not orthogonal.bias.any()
    assert not kaiming.bias.any()


def test_layer_norm_has_no_parameters_and_removes_scale() -> None:
    embedder = build("test_vit", layer_norm=True)
    pooled = torch.randn(3, 64)
    torch.testing.assert_close(embedder.project(pooled * 7 + 2), embedder.project(pooled), rtol=1e-4, atol=1e-4)
    assert len(list(embedder.head_parameters())) == 2


@pytest.mark.parametrize("name", ["test_resnet", "test_vit"])
def test_autocast_ends_at_the_trunk(name: str) -> None:
    """user-pains 17: no parameter is cast, and the outputs are float32."""
    embedder, images = build(name), pictures()
    with torch.no_grad():
        exact = embedder.encode(images)
    inside: list[torch.dtype] = []
    watched = next(part for part in embedder.trunk.modules() if isinstance(part, (nn.Conv2d, nn.Linear)))
    handle = watched.register_forward_hook(lambda module, inputs, output: inside.append(output.dtype))
    with torch.autocast("cpu", dtype=torch.bfloat16):
        rough = embedder.encode(images)
    handle.remove()
    assert inside == [torch.bfloat16]
    assert {rough.raw.dtype, rough.unit.dtype, rough.tokens.dtype} == {torch.float32}
    assert {p.dtype for p in embedder.parameters()} == {torch.float32}
    assert (exact.unit * rough.unit.detach()).sum(1).min() > 0.99
    torch.testing.assert_close(rough.unit.norm(dim=1), torch.ones(2), atol=1e-6, rtol=0)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float64])
def test_converted_models_take_float32_pictures(dtype: torch.dtype) -> None:
    raw = build().to(dtype).encode(pictures()).raw
    assert raw.dtype == (torch.float64 if dtype == torch.float64 else torch.float32)


@torch.no_grad()
def test_memory_format_changes_nothing_but_speed() -> None:
    fast, plain = build(), build(channels_last=False)
    assert fast.trunk.layer2[0].conv2.weight.is_contiguous(memory_format=torch.channels_last)
    assert plain.trunk.layer2[0].conv2.weight.is_contiguous()
    torch.testing.assert_close(fast(pictures()), plain(pictures()), rtol=1e-4, atol=1e-5)
    assert fast.fingerprint() == plain.fingerprint()


def test_seed_decides_and_the_global_generator_is_left_alone() -> None:
    torch.manual_seed(5)
    expected = torch.rand(3)
    torch.manual_seed(5)
    first = build(seed=1)
    assert torch.equal(torch.rand(3), expected)
    assert build(seed=1).fingerprint() == first.fingerprint()
    other = build(seed=2)
    assert other.fingerprint() != first.fingerprint()
    assert other.head is not None
    assert first.head is not None
    assert not torch.equal(other.head.weight, first.head.weight)


def test_fingerprint_follows_everything_that_decides_the_embedding() -> None:
    """user-pains 89."""
    embedder = build()
    base = embedder.fingerprint()
    assert copy.deepcopy(embedder).train().fingerprint() == base
    assert build(pooling="max").fingerprint() != base
    with torch.no_grad():
        embedder.trunk.bn1.running_mean[0] += 1e-6  # a buffer, in its last bits
    assert embedder.fingerprint() != base


@torch.no_grad()
def test_pictures_that_are_not_square_and_empty_batches() -> None:
    embedder = build()
    encoded = embedder.encode(torch.randn(2, 3, 96, 64))
    assert encoded.grid == (3, 2)
    for name in ("test_resnet", "test_vit"):  # user-pains 25
        nothing = build(name).encode(torch.zeros(0, 3, 64, 64))
        assert nothing.unit.shape == nothing.raw.shape == (0, 8)
        assert nothing.tokens.shape[0] == nothing.prefix.shape[0] == 0


def test_wrong_pictures_are_refused() -> None:
    with pytest.raises(ModelError, match=r"not \(2, 3, 64, 64\) torch.uint8; use embedder.preprocess"):
        build()(torch.zeros(2, 3, 64, 64, dtype=torch.uint8))
    with pytest.raises(ModelError, match=r"not \(2, 1, 64, 64\)"):
        build()(torch.zeros(2, 1, 64, 64))
    with pytest.raises(ModelError, match=r"'test_vit' was built for 64 x 64 px and got 96 x 96; build it with size=96"):
        build("test_vit")(torch.zeros(2, 3, 96, 96))


@pytest.mark.parametrize(
    ("options", "text"),
    [
        ({"dim": -1}, "dim=-1 is not an embedding size"),
        ({"head_init": "ortogonal"}, "Unknown head_init 'ortogonal'. Did you mean 'orthogonal'"),
        ({"pooling": "cls"}, "Trunk 'test_resnet' has no class token; use pooling='avg'"),
        ({"size": 0}, "size=0 is not a picture size"),
        ({"size": 32, "preprocess": Preprocess(size=64, resize=64)}, "size=32 contradicts preprocess.size=64"),
        ({"trunk": "crossvit_tiny_240", "size": None}, "gives list, neither a map nor tokens"),
    ],
)
def test_wrong_arguments_are_refused(options: dict[str, object], text: str) -> None:
    with pytest.raises(ModelError) as caught:
        build(**options)(torch.zeros(1, 3, 240, 240))  # type: ignore[arg-type]
    assert text in str(caught.value)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("name", ["efficientvit_b0", "deit_tiny_distilled_patch16_224"])
@torch.no_grad()
def test_models_whose_pooling_cannot_be_switched_off(name: str) -> None:
    encoded = build(name, dim=0, size=64).encode(pictures())
    assert encoded.raw.shape == (2, encoded.tokens.shape[2])
    assert encoded.tokens.shape[1] == encoded.grid[0] * encoded.grid[1]


def test_description_is_plain() -> None:
    about = json.loads(json.dumps(build(freeze_stages=1).describe()))
    assert about["trunk"] == "test_resnet"
    assert about["weights"] == "none"
    assert about["size"] == 64
    assert about["parameters"]["learning"] < about["parameters"]["trunk"] + about["parameters"]["head"]


def test_state_is_tensors_only_and_restores_the_model() -> None:
    first, second = build(pooling="gem", seed=1), build(pooling="gem", seed=2)
    second.load_state_dict(first.state_dict())
    assert second.fingerprint() == first.fingerprint()
    assert all(isinstance(value, torch.Tensor) for value in first.state_dict().values())


@pytest.mark.parametrize("name", ["test_resnet", "test_vit"])
@torch.no_grad()
def test_one_graph_with_a_free_batch_size(name: str) -> None:
    """user-pains 93: nothing in the forward pass fixes the number of pictures or breaks the graph."""
    embedder = build(name)
    program = torch.export.export(embedder, (pictures(2),), dynamic_shapes=({0: torch.export.Dim("batch")},))
    torch.testing.assert_close(program.module()(pictures(5)), embedder(pictures(5)))
