"""The class-preserving cap: closed form against a search along the circle."""

import math

import pytest
import torch
from torch import Tensor

from proxemics.core.errors import LossError
from proxemics.methods.center_polar import cap as module
from proxemics.methods.center_polar.cap import class_preserving_cap
from proxemics.methods.center_polar.geodesic import angles_between, on_circle, outward_tangents
from proxemics.methods.center_polar.schedule import reach, target_angles


def units(*shape: int, seed: int = 0) -> Tensor:
    values = torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)
    return torch.nn.functional.normalize(values, dim=-1)


def near(centroids: Tensor, labels: Tensor, spread: float, seed: int = 3) -> Tensor:
    noise = torch.randn(len(labels), centroids.shape[1], generator=torch.Generator().manual_seed(seed))
    return torch.nn.functional.normalize(centroids[labels] + spread * noise.double(), dim=-1)


def lead(points: Tensor, labels: Tensor, centroids: Tensor) -> Tensor:
    cosines = points @ centroids.t()
    own = cosines.gather(1, labels[:, None])[:, 0]
    return own - cosines.scatter(1, labels[:, None], -math.inf).amax(1)


def setting(spread: float = 0.1) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor]:
    centroids, labels = units(12, 6), torch.arange(60) % 12
    z = near(centroids, labels, spread)
    own = centroids[labels]
    return centroids, labels, z, angles_between(z, own), outward_tangents(z, own)


@pytest.mark.parametrize("margin", [0.0, 0.05, 0.2])
def test_at_the_cap_the_lead_is_the_margin_and_before_it_more(margin: float) -> None:
    centroids, labels, _, theta, tangents = setting()
    cap = class_preserving_cap(theta, tangents, centroids, labels, margin=margin, phi_max=math.pi)
    roomy = cap > theta
    assert roomy.sum() > 20
    own = centroids[labels]
    gap = lead(on_circle(own, tangents, cap), labels, centroids)[roomy]
    torch.testing.assert_close(gap, torch.full_like(gap, margin), rtol=0, atol=1e-9)
    for share in torch.linspace(0, 1, 30, dtype=torch.float64):
        point = on_circle(own, tangents, theta + share * (cap - theta))
        assert (lead(point, labels, centroids)[roomy] >= margin - 1e-9).all()


def test_agrees_with_a_search_along_the_circle() -> None:
    centroids, labels, _, theta, tangents = setting(0.25)
    cap = class_preserving_cap(theta, tangents, centroids, labels, margin=0.05)
    grid = torch.linspace(0, 1, 4001, dtype=torch.float64)
    limit = math.radians(75)
    for i in range(len(labels)):
        phi = theta[i] + grid * (limit - theta[i]).clamp_min(0)
        points = on_circle(centroids[labels[i]][None], tangents[i][None], phi)
        good = lead(points, labels[i].expand(len(phi)), centroids) >= 0.05
        first_bad = int((~good).float().argmax()) if not good.all() else len(phi)
        wanted = float(theta[i] if first_bad == 0 else phi[first_bad - 1])
        assert float(cap[i]) == pytest.approx(wanted, abs=5e-4)


def test_every_expanded_embedding_is_nearest_to_its_own_centroid() -> None:
    centroids, labels, z, theta, tangents = setting(0.15)
    inside = lead(z, labels, centroids) >= 0.05
    cap = class_preserving_cap(theta, tangents, centroids, labels)
    assert torch.equal(cap[~inside], theta[~inside])
    goal = target_angles(theta, 0.5, torch.rand(60, dtype=torch.float64), cap)
    assert (goal >= theta).all()
    assert (goal <= cap).all()
    assert (lead(on_circle(centroids[labels], tangents, goal), labels, centroids)[inside] >= 0.05 - 1e-9).all()


def test_blocks_of_classes_change_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    centroids, labels, _, theta, tangents = setting()
    whole = class_preserving_cap(theta, tangents, centroids, labels)
    monkeypatch.setattr(module, "BLOCK", 5)
    torch.testing.assert_close(class_preserving_cap(theta, tangents, centroids, labels), whole)


def test_no_room() -> None:
    """A twin centroid, a sample past the limit, and one that only a step outward would bring into its class."""
    c = torch.tensor([[1.0, 0, 0], [1, 0, 0], [0, 1, 0]])
    theta, u, y = torch.tensor([0.1]), torch.tensor([[0.0, 0, 1]]), torch.tensor([0])
    assert torch.equal(class_preserving_cap(theta, u, c, y, margin=0.0), theta)
    far = torch.tensor([1.4])
    assert torch.equal(class_preserving_cap(far, u, c[[0, 2]], y), far)
    close = torch.nn.functional.normalize(torch.tensor([[1.0, 0, 0], [1, -0.2, 0]]), dim=-1)
    inward = torch.tensor([[0.0, 1.0, 0.0]])
    assert torch.equal(class_preserving_cap(torch.tensor([0.01]), inward, close, y), torch.tensor([0.01]))
    assert float(class_preserving_cap(torch.tensor([0.3]), inward, close, y)) > 0.3


def test_one_class_and_unknown_rivals_are_bounded_by_the_limit_alone() -> None:
    c, y = torch.eye(3), torch.tensor([0])
    theta, u = torch.tensor([0.1]), torch.tensor([[0.0, 1.0, 0.0]])
    known = torch.tensor([True, False, False])
    assert float(class_preserving_cap(theta, u, c[:1], y).rad2deg()) == pytest.approx(75, abs=1e-4)
    assert float(class_preserving_cap(theta, u, c, y, known=known).rad2deg()) == pytest.approx(75, abs=1e-4)
    assert float(class_preserving_cap(theta, u, c, y).rad2deg()) < 45


def test_bad_input() -> None:
    c = torch.eye(3)
    with pytest.raises(LossError, match="Label 7"):
        class_preserving_cap(torch.zeros(1), c[:1], c, torch.tensor([7]))
    with pytest.raises(LossError, match="margin must be"):
        class_preserving_cap(torch.zeros(1), c[:1], c, torch.tensor([0]), margin=-1.0)


def test_schedule() -> None:
    assert [reach(t) for t in (0, 0.125, 0.5, 0.99)] == [0, 0.25, 1, 1]
    theta, cap = torch.tensor([0.2, 0.2, 0.2]), torch.tensor([2.0, 2.0, 0.3])
    uniform = torch.tensor([0.0, 1.0, 0.5])
    torch.testing.assert_close(target_angles(theta, 0.4, uniform, cap), torch.tensor([0.4, 0.6, 0.3]))
