"""Public reports of others, section F (evaluation), as tests: what is not held by another file; see cases/user-pains.

Numbers are those of the reports. 48, 50, 55, 63 and 64 are also in test_against_brute_force.py, 53 and 54 in
test_size.py, 57 in test_exactness.py, 58, 59, 64 and 65 in tests/training, 60 and 61 in tests/data/benchmarks.
"""

from __future__ import annotations

import importlib.util
import json
import re
import subprocess
import sys
from pathlib import Path
from types import ModuleType

import numpy as np
import pandas as pd
import pytest
import torch

from proxemics.core.config import EvaluationConfig, make_config
from proxemics.core.errors import DataError, EvaluationError
from proxemics.evaluation import evaluate_embeddings
from proxemics.evaluation.assess import check_answerable
from proxemics.report.explain import explain
from proxemics.training.pipeline import fit

ROOT = Path(__file__).resolve().parents[2]


def _load() -> ModuleType:
    spec = importlib.util.spec_from_file_location("pains_reference", Path(__file__).with_name("reference.py"))
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


reference = _load()


def sample(sizes: list[int], seed: int = 0, dim: int = 6) -> tuple[np.ndarray, np.ndarray]:
    generator = np.random.default_rng(seed)
    labels = generator.permutation(np.repeat(np.arange(len(sizes)), sizes))
    centres = generator.normal(size=(len(sizes), dim))
    return (centres[labels] + 1.2 * generator.normal(size=(len(labels), dim))).astype(np.float32), labels


# --- 48 ---------------------------------------------------------------------------------------------------------------


def test_48_duplicates_and_ties_with_an_answer_by_hand() -> None:
    """Scenario K6. East holds a, a and b; north holds b and c; west holds c. A tie goes to the lower row."""
    east, north, west = (1.0, 0.0), (0.0, 1.0), (-1.0, 0.0)
    points, labels = np.array([east, east, east, north, north, west]), ["a", "a", "b", "b", "c", "c"]
    result = evaluate_embeddings(points, labels, recall_at=(1, 2), bootstrap=0)
    # row: neighbours in order          first of its class
    # 0 a: 1a 2b | 3b 4c | 5c           1
    # 1 a: 0a 2b | 3b 4c | 5c           1
    # 2 b: 0a 1a | 3b 4c | 5c           3
    # 3 b: 4c | 0a 1a 2b 5c             4   (cosine 0 to east and to west)
    # 4 c: 3b | 0a 1a 2b 5c             5
    # 5 c: 3b 4c | 0a 1a 2b             2
    assert result.per_query["recall_at_1"].tolist() == [1, 1, 0, 0, 0, 0]
    assert result.per_query["recall_at_2"].tolist() == [1, 1, 0, 0, 0, 1]
    assert result["map_at_r"] == result["recall_at_1"] == pytest.approx(2 / 6)  # R is 1 for each
    # Rows 0, 1 and 5 could meet the other class first; 2, 3 and 4 could not meet their own first.
    assert result.bounds["recall_at_1"] == (0.0, pytest.approx(3 / 6))
    order = [5, 3, 1, 4, 2, 0]
    moved = evaluate_embeddings(points[order], [labels[row] for row in order], recall_at=(1, 2), bootstrap=0)
    assert moved.bounds == result.bounds


@pytest.mark.parametrize("apart", [False, True])
def test_48_every_picture_doubled_under_its_own_label_is_found(apart: bool) -> None:
    """The other half of the report: a duplicate of the same class is a right answer, in both kinds of gallery."""
    points, _ = sample([1] * 15)
    labels = np.tile(np.arange(15), 2)
    doubled = np.concatenate([points, points])
    others = {"gallery": doubled, "gallery_labels": labels, "ids": np.arange(30), "gallery_ids": np.arange(30)}
    result = evaluate_embeddings(doubled, labels, recall_at=(1,), bootstrap=0, **(others if apart else {}))
    assert result["recall_at_1"] == result["map_at_r"] == 1.0
    assert result.num_ties == 0


# --- 50 ---------------------------------------------------------------------------------------------------------------


