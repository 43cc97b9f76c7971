"""The symmetric divergence: golden value, gradients, and the restriction to the hardest classes."""

import pytest
import torch
from torch import Tensor

from proxemics.losses.build import LOSSES, build_loss
from proxemics.methods.couce import class_similarities, symmetric_kl
from proxemics.methods.couce.divergence import hardest_classes

WITH_PROXIES = [name for name in LOSSES if hasattr(build_loss(name, 3, 4), "proxies")]


def fixture() -> tuple[Tensor, Tensor]:
    raw = torch.tensor([[1, 2, 2], [2, -1, 2], [0, 3, 4], [-2, 1, 2]], dtype=torch.float64)
    proxies = torch.tensor([[2, 1, 2], [1, -2, 2], [-1, 2, 2]], dtype=torch.float64)
    clean = torch.nn.functional.normalize(raw, dim=1) @ torch.nn.functional.normalize(proxies, dim=1).T
    return clean, clean[torch.tensor([2, 1, 0, 3])]


def test_golden_value() -> None:
    clean, changed = fixture()
    assert symmetric_kl(clean, changed).item() == pytest.approx(0.4922865730, abs=1e-10)
    p, q = (clean / 0.1).softmax(1), (changed / 0.1).softmax(1)
    rows = (p * (p / q).log()).sum(1)
    assert rows.tolist() == pytest.approx([1.071509345, 0, 0.897636947, 0], abs=1e-9)
    jeffreys = rows + (q * (q / p).log()).sum(1)
    assert symmetric_kl(clean, changed).item() == pytest.approx(float(jeffreys.mean() / 2))
    assert symmetric_kl(clean, changed, stop_grad=False).item() == pytest.approx(float(jeffreys.mean() / 2))


def test_gradient_with_stopped_gradients() -> None:
    clean, changed = (values.requires_grad_() for values in fixture())
    symmetric_kl(clean, changed, tau=0.1).backward()
    p, q = (clean / 0.1).softmax(1).detach(), (changed / 0.1).softmax(1).detach()
    torch.testing.assert_close(clean.grad * 0.1, (p - q) / 8)
    torch.testing.assert_close(changed.grad, -clean.grad)


def test_gradient_without_stop_is_that_of_the_value() -> None:
    clean, changed = (values.requires_grad_() for values in fixture())
    assert torch.autograd.gradcheck(lambda a, b: symmetric_kl(a, b, stop_grad=False), (clean, changed))
    symmetric_kl(clean, changed, stop_grad=False).backward()
    assert (clean.grad + changed.grad).abs().max() > 1e-3


@pytest.mark.parametrize("stop_grad", [True, False])
def test_same_view_gives_zero(stop_grad: bool) -> None:
    clean = fixture()[0].requires_grad_()
    value = symmetric_kl(clean, clean.clone(), stop_grad=stop_grad)
    value.backward()
    assert value.item() == pytest.approx(0, abs=1e-15)
    assert clean.grad.abs().max() < 1e-15


def test_hardest_classes() -> None:
    clean, changed = fixture()
    labels = torch.tensor([0, 1, 0, 2])
    assert hardest_classes(clean, labels, 1).tolist() == [[0, 2], [1, 0], [0, 2], [2, 0]]
    all_classes = symmetric_kl(clean, changed, labels=labels, top_negatives=50)
    assert all_classes.item() == pytest.approx(0.4922865730, abs=1e-10)
    columns = hardest_classes(clean, labels, 1)
    wanted = symmetric_kl(clean.gather(1, columns), changed.gather(1, columns))
    assert symmetric_kl(clean, changed, labels=labels, top_negatives=1).item() == pytest.approx(wanted.item())
    one = clean[:, :1]
    assert symmetric_kl(one, one, labels=torch.zeros(4).long(), top_negatives=3).item() == 0


def test_extremes_are_finite() -> None:
    far = torch.tensor([[1.0, -1.0]]), torch.tensor([[-1.0, 1.0]])
    for values in (far, tuple(value.bfloat16() for value in far)):
        clean, changed = (value.clone().requires_grad_() for value in values)
        value = symmetric_kl(clean, changed, tau=0.001)
        value.backward()
        assert value.dtype == torch.float32
        assert value.item() == pytest.approx(2000, rel=1e-3)
        assert torch.isfinite(clean.grad).all()
    assert symmetric_kl(torch.zeros(0, 3), torch.zeros(0, 3)).item() == 0


@pytest.mark.parametrize("name", WITH_PROXIES)
def test_similarities_with_constant_proxies(name: str) -> None:
    loss = build_loss(name, 3, 4)
    z = torch.randn(5, 4, requires_grad=True)
    free, held = class_similarities(loss, z), class_similarities(loss, z, detach_proxies=True)
    torch.testing.assert_close(free, held)
    held.square().sum().backward()
    assert loss.proxies.grad is None
    assert z.grad.abs().max() > 0
    free.square().sum().backward()
    assert loss.proxies.grad.abs().max() > 0
