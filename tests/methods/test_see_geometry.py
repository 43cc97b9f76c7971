"""The points of spherical embedding expansion: worked cases, exact relations, extremes, gradients."""

import math

import pytest
import torch
from torch import Tensor

from proxemics.core.errors import LossError
from proxemics.methods.see_geometry import simplex, spherical_expansion


def unit(*shape: int, seed: int = 0, dtype: torch.dtype = torch.float64) -> Tensor:
    generator = torch.Generator().manual_seed(seed)
    return torch.nn.functional.normalize(torch.randn(*shape, dtype=dtype, generator=generator), dim=-1)


def exact(values: object) -> Tensor:
    return torch.tensor(values, dtype=torch.float64)


def generator(seed: int = 0) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


Z, W = torch.tensor([[1.0, 2, 2]]).double() / 3, torch.tensor([[2.0, 1, 2]]).double() / 3


def test_the_mirror_image_of_the_worked_case() -> None:
    points = spherical_expansion(Z, W, 1)
    torch.testing.assert_close(points[0], exact([[0.8518518519, -0.0740740741, 0.5185185185]]))


def test_two_points_of_the_worked_case() -> None:
    axis = torch.nn.functional.normalize(Z - (Z * W).sum() * W, dim=-1)
    torch.testing.assert_close(axis * 0.4581228473, exact([[-0.2592592593, 0.3703703704, 0.0740740741]]))
    frame = torch.cat([W, axis, torch.linalg.cross(W, axis)])
    points = spherical_expansion(Z, W, 2, frame=frame)[0]
    wanted = exact([[0.529772132, -0.081338979, 0.84423069], [0.914672312, 0.303561201, 0.266880421]])
    torch.testing.assert_close(points, wanted, atol=2e-9, rtol=0)
    assert math.isclose(points[0] @ points[1], 0.6851851852, abs_tol=1e-9)


def by_gram_schmidt(z: Tensor, w: Tensor, directions: Tensor) -> Tensor:
    """The construction of the paper for one sample, written out: directions (n-1, M) are made orthogonal one by one."""
    n = len(directions) + 1
    c = z @ w
    r = z - c * w
    found = [w, r / r.norm()]
    for direction in directions:
        for other in found:
            direction = direction - (direction @ other) * other
        found.append(direction / direction.norm())
    centres = torch.zeros(n + 1, n, dtype=z.dtype)
    for i in range(n + 1):
        for j in range(min(i, n)):
            centres[i, j] = (-1 / n - centres[i, :j] @ centres[j, :j]) / centres[j, j]
        if i < n:
            centres[i, i] = math.sqrt(1 - float(centres[i].square().sum()))
    return c * w + r.norm() * centres[1:] @ torch.stack(found[1:])


@pytest.mark.parametrize("n", [1, 2, 3, 8])
def test_equals_the_construction_of_the_paper_for_the_directions_it_chose(n: int) -> None:
    z, w = unit(6, 12), unit(6, 12, seed=1)
    points = spherical_expansion(z, w, n, generator())
    corners = torch.tensor(simplex(n)).double()
    for row in range(6):
        # The frame that was used, read back from the points.
        c, r = z[row] @ w[row], z[row] - (z[row] @ w[row]) * w[row]
        frame = torch.linalg.lstsq(corners, (points[row] - c * w[row]) / r.norm()).solution
        torch.testing.assert_close(points[row], by_gram_schmidt(z[row], w[row], frame[1:]))


@pytest.mark.parametrize(("dtype", "tolerance"), [(torch.float64, 1e-12), (torch.float32, 1e-6)])
@pytest.mark.parametrize(("dim", "n"), [(2, 1), (3, 2), (9, 8), (64, 8), (512, 16), (17, 16)])
@pytest.mark.parametrize("frame", ["random", "fixed"])
def test_relations_between_the_points(dtype: torch.dtype, tolerance: float, dim: int, n: int, frame: str) -> None:
    z, w = unit(40, dim, dtype=dtype), unit(40, dim, seed=1, dtype=dtype)
    points = spherical_expansion(z, w, n, generator(), frame=frame)  # type: ignore[arg-type]
    assert points.shape == (40, n, dim)
    assert points.dtype == dtype
    c = (z * w).sum(-1)
    assert (points.norm(dim=-1) - 1).abs().max() < tolerance
    assert ((points * w[:, None]).sum(-1) - c[:, None]).abs().max() < tolerance
    everyone = torch.cat([z[:, None], points], 1)
    inner = everyone @ everyone.mT - (c.square() - (1 - c.square()) / n)[:, None, None]
    apart = ~torch.eye(n + 1, dtype=torch.bool)
    assert inner[:, apart].abs().max() < 2 * tolerance
    assert (everyone.sum(1) - (n + 1) * c[:, None] * w).abs().max() < (n + 1) * tolerance


@pytest.mark.parametrize("n", [1, 2, 5, 16])
def test_simplex_corners(n: int) -> None:
    corners = torch.cat([torch.eye(n)[:1].double(), torch.tensor(simplex(n)).double()])
    torch.testing.assert_close(corners @ corners.T, (1 + 1 / n) * torch.eye(n + 1).double() - 1 / n)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("angle", [0.0, 1e-9, 1e-6, 1e-4, 1e-2, math.pi - 1e-6, math.pi])
