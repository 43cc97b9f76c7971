"""The dictionary: one update by hand, gates, seeding, and what it recovers from synthetic backgrounds."""

import pytest
import torch
from torch import Tensor

from proxemics.core.errors import LossError
from proxemics.methods.couce import (
    coherence,
    seed_dictionary,
    soft_orthogonal_step,
    span_energy,
    span_split,
    update_dictionary,
)
from proxemics.methods.couce.dictionary import random_atoms, revive_atoms


def units(*shape: int, seed: int = 0) -> Tensor:
    generator = torch.Generator().manual_seed(seed)
    return torch.nn.functional.normalize(torch.randn(*shape, generator=generator, dtype=torch.float64), dim=-1)


def test_one_update_by_hand() -> None:
    atoms, batch, prior = units(3, 5), units(8, 5, seed=1), torch.full((3,), 1 / 3, dtype=torch.float64)
    moved, priors = [], []
    chosen = (batch @ atoms.T).argmax(1)
    for k in range(3):
        group = batch[chosen == k]
        if not len(group):
            moved.append(atoms[k])
            priors.append(0.99 / 3)
            continue
        mean = group.mean(0)
        gate = torch.exp(-(group - mean).square().sum(1).mean() / 0.5)
        atom = (1 - 0.1 * gate) * atoms[k] + 0.1 * gate * mean
        moved.append(atom / atom.norm())
        priors.append(0.99 / 3 + 0.01 * len(group) / 8)
    wanted = torch.stack(moved)
    wanted = wanted - 0.1 * (wanted @ wanted.T - torch.eye(3)) @ wanted
    found = update_dictionary(atoms, prior, batch, momentum=0.9)
    torch.testing.assert_close(found.dictionary, wanted / wanted.norm(dim=1, keepdim=True))
    torch.testing.assert_close(found.prior, torch.tensor(priors, dtype=torch.float64))
    assert found.prior.sum().item() == pytest.approx(1)
    torch.testing.assert_close(found.dictionary.norm(dim=1), torch.ones(3).double())


def test_gate_of_coherent_and_of_any_groups() -> None:
    atoms, prior = torch.eye(4, 6, dtype=torch.float64), torch.full((4,), 0.25).double()
    same = atoms[[0, 0, 2]]
    assert update_dictionary(atoms, prior, same).gates.tolist() == [1, 0, 1, 0]
    mixed = torch.nn.functional.normalize(atoms[:1] + 0.3 * units(6, 6), dim=1)
    gates = [float(update_dictionary(atoms, prior, mixed, sigma_v2=v).gates[0]) for v in (1e-6, 0.1, 1.0, 1e6)]
    assert gates == sorted(gates)
    assert gates[0] < 1e-9
    assert gates[-1] > 0.999
    assert update_dictionary(atoms, prior, mixed, gate="none").gates.tolist() == [1, 0, 0, 0]


def test_frozen_dictionary_stays() -> None:
    atoms, prior = units(4, 6), torch.full((4,), 0.25).double()
    found = update_dictionary(atoms, prior, units(9, 6, seed=1), momentum=1.0, soft_orth_step=0.0)
    torch.testing.assert_close(found.dictionary, atoms)


def test_the_class_gate_lets_in_what_labels_do_not_explain() -> None:
    atoms, prior = torch.eye(2, 6, dtype=torch.float64), torch.full((2,), 0.5).double()
    noise = 0.2 * units(40, 6)
    labels = torch.arange(40) % 4
    free = torch.nn.functional.normalize(atoms[:1] + noise, dim=1)
    tied = torch.nn.functional.normalize(atoms[:1] + noise * 0.1 + 0.5 * units(4, 6, seed=3)[labels], dim=1)
    gates = [update_dictionary(atoms, prior, b, labels, gate="class").gates[0].item() for b in (free, tied)]
    assert gates[0] > 0.8
    assert gates[1] < 0.1
    one_class = update_dictionary(atoms, prior, free, torch.zeros(40).long(), gate="class")
    assert one_class.gates.tolist() == [0, 0]
    each_its_own = update_dictionary(atoms, prior, free, torch.arange(40), gate="class")
    assert each_its_own.gates[0] == 1
    duplicates = update_dictionary(atoms, prior, atoms[:1].expand(6, -1), torch.arange(6) % 2, gate="class")
    assert duplicates.gates[0] == 1
    with pytest.raises(LossError, match="The gate 'class' needs labels"):
        update_dictionary(atoms, prior, free, gate="class")


def test_orthonormal_rows_are_a_fixed_point_and_others_get_there() -> None:
    rows = random_atoms(6, 20).double()
    torch.testing.assert_close(soft_orthogonal_step(rows), rows, atol=1e-6, rtol=1e-6)
    generator = torch.Generator().manual_seed(0)
    rows = torch.nn.functional.normalize(torch.randn(64, 512, generator=generator) + 0.5, dim=1)
    gaps = []
    for _ in range(50):
        rows = soft_orthogonal_step(rows)
        gaps.append(float((rows @ rows.T - torch.eye(64)).norm()))
    assert gaps[0] > gaps[4] > gaps[19] > gaps[49]
    assert gaps[49] < 1e-2


