"""Large sets: the screens that only they use, values on a sample of queries, and memory (user-pains 53 and 54)."""

from __future__ import annotations

import resource
import subprocess
import sys

import numpy as np
import pytest

from proxemics.evaluation import EvaluationResult, evaluate_embeddings

KS = (1, 10, 100, 1000)


def make(images: int, classes: int, dim: int, noise: float) -> tuple[np.ndarray, np.ndarray]:
    rng = np.random.default_rng(0)
    labels = rng.permutation(
        np.concatenate([np.arange(classes).repeat(2), rng.integers(0, classes, images - 2 * classes)])
    )
    points = rng.standard_normal((classes, dim), dtype=np.float32)[labels]
    points += np.float32(noise) * rng.standard_normal((images, dim), dtype=np.float32)
    return points / np.linalg.norm(points, axis=1, keepdims=True), labels


def check_some(result: EvaluationResult, points: np.ndarray, labels: np.ndarray, queries: np.ndarray) -> None:
    """Compare some queries with a float64 ranking of the whole gallery."""
    unit = points.astype(np.float64)
    unit /= np.linalg.norm(unit, axis=1, keepdims=True)
    for query in queries:
        order = np.argsort(-(unit @ unit[query]), kind="stable")
        order = order[order != query]
        rel = labels[order] == labels[query]
        r = int(rel.sum())
        precision = np.cumsum(rel[:r]) / np.arange(1, r + 1)
        assert result.per_query["nearest"][query] == order[0]
        assert result.per_query["r_precision"][query] == pytest.approx(rel[:r].mean(), abs=1e-12)
        assert result.per_query["map_at_r"][query] == pytest.approx((precision * rel[:r]).sum() / r, abs=1e-12)
        for k in KS:
            assert result.per_query[f"recall_at_{k}"][query] == float(rel[:k].any())


@pytest.fixture(scope="module")
def thousands() -> tuple[np.ndarray, np.ndarray, EvaluationResult]:
    points, labels = make(16_400, 3_000, 64, 1.8)
    return points, labels, evaluate_embeddings(points, labels, recall_at=KS)


def test_values_of_a_large_set(thousands) -> None:
    points, labels, result = thousands
    assert 0.05 < result["recall_at_1"] < result["recall_at_1000"] < 1
    check_some(result, points, labels, np.random.default_rng(1).choice(len(labels), 150, replace=False))


def test_screens_agree_on_a_large_set(thousands) -> None:
    """The default is the bfloat16 screen from 16,384 items on, where the processor has one."""
    points, labels, result = thousands
    other = evaluate_embeddings(points, labels, recall_at=KS, precision="float32")
    assert dict(other) == dict(result)
    for name in ("map_at_r", "recall_at_100", "nearest"):
        np.testing.assert_array_equal(other.per_query[name], result.per_query[name])


BODY = """
import sys, numpy as np, torch
from pathlib import Path
from proxemics.evaluation import evaluate_embeddings
def status(key):
    return int(Path("/proc/self/status").read_text().split(key + ":")[1].split()[0]) / 1024
images, dim, times = map(int, sys.argv[1:])
g = np.random.default_rng(0)
x = g.standard_normal((images, dim), dtype=np.float32)
y = np.arange(images) // 5 + 2**40
evaluate_embeddings(x[:3000], y[:3000])
Path("/proc/self/clear_refs").write_text("5")
before = status("VmRSS")
for _ in range(times):
    evaluate_embeddings(x, y)
    print(status("VmHWM") - before)
"""


def growth_mb(images: int, dim: int, times: int, limit_mb: int | None = None) -> list[float]:
    """By how much the peak of a new process has grown after each evaluation; ``limit_mb`` caps its data segment."""

    def limit() -> None:
        if limit_mb is not None:
            resource.setrlimit(resource.RLIMIT_DATA, (limit_mb * 2**20, limit_mb * 2**20))

    command = [sys.executable, "-c", BODY, str(images), str(dim), str(times)]
    done = subprocess.run(command, capture_output=True, text=True, check=False, preexec_fn=limit)
    assert done.returncode == 0, done.stderr
    return [float(line) for line in done.stdout.split()]


@pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")
def test_memory_does_not_grow_with_the_square_or_with_use() -> None:
    """10,000 images: all similarities would take 400 MB in float32; a second run finds the memory of the first."""
    first, second = growth_mb(10_000, 16, 2)
    assert first < 100
    assert second < first + 20


@pytest.mark.slow
@pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")
def test_sop_size_in_two_gigabytes() -> None:
    """60,502 x 512 with the data of the whole process, torch included, capped at 2 GB."""
    assert growth_mb(60_502, 512, 1, limit_mb=2048)[0] < 256


@pytest.mark.slow
def test_sop_size_values() -> None:
    points, labels = make(60_502, 11_316, 512, 2.5)
    result = evaluate_embeddings(points, labels, recall_at=KS)
    check_some(result, points, labels, np.random.default_rng(1).choice(len(labels), 300, replace=False))
