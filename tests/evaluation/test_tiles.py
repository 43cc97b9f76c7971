"""Counting and extraction of codes, from both sides of a tile, against plain loops."""

from __future__ import annotations

import pytest
import torch

from proxemics.evaluation.tiles import count_above, extract_above, group_peaks, nth_largest


@pytest.fixture(params=[torch.int16, torch.float32])
def tile(request: pytest.FixtureRequest) -> torch.Tensor:
    values = torch.randint(0, 300, (320, 448), generator=torch.Generator().manual_seed(0))
    return values.to(request.param)


@pytest.mark.parametrize("axis", [0, 1])
def test_counts(tile: torch.Tensor, axis: int) -> None:
    """320 rows are more than one strip."""
    queries = tile if axis == 1 else tile.T
    low = (torch.arange(len(queries)) % 300).to(tile.dtype)
    everything = torch.full_like(low, -1)
    counts = count_above(tile, (low, everything), axis)
    assert torch.equal(counts[0], (queries > low[:, None]).sum(dim=1))
    assert counts[1].tolist() == [queries.shape[1]] * len(queries)


@pytest.mark.parametrize("axis", [0, 1])
@pytest.mark.parametrize("grouped", [False, True])
def test_extraction(tile: torch.Tensor, axis: int, grouped: bool) -> None:
    queries = tile if axis == 1 else tile.T
    limits = (280 + torch.arange(len(queries)) % 21).to(tile.dtype)
    peaks = group_peaks(tile, axis) if grouped else None
    query, item, code = extract_above(tile, peaks, limits, axis)
    assert torch.equal(queries[query, item], code)
    found = torch.zeros_like(queries, dtype=torch.bool)
    found[query, item] = True
    assert int(found.sum()) == len(query), "an item came twice"
    assert torch.equal(found, queries > limits[:, None])


def test_nth_largest(tile: torch.Tensor) -> None:
    rank = torch.arange(1, 321)
    best = tile.sort(dim=1, descending=True).values
    assert torch.equal(nth_largest(tile, rank), best[torch.arange(320), rank - 1])
    few = nth_largest(tile[:, :3], torch.full((320,), 4))
    assert bool((few == (-torch.inf if tile.is_floating_point() else -(2**15))).all())