def test_the_soft_step_is_a_gradient_step() -> None:
    rows = units(4, 7).requires_grad_()
    (0.25 * (rows @ rows.T - torch.eye(4)).square().sum()).backward()
    wanted = torch.nn.functional.normalize(rows - 0.1 * rows.grad, dim=1)
    torch.testing.assert_close(soft_orthogonal_step(rows.detach(), 0.1), wanted.detach())


@pytest.mark.parametrize("seed", range(5))
def test_backgrounds_are_recovered(seed: int) -> None:
    """8 directions in R^64 under noise, a fifth of all descriptors random; 16 atoms."""
    generator = torch.Generator().manual_seed(seed)
    normalize = torch.nn.functional.normalize
    prototypes = normalize(torch.randn(8, 64, generator=generator), dim=1)

    def batch() -> Tensor:
        found = prototypes[torch.randint(8, (120,), generator=generator)]
        found = found + 0.05 * torch.randn(120, 64, generator=generator)
        found[:24] = torch.randn(24, 64, generator=generator)
        return normalize(found, dim=1)

    atoms, prior = seed_dictionary(torch.cat([batch() for _ in range(10)]), 16, generator), torch.full((16,), 1 / 16)
    idle = torch.zeros(16)
    for step in range(300):
        rows = batch()
        atoms, prior, counts, _ = update_dictionary(atoms, prior, rows, momentum=0.9 if step < 50 else 0.99)
        assert torch.allclose(atoms.norm(dim=1), torch.ones(16), atol=1e-5)
        idle = torch.where(counts > 0, 0, idle + 1)
        atoms, idle = revive_atoms(atoms, rows, idle >= 200), torch.where(idle >= 200, 0, idle)
    assert span_energy(prototypes, atoms).mean() > 0.9
    assert (prototypes @ atoms.T).amax(1).mean() > 0.9
    assert coherence(atoms) < 0.3


def test_seeding_finds_every_cluster_and_fills_up_with_directions() -> None:
    centres = torch.eye(6, 12)
    points = torch.nn.functional.normalize(centres.repeat(20, 1) + 0.01 * torch.randn(120, 12), dim=1)
    atoms = seed_dictionary(points, 6, torch.Generator().manual_seed(0))
    assert (centres @ atoms.T).amax(1).min() > 0.99
    few = seed_dictionary(centres[:1].expand(30, -1), 4, torch.Generator().manual_seed(0))
    torch.testing.assert_close(few.norm(dim=1), torch.ones(4))
    assert torch.equal(few[0], centres[0])
    assert coherence(few) < 0.95
    again = seed_dictionary(points, 6, torch.Generator().manual_seed(0))
    assert torch.equal(again, atoms)


def test_stale_atoms_start_anew_from_what_no_atom_is_near_to() -> None:
    atoms, batch = torch.eye(3, 5), torch.eye(5)[[0, 3, 4, 2]]
    found = revive_atoms(atoms, batch, torch.tensor([False, True, True]))
    assert torch.equal(found, torch.eye(5)[[0, 3, 4]])
    assert torch.equal(atoms, torch.eye(3, 5))
    assert torch.equal(revive_atoms(atoms, batch[:1], torch.tensor([True, True, True]))[1:], atoms[1:])
    assert torch.equal(revive_atoms(atoms, batch, torch.zeros(3, dtype=torch.bool)), atoms)


def test_split_and_energy() -> None:
    atoms, z = units(3, 8), units(20, 8, seed=1)
    inside, outside = span_split(z, atoms)
    energy = span_energy(z, atoms)
    torch.testing.assert_close((z * inside).sum(1).square(), energy)
    torch.testing.assert_close((z * outside).sum(1).square(), 1 - energy)
    assert (outside @ atoms.T).abs().max() < 1e-9
    torch.testing.assert_close(span_energy(inside, atoms), torch.ones(20).double())
    doubled = torch.cat([atoms, atoms[:1]])
    torch.testing.assert_close(span_energy(z, doubled), energy)
    empty = span_split(atoms, atoms)[1]
    assert not empty.any()
    random = span_energy(units(4000, 64, seed=2), units(16, 64))
    assert random.mean().item() == pytest.approx(16 / 64, rel=0.05)
    z.requires_grad_()
    assert torch.autograd.gradcheck(lambda x: span_split(x, atoms), (z,))


def test_more_atoms_than_dimensions_are_refused() -> None:
    with pytest.raises(LossError, match="9 atoms need an embedding of dimension 9 or more, got 8; use at most 8 atoms"):
        random_atoms(9, 8)
