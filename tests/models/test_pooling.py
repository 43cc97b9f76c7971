"""Pooling against slow references."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from proxemics.core.errors import ModelError
from proxemics.models.pooling import POOLINGS, Pooling, avg_max_pool, gem_pool


def reference_gem(tokens: Tensor, p: float, eps: float = 1e-6) -> Tensor:
    rows = []
    for picture in tokens.double():
        columns = []
        for channel in picture.T:
            columns.append(sum(max(float(x), eps) ** p for x in channel) / len(channel))
        rows.append([value ** (1 / p) for value in columns])
    return torch.tensor(rows, dtype=torch.float64)


@pytest.mark.parametrize("p", [0.5, 1.0, 3.0, 7.5])
def test_gem_matches_a_float64_loop(p: float) -> None:
    tokens = torch.rand(3, 9, 4, generator=torch.Generator().manual_seed(0)) * 4 - 1
    torch.testing.assert_close(gem_pool(tokens, p).double(), reference_gem(tokens, p), rtol=1e-5, atol=1e-6)


def test_gem_is_finite_for_features_whose_powers_are_not() -> None:
    tokens = torch.full((1, 4, 2), 1e20, requires_grad=True)
    pooled = gem_pool(tokens, torch.tensor(3.0))
    pooled.sum().backward()
    torch.testing.assert_close(pooled, torch.full((1, 2), 1e20))
    assert tokens.grad is not None
    assert torch.isfinite(tokens.grad).all()


def test_gem_gradients() -> None:
    tokens = torch.rand(2, 5, 3, dtype=torch.float64, generator=torch.Generator().manual_seed(1)) + 0.1
    p = torch.tensor(3.0, dtype=torch.float64, requires_grad=True)
    assert torch.autograd.gradcheck(gem_pool, (tokens.requires_grad_(), p))


def test_avg_max_is_the_sum() -> None:
    tokens = torch.rand(2, 5, 3)
    torch.testing.assert_close(avg_max_pool(tokens), tokens.mean(1) + tokens.max(1).values)


@pytest.mark.parametrize("how", POOLINGS)
def test_pooling_is_float32_from_half_and_blind_to_the_order_of_tokens(how: str) -> None:
    patches, prefix = torch.rand(2, 6, 4, dtype=torch.bfloat16), torch.rand(2, 2, 4, dtype=torch.bfloat16)
    pool = Pooling(how)
    pooled = pool(patches, prefix)
    assert pooled.shape == (2, 4)
    assert pooled.dtype == torch.float32
    torch.testing.assert_close(pool(patches.flip(1), prefix), pooled)
    if how == "cls":
        torch.testing.assert_close(pooled, prefix[:, 0].float())


def test_only_gem_learns_and_its_exponent_stays_float32_under_autocast() -> None:
    assert [how for how in POOLINGS if list(Pooling(how).parameters())] == ["gem"]
    pool = Pooling("gem")
    with torch.autocast("cpu", dtype=torch.bfloat16):
        pool(torch.rand(2, 6, 4), torch.rand(2, 0, 4)).sum().backward()
    assert pool.p is not None
    assert pool.p.dtype == torch.float32
    assert pool.p.grad is not None
    assert torch.isfinite(pool.p.grad)


def test_unknown_pooling_names_the_near_miss() -> None:
    with pytest.raises(
        ModelError, match=r"Unknown pooling 'avgmax'\. Did you mean 'avg\+max'\? Allowed: avg, max, avg"
    ):
        Pooling("avgmax")
