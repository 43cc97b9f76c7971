"""Every recipe can be read, fits its trunk and its methods, takes a step, and stands on the page about recipes.

The dry run takes a tiny trunk of the same kind: what can go wrong between loss, methods, optimiser and stages goes
wrong there too. The real trunks are built without memory, on the meta device. Verbs and options of the commands on the
page are checked with those of all pages, in ``test_readme.py``.
"""

from __future__ import annotations

import copy
import math
import re
import shlex
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import Any

import pandas as pd
import pytest
import timm
import torch
import yaml
from torch import nn

from proxemics.core.config import Config, load_config
from proxemics.core.errors import ConfigError
from proxemics.data.sources import load_table
from proxemics.data.splits import make_split
from proxemics.methods.base import Batch, Start
from proxemics.models.embedder import Embedder
from proxemics.models.stages import Stage, find_stage, list_stages
from proxemics.models.trunks import resolve_trunk
from proxemics.training.build import build_base_loss, build_run_methods
from proxemics.training.groups import make_optimizer, parameter_groups
from proxemics.training.step import TrainingStep

ROOT = Path(__file__).resolve().parents[1]
PAGE = ROOT / "docs" / "recipes.md"
FILES = sorted(path.relative_to(ROOT).as_posix() for path in ROOT.glob("recipes/**/*.yaml"))
CPU = [name for name in FILES if name.startswith("recipes/cpu/")]
STATED = {
    "data": {"size", "crop_scale"},
    "model": {"trunk", "pooling", "dim"},
    "loss": {"name"},
    "optim": {"name", "lr", "weight_decay", "warmup_epochs", "schedule"},
    "train": {"epochs", "batch_size", "per_class"},
}
TERMS = {
    "see": {"see"},
    "probabilistic": {"probabilistic"},
    "odba": {"odba_backdoor", "odba_orth"},
    "msrci": {"msrci_invariance"},
    "couce": {"odba_backdoor", "odba_orth", "msrci_invariance"},
    "center_polar": {"c3e_base", "c4_pull", "c4_cls", "c4_sep"},
    "expansion_equalisation": {"expansion", "equalisation"},
}
SMALLEST = 98  # training classes of Cars-196
CLASSES, EACH, SIDE = 6, 2, 32


def comment(text: str) -> str:
    """Return the block of comments on top, without the marks."""
    lines = []
    for line in text.splitlines():
        if not line.startswith("#"):
            break
        lines.append(line[1:].strip())
    return "\n".join(lines)


def assignments(text: str) -> list[str]:
    """Return what follows each ``--set`` of a piece of a command line."""
    words = shlex.split(text)
    return [words[i + 1] for i, word in enumerate(words[:-1]) if word == "--set"]


def variants(name: str) -> list[list[str]]:
    """Return the assignments of each variant that the comment of a recipe lists, one ``label: --set ...`` each."""
    _, _, listed = comment((ROOT / name).read_text(encoding="utf-8")).partition("Variants:\n")
    joined = re.sub(r"\n(?=--set)", " ", listed)
    return [assignments(line.partition(": ")[2]) for line in joined.splitlines()]


def on_the_page() -> Iterator[tuple[str, list[str]]]:
    """Yield recipe and assignments of each variant in the tables of the page and of each command on it."""
    for line in PAGE.read_text(encoding="utf-8").splitlines():
        named = re.findall(r"recipes/[\w/.]+\.yaml", line)
        if line.startswith("|") and named:
            for code in re.findall(r"`(--set [^`]+)`", line):
                yield named[0], assignments(code)
        if line.startswith("$ ") and named:
            yield named[0], assignments(line)


LISTED = [(name, given) for name in FILES for given in variants(name)]
TURNED = [*((name, []) for name in FILES), *LISTED, *on_the_page()]


def label(value: object) -> str:
    return " ".join(value) if isinstance(value, list) else str(value)


@cache
def real_trunk(name: str) -> tuple[tuple[Stage, ...], int, bool]:
    """Return stages, prefix tokens and whether there is batch normalisation."""
    with torch.device("meta"):
        trunk: Any = timm.create_model(resolve_trunk(name))
    norms = any(isinstance(module, nn.modules.batchnorm._BatchNorm) for module in trunk.modules())
    return list_stages(trunk), int(getattr(trunk, "num_prefix_tokens", 0)), norms


@cache
def tiny_embedder(kind: str, *arguments: object) -> Embedder:
    keys = ("dim", "pooling", "head_init", "layer_norm", "freeze_bn", "freeze_stages")
    given: dict[str, Any] = dict(zip(keys, arguments, strict=True))
    return Embedder(kind, weights="none", size=SIDE, **given)


