"""Products keep 24 bits by either library, whatever a program has allowed torch to drop."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from proxemics.search import Items, ModelKey
from proxemics.search.items import unit_rows
from proxemics.search.local import products, screens
from proxemics.search.local.index import LocalIndex
from proxemics.search.local.products import multiply, multiply_one, torch_is_faster, torch_keeps_bits, whole_is_faster
from proxemics.search.local.screens import FloatScreen, empty_tile


def unit(rows: int, dim: int, seed: int = 0) -> np.ndarray:
    return unit_rows(np.random.default_rng(seed).standard_normal((rows, dim)))


@contextmanager
def fewer_bits(by: str) -> Iterator[None]:
    """As programs do that want speed."""
    if by == "autocast":
        with torch.autocast("cpu", dtype=torch.bfloat16):
            yield
        return
    before = torch.get_float32_matmul_precision()
    torch.set_float32_matmul_precision("medium")
    try:
        yield
    finally:
        torch.set_float32_matmul_precision(before)


@pytest.mark.parametrize("by_torch", [True, False])
@pytest.mark.parametrize(("rows", "dim", "queries"), [(5000, 130, 9), (1, 1, 1), (2049, 7, 40)])
def test_products_are_those_of_float64(rows: int, dim: int, queries: int, *, by_torch: bool) -> None:
    left, right = unit(rows, dim), unit(queries, dim, 1)
    out = np.full((rows, queries), np.nan, np.float32)
    multiply(left, right, out, by_torch=by_torch)
    np.testing.assert_allclose(out, left.astype(np.float64) @ right.T.astype(np.float64), atol=(dim + 8) * 2.0**-24)


@pytest.mark.parametrize("faster", [True, False])
@pytest.mark.parametrize("queries", [1, 2, screens.FEW, screens.FEW + 1, 300])
@pytest.mark.parametrize("by", ["autocast", "precision"])
def test_a_screen_keeps_its_bound_where_torch_may_drop_bits(
    by: str, queries: int, monkeypatch: pytest.MonkeyPatch, *, faster: bool
) -> None:
    monkeypatch.setattr(screens, "torch_is_faster", lambda: faster)
    rows, asked = unit(3000, 96), unit(queries, 96, 1)
    with fewer_bits(by):
        screen = FloatScreen(rows, asked)
        out = empty_tile(np.empty(queries * 3000, np.float32), queries, 3000)
        screen.tile(0, 3000, slice(0, queries), out)
    exact = asked.astype(np.float64) @ rows.T.astype(np.float64)
    assert (np.abs(out - exact) <= screen.eps[:, None]).all()


def test_settings_that_allow_fewer_bits_are_seen() -> None:
    assert torch_keeps_bits()
    for by in ("autocast", "precision"):
        with fewer_bits(by):
            assert not torch_keeps_bits(), by
    assert torch_keeps_bits()


def test_an_index_finds_the_same_under_autocast(tmp_path: Path) -> None:
    rows, asked = unit(4000, 64), unit(20, 64, 1)
    with LocalIndex.create(str(tmp_path / "i"), ModelKey(model="c" * 64, preprocess="p", dim=64)) as index:
        index.add(Items.make([f"{n:04d}" for n in range(len(rows))], rows))
        for some in (asked[:1], asked[:5], asked):
            wanted = index.search(some)
            with fewer_bits("autocast"):
                found = index.search(some)
            assert [hits.ids for hits in found] == [hits.ids for hits in wanted]


@pytest.mark.parametrize("whole", [True, False])
@pytest.mark.parametrize(("rows", "dim"), [(5000, 130), (1, 1), (2049, 7)])
def test_products_with_one_query_are_those_of_float64(
    rows: int, dim: int, monkeypatch: pytest.MonkeyPatch, *, whole: bool
) -> None:
    asked = []
    monkeypatch.setattr(products, "whole_is_faster", lambda: asked.append(rows) or whole)
    monkeypatch.setattr(products, "_LARGE", 0)
    left, one, out = unit(rows, dim), unit(1, dim, 1)[0], np.full(rows, np.nan, np.float32)
    multiply_one(left, one, out)
    np.testing.assert_allclose(out, left.astype(np.float64) @ one.astype(np.float64), atol=(dim + 8) * 2.0**-24)
    assert asked == [rows]


@pytest.mark.parametrize(("rows", "is_tried"), [(16383, False), (16384, True)])
def test_only_for_many_rows_is_there_a_trial(rows: int, is_tried: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    asked = []
    monkeypatch.setattr(products, "whole_is_faster", lambda: asked.append(rows) or True)
    multiply_one(np.ones((rows, 256), np.float32), np.ones(256, np.float32), np.empty(rows, np.float32))
    assert bool(asked) == is_tried


@pytest.mark.parametrize("trial", [torch_is_faster, whole_is_faster])
def test_a_trial_is_made_once(trial: Any) -> None:
    trial.cache_clear()
    first = trial()
    assert trial() is first
    assert trial.cache_info().misses == 1


def test_the_faster_of_two_is_found() -> None:
    assert products._is_faster(lambda: None, lambda: time.sleep(0.001))
    assert not products._is_faster(lambda: time.sleep(0.001), lambda: None)
