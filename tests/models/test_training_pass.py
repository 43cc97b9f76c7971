"""The redirected layers of a pass with gradients: used where they help, and without effect on what is computed."""

from __future__ import annotations

import copy
from typing import Any

import pytest
import torch
from torch import nn

from proxemics.models import Embedder
from proxemics.models import embedder as embedder_module
from proxemics.models.training_pass import MIN_BATCH, TrainingPass, redirects

OURS, NORM = "_DepthwiseConv2dBackward", "AddcmulBackward0"


def _name(out: torch.Tensor) -> str:
    assert out.grad_fn is not None
    return str(out.grad_fn.name())


def _images(
    side: int = 7, channels: int = 4, *, batch: int = MIN_BATCH, dtype: torch.dtype = torch.float32
) -> torch.Tensor:
    generator = torch.Generator().manual_seed(0)
    return torch.randn(batch, channels, side, side, generator=generator, dtype=dtype).requires_grad_()


@pytest.mark.parametrize(
    ("layer", "side", "ours"),
    [
        (nn.Conv2d(4, 4, 5, padding=2, groups=4), 7, True),
        (nn.Conv2d(4, 4, 5, stride=2, groups=4, bias=False), 11, True),
        (nn.Conv2d(4, 4, (1, 7), padding=(0, 3), groups=4), 12, True),
        (nn.Conv2d(4, 4, 3, padding=1, groups=4), 7, False),  # the library is quick there
        (nn.Conv2d(4, 4, 5, padding=2, groups=4), 13, False),  # the map is too large
        (nn.Conv2d(4, 4, 5, padding=4, dilation=2, groups=4), 7, False),
        (nn.Conv2d(4, 4, 5, padding="same", groups=4), 7, False),
        (nn.Conv2d(4, 4, 5, padding=2, groups=2), 7, False),
        (nn.Conv2d(4, 8, 5, padding=2, groups=4), 7, False),
        (nn.Conv2d(4, 4, 5, padding=2, groups=4).requires_grad_(False), 7, False),
    ],
    ids=str,
)
def test_which_convolutions_are_redirected_and_that_all_give_the_same(layer: nn.Conv2d, side: int, ours: bool) -> None:
    images = _images(side)
    with TrainingPass():
        out = layer(images)
    assert torch.equal(out, layer(images))
    assert (_name(out) == OURS) == ours


def _norm(**settings: bool) -> nn.BatchNorm2d:
    layer = nn.BatchNorm2d(4, eps=1e-3, **settings)
    generator = torch.Generator().manual_seed(1)
    for part in layer.state_dict().values():
        if part.is_floating_point():
            part.copy_(torch.rand(part.shape, generator=generator) + 0.5)
    return layer.eval().requires_grad_(False)


@pytest.mark.parametrize("affine", [True, False])
def test_a_resting_batch_norm_is_a_factor_and_a_summand(affine: bool) -> None:
    layer, images = _norm(affine=affine), _images()
    with TrainingPass():
        out = layer(images)
    wanted = layer(images)
    assert _name(out) == NORM
    torch.testing.assert_close(out, wanted, rtol=1e-6, atol=1e-6)
    above = torch.randn(out.shape, generator=torch.Generator().manual_seed(2))
    ours, theirs = (torch.autograd.grad(one, images, above)[0] for one in (out, wanted))
    torch.testing.assert_close(ours, theirs, rtol=1e-6, atol=1e-6)


def test_a_batch_norm_that_learns_or_counts_is_left_alone() -> None:
    images = _images()
    learning, counting, without = _norm().requires_grad_(), _norm().train(), _norm(track_running_stats=False)
    for layer in (learning, counting, without):
        other = copy.deepcopy(layer)
        with TrainingPass():
            out = layer(images)
        assert _name(out) != NORM
        assert torch.equal(out, other(images))
        assert all(torch.equal(a, b) for a, b in zip(layer.buffers(), other.buffers(), strict=True))
    with TrainingPass():  # below frozen stages nothing changes, so that stored features stay equal to computed ones
        assert torch.equal(_norm()(images.detach()), _norm()(images.detach()))


@pytest.mark.parametrize("layer", [nn.Conv2d(4, 4, 5, padding=2, groups=4), _norm()], ids=["conv", "norm"])
def test_small_batches_and_half_precision_go_their_way(layer: nn.Module) -> None:
    for images, precision in (
        (_images(batch=MIN_BATCH - 1), None),
        (_images(batch=0), None),
        (_images(), torch.bfloat16),
    ):
        with TrainingPass(), torch.autocast("cpu", dtype=precision, enabled=precision is not None):
            out = layer(images)
        assert _name(out) not in (OURS, NORM)
        out.float().sum().backward()
    with TrainingPass():
        out = copy.deepcopy(layer).bfloat16()(_images(dtype=torch.bfloat16))
    assert out.dtype == torch.bfloat16
    with TrainingPass(), pytest.raises(RuntimeError):
        layer(_images(channels=1))


