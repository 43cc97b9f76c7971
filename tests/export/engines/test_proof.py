"""The comparison with torch: its pictures, its verdict, and its memory."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch

from proxemics.data.preprocess import Preprocess
from proxemics.export.engines.proof import Proof, proof_key, proof_pictures, prove, remember, remembered
from proxemics.export.engines.torch_engine import TorchEngine
from proxemics.models.embedder import Embedder


def engine(seed: int = 0) -> TorchEngine:
    return TorchEngine(Embedder("test_resnet", dim=8, weights="none", size=32, seed=seed), threads=1)


class Off(TorchEngine):
    """Torch with an error added to one value."""

    def __init__(self, error: float) -> None:
        super().__init__(Embedder("test_resnet", dim=8, weights="none", size=32), threads=1)
        self.error = error

    def encode(self, pixels: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        unit, length = super().encode(pixels)
        unit[0, 0] += self.error
        return unit, length


def test_pictures_are_the_same_each_time_and_differ_from_each_other() -> None:
    preprocess = Preprocess(size=24, resize=24)
    first = proof_pictures(preprocess)
    np.testing.assert_array_equal(first, proof_pictures(preprocess))
    assert len({one.tobytes() for one in first}) == len(first) == 6
    levels = preprocess.denormalize(torch.from_numpy(first)).numpy()
    assert levels.min() >= -0.5
    assert levels.max() <= 255.5
    assert 30 < levels.std() < 90


@pytest.mark.parametrize(("error", "exact"), [(0.0, True), (5e-5, True), (2e-4, False), (float("nan"), False)])
def test_the_verdict(error: float, exact: bool) -> None:
    proof = prove(Off(error), engine())
    assert proof.exact is exact
    assert proof.pictures_per_s > 0


def test_another_model_is_not_exact() -> None:
    assert not prove(engine(1), engine()).exact


def test_a_proof_is_remembered_and_a_damaged_one_forgotten(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PROXEMICS_CACHE", str(tmp_path))
    key = proof_key("model", "engine 1")
    assert key != proof_key("model", "engine 2")
    assert remembered(key) is None
    proof = Proof(1e-6, 0.99, 10.0, 5.0)
    remember(key, proof)
    assert remembered(key) == proof
    (tmp_path / "proofs" / f"{key}.json").write_text("{")
    assert remembered(key) is None