def stand_in(config: Config) -> Embedder:
    """Return a tiny model of the kind that the recipe trains."""
    model = config.model
    kind = "test_vit.r160_in1k" if real_trunk(model.trunk)[1] else "test_resnet.r160_in1k"
    return tiny_embedder(
        kind, model.dim, model.pooling, model.head_init, model.layer_norm, model.freeze_bn, model.freeze_stages
    )


def entry(config: Config, stages: tuple[Stage, ...]) -> str:
    """Return the lowest stage that is computed in training."""
    return stages[config.model.freeze_stages].name if config.data.cache == "features" else "pixel"


def test_there_are_recipes_for_every_method_and_for_a_small_machine() -> None:
    from proxemics.methods.build import METHODS

    used = {method for name in FILES for method in load_config(ROOT / name).methods}
    assert used == set(METHODS)
    assert len(CPU) >= 9
    assert len(FILES) - len(CPU) >= 20


@pytest.mark.parametrize("name", FILES)
def test_a_recipe_states_its_optimisation_and_says_where_it_is_from(name: str) -> None:
    text = (ROOT / name).read_text(encoding="utf-8")
    stated: dict[str, dict[str, object]] = yaml.safe_load(text)
    missing = {f"{section}.{key}" for section, keys in STATED.items() for key in keys - set(stated[section])}
    assert missing == set()
    assert {"clip_value", "clip_norm"} & set(stated["optim"])
    if stated["optim"]["schedule"] == "step":
        assert "gamma" in stated["optim"]
        assert len({"step_epochs", "milestones"} & set(stated["optim"])) == 1
    assert not {"source", "split_file", "where"} & set(stated["data"]), "pictures are named on the command line"
    marks = ["Stands for:"] if name in CPU else ["Published:", "Source:", "Differs:", "Data:"]
    found = comment(text)
    assert [mark for mark in marks if f"\n{mark}" not in found] == []
    others = re.findall(r"recipes/[\w/.]+\.yaml", text)
    assert [other for other in others if other not in FILES] == []
    assert max(map(len, text.splitlines())) <= 120


@pytest.mark.parametrize("name", FILES)
def test_only_known_keys_are_taken(name: str, tmp_path: Path) -> None:
    load_config(ROOT / name)
    wrong = tmp_path / "wrong.yaml"
    wrong.write_text((ROOT / name).read_text(encoding="utf-8").replace("  epochs:", "  epoch:"), encoding="utf-8")
    with pytest.raises(ConfigError, match="Did you mean 'epochs'"):
        load_config(wrong)


@pytest.mark.parametrize(("name", "given"), TURNED, ids=label)
def test_trunk_stages_loss_methods_and_batch_fit(name: str, given: list[str]) -> None:
    config = load_config(ROOT / name, given)
    stages, prefix, norms = real_trunk(config.model.trunk)
    assert config.model.pooling != "cls" or prefix
    assert config.model.freeze_stages < len(stages)
    embedder = stand_in(config)
    loss = build_base_loss(config, num_classes=CLASSES, dim=embedder.dim)
    # Checks options, base loss, per_class and what else a method needs; stages are looked up in the real trunk.
    methods = build_run_methods(config, loss, embedder, num_domains=1)
    parameter_groups(embedder, loss, config.optim, methods=methods)
    order = [stage.name for stage in stages]
    for method in methods:
        for stage in method.needs.stages:
            place = find_stage(stages, stage, trunk=config.model.trunk).name
            assert order.index(place) >= order.index(entry(config, stages)), f"{place} is not computed"
        assert not method.needs.frozen_bn or config.model.freeze_bn or not norms
    assert config.train.batch_size is not None
    if config.train.per_class:
        assert config.train.batch_size / config.train.per_class <= SMALLEST * (1 - config.data.val_fraction)


