"""The sheet of expanded pictures that a run leaves, and its section in the report."""

from __future__ import annotations

import json
import re
import shutil
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
import torch
from PIL import Image

from proxemics.core.config import Config, load_config, make_config
from proxemics.data.preprocess import Preprocess
from proxemics.methods.base import Method
from proxemics.methods.build import Shapes, build_methods
from proxemics.report import write_report
from proxemics.report.expansion import expansion_part
from proxemics.training.expansion import PICTURES, VERSIONS, save_expansion, versions
from proxemics.training.pipeline import fit
from proxemics.training.run_folder import RunFolder
from proxemics.training.run_state import open_state

SIDE = 32


@pytest.fixture(scope="module")
def run(tiny_folder: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    torch.set_num_threads(1)
    settings = [
        f"data.source={tiny_folder}", f"data.size={SIDE}", "data.workers=0", "model.trunk=test_resnet.r160_in1k",
        "model.weights=none", "model.dim=16", "train.epochs=3", "train.batch_size=8", "train.per_class=2",
        "train.tensorboard=false", "evaluation.bootstrap=0", "evaluation.recall_at=[1, 2]",
        "methods={center_polar: {inner_lr: 0.3}}",
    ]  # fmt: skip
    folder = tmp_path_factory.mktemp("polar") / "run"
    fit(make_config({}, settings), folder)
    return folder


def tiles(folder: Path) -> np.ndarray:
    """Rows x columns x S x S x 3."""
    sheet = np.asarray(Image.open(folder / "expansion.jpg").convert("RGB"))
    rows, columns = sheet.shape[0] // SIDE, sheet.shape[1] // SIDE
    return sheet.reshape(rows, SIDE, columns, SIDE, 3).transpose(0, 2, 1, 3, 4)


def test_the_sheet_holds_pictures_and_versions_of_the_final_state(run: Path) -> None:
    about = json.loads((run / "expansion.json").read_text(encoding="utf-8"))
    assert about["methods"] == [{"name": "center_polar", "learnt": True}]
    assert (about["tile"], about["versions"], len(about["pictures"])) == (SIDE, VERSIONS, PICTURES)
    table = pd.read_parquet(run / "split.parquet").set_index("path")
    assert set(table.loc[[one["path"] for one in about["pictures"]], "split"]) == {"train"}
    assert len({one["label"] for one in about["pictures"]}) == table.loc[table["split"] == "train", "label"].nunique()
    found = tiles(run).astype(float)
    assert found.shape == (PICTURES, 1 + VERSIONS, SIDE, SIDE, 3)
    state = open_state(run)
    preprocess = state.embedder.preprocess
    pixels = torch.stack(
        [torch.from_numpy(preprocess.crop_exact(one["path"]).copy()).permute(2, 0, 1) for one in about["pictures"]]
    )
    wanted = versions(state.methods["center_polar"], pixels, preprocess, state.config.seed)
    start = versions(fresh("center_polar: {}")["center_polar"], pixels, preprocess, state.config.seed)
    for column, expected in enumerate([pixels.float(), *wanted]):
        shown = expected.permute(0, 2, 3, 1).numpy()
        assert np.abs(found[:, column] - shown).mean() < 6  # what JPEG does to noise
    moved = [float((one - other).abs().mean()) for one, other in zip(wanted, start, strict=True)]
    assert max(moved) > 12, "the learnt generator should differ from where it starts"


def fresh(text: str) -> dict[str, Method]:
    methods = make_config({}, [f"methods={{{text}}}"]).methods
    return dict(zip(methods, build_methods(methods, Shapes(4, 16)), strict=True))


def test_the_report_shows_each_picture_with_its_versions(run: Path, tmp_path: Path) -> None:
    html = write_report(run, out=tmp_path / "with.html").read_text(encoding="utf-8")
    section = html.partition('<section id="expansion"')[2].partition("</section>")[0]
    assert "What the expansion makes" in section
    assert section.count("data:image/jpeg") == PICTURES * (1 + VERSIONS)
    assert section.count("Training picture ") == PICTURES
    assert not re.findall(r'src="(?!data:)', section)
    assert "never learnt" not in section
    bare = tmp_path / "bare"
    shutil.copytree(run, bare)
    (bare / "expansion.jpg").unlink()
    assert '<section id="expansion"' not in write_report(bare).read_text(encoding="utf-8")
    (bare / "expansion.jpg").write_bytes(b"not a picture")
    assert '<section id="expansion"' not in write_report(bare).read_text(encoding="utf-8")


def test_expanders_without_pictures_get_a_sentence(tmp_path: Path) -> None:
    for expander, part in (("style", "statistics of features"), ("embedding", "the embeddings themselves")):
        found = expansion_part(tmp_path, {"center_polar": {"expander": expander}})
        assert found is not None
        assert part in found.sentences[0]
        assert found.methods == ()
    assert expansion_part(tmp_path, {"center_polar": {"expander": "none"}}) is None
    assert expansion_part(tmp_path, {"see": {}}) is None
    assert expansion_part(tmp_path, {"center_polar": None}) is None
    assert expansion_part(tmp_path, None) is None


def saved(folder: Path, methods: str, rows: pd.DataFrame) -> bool:
    return save_expansion(Config(), fresh(methods), Preprocess(size=SIDE, resize=SIDE), rows, RunFolder(folder))


def test_who_makes_pictures(tiny_folder: Path, tmp_path: Path) -> None:
    paths = sorted(map(str, tiny_folder.rglob("*.png")))
    rows = pd.DataFrame({"path": paths, "label": [Path(one).parent.name for one in paths], "domain": None})
    for none in (
        "see: {}",
        "center_polar: {expander: style}",
        "center_polar: {lambda_4: 0, lambda_g: 0}",
        "expansion_equalisation: {lambda_e: 0, lambda_g: 0}",
    ):
        assert not saved(tmp_path, none, rows), none
        assert not (tmp_path / "expansion.jpg").exists()
    assert saved(tmp_path, "center_polar: {}, expansion_equalisation: {mix: 0}", rows)
    about = json.loads((tmp_path / "expansion.json").read_text(encoding="utf-8"))
    assert [one["learnt"] for one in about["methods"]] == [False, False]
    found = tiles(tmp_path).astype(float)
    assert len(found) == 2 * PICTURES
    first, second = found[:PICTURES], found[PICTURES:]
    np.testing.assert_allclose(first[:, 0], second[:, 0])
    assert np.abs(second[:, 1:] - second[:, :1]).mean() < 4  # mix 0 leaves the pictures as they are
    assert np.abs(first[:, 1:] - first[:, :1]).mean() > 20
    part = expansion_part(tmp_path, {"center_polar": {}})
    assert part is not None
    assert [one.name for one in part.methods] == ["center_polar", "expansion_equalisation"]
    # Pictures that are gone are left out, and a sheet of none is not written.
    few = rows.iloc[:3].copy()
    few.loc[0, "path"] = "/gone.png"
    assert saved(tmp_path / "few", "center_polar: {}", few)
    assert len(tiles(tmp_path / "few")) == 2
    few["path"] = "/gone.png"
    assert not saved(tmp_path / "gone", "center_polar: {}", few)


def test_restart_throws_the_sheet_away(run: Path, tmp_path: Path) -> None:
    copy = tmp_path / "run"
    shutil.copytree(run, copy)
    (copy / "dictionary.html").write_text("old")
    assert load_config(copy / "config.yaml").methods
    RunFolder(copy).clear()
    assert [path.name for path in copy.iterdir()] == []
