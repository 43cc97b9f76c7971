"""Depthwise convolution: the library's output bit for bit, and its gradients."""

from __future__ import annotations

import pytest
import torch
from torch.nn import functional

from proxemics.models import depthwise
from proxemics.models.depthwise import BLOCK, depthwise_conv2d, kernel_gradient

CASES = [
    # (B, C, H, W), kernel, stride, padding
    ((2, 3, 4, 4), (5, 5), (1, 1), (2, 2)),
    ((3, 4, 7, 5), (5, 5), (1, 1), (2, 2)),
    ((2, 2, 11, 11), (5, 5), (2, 2), (0, 0)),
    ((2, 3, 6, 9), (3, 7), (2, 1), (1, 3)),
    ((1, 1, 5, 5), (5, 5), (1, 1), (0, 0)),
    ((2, 2, 3, 3), (7, 7), (1, 1), (3, 3)),
    ((2, 2, 8, 3), (5, 1), (3, 1), (4, 0)),
]


def _case(shape: tuple[int, ...], kernel: tuple[int, int], dtype: torch.dtype) -> tuple[torch.Tensor, torch.Tensor]:
    generator = torch.Generator().manual_seed(0)
    images = torch.randn(shape, generator=generator, dtype=dtype)
    weight = torch.randn(shape[1], 1, *kernel, generator=generator, dtype=dtype)
    return images.requires_grad_(), weight.requires_grad_()


@pytest.mark.parametrize(("shape", "kernel", "stride", "padding"), CASES)
@pytest.mark.parametrize("memory", [torch.contiguous_format, torch.channels_last])
def test_output_and_gradients_are_those_of_the_library(shape, kernel, stride, padding, memory) -> None:
    images, weight = _case(shape, kernel, torch.float64)
    bias = torch.linspace(-1, 1, shape[1], dtype=torch.float64, requires_grad=True)
    given = images.contiguous(memory_format=memory)
    wanted = functional.conv2d(given, weight, bias, stride, padding, groups=shape[1])
    out = depthwise_conv2d(given, weight, bias, stride, padding)
    assert torch.equal(out, wanted)
    above = torch.randn(out.shape, generator=torch.Generator().manual_seed(1), dtype=torch.float64)
    ours = torch.autograd.grad(out, (images, weight, bias), above)
    theirs = torch.autograd.grad(wanted, (images, weight, bias), above)
    for mine, other in zip(ours, theirs, strict=True):
        assert mine.shape == other.shape
        torch.testing.assert_close(mine, other, rtol=1e-11, atol=1e-11)


@pytest.mark.parametrize(("shape", "kernel", "stride", "padding"), CASES[:4])
def test_gradients_and_their_gradients_by_differences(shape, kernel, stride, padding) -> None:
    images, weight = _case((1, *shape[1:]), kernel, torch.float64)
    bias = torch.ones(shape[1], dtype=torch.float64, requires_grad=True)

    def call(*given: torch.Tensor) -> torch.Tensor:
        return depthwise_conv2d(given[0], given[1], given[2], stride, padding)

    assert torch.autograd.gradcheck(call, (images, weight, bias), fast_mode=True)
    assert torch.autograd.gradgradcheck(call, (images, weight, bias), fast_mode=True)


def test_more_channels_than_one_block_takes() -> None:
    channels = BLOCK // 10_000 + 5
    images, weight = _case((2, channels, 10, 10), (5, 5), torch.float32)
    out = functional.conv2d(images, weight, None, 1, 2, groups=channels)
    above = torch.randn(out.shape, generator=torch.Generator().manual_seed(1))
    (wanted,) = torch.autograd.grad(out, weight, above)
    ours = kernel_gradient(images.detach(), above, (5, 5), (1, 1), (2, 2))
    torch.testing.assert_close(ours, wanted, rtol=1e-4, atol=1e-4)


def test_only_what_is_asked_for_gets_a_gradient(monkeypatch: pytest.MonkeyPatch) -> None:
    images, weight = _case((2, 3, 4, 4), (5, 5), torch.float32)
    depthwise_conv2d(images.detach(), weight, None, (1, 1), (2, 2)).sum().backward()
    assert images.grad is None
    assert weight.grad is not None
    depthwise_conv2d(images, weight.detach(), None, (1, 1), (2, 2)).sum().backward()
    assert images.grad is not None
    out = depthwise_conv2d(images, weight, None, (1, 1), (2, 2)).sum()
    (both,) = torch.autograd.grad(out, weight, retain_graph=True)
    torch.testing.assert_close(both, weight.grad)
    monkeypatch.setattr(depthwise, "kernel_gradient", lambda *_: pytest.fail("nobody asked for it"))
    (alone,) = torch.autograd.grad(out, images)
    torch.testing.assert_close(alone, images.grad)


def test_batched_gradients_and_an_empty_batch() -> None:
    images, weight = _case((2, 3, 4, 4), (5, 5), torch.float32)
    out = depthwise_conv2d(images, weight, None, (1, 1), (2, 2))
    above = torch.randn(3, *out.shape, generator=torch.Generator().manual_seed(1))
    (together,) = torch.autograd.grad(out, weight, above, is_grads_batched=True, retain_graph=True)
    for one, wanted in zip(above, together, strict=True):
        torch.testing.assert_close(torch.autograd.grad(out, weight, one, retain_graph=True)[0], wanted)
    depthwise_conv2d(images[:0], weight, None, (1, 1), (2, 2)).sum().backward()
    assert weight.grad is not None
    assert not weight.grad.any()


def test_a_first_call_in_inference_mode_leaves_nothing_behind() -> None:
    images, weight = _case((2, 3, 4, 5), (5, 5), torch.float64)
    with torch.inference_mode():
        kernel_gradient(images.detach(), images.detach(), (5, 5), (1, 1), (2, 2))
    out = depthwise_conv2d(images, weight, None, (1, 1), (2, 2)).square().sum()
    (first,) = torch.autograd.grad(out, weight, create_graph=True)
    first.square().sum().backward()
    assert weight.grad is not None
