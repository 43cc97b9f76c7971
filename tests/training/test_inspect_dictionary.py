"""Looking at the dictionary of a real run: the numbers against a reference by hand, and every way to fail."""

from __future__ import annotations

import re
import shutil
import sys
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
import torch

from proxemics.cli.main import main
from proxemics.core.config import make_config, save_config
from proxemics.core.errors import DataError
from proxemics.training.checkpoint import load_checkpoint, load_tensors, save_tensors
from proxemics.training.dictionary_view import DictionaryView
from proxemics.training.inspect_dictionary import inspect_dictionary
from proxemics.training.log import read_log
from proxemics.training.picture_sample import spread_rows
from proxemics.training.pipeline import fit
from proxemics.training.run_state import RunState, open_state
from proxemics.training.tables import rows_of

ATOMS, DIM = 8, 16


@pytest.fixture(scope="module")
def run(tiny_folder: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    torch.set_num_threads(1)
    settings = [
        f"data.source={tiny_folder}", "data.size=64", "data.workers=0", "model.trunk=test_resnet.r160_in1k",
        "model.weights=none", f"model.dim={DIM}", "model.freeze_bn=false", "train.epochs=3", "train.batch_size=8",
        "train.per_class=2", "train.tensorboard=false", "train.select=last", "evaluation.bootstrap=0",
        "evaluation.recall_at=[1, 2]", f"methods={{couce: {{odba: {{atoms: {ATOMS}}}, msrci: {{lambda_v: 0}}}}}}",
    ]  # fmt: skip
    folder = tmp_path_factory.mktemp("couce") / "run"
    fit(make_config({}, settings), folder)
    return folder


@pytest.fixture(scope="module")
def view(run: Path) -> DictionaryView:
    return inspect_dictionary(run, atoms=5, pictures=3)


def copied(run: Path, place: Path) -> Path:
    shutil.copytree(run, place)
    return place


def reference(run: Path, state: RunState, path: str) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Unit embedding, centred descriptor and centred, gated answers of the places (P, K), in float64 by hand."""
    tensors, _ = load_checkpoint(run / "checkpoint") or ({}, {})
    dictionary = tensors["methods/0.odba.dictionary"].double()
    mean = tensors["methods/0.odba.mean"].double()
    model = state.embedder
    with torch.no_grad():
        encoded = model.encode(torch.from_numpy(model.preprocess(path))[None])
    tokens = encoded.tokens[0].double()
    head = {name: tensors[f"model/head.{name}"].double() for name in ("weight", "bias")}
    places = tokens @ head["weight"].t() + head["bias"]
    scores = tokens.var(1, correction=0)
    gate = torch.sigmoid(-(scores - scores.mean()) / scores.std(correction=0) / 0.5)
    pooled = (gate[:, None] * places).sum(0) / gate.sum()

    def unit(x: torch.Tensor) -> torch.Tensor:
        return x / x.norm(dim=-1, keepdim=True)

    descriptor = unit(unit(pooled) - mean)
    answers = unit(unit(places) - mean) @ dictionary.t() * gate[:, None]
    whole = unit(tokens.mean(0) @ head["weight"].t() + head["bias"])
    return whole.numpy(), descriptor.numpy(), answers.numpy()


def test_numbers_against_a_reference_by_hand(run: Path, view: DictionaryView) -> None:
    tensors, _ = load_checkpoint(run / "checkpoint") or ({}, {})
    dictionary = tensors["methods/0.odba.dictionary"].double().numpy()
    prior = tensors["methods/0.odba.prior"].double().numpy()
    rows = rows_of(pd.read_parquet(run / "split.parquet"), "train")
    state = open_state(run)
    found = {path: reference(run, state, path) for path in rows["path"]}
    z, b = (np.stack([one[part] for one in found.values()]) for part in (0, 1))
    gram = dictionary @ dictionary.T
    np.fill_diagonal(gram, 0)
    assert view.coherence == pytest.approx(np.abs(gram).max(), abs=1e-5)
    assert view.used == (prior > 0.1 / ATOMS).sum()
    assert view.orth == pytest.approx(((z @ dictionary.T) ** 2).sum(1).mean(), abs=1e-4)
    assert view.orth_random == ATOMS / DIM
    basis = np.linalg.qr(dictionary.T)[0]
    assert view.energy == pytest.approx(((z @ basis) ** 2).sum(1).mean(), abs=1e-4)
    assert view.energy_background == pytest.approx(((b @ basis) ** 2).sum(1).mean(), abs=1e-3)
    assert (view.num_pictures, view.num_training, view.num_unreadable) == (len(rows), len(rows), 0)
    assert [one.number for one in view.atoms] == np.argsort(-prior, kind="stable")[:5].tolist()
    chosen = (b @ dictionary.T).argmax(1)
    for atom in view.atoms:
        assert atom.prior == pytest.approx(prior[atom.number], abs=1e-6)
        assert atom.chosen == pytest.approx((chosen == atom.number).sum(), abs=1)  # a tie may fall the other way
        cosines = b @ dictionary[atom.number]
        assert [one.cosine for one in atom.pictures] == pytest.approx(np.sort(cosines)[::-1][:3], abs=1e-3)
        for one in atom.pictures:
            answers = found[one.path][2][:, atom.number]
            heat = (answers - answers.min()) / (answers.max() - answers.min())
            assert one.heat is not None
            np.testing.assert_allclose(one.heat.ravel(), heat, atol=0.02)
            assert one.pixels.shape == (64, 64, 3)


def test_classes_of_an_atom_are_counted(view: DictionaryView) -> None:
    assert sum(one.chosen for one in view.atoms) <= view.num_pictures
    for atom in view.atoms:
        assert len(atom.labels) <= atom.num_labels <= atom.chosen
        assert sum(one.share for one in atom.labels) <= 1 + 1e-9
        assert atom.domains == ()  # the pictures have one domain
        shares = [one.share for one in atom.labels]
        assert shares == sorted(shares, reverse=True)


def test_recall_is_that_of_the_last_validation(run: Path, view: DictionaryView) -> None:
    """The checkpoint of the last epoch gives the numbers that the run measured on it."""
    last = [record["val"] for record in read_log(run) if "val" in record][-1]
    assert view.recall is not None
    assert view.recall.whole == pytest.approx(last["recall_at_1"])
    for part in (view.recall.inside, view.recall.outside, view.recall.random_inside, view.recall.random_outside):
        assert part is not None
        assert 0 <= part <= 1
    assert view.checkpoint == "Model and methods are those of the last checkpoint, after epoch 3 of 3."


def test_sample_is_spread_and_the_same_again(run: Path) -> None:
    rows = pd.DataFrame({"label": ["a"] * 50 + ["b"] * 3 + ["c"] * 7})
    drawn = spread_rows(rows, 12, seed=1)
    assert rows["label"].iloc[drawn].value_counts().to_dict() == {"a": 5, "b": 3, "c": 4} or (
        rows["label"].iloc[drawn].value_counts().to_dict() == {"a": 4, "b": 3, "c": 5}
    )
    assert drawn.tolist() == spread_rows(rows, 12, seed=1).tolist()
    assert drawn.tolist() != spread_rows(rows, 12, seed=2).tolist()
    first, second = (inspect_dictionary(run, atoms=1, pictures=1, sample=9) for _ in range(2))
    assert first.num_pictures == 9
    assert first.atoms[0].pictures[0].path == second.atoms[0].pictures[0].path
    assert first.orth == second.orth


def test_pictures_that_are_gone_are_left_out_and_counted(run: Path, tmp_path: Path) -> None:
    folder = copied(run, tmp_path / "run")
    table = pd.read_parquet(folder / "split.parquet")
    train = table.index[table["split"] == "train"]
    table.loc[train[:5], "path"] = "/gone/" + table.loc[train[:5], "path"].str.replace("/", "_")
    table.loc[table["split"] == "val", "path"] = "/gone/" + table["path"].str.replace("/", "_")
    table.to_parquet(folder / "split.parquet")
    found = inspect_dictionary(folder, atoms=2, pictures=2)
    assert (found.num_unreadable, found.num_pictures) == (5, len(train) - 5)
    assert found.recall is None
    table["path"] = "/gone/" + table["path"].str.replace("/", "_")
    table.to_parquet(folder / "split.parquet")
    with pytest.raises(
        DataError, match=rf"None of the {len(train)} training pictures of .* can be read, such as /gone/"
    ):
        inspect_dictionary(folder)


def call(monkeypatch: pytest.MonkeyPatch, *arguments: str) -> int:
    monkeypatch.setattr(sys, "argv", ["proxemics", *arguments])
    with pytest.raises(SystemExit) as stopped:
        main()
    return int(stopped.value.code or 0)


def test_the_verb_writes_the_page(
    run: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    folder = copied(run, tmp_path / "run")
    assert call(monkeypatch, "inspect", "dictionary", str(folder), "--atoms", "3", "--pictures", "2", "-q") == 0
    shown = capfd.readouterr().out
    assert f"Dictionary: {folder / 'dictionary.html'}" in shown
    assert "couce: 8 atoms of 16 dimensions" in shown
    assert "complement of span(D)" in shown
    html = (folder / "dictionary.html").read_text(encoding="utf-8")
    assert html.count('<li class="atom">') == 3
    assert html.count('class="over"') == 6
    assert not re.findall(r'(?:src|href)="(?!data:|#)[^"]*"', html)
    assert "<script" not in html
    assert call(monkeypatch, "inspect", "dictionary", str(folder), "--out", str(tmp_path / "other.html")) == 0
    assert (tmp_path / "other.html").stat().st_size > 10_000


def test_errors_are_one_line(
    run: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    config = open_state(run).config
    waiting, idle, bare, none = (copied(run, tmp_path / name) for name in ("waiting", "idle", "bare", "none"))
    file = next((waiting / "checkpoint").glob("step-*.safetensors"))
    tensors = load_tensors(file)
    tensors["methods/0.odba.filled"] = torch.tensor([24, 3, 0])
    save_tensors(file, tensors)
    shutil.copy(file, idle / "checkpoint" / file.name)
    off = {"couce": {"odba": {"atoms": ATOMS, "lambda_b": 0.0, "lambda_o": 0.0}, "msrci": {"lambda_v": 0.0}}}
    save_config(config.model_copy(update={"methods": off}), idle / "config.yaml")
    save_config(config.model_copy(update={"methods": {"see": {}}}), bare / "config.yaml")
    shutil.rmtree(none / "checkpoint")
    for folder, part in (
        (tmp_path / "absent", "is not a run folder: it has no config.yaml"),
        (bare, "its methods (see) keep none. Methods that keep one: odba and couce"),
        (waiting, "has not started yet: it has seen 3 batches and starts after 10 batches and 8 pictures"),
        (idle, "was never collected: lambda_b and lambda_o of couce are both 0"),
        (none, "has no checkpoint to look into"),
    ):
        assert call(monkeypatch, "inspect", "dictionary", str(folder)) == 2
        lines = capfd.readouterr().err.strip().splitlines()
        assert len(lines) == 1, lines
        assert part in lines[0]
        assert not (folder / "dictionary.html").exists()
