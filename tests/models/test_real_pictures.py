"""On real birds: the settings that belong to the weights, against settings that also load without an error."""

from __future__ import annotations

import csv
from pathlib import Path

import pytest
import torch
from torch import Tensor

from proxemics.data.decode import decode_tensor
from proxemics.models import Embedder
from proxemics.models.packaged import find_packaged

CLASSES, PICTURES = 20, 12


def score(unit: Tensor, labels: Tensor) -> tuple[float, float]:
    """Recall@1 and R-precision in per cent; all classes have R + 1 pictures."""
    similarity = (unit @ unit.T).fill_diagonal_(-2)
    hits = (labels[similarity.topk(PICTURES - 1).indices] == labels[:, None]).float()
    return 100 * float(hits[:, 0].mean()), 100 * float(hits.mean())


@pytest.mark.data
@torch.inference_mode()
def test_right_preprocessing_beats_wrong_preprocessing(
    shared_data: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Frozen EfficientNet-Lite0 on unseen bird classes; mean and std of ImageNet cost several points, silently."""
    if find_packaged("tf_efficientnet_lite0") is None:
        pytest.skip("weights package not installed")
    monkeypatch.setenv("PROXEMICS_CACHE", str(tmp_path))
    classes: dict[str, list[str]] = {}
    with (shared_data / "index.csv").open(encoding="utf-8") as file:
        for row in csv.DictReader(file):
            if row["dataset"] == "cub200_2010" and row["split"] == "test":
                classes.setdefault(row["label"], []).append(row["path"])
    chosen = [paths[:PICTURES] for _, paths in sorted(classes.items())[:CLASSES]]
    pictures = [decode_tensor(shared_data / path) for paths in chosen for path in paths]
    labels = torch.arange(CLASSES).repeat_interleave(torch.tensor([len(paths) for paths in chosen]))
    embedder = Embedder("auto", dim=0, size=160).eval()
    right = embedder.preprocess
    wrong = right.model_copy(update={"mean": (0.485, 0.456, 0.406), "std": (0.229, 0.224, 0.225)})
    scores = {
        name: score(torch.cat([embedder(how.batch(pictures[i : i + 40])) for i in range(0, len(pictures), 40)]), labels)
        for name, how in (("right", right), ("wrong", wrong))
    }
    assert scores["right"][0] > 55, scores
    assert scores["right"][0] > scores["wrong"][0] + 4, scores
    assert scores["right"][1] > scores["wrong"][1] + 4, scores
