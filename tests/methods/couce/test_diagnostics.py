"""The numbers in the log, against plain loops."""

from __future__ import annotations

import pytest
import torch

from proxemics.methods.couce.diagnostics import gate_histogram, recall_by_part


def test_the_histogram_counts_every_place() -> None:
    gate = torch.rand(5, 49, generator=torch.Generator().manual_seed(0))
    found = gate_histogram(gate)
    for place in range(10):
        inside = ((gate >= place / 10) & (gate < (place + 1) / 10)).float().mean()
        assert float(found[place]) == pytest.approx(float(inside), abs=1e-6)
    assert float(found.sum()) == pytest.approx(1)
    assert gate_histogram(torch.ones(3))[9] == 1
    assert gate_histogram(torch.empty(0)).sum() == 0


def test_recall_of_the_parts_is_that_of_a_loop() -> None:
    draw = torch.Generator().manual_seed(0)
    z, atoms = torch.randn(24, 8, generator=draw), torch.randn(3, 8, generator=draw)
    labels = torch.arange(24) // 3
    labels[0] = 99  # alone
    basis = torch.linalg.qr(atoms.t())[0]
    units = z / z.norm(dim=1, keepdim=True)
    inside = units @ basis @ basis.t()
    wanted = []
    for part in (units, inside, units - inside):
        rows = part / part.norm(dim=1, keepdim=True)
        hits = []
        for row in range(1, 24):
            if (labels == labels[row]).sum() < 2:
                continue
            scores = rows @ rows[row]
            scores[row] = -2
            hits.append(float(labels[scores.argmax()] == labels[row]))
        wanted.append(sum(hits) / len(hits))
    found = recall_by_part(z, labels, atoms)
    assert found == pytest.approx(wanted)
    assert len(set(wanted)) > 1
    assert recall_by_part(z, torch.arange(24), atoms) is None
