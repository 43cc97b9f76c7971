"""Which pictures, and which places in them, an atom of the dictionary answers to."""

from __future__ import annotations

from torch import Tensor

from proxemics.core.geometry import normalize


def top_rows(descriptors: Tensor, dictionary: Tensor, count: int = 8) -> tuple[Tensor, Tensor]:
    """Return for each atom the pictures whose background is nearest to it.

    Args:
        descriptors: (n, M) floating, one a picture, any length.
        dictionary: (K, M) unit rows.
        count: rows wanted; at most n are given.

    Returns:
        Rows (K, count) int64 and their cosines (K, count), best first.

    Example:
        >>> import torch
        >>> rows, cosines = top_rows(torch.tensor([[1.0, 0.0], [0.0, 2.0]]), torch.eye(2), 1)
        >>> rows.tolist(), cosines.tolist()
        ([[0], [1]], [[1.0], [1.0]])
    """
    best = (dictionary @ normalize(descriptors).t()).topk(min(count, len(descriptors)), dim=1)
    return best.indices, best.values


def location_responses(projected: Tensor, atom: Tensor, gate: Tensor | None = None) -> Tensor:
    """Return how near each place of a picture is to an atom.

    Args:
        projected: (n, P, M) floating, the tokens of the last map, each through the head.
        atom: (M,) unit.
        gate: (n, P), factors on the responses; None: 1.

    Returns:
        (n, P), cosines in [-1, 1] times the gate.

    Example:
        >>> import torch
        >>> location_responses(torch.tensor([[[2.0, 0.0], [0.0, 1.0]]]), torch.tensor([1.0, 0.0]))
        tensor([[1., 0.]])
    """
    cosines = normalize(projected) @ atom
    return cosines if gate is None else cosines * gate


def heat_maps(responses: Tensor, grid: tuple[int, int]) -> Tensor:
    """Return responses as pictures from 0 (the lowest place of a picture) to 1 (the highest); flat ones are 0.

    Args:
        responses: (n, P).
        grid: (h, w), h * w = P.

    Returns:
        (n, h, w) in [0, 1].

    Example:
        >>> import torch
        >>> heat_maps(torch.tensor([[1.0, 3.0, 2.0, 1.0]]), (2, 2)).tolist()
        [[[0.0, 1.0], [0.5, 0.0]]]
    """
    low, high = responses.amin(1, keepdim=True), responses.amax(1, keepdim=True)
    return ((responses - low) / (high - low).clamp_min(1e-12)).reshape(-1, *grid)


def rank_atoms(
    descriptors: Tensor, projected: Tensor, dictionary: Tensor, grid: tuple[int, int], count: int = 8
) -> list[tuple[Tensor, Tensor, Tensor]]:
    """Return for each atom its best rows, their cosines, and heat maps of where they answer.

    Args:
        descriptors: (n, M) floating.
        projected: (n, P, M) floating, the places of the same pictures through the head.
        dictionary: (K, M) unit rows.
        grid: (h, w), h * w = P.
        count: rows an atom.

    Returns:
        K times (rows (count,), cosines (count,), maps (count, h, w)).

    Example:
        >>> import torch
        >>> tokens = torch.eye(2).expand(3, 2, 2)
        >>> ranked = rank_atoms(torch.eye(2)[[0, 1, 1]], tokens, torch.eye(2), (1, 2), 1)
        >>> ranked[0][0].tolist(), ranked[0][2].tolist()
        ([0], [[[1.0, 0.0]]])
    """
    rows, cosines = top_rows(descriptors, dictionary, count)
    return [
        (best, values, heat_maps(location_responses(projected[best], atom), grid))
        for best, values, atom in zip(rows, cosines, dictionary, strict=True)
    ]
