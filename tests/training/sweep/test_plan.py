"""Plans: what is read, what is refused, and the cells that come of it. Nothing is trained here."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
import yaml

from proxemics.core.config import make_config
from proxemics.core.errors import ConfigError
from proxemics.training.sweep.cells import config_hash, make_cell
from proxemics.training.sweep.plan import Plan, load_plan, merge
from proxemics.training.sweep.run import Sweep
from proxemics.training.sweep.settings import draw, trial_points
from proxemics.training.sweep.slots import make_slots


def save(folder: Path, values: dict[str, Any] | str, name: str = "plan.yaml") -> Path:
    path = folder / name
    path.write_text(values if isinstance(values, str) else yaml.safe_dump(values))
    return path


def test_a_plan_is_recipe_and_changes(tmp_path: Path) -> None:
    save(tmp_path, "train: {epochs: 5}\nloss: {name: proxy_anchor, options: {alpha: 16}}\n", "recipe.yaml")
    text = """
base: recipe.yaml
config: {optim.lr: 2e-4}
data: {source: photos}
variants:
  plain:
  arc: {loss: {name: arcface}}
seeds: [3, 1]
"""
    found = Sweep(load_plan(save(tmp_path, text)), tmp_path / "out")
    assert [(cell.variant, cell.seed) for cell in found.final] == [("plain", 3), ("arc", 3), ("plain", 1), ("arc", 1)]
    plain, arc = found.final[:2]
    assert plain.config.optim.lr == 2e-4
    assert plain.config.train.epochs == 5
    assert plain.config.data.source == "photos"
    assert plain.config.loss.options == {"alpha": 16}
    # Another loss must not be given the options of the first.
    assert (arc.config.loss.name, arc.config.loss.options) == ("arcface", {})
    assert not (tmp_path / "out").exists()


def test_seeds_are_outermost_and_variants_innermost(tmp_path: Path) -> None:
    plan = Plan(variants={"a": {}, "b": {}}, seeds=[0, 1], grid={"optim.lr": [1e-4, 2e-4]}, datasets={"x": {}, "y": {}})
    order = [(cell.seed, cell.dataset, cell.settings["optim.lr"], cell.variant) for cell in Sweep(plan, tmp_path).final]
    assert order == [(s, d, lr, v) for s in (0, 1) for d in "xy" for lr in (1e-4, 2e-4) for v in "ab"]
    name = Sweep(plan, tmp_path).final[2].name
    assert name.startswith("x-a-lr=0.0002-s0-")


def test_names_depend_on_numbers_and_on_nothing_else() -> None:
    base = make_config({}, ["data.source=photos"])
    same = [["train.device=cpu"], ["data.workers=0"], ["train.tensorboard=false"], ["optim.lr=1e-4"]]
    other = [["optim.lr=3e-4"], ["seed=1"], ["loss.options.alpha=16"], ["data.source=other"], ["data.where.a=b"]]
    assert {config_hash(make_config(base.model_dump(), one)) for one in same} == {config_hash(base)}
    hashes = {config_hash(make_config(base.model_dump(), one)) for one in other}
    assert len(hashes | {config_hash(base)}) == len(other) + 1


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({"variants": {}}, "variants"),
        ({"variant": {"a": {}}}, "Did you mean 'variants'"),
        ({"variants": {"a": {}}, "seeds": [0, 0]}, "twice"),
        ({"variants": {"a b": {}}}, "'a b' would not do"),
        ({"variants": {"a": {}}, "search": {"trials": 3}}, "search needs a space"),
        ({"variants": {"a": {}}, "search": {"trial": 3, "space": {}}}, "Did you mean 'trials'"),
        ({"variants": {"a": {}}, "search": {"space": {"x": [1, 2]}, "spaces": {"b": {}}}}, "it is no variant"),
        ({"variants": {"a": {}}, "base": "absent.yaml"}, "No file .*absent.yaml"),
        ("variants: [", "not valid YAML"),
        ("just words", "must hold keys and values"),
    ],
)
def test_a_wrong_plan_is_refused_in_one_line(tmp_path: Path, values: Any, message: str) -> None:
    with pytest.raises(ConfigError, match=f"(?i){message}") as caught:
        load_plan(save(tmp_path, values))
    assert "\n" not in str(caught.value)


def test_a_wrong_key_names_its_variant(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"variant b: optim\.lrr: no such key in optim\. Did you mean 'lr'"):
        Sweep(Plan(variants={"a": {}, "b": {"optim.lrr": 1}}), tmp_path)
    with pytest.raises(ConfigError, match="--only c: no such variant"):
        Sweep(Plan(variants={"a": {}}), tmp_path, ["c"])


def test_unequal_budgets_are_refused_unless_meant(tmp_path: Path) -> None:
    variants = {"a": {}, "b": {"train.epochs": 40}}
    with pytest.raises(ConfigError, match=r"train\.epochs is 20 for a and 40 for b"):
        Sweep(Plan(variants=variants), tmp_path)
    assert len(Sweep(Plan(variants=variants, equal_budget=False), tmp_path).final) == 6
    # A grid over the budget is the same for everybody.
    assert len(Sweep(Plan(variants={"a": {}, "b": {}}, grid={"train.epochs": [1, 2]}), tmp_path).final) == 12


def test_draws_are_seeded_fair_and_inside() -> None:
    search = {
        "trials": 50,
        "space": {"optim.lr": [1e-4, 1e-2, "log"], "model.dim": [8, 9, "int"]},
        "spaces": {"b": {"loss.options.alpha": {"choice": [16, 32]}}},
    }
    plan = Plan.model_validate({"variants": {"a": {}, "b": {}}, "search": search})
    a, b = trial_points(plan, "a"), trial_points(plan, "b")
    assert len(a) == len(b) == 50
    shared = [{key: point[key] for key in a[0]} for point in b]
    assert shared == a
    rates = [point["optim.lr"] for point in a]
    assert all(1e-4 <= rate <= 1e-2 for rate in rates)
    assert 10 < sum(rate < 1e-3 for rate in rates) < 40  # even in the logarithm
    assert {point["model.dim"] for point in a} == {8, 9}
    assert {point["loss.options.alpha"] for point in b} == {16, 32}
    assert trial_points(plan, "a") == a


def test_every_four_draws_cover_the_quarters_of_each_range() -> None:
    keys = ("optim.lr", "loss.alpha", "methods.see.weight", "model.dim")
    orders = {}
    for key in keys:
        quarters = [int(4 * draw(key, [0.0, 1.0], 3, trial)) for trial in range(8)]
        assert sorted(quarters[:4]) == sorted(quarters[4:]) == [0, 1, 2, 3]
        orders[key] = tuple(quarters)
        whole = [draw(key, [1, 8, "int"], 3, trial) for trial in range(4)]
        assert sorted((one - 1) // 2 for one in whole) == [0, 1, 2, 3]
        assert {draw(key, {"choice": ["ab", "c"]}, 3, trial) for trial in range(4)} == {"ab", "c"}
    assert len(set(orders.values())) == len(keys)  # each key in an order of its own


@pytest.mark.parametrize(
    "space",
    [[2, 1], [0, 1, "log"], [1.2, 1.8, "int"], [1], [1, 2, "lin"], "x", {"choice": []}, {"pick": [1]}, [True, 2]],
)
def test_a_wrong_space_is_refused(space: Any) -> None:
    with pytest.raises(ConfigError, match=r"optim\.lr"):
        draw("optim.lr", space, 0, 0)


def test_dotted_and_nested_keys_mean_the_same() -> None:
    base = {"methods": {"see": {"weight": 1, "count": 2}}}
    assert merge(base, {"methods.see.weight": 3}) == merge(base, {"methods": {"see": {"weight": 3}}})
    assert merge(base, {"methods.see.weight": 3})["methods"]["see"]["count"] == 2
    assert base["methods"]["see"]["weight"] == 1


def test_the_seed_of_the_cell_wins(tmp_path: Path) -> None:
    plan = Plan(config={"seed": 9}, variants={"a": {}}, seeds=[4])
    assert make_cell(plan, tmp_path, "", "a", {}, 4).config.seed == 4


def test_slots_share_devices_and_cores() -> None:
    slots = make_slots("cpu", workers=3, threads=2)
    assert [slot.name for slot in slots] == ["cpu"] * 3
    assert {slot.environment["OMP_NUM_THREADS"] for slot in slots} == {"2"}
    assert slots[0].environment["CUDA_VISIBLE_DEVICES"] == ""
    for wrong in ("gpu", "0,", "-1", "99"):
        with pytest.raises(ConfigError, match="--devices"):
            make_slots(wrong)
    with pytest.raises(ConfigError, match="--workers 0"):
        make_slots("cpu", workers=0)


def test_gpus_are_shared_in_turn_and_counted_as_this_process_sees_them(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 2)
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    seen = [(slot.name, slot.environment["CUDA_VISIBLE_DEVICES"]) for slot in make_slots("auto", workers=3)]
    assert seen == [("cuda:0", "0"), ("cuda:1", "1"), ("cuda:0", "0")]
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "4,7")
    slots = make_slots("1,0")
    assert [slot.environment["CUDA_VISIBLE_DEVICES"] for slot in slots] == ["7", "4"]
    assert all(slot.arguments == ["--set", "train.device=cuda"] for slot in slots)
    with pytest.raises(ConfigError, match="this machine has 2 GPUs, numbered from 0"):
        make_slots("2")


def test_a_method_with_its_defaults_has_a_hash_of_its_own() -> None:
    from proxemics.core.config import make_config
    from proxemics.training.sweep.cells import config_hash

    plain, see, couce = (config_hash(make_config({"methods": one})) for one in ({}, {"see": {}}, {"couce": {}}))
    assert len({plain, see, couce}) == 3
    assert plain == config_hash(make_config({}))