def test_50_map_at_r_needs_no_k() -> None:
    """Classes of 2, 5 and 50. Too small a k of theirs gives another number without a word; ours has no such option."""
    points, labels = sample([2, 5, 50, 2, 5])
    ours = evaluate_embeddings(points, labels, recall_at=(1,), bootstrap=0)
    expected = reference.evaluate(points, labels, ks=(1,))
    np.testing.assert_allclose(ours.per_query["map_at_r"], expected["map_at_r"], atol=1e-12)
    calculator = pytest.importorskip("pytorch_metric_learning.utils.accuracy_calculator").AccuracyCalculator
    from pytorch_metric_learning.distances import CosineSimilarity
    from pytorch_metric_learning.utils.inference import CustomKNN

    found = {}
    for k in (5, len(labels) - 1):
        theirs = calculator(
            include=("mean_average_precision_at_r",), k=k, knn_func=CustomKNN(CosineSimilarity()),
            device=torch.device("cpu"),
        )  # fmt: skip
        answer = theirs.get_accuracy(torch.from_numpy(points), torch.from_numpy(labels))
        found[k] = answer["mean_average_precision_at_r"]
    assert ours["map_at_r"] == pytest.approx(found[len(labels) - 1], abs=1e-6)
    assert abs(ours["map_at_r"] - found[5]) > 0.1


# --- 51 ---------------------------------------------------------------------------------------------------------------


def test_51_the_table_of_names_holds_for_torchmetrics() -> None:
    """docs/metrics.md: what has another name there, and what has the same name and is another number."""
    retrieval = pytest.importorskip("torchmetrics.retrieval")
    points, labels = sample([2, 5, 12, 3, 8], seed=3)
    ours = evaluate_embeddings(points, labels, recall_at=(1, 4), precision_at=(3,), bootstrap=0)
    unit = torch.nn.functional.normalize(torch.from_numpy(points).double(), dim=1)
    others = ~torch.eye(len(labels), dtype=torch.bool)
    target = (torch.from_numpy(labels)[:, None] == torch.from_numpy(labels)[None])[others]
    owner = torch.arange(len(labels))[:, None].expand_as(others)[others]

    def theirs(name: str, **options: int) -> float:
        return float(getattr(retrieval, name)(**options)((unit @ unit.t())[others], target, indexes=owner))

    assert ours["recall_at_1"] == pytest.approx(theirs("RetrievalHitRate", top_k=1), abs=1e-6)
    assert ours["recall_at_4"] == pytest.approx(theirs("RetrievalHitRate", top_k=4), abs=1e-6)
    assert ours["precision_at_3"] == pytest.approx(theirs("RetrievalPrecision", top_k=3), abs=1e-6)
    assert ours["r_precision"] == pytest.approx(theirs("RetrievalRPrecision"), abs=1e-6)
    assert theirs("RetrievalMAP", top_k=4) > ours["map_at_r"] + 0.05
    assert theirs("RetrievalRecall", top_k=4) < ours["recall_at_4"] - 0.05  # share of the class, not any hit


def test_51_names_carry_their_definition() -> None:
    """Every name that the page defines comes out of an evaluation, and the report explains it in words."""
    page = (ROOT / "docs" / "metrics.md").read_text(encoding="utf-8")
    table = page.partition("## Definitions")[2].partition("\n\nThe value of a metric")[0]
    defined = {
        name
        for line in table.splitlines()
        if line.startswith("| `")
        for name in re.findall(r"`(\w+)`", line.split("|")[1])
    }
    points, labels = sample([4, 5, 6])
    result = evaluate_embeddings(
        points, labels, recall_at=(1, 2), precision_at=(2,), map_horizon=10, roth_horizon=1000, clustering=True,
        spectrum=True, bootstrap=0,
    )  # fmt: skip
    shown = {re.sub(r"_at_\d+$", "_at_k", name) if not name.startswith("map") else name for name in result}
    shown = {"map_at_H" if re.fullmatch(r"map_at_\d+", name) else name for name in shown}
    assert defined == shown
    for name in result:
        assert explain(name).text != explain("my_own_number").text, name
    assert "at least one picture of their class" in explain("recall_at_5").text  # any hit


def test_51_the_map_of_others_divides_by_the_hits_found() -> None:
    """One hit at rank 1 and nothing after it: theirs is 1, MAP@R of a class of five is 1/4."""
    points = np.array([[1.0, 0], [0.99, 0.14], [-1, 0.1], [-1, 0.2], [-1, 0.3], [0.9, 0.5], [0.8, 0.6], [0.7, 0.7]])
    labels = ["a"] * 5 + ["b"] * 3
    result = evaluate_embeddings(points, labels, recall_at=(1,), bootstrap=0)
    assert result.per_query["map_at_r"][0] == 0.25


