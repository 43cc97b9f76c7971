"""Where a run begins and what keeps concentrations positive: warm start, head scale, floor; and the released guide."""

import pytest
import torch
from torch import Tensor, nn

from proxemics.core.errors import LossError
from proxemics.losses.functional import proxy_anchor
from proxemics.methods.probabilistic import class_means, released_proxy_anchor, scale_last_linear
from proxemics.methods.probabilistic.bounds import bounded, unbounded


def embeddings(count: int, dim: int, seed: int = 0) -> Tensor:
    return torch.randn(count, dim, generator=torch.Generator().manual_seed(seed))


def test_proxies_point_to_the_class_means() -> None:
    z, labels, proxies = embeddings(12, 5), torch.arange(12) % 3, embeddings(4, 5, 1)
    found = class_means(z, labels, proxies, length=18.0)
    for c in range(3):
        mean = z[labels == c].mean(0)
        torch.testing.assert_close(found[c], 18 * mean / mean.norm())
    # The class without a picture keeps its direction.
    torch.testing.assert_close(found[3], 18 * proxies[3] / proxies[3].norm())


def test_several_proxies_share_the_pictures_of_their_class() -> None:
    z, labels, proxies = embeddings(5, 4), torch.tensor([0, 1, 0, 0, 1]), embeddings(6, 4, 1).view(2, 3, 4)
    found = class_means(z, labels, proxies, length=1.0)
    assert found.shape == (2, 3, 4)
    unit = torch.nn.functional.normalize
    torch.testing.assert_close(found[0], unit(z[[0, 2, 3]], dim=-1))
    torch.testing.assert_close(found[1, :2], unit(z[[1, 4]], dim=-1))
    torch.testing.assert_close(found[1, 2], unit(proxies[1, 2], dim=0))


def test_warm_start_refuses_what_does_not_fit() -> None:
    with pytest.raises(LossError, match="Label 2 in row 1 is outside"):
        class_means(embeddings(2, 4), torch.tensor([0, 2]), torch.zeros(2, 4), length=1.0)
    with pytest.raises(LossError, match="length must be a finite number above 0"):
        class_means(embeddings(2, 4), torch.tensor([0, 1]), torch.zeros(2, 4), length=0.0)


def test_the_last_linear_layer_scales_the_embeddings() -> None:
    head = nn.Sequential(nn.LayerNorm(6, elementwise_affine=False), nn.Linear(6, 6), nn.Linear(6, 4))
    x = embeddings(3, 6)
    before = head(x)
    scale_last_linear(head, 50.0)
    torch.testing.assert_close(head(x), 50 * before)
    scale_last_linear(nn.Linear(2, 2, bias=False), 2.0)


@pytest.mark.parametrize("head", [None, nn.Identity()])
def test_without_a_linear_layer_there_is_nothing_to_scale(head: nn.Module | None) -> None:
    with pytest.raises(LossError, match=r"the model has no linear head; set model\.dim, or init_norm_multiplier=1"):
        scale_last_linear(head, 2.0)


@pytest.mark.parametrize("how", ["straight-through", "clamp", "softplus"])
def test_concentrations_stay_above_the_floor(how: str) -> None:
    x = torch.tensor([-5.0, 0.05, 0.1, 3.0])
    assert (bounded(x, 0.1, how) >= 0.1).all()  # type: ignore[arg-type]
    if how != "softplus":
        assert bounded(x, 0.1, how).tolist() == pytest.approx([0.1, 0.1, 0.1, 3.0])  # type: ignore[arg-type]
    start = torch.tensor(unbounded(18.0, 0.1, how), dtype=torch.float64)  # type: ignore[arg-type]
    assert bounded(start, 0.1, how).item() == pytest.approx(18, rel=1e-9)  # type: ignore[arg-type]


def test_a_concentration_under_the_floor_can_only_rise() -> None:
    x = torch.tensor([-5.0, -5.0, 3.0, 3.0], requires_grad=True)
    bounded(x, 0.1, "straight-through").backward(torch.tensor([1.0, -1.0, 1.0, -1.0]))
    assert x.grad.tolist() == [0, -1, 1, -1]
    x.grad = None
    bounded(x, 0.1, "clamp").backward(torch.tensor([1.0, -1.0, 1.0, -1.0]))
    assert x.grad.tolist() == [0, 0, 1, -1]


@pytest.mark.parametrize("per_class", [1, 2, 5])
def test_released_guide_is_proxy_anchor_for_balanced_batches(per_class: int) -> None:
    z, proxies = embeddings(4 * per_class, 6), embeddings(7, 6, 1)
    labels = torch.tensor([5, 0, 3, 2]).repeat_interleave(per_class)
    inputs = (z.double().requires_grad_(), proxies.double().requires_grad_())
    found = released_proxy_anchor(inputs[0], labels, proxies=inputs[1])
    wanted = proxy_anchor(inputs[0], labels, proxies=inputs[1])
    torch.testing.assert_close(found, wanted)
    for one, other in zip(torch.autograd.grad(found, inputs), torch.autograd.grad(wanted, inputs), strict=True):
        torch.testing.assert_close(one, other)


def test_released_guide_counts_columns_otherwise() -> None:
    z, proxies, labels = embeddings(5, 6).double(), embeddings(3, 6, 1).double(), torch.tensor([0, 0, 0, 0, 1])
    s = torch.nn.functional.normalize(z, dim=-1) @ torch.nn.functional.normalize(proxies, dim=-1).T
    pulls = [torch.log1p(torch.exp(-32 * (s[labels == c, c] - 0.1)).sum()) for c in range(2)]
    pushes = [torch.log1p(torch.exp(32 * (s[labels != c, c] + 0.1)).sum()) for c in range(3)]
    wanted = (4 * pulls[0] + pulls[1]) / 5 + sum(pushes) / 3
    torch.testing.assert_close(released_proxy_anchor(z, labels, proxies=proxies), wanted)


def test_released_guide_on_one_class_and_duplicates_is_finite() -> None:
    z = torch.ones(4, 6, requires_grad=True)
    value = released_proxy_anchor(z, torch.zeros(4).long(), proxies=torch.ones(2, 6))
    value.backward()
    assert torch.isfinite(value)
    assert torch.isfinite(z.grad).all()