def test_which_trunks_and_passes_gain() -> None:
    trunks = {name: Embedder(name, dim=4, weights="none", size=None).trunk for name in ("test_resnet", "test_vit")}
    assert redirects(trunks["test_resnet"])
    assert not redirects(trunks["test_vit"])
    assert not redirects(copy.deepcopy(trunks["test_resnet"]).to("meta"))
    with torch.no_grad():
        assert not redirects(trunks["test_resnet"])
    with torch.inference_mode():
        assert not redirects(trunks["test_resnet"])


def test_checkpointing_and_function_transforms_still_work() -> None:
    embedder = Embedder("tf_efficientnet_lite0", dim=4, weights="none", size=64).train()
    images = torch.randn(MIN_BATCH, 3, 64, 64, generator=torch.Generator().manual_seed(0))
    embedder(images)[:, 0].sum().backward()
    wanted = {name: part.grad for name, part in embedder.named_parameters() if part.grad is not None}
    embedder.zero_grad()
    untyped: Any = embedder.trunk
    untyped.set_grad_checkpointing(True)
    embedder(images)[:, 0].sum().backward()
    for name, part in embedder.named_parameters():
        if part.grad is not None:
            torch.testing.assert_close(part.grad, wanted[name], rtol=1e-2, atol=1e-5, msg=name)
    untyped.set_grad_checkpointing(False)
    parts = {name: part.detach() for name, part in embedder.named_parameters()}

    def loss(given: dict[str, torch.Tensor]) -> torch.Tensor:
        out: torch.Tensor = torch.func.functional_call(embedder, given, (images,))
        return out[:, 0].sum()

    found = torch.func.grad(loss)(parts)
    torch.testing.assert_close(found["head.weight"], wanted["head.weight"], rtol=1e-3, atol=1e-5)


def test_a_backward_pass_under_autocast_stays_exact() -> None:
    layer, images = nn.Conv2d(4, 4, 5, padding=2, groups=4, bias=False), _images()
    with TrainingPass():
        out = layer(images)
    (wanted,) = torch.autograd.grad(layer(images).square().sum(), layer.weight)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        (found,) = torch.autograd.grad(out.square().sum(), layer.weight)
    torch.testing.assert_close(found, wanted, rtol=1e-5, atol=1e-4)


@pytest.mark.parametrize("trunk", ["tf_efficientnet_lite0", "test_convnext", "test_resnet", "test_vit"])
@pytest.mark.parametrize("freeze_bn", [True, False])
def test_a_trunk_learns_the_same(trunk: str, freeze_bn: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    embedder = Embedder(trunk, dim=8, weights="none", size=64 if trunk != "test_vit" else None, freeze_bn=freeze_bn)
    embedder = embedder.double().train()
    side = embedder.preprocess.size
    images = torch.randn(MIN_BATCH, 3, side, side, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    seen: dict[bool, tuple[torch.Tensor, dict[str, torch.Tensor]]] = {}
    for on in (True, False):
        copied = copy.deepcopy(embedder)
        if not on:
            monkeypatch.setattr(embedder_module, "redirects", lambda _: False)
        tokens = copied.encode(images).tokens
        tokens.square().mean().backward()
        grads = {name: part.grad for name, part in copied.named_parameters() if part.grad is not None}
        seen[on] = (tokens.detach(), grads)
    torch.testing.assert_close(seen[True][0], seen[False][0], rtol=1e-9, atol=1e-9)
    assert seen[True][1].keys() == seen[False][1].keys()
    for name, wanted in seen[False][1].items():
        assert (seen[True][1][name] - wanted).norm() <= 1e-9 * wanted.norm() + 1e-12, name


def test_lite0_uses_both_and_inference_uses_neither() -> None:
    embedder = Embedder(dim=8, weights="none", size=112).train()
    images = torch.randn(MIN_BATCH, 3, 112, 112, generator=torch.Generator().manual_seed(0))
    names = _graph(embedder(images))
    assert names.count(OURS) == 7
    assert names.count(NORM) > 20
    assert "NativeBatchNormBackward0" not in names[: names.index(OURS)]
    with torch.no_grad():
        first = embedder.eval()(images)
        with TrainingPass():
            torch.testing.assert_close(embedder(images), first, rtol=0, atol=0)


def _graph(out: torch.Tensor) -> list[str]:
    assert out.grad_fn is not None
    todo, names, known = [out.grad_fn], [], set()
    while todo:
        node = todo.pop()
        if node is None or node in known:
            continue
        known.add(node)
        names.append(node.name())
        todo.extend(following for following, _ in node.next_functions)
    return names
