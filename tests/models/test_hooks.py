"""Stage hooks on every family of trunks."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn

from proxemics.core.errors import ModelError
from proxemics.models import Embedder, StageHook
from proxemics.models.layout import split_prefix, token_grid
from proxemics.models.stages import find_stage

TRUNKS = {
    "test_resnet": 64,
    "resnet18": 64,
    "test_efficientnet": 64,
    "test_convnext": 64,
    "test_vit": 64,
    "test_mambaout": 64,  # maps with the channels last
    "swin_tiny_patch4_window7_224": 64,  # the same, with windows
    "vit_tiny_patch16_224": 32,
}


@pytest.fixture(scope="module")
def embedders() -> dict[str, Embedder]:
    """Random trunks, built once."""
    return {name: Embedder(name, dim=8, weights="none", size=size).eval() for name, size in TRUNKS.items()}


def pictures(size: int, rows: int = 2) -> Tensor:
    return torch.randn(rows, 3, size, size, generator=torch.Generator().manual_seed(0))


def forward_hooks(module: nn.Module) -> int:
    return sum(len(part._forward_hooks) for part in module.modules())


@pytest.mark.parametrize("name", TRUNKS)
@torch.no_grad()
def test_a_doubled_batch_passes_every_stage(embedders: dict[str, Embedder], name: str) -> None:
    embedder, images = embedders[name], pictures(TRUNKS[name])
    plain = embedder.encode(images)
    depth = len(embedder.stages)
    for stage in {*embedder.stages[:3], embedder.stages[depth // 2], embedder.stages[-1]}:
        seen: list[tuple[int, ...]] = []

        def double(features: Tensor, seen: list[tuple[int, ...]] = seen) -> Tensor:
            seen.append(tuple(features.shape))
            return torch.cat([features, features.flip(0)])

        both = embedder.encode(images, hook=StageHook(stage, double))
        assert both.raw.shape == (4, 8)
        torch.testing.assert_close(both.raw, torch.cat([plain.raw, plain.raw.flip(0)]), rtol=1e-4, atol=1e-5)
        torch.testing.assert_close(both.tokens[:2], plain.tokens, rtol=1e-4, atol=1e-5)
        channels = next(place.channels for place in embedder._info.stages if place.name == stage)
        assert len(seen) == 1
        assert seen[0][1 if len(seen[0]) == 4 else 2] == channels
    assert forward_hooks(embedder) == 0


@pytest.mark.parametrize("name", TRUNKS)
@torch.no_grad()
def test_tokens_have_one_form(embedders: dict[str, Embedder], name: str) -> None:
    embedder, size = embedders[name], TRUNKS[name]
    encoded = embedder.encode(pictures(size))
    rows, columns = encoded.grid
    assert rows == columns == size // (16 if "vit" in name else 32)
    assert encoded.tokens.shape == (2, rows * columns, embedder.width)
    assert encoded.prefix.shape[1] == (1 if "vit" in name else 0)
    torch.testing.assert_close(embedder.project(encoded.tokens.mean(1)), encoded.raw)


@pytest.mark.parametrize(("name", "stage"), [("test_resnet", "layer2"), ("test_vit", "block2")])
@torch.no_grad()
def test_nothing_below_the_stage_runs_twice(embedders: dict[str, Embedder], name: str, stage: str) -> None:
    embedder = embedders[name]
    rows: dict[str, list[int]] = {}

    def watch(path: str) -> None:
        def before(module: nn.Module, inputs: tuple[Tensor, ...]) -> None:
            rows.setdefault(path, []).append(inputs[0].shape[0])

        handles.append(embedder.trunk.get_submodule(path).register_forward_pre_hook(before))

    handles: list[torch.utils.hooks.RemovableHandle] = []
    paths = [place.module for place in embedder._info.stages if place.module]
    for path in paths:
        watch(path)
    embedder.encode(pictures(TRUNKS[name], 3), hook=StageHook(stage, lambda f: torch.cat([f, f])))
    for handle in handles:
        handle.remove()
    last_below = paths.index(find_stage(embedder._info.stages, stage, trunk=name).module)
    assert [rows[path] for path in paths] == [[3]] * (last_below + 1) + [[6]] * (len(paths) - last_below - 1)


@torch.no_grad()
def test_the_rest_of_the_trunk_sees_what_the_function_made() -> None:
    """Against the same ResNet taken apart by hand."""
    embedder = Embedder("resnet18", dim=0, weights="none", size=64, channels_last=False).eval()
    images, trunk = pictures(64), embedder.trunk
    below = trunk.layer2(trunk.layer1(trunk.maxpool(trunk.act1(trunk.bn1(trunk.conv1(images))))))
    by_hand = trunk.layer4(trunk.layer3(below * 0.5 + 1)).mean((2, 3))
    hooked = embedder.encode(images, hook=StageHook("stage2", lambda features: features * 0.5 + 1))
    torch.testing.assert_close(hooked.raw, by_hand)


@torch.no_grad()
def test_tokens_as_map_leave_the_class_token_alone(embedders: dict[str, Embedder]) -> None:
    embedder, images = embedders["test_vit"], pictures(64)
    tokens: list[Tensor] = []
    maps: list[Tensor] = []

    def keep_tokens(features: Tensor) -> Tensor:
        tokens.append(features)
        return features

    def shift_map(features: Tensor) -> Tensor:
        maps.append(features)
        return torch.cat([features, features.roll(1, dims=3)])

    hooks = [
        StageHook("block1", keep_tokens),
        StageHook("block1", shift_map, as_map=True),
        StageHook("block1", keep_tokens),
    ]
    encoded = embedder.encode(images, hook=hooks)
    assert encoded.unit.shape == (4, 8)
    assert maps[0].shape == (2, 64, 4, 4)
    before, after = tokens
    torch.testing.assert_close(maps[0], before[:, 1:].transpose(1, 2).unflatten(2, (4, 4)), rtol=0, atol=0)
    torch.testing.assert_close(after[:2], before, rtol=0, atol=0)
    torch.testing.assert_close(after[2:, :1], before[:, :1], rtol=0, atol=0)
    torch.testing.assert_close(after[2:, 1:].unflatten(1, (4, 4)), before[:, 1:].unflatten(1, (4, 4)).roll(1, dims=2))
    with pytest.raises(
        ModelError, match=r"made 3 rows of 2; where a trunk has class tokens, a whole multiple is needed"
    ):
        embedder.encode(images, hook=StageHook("block1", lambda f: torch.cat([f, f[:1]]), as_map=True))


@torch.no_grad()
def test_patch_embedding_as_map_has_no_class_token_yet(embedders: dict[str, Embedder]) -> None:
    shapes = []

    def look(features: Tensor) -> Tensor:
        shapes.append(tuple(features.shape))
        return features

    embedders["test_vit"].encode(pictures(64), hook=StageHook("patch_embed", look, as_map=True))
    assert shapes == [(2, 64, 4, 4)]


@torch.no_grad()
def test_hooks_at_two_stages_and_on_pixels(embedders: dict[str, Embedder]) -> None:
    embedder, images = embedders["test_resnet"], pictures(64)
    grown = embedder.encode(
        images,
        hook=[StageHook("pixel", lambda x: torch.cat([x, x])), StageHook("stage3", lambda f: torch.cat([f, f]))],
    )
    assert grown.raw.shape == (8, 8)
    torch.testing.assert_close(grown.raw[6:], embedder.encode(images).raw, rtol=1e-4, atol=1e-5)


def test_gradients_flow_through_both_halves(embedders: dict[str, Embedder]) -> None:
    embedder, images = embedders["test_resnet"], pictures(64).requires_grad_()
    unit = embedder.encode(images, hook=StageHook("stage1", lambda f: torch.cat([f, 2 * f]))).unit
    unit[2:, 0].sum().backward()
    assert images.grad is not None
    assert images.grad.abs().amax((1, 2, 3)).min() > 0
    embedder.zero_grad()


def test_hooks_are_gone_after_an_exception(embedders: dict[str, Embedder]) -> None:
    embedder = embedders["test_resnet"]

    def fail(features: Tensor) -> Tensor:
        raise RuntimeError("on purpose")

    with pytest.raises(RuntimeError, match="on purpose"):
        embedder.encode(pictures(64), hook=[StageHook("stage1", lambda f: f), StageHook("stage2", fail)])
    with pytest.raises(ModelError, match="has no stage 'nowhere'"):
        embedder.encode(pictures(64), hook=[StageHook("stage1", fail), StageHook("nowhere", fail)])
    assert forward_hooks(embedder) == 0
    embedder.encode(pictures(64))


def test_another_shape_is_refused(embedders: dict[str, Embedder]) -> None:
    hook = StageHook("layer2", lambda features: features[:, :5])
    with pytest.raises(
        ModelError, match=r"'layer2' returned \(2, 5, 8, 8\); allowed is a tensor \(any number of rows, 48"
    ):
        embedders["test_resnet"].encode(pictures(64), hook=hook)
    with pytest.raises(ModelError, match="returned NoneType; allowed is a tensor"):
        embedders["test_resnet"].encode(pictures(64), hook=StageHook("layer2", lambda features: None))  # type: ignore[arg-type, return-value]


def test_a_stage_that_does_not_run_is_named(embedders: dict[str, Embedder]) -> None:
    embedder = Embedder("test_resnet", dim=8, weights="none", size=64).eval()
    embedder.trunk.layer4 = nn.Sequential(embedder.trunk.layer4)
    inner = embedder.trunk.layer4[0]
    embedder.trunk.layer4.forward = lambda x: inner(x)  # a stage whose module is bypassed
    embedder.trunk.layer3.add_module("idle", nn.Identity())
    info = embedder._info
    places = (*info.stages[:-1], type(info.stages[0])("idle", "layer3.idle", 1))
    object.__setattr__(info, "stages", places)
    embedder.trunk.layer3.forward = lambda x, parts=list(embedder.trunk.layer3)[:-1]: nn.Sequential(*parts)(x)
    with pytest.raises(ModelError, match=r"Stage 'idle' of trunk 'test_resnet' ran 0 times in one pass"):
        embedder.encode(pictures(64), hook=StageHook("idle", lambda f: f))


@pytest.mark.parametrize(
    ("name", "stage", "kind"),
    [("hrnet_w18_small", "stage3", "a list"), ("tnt_s_patch16_224", "block1", "several tensors")],
)
def test_stages_of_several_tensors_are_refused(name: str, stage: str, kind: str) -> None:
    embedder = Embedder(name, dim=8, weights="none", size=64).eval()
    with pytest.raises(
        ModelError, match=rf"Stage '{stage}' of trunk '{name}' gives {kind}, not one tensor; hooks cannot"
    ):
        embedder.encode(pictures(64), hook=StageHook(stage, lambda f: f))


@torch.no_grad()
def test_half_precision_goes_on_in_half_precision(embedders: dict[str, Embedder]) -> None:
    kinds = []

    def upcast_inside(features: Tensor) -> Tensor:
        kinds.append(features.dtype)
        return features.float()

    with torch.autocast("cpu", dtype=torch.bfloat16):
        encoded = embedders["test_vit"].encode(pictures(64), hook=StageHook("block1", upcast_inside))
    assert kinds[0] in (torch.bfloat16, torch.float32)
    assert encoded.raw.dtype == encoded.unit.dtype == encoded.tokens.dtype == torch.float32


@pytest.mark.parametrize(
    ("count", "height", "width", "grid"),
    [
        (196, 224, 224, (14, 14)),
        (197, 224, 224, None),
        (49, 224, 224, (7, 7)),
        (25, 144, 144, (5, 5)),
        (6, 96, 64, (3, 2)),
        (35, 224, 160, (7, 5)),
        (0, 32, 32, None),
        (1, 32, 32, (1, 1)),
    ],
)
def test_token_grid(count: int, height: int, width: int, grid: tuple[int, int] | None) -> None:
    assert token_grid(count, height, width) == grid


def test_prefix_that_the_trunk_does_not_declare_is_found() -> None:
    assert split_prefix(197, 0, 224, 224) == (1, (14, 14))
    assert split_prefix(201, 5, 224, 224) == (5, (14, 14))
    assert split_prefix(23, 0, 224, 224) == (0, None)