# --- 53, 54 -----------------------------------------------------------------------------------------------------------

GALLERY = """
import resource, sys, numpy as np, torch
from pathlib import Path
from proxemics.evaluation import evaluate_embeddings
def status(key):
    return int(Path("/proc/self/status").read_text().split(key + ":")[1].split()[0]) * 1024
limit = status("VmData") + 2**30
resource.setrlimit(resource.RLIMIT_DATA, (limit, limit))
queries, images = map(int, sys.argv[1:])
g = np.random.default_rng(0)
y = np.arange(images) // 5 + 2**40
x = g.standard_normal((images, 128), dtype=np.float32)
rows = g.choice(images, queries, replace=False)
ids = np.arange(images) + 2**40
Path("/proc/self/clear_refs").write_text("5")
before = status("VmRSS")
r = evaluate_embeddings(x[rows], y[rows], x, y, ids=ids[rows], gallery_ids=ids, recall_at=(1,), bootstrap=0)
grown = status("VmHWM") - before
scores = x @ x[rows[0]] / np.linalg.norm(x, axis=1)
scores[rows[0]] = -np.inf
print(r.num_queries, r.per_query["nearest"][0] == scores.argmax(), grown // 2**20)
"""


@pytest.mark.slow
@pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")
def test_53_a_gallery_of_450_000_in_one_gigabyte() -> None:
    """Vectors and evaluation in 1 GB beside torch; all similarities of the 2,000 queries would take 3.6 GB."""
    done = subprocess.run(
        [sys.executable, "-c", GALLERY, "2000", "450000"], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    queries, right, grown = done.stdout.split()
    assert (queries, right) == ("2000", "True")
    assert int(grown) < 256


def test_54_one_evaluation_after_another_holds_on_to_nothing() -> None:
    """What an evaluation made is gone with its result: no tensor is left behind, whatever its ids are."""
    import gc

    points, labels = sample([20] * 30)
    ids = np.arange(600) + 2**40

    def tensors() -> int:
        gc.collect()
        return sum(type(one) is torch.Tensor and one.numel() > 100 for one in gc.get_objects())

    evaluate_embeddings(points, labels, bootstrap=0)
    before = tensors()
    for _ in range(3):
        result = evaluate_embeddings(points, labels + 2**40, points, labels + 2**40, ids=ids, gallery_ids=ids)
        assert result.num_queries == 600
        del result
    assert tensors() <= before


@pytest.mark.gpu
def test_54_memory_of_the_device_returns_to_where_it_was() -> None:
    points, labels = sample([20] * 100, dim=64)
    here = torch.from_numpy(points).cuda()
    used = []
    for _ in range(3):
        evaluate_embeddings(here, labels, bootstrap=0)
        torch.cuda.synchronize()
        used.append(torch.cuda.memory_allocated())
    assert used[1] == used[2] <= used[0]


@pytest.mark.gpu
def test_55_a_class_of_three_thousand_on_the_device() -> None:
    """R is 2,999; libraries with a limit of 1,024 or 2,048 neighbours on a GPU fail or cut here."""
    points, labels = sample([3000, 40, 40], dim=8)
    expected = evaluate_embeddings(points, labels, recall_at=(1, 1000), bootstrap=0)
    found = evaluate_embeddings(torch.from_numpy(points).cuda(), labels, recall_at=(1, 1000), bootstrap=0)
    for name in ("map_at_r", "r_precision", "recall_at_1000"):
        assert found[name] == pytest.approx(expected[name], abs=1e-12)


@pytest.mark.gpu
def test_47_a_chosen_device_leaves_the_others_alone() -> None:
    """Asked for the CPU, nothing of CUDA is even started."""
    code = (
        "import numpy as np, torch\n"
        "from proxemics.evaluation import evaluate_embeddings\n"
        "evaluate_embeddings(np.eye(4)[[0, 0, 1, 1]], [0, 0, 1, 1], device='cpu')\n"
        "print(torch.cuda.is_initialized())\n"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "False"


# --- 58 ---------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("path", sorted((ROOT / "benchmarks" / "results").glob("*.json")), ids=lambda path: path.stem)
def test_58_every_committed_result_says_how_it_was_made(path: Path) -> None:
    """Schema, command and machine; versions of the file or of each row; of runs also data and settings."""
    whole = json.loads(path.read_text(encoding="utf-8"))
    assert whole["schema"] == 1
    assert whole["command"].split()[0] in ("python", "proxemics")
    assert "core" in whole["machine"]
    assert whole["rows"]
    for row in whole["rows"]:
        assert all((whole.get("versions") or row["versions"]).values())
        assert ("name" in row) != ({"dataset", "seed", "metrics", "base"} <= set(row)), row.keys()
    assert not re.search(r"(?:^|[\s\"=])/(?:home|root|tmp|work)/", path.read_text(encoding="utf-8"))


# --- 65 ---------------------------------------------------------------------------------------------------------------


def table_of(tiny_folder: Path, splits: dict[int, str]) -> pd.DataFrame:
    rows = []
    for number, folder in enumerate(sorted(tiny_folder.iterdir())):
        rows += [(str(path), folder.name, "", splits[number % 12]) for path in sorted(folder.iterdir())]
    return pd.DataFrame(rows, columns=["path", "label", "domain", "split"])


HALVES = {number: "train" if number < 6 else "val" if number < 9 else "test" for number in range(12)}


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({}, None),
        (dict.fromkeys((6, 7, 8), "train"), r"The split 'val' has no pictures"),
        (dict.fromkeys((7, 8), "train"), r"The split val has 8 pictures for zero_shot, all of one class \(class é06\)"),
        (dict.fromkeys((10, 11), "train"), r"The split test has 8 pictures for zero_shot, all of one class"),
    ],
)
def test_65_splits_that_cannot_be_measured_are_refused_at_the_start(
    change: dict[int, str], message: str | None, tiny_settings: list[str], tiny_folder: Path, tmp_path: Path
) -> None:
    """Before any step: nothing is written but what the refusal needs."""
    config = make_config({}, [*tiny_settings, "train.epochs=1", "data.split=column"])
    frame = table_of(tiny_folder, HALVES | change)
    if message is None:
        check_answerable(frame[frame["split"] == "val"], config.evaluation, split="val")
        return
    with pytest.raises((DataError, EvaluationError), match=message):
        fit(config, tmp_path / "run", frame=frame)
    assert not (tmp_path / "run" / "metrics.jsonl").exists()
    assert not (tmp_path / "run" / "checkpoint").exists()


