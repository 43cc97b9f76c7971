"""Embeddings and the lengths they had, against the embedder called by hand."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image

from proxemics.evaluation.extract import extract_embeddings, extract_with_certainty
from proxemics.evaluation.lengths import length_varies
from proxemics.models.embedder import Embedder


@pytest.fixture(scope="module")
def paths(tmp_path_factory: pytest.TempPathFactory) -> list[Path]:
    folder = tmp_path_factory.mktemp("pictures")
    generator = np.random.default_rng(0)
    found = [folder / f"{number}.png" for number in range(5)]
    for number, path in enumerate(found):
        pixels = generator.normal(128, 10 + 20 * number, (70, 80, 3)).clip(0, 255).astype(np.uint8)
        Image.fromarray(pixels).save(path)
    return found


@pytest.fixture(scope="module")
def embedder() -> Embedder:
    return Embedder("test_resnet", dim=8, weights="none", size=64)


def test_lengths_are_those_of_the_raw_embeddings(embedder: Embedder, paths: list[Path]) -> None:
    units, kappa = extract_with_certainty(embedder, paths, batch_size=2)
    embedder.eval()
    with torch.inference_mode():
        pictures = [torch.from_numpy(np.array(Image.open(path))).permute(2, 0, 1) for path in paths]
        raw = embedder.encode(embedder.preprocess.batch(pictures)).raw.double().numpy()
    assert (units.dtype, kappa.dtype, units.shape, kappa.shape) == (np.float32, np.float32, (5, 8), (5,))
    np.testing.assert_allclose(kappa, np.linalg.norm(raw, axis=1), rtol=1e-5)
    np.testing.assert_allclose(units * kappa[:, None], raw, rtol=1e-4, atol=1e-6)
    assert len(np.unique(kappa)) == 5


def test_embeddings_do_not_depend_on_whether_lengths_are_kept(embedder: Embedder, paths: list[Path]) -> None:
    told: list[int] = []
    alone = extract_embeddings(embedder, paths, batch_size=2, progress=told.append)
    np.testing.assert_array_equal(alone, extract_with_certainty(embedder, paths, batch_size=2)[0])
    assert told == [2, 2, 1]


def test_no_pictures_give_no_rows(embedder: Embedder) -> None:
    units, kappa = extract_with_certainty(embedder, [])
    assert (units.shape, kappa.shape) == ((0, 8), (0,))
    assert extract_embeddings(embedder, []).shape == (0, 8)


def test_the_mode_of_the_model_is_restored(embedder: Embedder, paths: list[Path]) -> None:
    for mode in (True, False):
        embedder.train(mode)
        extract_with_certainty(embedder, paths[:1])
        assert embedder.training is mode


@pytest.mark.parametrize(("dim", "layer_norm"), [(0, False), (0, True), (8, False), (8, True)])
def test_a_layer_norm_without_a_head_gives_one_length(dim: int, layer_norm: bool) -> None:
    model = Embedder("test_resnet", dim=dim, weights="none", size=64, layer_norm=layer_norm)
    pooled = torch.randn(20, model.width, generator=torch.Generator().manual_seed(0))
    with torch.inference_mode():
        lengths = torch.linalg.vector_norm(model.project(pooled), dim=-1)
    assert bool(lengths.max() / lengths.min() > 1.001) == length_varies(model)