@pytest.mark.parametrize("name", FILES)
def test_a_step_can_be_taken(name: str) -> None:
    config = load_config(ROOT / name)
    embedder = copy.deepcopy(stand_in(config)).train()
    loss = build_base_loss(config, num_classes=CLASSES, dim=embedder.dim)
    methods = build_run_methods(config, loss, embedder, num_domains=1)
    optimizer = make_optimizer(parameter_groups(embedder, loss, config.optim, methods=methods), config.optim)
    where = entry(config, embedder._info.stages)
    step = TrainingStep(embedder, loss, methods, entry=where)
    labels = torch.arange(CLASSES).repeat_interleave(EACH)
    images = torch.randn(len(labels), 3, SIDE, SIDE, generator=torch.Generator().manual_seed(0))
    with torch.no_grad():
        start = Start(embedder.encode(images).raw, labels, loss, embedder.head)
        for method in methods:
            method.start(start)
    features = embedder.features_at(images, where) if where != "pixel" else embedder.stage_features(where, images)
    batch = Batch(features, labels, torch.zeros_like(labels), torch.arange(len(labels)))
    batches = 11 if {"odba", "couce"} & set(config.methods) else 1  # the dictionary starts after ten
    for number in range(batches):
        terms = step(batch, max(config.train.epochs - 1, 0), 0.9, number)
        optimizer.zero_grad()
        torch.autograd.backward(torch.stack(list(terms.values())).sum())
        optimizer.step()
        step.look_back()
    wanted = set().union(*(TERMS[method] for method in config.methods))
    if all(method.base_weight for method in methods):
        wanted.add("base")
    if (config.methods.get("probabilistic") or {}).get("guidance") == "released":
        wanted.add("guidance")
    assert set(terms) == wanted
    assert all(value.isfinite() for value in terms.values())
    trained = [*embedder.parameters(), *loss.parameters(), *(p for method in methods for p in method.parameters())]
    assert all(value.isfinite().all() for value in trained)
    assert all(math.isfinite(value) for method in methods for value in method.report().values())


def test_variants_are_read_from_the_comments_and_the_page() -> None:
    assert variants("recipes/base/proxy_anchor_r512.yaml") == [
        ["optim.step_epochs=10"],
        [
            *("model.freeze_bn=false", "optim.lr=6e-4", "optim.warmup_epochs=1"),
            *("optim.step_epochs=20", "optim.gamma=0.25"),
        ],
    ]
    assert ["loss.name=arcface", "loss.options={scale: 16}", "optim.proxy_lr_mult=50"] in variants(
        "recipes/base/multi_similarity_r128.yaml"
    )
    assert ("recipes/base/norm_softmax_r2048.yaml", ["optim.lr=1e-2"]) in list(on_the_page())
    assert ("recipes/see/r512.yaml", ["optim.step_epochs=10"]) in list(on_the_page())
    empty = [name for name, given in LISTED if not given]
    assert empty == []


def test_the_page_lists_every_recipe_and_no_other() -> None:
    text = PAGE.read_text(encoding="utf-8")
    rows = re.findall(r"^\| `(recipes/[\w/.]+)` \|", text, re.MULTILINE)
    assert sorted(rows) == FILES
    assert set(re.findall(r"recipes/[\w/.]+\.yaml", text)) == set(FILES)
    assert "recipes.md" in (ROOT / "mkdocs.yml").read_text(encoding="utf-8")


def python_of_the_page() -> list[str]:
    return re.findall(r"```python\n(.*?)```", PAGE.read_text(encoding="utf-8"), re.DOTALL)


def test_the_tables_that_the_page_makes_give_the_official_splits(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    numbered, domains = python_of_the_page()
    monkeypatch.chdir(tmp_path)
    folder = tmp_path / "data" / "CUB_200_2011" / "images"
    for number in [*range(96, 101), 101, 102]:
        place = folder / f"{number:03d}.Bird_{number}"
        place.mkdir(parents=True)
        (place / "a.jpg").touch()
        (place / "b.jpg").touch()
    exec(compile(numbered, "numbered", "exec"), {})
    split = make_split(load_table(folder / "table.csv"))
    assert split.attrs["split"]["how"] == "column"
    of_class = split.groupby("label")["split"].first()
    assert {name for name, part in of_class.items() if part == "test"} == {"101.Bird_101", "102.Bird_102"}

    place = tmp_path / "data" / "domainnet"
    place.mkdir()
    rows = [(f"{d}-{c}-{i}.png", f"class{c}", d) for d in ("real", "sketch", "clipart") for c in range(9) for i in "ab"]
    for path, _, _ in rows:
        (place / path).touch()
    pd.DataFrame(rows, columns=["path", "label", "domain"]).to_csv(place / "all.csv", index=False)
    exec(compile(domains, "domains", "exec"), {})
    split = make_split(load_table(place / "from_real.csv"))
    trained, tested = split[split["split"].isin(["train", "val"])], split[split["split"] == "test"]
    assert (trained["label"].nunique(), tested["label"].nunique()) == (5, 4)
    assert set(trained["domain"]) == {"real"}
    assert set(tested["domain"]) == {"sketch", "clipart"}
    assert set(trained["label"]) & set(tested["label"]) == set()
    target = load_table(place / "from_real.csv", where={"split": "test", "domain": "sketch"})
    assert len(target) == 8
