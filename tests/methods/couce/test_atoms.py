"""Which pictures and places an atom answers to."""

import torch

from proxemics.methods.couce import heat_maps, location_responses, rank_atoms, top_rows


def test_ranking() -> None:
    descriptors = torch.nn.functional.normalize(torch.randn(30, 6), dim=1)
    atoms = torch.linalg.qr(torch.randn(6, 3))[0].T
    rows, cosines = top_rows(descriptors * 3, atoms, 5)
    assert rows.shape == cosines.shape == (3, 5)
    for k in range(3):
        wanted = (descriptors @ atoms[k]).sort(descending=True)
        assert torch.equal(rows[k], wanted.indices[:5])
        torch.testing.assert_close(cosines[k], wanted.values[:5])
    assert top_rows(descriptors[:2], atoms, 5)[0].shape == (3, 2)


def test_heat_maps_show_where() -> None:
    tokens = torch.randn(4, 6, 5) * 0.01
    tokens[:, 4] = torch.eye(5)[0] * 7
    response = location_responses(tokens, torch.eye(5)[0])
    assert response.argmax(1).tolist() == [4] * 4
    maps = heat_maps(response, (2, 3))
    assert maps.shape == (4, 2, 3)
    assert maps[:, 1, 1].tolist() == [1.0] * 4
    assert float(maps.min()) == 0
    assert not heat_maps(torch.ones(1, 6), (2, 3)).any()
    gate = torch.ones(4, 6)
    gate[:, 4] = 0
    assert location_responses(tokens, torch.eye(5)[0], gate)[:, 4].tolist() == [0.0] * 4
    ranked = rank_atoms(tokens.mean(1), tokens, torch.eye(5)[:2], (2, 3), 2)
    assert len(ranked) == 2
    assert ranked[0][2].shape == (2, 2, 3)
