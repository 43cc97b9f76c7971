"""The concentration of a class from its pictures, against densities whose concentration is known."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from proxemics.methods.probabilistic import sample_vmf, vmf_mean_resultant_length
from proxemics.search.classes import ClassBook
from proxemics.search.classes.concentration import concentration, pair_length
from proxemics.search.manifest import ModelKey


@pytest.mark.parametrize("dim", [2, 3, 64, 512])
@pytest.mark.parametrize("kappa", [0.01, 1.0, 40.0, 900.0, 1e6])
def test_it_inverts_the_mean_resultant_length(dim: int, kappa: float) -> None:
    length = float(vmf_mean_resultant_length(torch.tensor(kappa).double(), dim))
    assert concentration(length, dim) == pytest.approx(kappa, rel=1e-6)


def test_the_ends() -> None:
    assert (concentration(0.0, 8), concentration(1.0, 8)) == (0.0, 1e9)
    assert pair_length(9.0, 9.0, 3.0) == 1.0  # three equal pictures
    assert pair_length(1.0, 9.0, 3.0) == 0.0  # further apart than chance


def test_few_pictures_do_not_look_tighter_than_they_are() -> None:
    """Two pictures a class: the mean has a length of 0.8 even at κ = 0.6 of it, the shared estimate does not mind."""
    generator = torch.Generator().manual_seed(0)
    means = torch.nn.functional.normalize(torch.randn(400, 64, generator=generator, dtype=torch.float64), dim=1)
    draws = sample_vmf(means, torch.full((400,), 50.0, dtype=torch.float64), 2, generator=generator)
    book = ClassBook(ModelKey(model="m", dim=64))
    for number, one in enumerate(draws):
        book.enrol([f"{row}" for row in range(400)], one.numpy())
        assert (book.shared_concentration() is None) == (number == 0)
    assert book.shared_concentration() == pytest.approx(50, rel=0.05)
    naive = np.median([concentration(book[name].resultant_length, 64) for name in book.names])
    assert naive > 80
    assert book["0"].concentration is not None