def test_near_and_at_the_proxy(dtype: torch.dtype, angle: float) -> None:
    """c → ±1: the points close in on the embedding, and nothing is NaN forward or backward."""
    w, across = torch.linalg.qr(unit(32, 2)).Q.T.to(dtype).split(1)
    z = (math.cos(angle) * w + math.sin(angle) * across).requires_grad_()
    w = w.clone().requires_grad_()
    points = spherical_expansion(z, w, 8, generator())
    assert ((points - z[:, None]).norm(dim=-1) <= 2.001 * math.sin(angle) + 2e-6).all()
    assert (points.norm(dim=-1) - 1).abs().max() < 2e-6
    (points * unit(8, 32, seed=3, dtype=dtype)).sum().backward()
    assert torch.isfinite(z.grad).all()
    assert torch.isfinite(w.grad).all()
    assert z.grad.abs().max() < 100


@pytest.mark.parametrize("signs", [(1, 1), (1, -1), (-1, 1), (-1, -1)])
def test_a_frame_that_already_lies_there(signs: tuple[int, int]) -> None:
    """U_0 = ±w and U_1 = ±r/ρ: the mirrors must not degenerate."""
    axis = torch.nn.functional.normalize(Z - (Z * W).sum() * W, dim=-1)
    frame = torch.cat([signs[0] * W, signs[1] * axis, torch.linalg.cross(W, axis)])
    points = spherical_expansion(Z, W, 2, frame=frame)[0]
    torch.testing.assert_close(points @ W[0], torch.full((2,), 8 / 9).double())
    torch.testing.assert_close((points @ points.T)[0, 1], exact(0.6851851852))


def test_a_rotated_world_gives_rotated_points() -> None:
    z, w = unit(5, 10), unit(5, 10, seed=1)
    rotation = torch.linalg.qr(unit(10, 10, seed=2)).Q
    frame = torch.linalg.qr(unit(10, 5, seed=3)).Q.T
    here = spherical_expansion(z, w, 4, frame=frame)
    there = spherical_expansion(z @ rotation, w @ rotation, 4, frame=frame @ rotation)
    torch.testing.assert_close(there, here @ rotation)


def test_directions_are_uniform_around_the_proxy() -> None:
    """For n = 2 in R^4 the one free direction must have no preference in w^⊥ ∩ r^⊥."""
    basis = torch.eye(4).double()
    w, z = basis[:1], (basis[:1] + basis[1:2]) / math.sqrt(2)
    source = generator()
    free = [spherical_expansion(z, w, 2, source)[0, 0, 2:] for _ in range(1000)]
    angles = torch.stack([torch.atan2(v[1], v[0]) for v in free])
    for k in (1, 2, 3):
        resultant = torch.stack([torch.cos(k * angles).mean(), torch.sin(k * angles).mean()]).norm()
        assert resultant < 3 / math.sqrt(1000)


def test_random_frames_differ_from_call_to_call_and_fixed_ones_do_not() -> None:
    z, w, source = unit(3, 8), unit(3, 8, seed=1), generator()
    first, second = (spherical_expansion(z, w, 3, source) for _ in range(2))
    assert (first - second).abs().max() > 0.1
    torch.testing.assert_close(spherical_expansion(z, w, 3, generator()), first)
    fixed = [spherical_expansion(z, w, 3, source, frame="fixed") for _ in range(2)]
    torch.testing.assert_close(fixed[0], fixed[1])


def test_the_global_generator_is_left_alone() -> None:
    state = torch.get_rng_state()
    spherical_expansion(unit(3, 8), unit(3, 8, seed=1), 3, generator())
    assert torch.equal(torch.get_rng_state(), state)


def test_lengths_do_not_matter_and_half_precision_is_computed_in_float32() -> None:
    z, w = unit(3, 16, dtype=torch.float32), unit(3, 16, seed=1, dtype=torch.float32)
    points = spherical_expansion(z, w, 4, generator())
    torch.testing.assert_close(spherical_expansion(5 * z, 0.1 * w, 4, generator()), points, atol=1e-6, rtol=0)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        torch.testing.assert_close(spherical_expansion(z, w, 4, generator()), points)
    assert spherical_expansion(z.bfloat16(), w.bfloat16(), 4, generator()).dtype == torch.float32


def test_gradcheck() -> None:
    z, w = unit(3, 6).requires_grad_(), unit(3, 6, seed=1).requires_grad_()
    frame = torch.linalg.qr(unit(6, 4, seed=2)).Q.T
    assert torch.autograd.gradcheck(lambda a, b: spherical_expansion(a, b, 3, frame=frame), (z, w))


def test_an_empty_selection() -> None:
    assert spherical_expansion(torch.zeros(0, 8), torch.zeros(0, 8), 3, generator()).shape == (0, 3, 8)


@pytest.mark.parametrize("n", [3, 4, 100])
def test_too_many_points_for_the_dimension(n: int) -> None:
    with pytest.raises(ValueError, match=f"{n} synthetic points need an embedding of dimension {n + 1} or more, got 3"):
        spherical_expansion(unit(2, 3), unit(2, 3), n)


def test_errors_say_what_to_do() -> None:
    with pytest.raises(LossError, match=r"one shape \(k, M\), got \(2, 3\) and \(1, 3\)"):
        spherical_expansion(unit(2, 3), unit(1, 3), 2)
    with pytest.raises(LossError, match=r"shape \(3, 8\), got \(2, 8\)"):
        spherical_expansion(unit(2, 8), unit(2, 8), 2, frame=torch.eye(2, 8))
    with pytest.raises(LossError, match=r"frame='randm': use random or fixed\. Did you mean 'random'"):
        spherical_expansion(unit(2, 8), unit(2, 8), 2, frame="randm")  # type: ignore[arg-type]
    with pytest.raises(LossError, match="num_synthetic must be a whole number of at least 1, got 0"):
        spherical_expansion(unit(2, 8), unit(2, 8), 0)