def test_65_classes_without_a_second_picture_and_domains_without_an_answer() -> None:
    lone = pd.DataFrame({"label": list("abc"), "domain": ""})
    with pytest.raises(EvaluationError, match="The split test has 3 pictures for zero_shot, and none has another of"):
        check_answerable(lone, EvaluationConfig(), split="test")
    check_answerable(pd.concat([lone, lone.iloc[:1]]), EvaluationConfig(), split="test")
    domains = pd.DataFrame({"label": list("abcdab"), "domain": ["photo"] * 4 + ["sketch"] * 2})
    crossed = EvaluationConfig(protocol="cross_domain", query_domain="sketch", gallery_domain="photo")
    check_answerable(domains, crossed, split="test")
    single = EvaluationConfig(protocol="single_domain", source_domain="photo")
    with pytest.raises(EvaluationError, match="2 pictures for sketch, and none has another of its class to find"):
        check_answerable(domains, single, split="test")


def test_65_what_is_refused_at_the_start_is_what_an_evaluation_refuses() -> None:
    """The check without embeddings and the evaluation agree on random small tables."""
    generator = np.random.default_rng(0)
    agreed = {True: 0, False: 0}
    for _ in range(60):
        size = int(generator.integers(2, 6))
        labels = generator.choice(list("abcdef"), size, replace=bool(generator.integers(2)))
        frame = pd.DataFrame({"label": labels, "domain": ""})
        try:
            check_answerable(frame, EvaluationConfig(), split="test")
            fine = True
        except EvaluationError:
            fine = False
        try:
            evaluate_embeddings(generator.normal(size=(size, 4)), labels.tolist(), recall_at=(1,), bootstrap=0)
            measured = True
        except EvaluationError:
            measured = False
        assert fine == measured
        agreed[fine] += 1
    assert min(agreed.values()) > 5
