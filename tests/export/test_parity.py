"""What the comparison sees: a model that is off, one that is broken, and what a drift is."""

from __future__ import annotations

from pathlib import Path
from typing import NamedTuple

import numpy as np
import pandas as pd
import pytest
import torch
from PIL import Image

from proxemics.core.config import EvaluationConfig
from proxemics.core.errors import ExportError
from proxemics.data.preprocess import Preprocess
from proxemics.export.parity import compare, measure_drift, parity_pixels
from proxemics.export.sample import Pictures, pixel_batches
from proxemics.export.variants import Precisions, check_parity, write_variants
from proxemics.models import Embedder
from proxemics.training.log import Silent

PREPARE = Preprocess(size=4, resize=4)


def encoder(*, turn: float = 0.0, scale: float = 1.0, spoil: float | None = None):
    """A model of one line: the mean colour is the direction, its length the length; ``turn`` leads it astray."""

    def encode(pixels: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        raw = pixels.mean(axis=(2, 3)).astype(np.float32)
        raw = raw + np.float32(turn) * raw[:, ::-1]
        length = np.linalg.norm(raw, axis=1).astype(np.float32)
        unit = raw / np.maximum(length, 1e-9)[:, None]
        if spoil is not None:
            unit[-1, 0] = spoil
        return unit, length * np.float32(scale)

    return encode


@pytest.fixture
def pictures(tmp_path: Path) -> Pictures:
    """Four classes of five pictures: a colour each, with some noise."""
    rng = np.random.default_rng(0)
    rows = []
    for number, colour in enumerate([(230, 90, 90), (90, 230, 90), (90, 90, 230), (225, 95, 120)]):
        for picture in range(5):
            path = tmp_path / f"{number}{picture}.png"
            pixels = np.array(colour) + rng.normal(0, 14, (6, 6, 3)) + rng.normal(0, 9, 3)
            Image.fromarray(pixels.clip(0, 255).astype(np.uint8)).save(path)
            rows.append({"path": str(path), "label": "abcd"[number], "domain": ""})
    return Pictures(pd.DataFrame(rows), None, EvaluationConfig(), "20 pictures of colours")


def test_comparison_sees_what_is_off() -> None:
    pixels = np.random.default_rng(0).standard_normal((17, 3, 4, 4)).astype(np.float32)
    same = compare(encoder(), encoder(), pixels)
    assert [(row["max_difference"], row["max_length_difference"]) for row in same] == [(0.0, 0.0)] * 3
    assert min(row["min_cosine"] for row in same) == pytest.approx(1, abs=1e-7)
    turned = compare(encoder(), encoder(turn=0.01), pixels)
    assert all(row["max_difference"] > 1e-3 and row["min_cosine"] < 1 - 1e-6 for row in turned)
    longer = compare(encoder(), encoder(scale=1.1), pixels)
    assert longer[0]["max_length_difference"] == pytest.approx(0.1, rel=1e-4)
    assert longer[0]["max_difference"] == 0
    for value in (float("nan"), float("inf")):
        with pytest.raises(ExportError, match="not finite"):
            compare(encoder(), encoder(spoil=value), pixels)


def test_only_float32_must_be_equal() -> None:
    pixels = np.random.default_rng(0).standard_normal((17, 3, 4, 4)).astype(np.float32)
    for wrong in (encoder(turn=0.01), encoder(scale=1.01)):
        found = compare(encoder(), wrong, pixels)
        with pytest.raises(ExportError, match=r"away from torch, more than 0.0001; nothing was written"):
            check_parity("float32", found)
        check_parity("int8", found)
    check_parity("float32", compare(encoder(), encoder(turn=1e-6), pixels))


class Overflowing(NamedTuple):
    """A model whose activations float16 cannot hold."""

    embedder: Embedder
    pictures: Pictures


@pytest.fixture
def overflowing() -> Overflowing:
    embedder = Embedder("test_resnet", dim=8, weights="none", size=32)
    with torch.no_grad():
        embedder.trunk.conv1[0].weight.mul_(1e6)
    return Overflowing(embedder, Pictures(None, None, EvaluationConfig(), "no pictures"))


def test_what_cannot_be_written_is_left_out_unless_it_was_asked_for(overflowing: Overflowing, tmp_path: Path) -> None:
    wanted = ("float32", "float16", "int8")
    parity = write_variants(overflowing.embedder, tmp_path, Precisions(wanted, {}), overflowing.pictures, Silent())
    assert [one["precision"] for one in parity["variants"]] == ["float32"]
    assert parity["left_out"]["float16"] == "it gives values that are not finite; leave this precision out"
    assert parity["left_out"]["int8"] == "it needs pictures to calibrate on"
    assert [path.name for path in (tmp_path / "onnx").iterdir()] == ["model.onnx"]


@pytest.mark.slow
def test_what_was_asked_for_must_be_written(overflowing: Overflowing, tmp_path: Path) -> None:
    asked = Precisions(("float32", "float16"), {}, required=("float32", "float16"))
    with pytest.raises(ExportError, match=r"^float16: it gives values that are not finite"):
        write_variants(overflowing.embedder, tmp_path, asked, overflowing.pictures, Silent())


def test_drift_is_measured_query_by_query(pictures: Pictures) -> None:
    others = {"same": encoder(), "off": encoder(turn=0.93)}
    about, found = measure_drift(encoder(), others, pictures, PREPARE, Silent())
    assert (about["queries"], about["classes"], about["protocol"]) == (20, 4, "zero_shot")
    assert found["same"] == {
        "recall_at_1": about["recall_at_1"], "drift": 0.0, "interval": [0.0, 0.0], "changed": 0.0,
        "min_cosine": pytest.approx(1), "mean_cosine": pytest.approx(1),
    }  # fmt: skip
    off = found["off"]
    assert off["changed"] > 0
    assert off["recall_at_1"] == pytest.approx(about["recall_at_1"] + off["drift"])
    assert off["drift"] < 0
    assert off["interval"][0] <= off["drift"] <= off["interval"][1]
    assert off["min_cosine"] <= off["mean_cosine"] < 0.99


def test_protocols_of_several_tasks_have_no_interval(pictures: Pictures) -> None:
    assert pictures.tested is not None
    rows = pictures.tested.assign(domain=["in", "out"] * 10)
    evaluation = EvaluationConfig(protocol="leave_one_domain_out")
    several = Pictures(rows, None, evaluation, "two domains")
    about, found = measure_drift(encoder(), {"off": encoder(turn=0.93)}, several, PREPARE, Silent())
    assert about["protocol"] == "leave_one_domain_out"
    assert found["off"]["interval"] is None
    with pytest.raises(ExportError, match="no pictures to measure with"):
        measure_drift(encoder(), {}, Pictures(None, None, evaluation, "none"), PREPARE, Silent())


def test_pixels_of_the_comparison(pictures: Pictures) -> None:
    pixels, said = parity_pixels(pictures, PREPARE)
    assert (pixels.shape, said) == ((17, 3, 4, 4), "17 pictures")
    assert pictures.tested is not None
    assert np.array_equal(pixels[3], PREPARE(pictures.tested["path"][3]))
    few, said = parity_pixels(Pictures(pictures.tested.iloc[:2], None, EvaluationConfig(), ""), PREPARE)
    assert (few.shape, said) == ((17, 3, 4, 4), "2 pictures")
    assert np.array_equal(few[2], few[0])
    noise, said = parity_pixels(Pictures(None, None, EvaluationConfig(), ""), PREPARE)
    assert (noise.shape, noise.dtype, said) == ((17, 3, 4, 4), np.float32, "noise")
    batches = list(pixel_batches(pictures.tested, PREPARE, max_pixels=100, size=8))
    assert [len(batch) for batch in batches] == [8, 8, 4]
