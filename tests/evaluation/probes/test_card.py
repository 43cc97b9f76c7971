"""The whole card of models whose reading is known."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from proxemics.core.errors import EvaluationError
from proxemics.evaluation.probes.card import bias_card
from proxemics.evaluation.probes.masks import usable
from proxemics.evaluation.probes.measure import balanced_rows
from proxemics.evaluation.probes.measures import PROBES, Measured, Sample, count_passes
from proxemics.evaluation.probes.readings import reading, verdict

sys.path.insert(0, str(Path(__file__).parent))
from probe_scenes import make_scenes, reads_backgrounds, reads_noise, reads_nothing, reads_objects


def sample_of(*, masked: bool = True) -> Sample:
    pictures, masks, classes, scenes = make_scenes(8, 5)
    seen = make_scenes(8, 5, seed=5)
    return Sample(
        pictures=pictures,
        classes=classes,
        masks=usable(masks, "mask") if masked else None,
        scenes=scenes,
        categories={"scene": scenes.tolist()},
        quantities={"light": np.linspace(0, 1, len(classes)).tolist()},
        seen=seen[0],
        seen_classes=seen[2],
    )


@pytest.fixture(scope="module")
def cards() -> dict[str, dict[str, Any]]:
    sample = sample_of()
    models = {"objects": reads_objects, "backgrounds": reads_backgrounds, "nothing": reads_nothing}
    found = {name: bias_card(model, sample, proxies=torch.eye(6)) for name, model in models.items()}
    found["noise"] = bias_card(reads_noise, sample, only=["background", "geometry"])
    return found


def values(card: dict[str, Any]) -> dict[str, float]:
    return {f"{one['probe']}/{one['name']}": one["value"] for one in card["numbers"]}


def test_every_probe_tells_a_reader_of_backgrounds_from_one_of_objects(cards: dict[str, dict[str, Any]]) -> None:
    good, bad = values(cards["objects"]), values(cards["backgrounds"])
    assert good["background/follows"] == 0 < 0.9 < bad["background/follows"]
    assert good["background/recall_swapped"] > bad["background/recall_swapped"] + 0.5
    assert good["background/nearest_shares"] < bad["background/nearest_shares"]
    assert good["decodability/pasted"] < 0.5 < 0.8 < bad["decodability/pasted"]
    assert good["decodability/scene"] < bad["decodability/scene"]
    assert good["geometry/compactness"] > bad["geometry/compactness"]
    assert cards["objects"]["verdict"].startswith("Goes with the object")
    assert cards["backgrounds"]["verdict"].startswith("Goes with the background")


def test_a_constant_embedding_gives_the_known_extremes(cards: dict[str, dict[str, Any]]) -> None:
    found = values(cards["nothing"])
    assert found["background/follows"] == 0.5
    assert found["background/drift_swapped"] == 0
    assert {found[name] for name in found if name.startswith("nuisance/")} == {1.0}
    assert found["geometry/effective_rank"] == 1
    assert found["geometry/compactness"] == 0
    chance = {f"{one['probe']}/{one['name']}": one["chance"] for one in cards["nothing"]["numbers"]}
    assert found["decodability/applied"] <= chance["decodability/applied"] + 0.01
    assert found["decodability/pasted"] <= chance["decodability/pasted"] + 0.01
    assert "same length" in cards["nothing"]["skipped"]["certainty"]


def test_a_random_embedding_is_at_chance(cards: dict[str, dict[str, Any]]) -> None:
    for one in cards["noise"]["numbers"]:
        if one["name"] in ("follows", "recall_clean", "recall_swapped", "hubness", "compactness", "nearest_shares"):
            scale = 0.8 if one["name"] == "hubness" else 0.25
            assert one["value"] == pytest.approx(one["chance"], abs=scale), one["name"]


@pytest.mark.parametrize(("kind", "auroc"), [("knows", 1.0), ("guesses", 0.5), ("errs", 0.0)])
def test_certainty_of_readers_that_know_guess_and_err(kind: str, auroc: float) -> None:
    """The length of an embedding is long for right answers, for anything, or for wrong answers."""
    pictures, _, classes, _ = make_scenes(40, 6, scenes=3)
    draw = torch.Generator().manual_seed(0)
    objects = torch.nn.functional.normalize(reads_objects(pictures))
    units = torch.nn.functional.normalize(objects + 0.25 * torch.randn(objects.shape, generator=draw))
    near = units @ units.T - 2 * torch.eye(len(units))
    right = torch.from_numpy(classes)[near.argmax(1)] == torch.from_numpy(classes)
    assert 0.1 < right.float().mean() < 0.9
    lengths = {
        "knows": 1.0 + right,
        "errs": 2.0 - right.float(),
        "guesses": 1 + torch.rand(len(units), generator=draw),
    }[kind]
    lengths = lengths + 0.01 * torch.rand(len(units), generator=draw)  # no two alike
    known = {one.numpy().tobytes(): row for one, row in zip(pictures, units * lengths[:, None], strict=True)}
    card = bias_card(
        lambda some: torch.stack([known[one.contiguous().numpy().tobytes()] for one in some]),
        Sample(pictures, classes),
        only=["certainty"],
    )
    found = values(card)
    wrong = 1 - float(right.float().mean())
    assert found["certainty/auroc"] == pytest.approx(auroc, abs=0.12 if kind == "guesses" else 1e-9)
    if kind == "knows":
        assert found["certainty/e_aurc"] == pytest.approx(0, abs=1e-3)
        assert found["certainty/half"] == pytest.approx(max(0.0, (wrong - 0.5) / 0.5), abs=0.01)
    if kind == "errs":
        assert found["certainty/e_aurc"] > 0.1
        assert found["certainty/half"] == pytest.approx(min(1.0, wrong / 0.5), abs=0.01)


def test_the_card_is_json_and_every_number_is_explained(cards: dict[str, dict[str, Any]]) -> None:
    card = cards["objects"]
    assert json.loads(json.dumps(card, allow_nan=False)) == card
    assert [one["probe"] for one in card["numbers"]] == sorted(
        (one["probe"] for one in card["numbers"]), key=PROBES.index
    )
    assert {one["probe"] for one in card["numbers"]} == set(PROBES)
    for one in card["numbers"]:
        assert one["better"] in ("up", "down", "")
        assert one["reading"].endswith(".")
        assert one["title"]
    assert card["numbers"][0]["name"] == "follows"
    assert len(card["curves"]) == 8
    assert {len(curve["recall"]) - len(curve["levels"]) for curve in card["curves"]} == {1}
    assert card["risk"]["coverage"][-1] == 1
    assert not card["has_untrained"]


def test_the_untrained_trunk_stands_beside_it() -> None:
    card = bias_card(reads_objects, sample_of(), untrained=reads_backgrounds, only=["background"])
    first = card["numbers"][0]
    assert (first["value"], first["untrained"] > 0.9) == (0, True)
    assert card["has_untrained"]


def test_what_cannot_be_measured_says_why() -> None:
    card = bias_card(reads_objects, sample_of(masked=False), only=["background", "decodability"])
    assert "no mask" in card["skipped"]["background"]
    assert "need 16 pictures with a mask" in card["skipped"]["decodability/pasted"]
    assert [one["name"] for one in card["numbers"] if one["probe"] == "background"] == ["nearest_shares"]
    assert card["verdict"].startswith("The reliance on the background could not be measured")
    left_out = bias_card(reads_objects, sample_of(), only=["geometry"])["verdict"]
    assert left_out == "The reliance on the background was not asked for; the other probes are below."
    assert not card["curves"]  # they were needed for one level only
    alone = Sample(sample_of().pictures[:5], np.zeros(5, dtype=np.int64))
    assert "two classes" in bias_card(reads_objects, alone, only=["geometry"])["skipped"]["geometry/compactness"]


def test_an_unknown_probe_is_refused() -> None:
    with pytest.raises(EvaluationError, match="'backgrund' is no probe; there are background, nuisance"):
        bias_card(reads_objects, sample_of(), only=["backgrund"])


@pytest.mark.parametrize("only", [PROBES, ("background",), ("decodability", "geometry"), ("certainty",)])
def test_progress_ends_where_it_said(only: tuple[str, ...]) -> None:
    sample, done = sample_of(), []
    bias_card(reads_objects, sample, only=only, advance=done.append)
    assert sum(done) == count_passes(sample, only)


def test_rows_are_balanced_and_no_class_is_alone() -> None:
    classes = np.concatenate([np.repeat(np.arange(10), 9), [10, 11, 11]])
    kept = balanced_rows(classes, 40, 0)
    sizes = np.bincount(classes[kept], minlength=12)
    assert len(kept) <= 40
    assert sizes[10] == 0
    assert set(sizes.tolist()) <= {0, 2, 3, 4, 5}
    few = np.bincount(classes[balanced_rows(classes, 8, 1)])
    assert sorted(few[few > 0].tolist()) in ([4, 4], [2, 4], [2, 6])
    assert balanced_rows(classes, 40, 0).tolist() == kept.tolist() != balanced_rows(classes, 40, 1).tolist()


def test_readings_follow_the_value() -> None:
    lost = Measured(0.4, 0.1, more={"clean": 0.8})
    assert reading("background/recall_swapped", lost) == "Another background costs 40 points, 50 % of what was found."
    assert "helps by 10 points" in reading("background/recall_swapped", Measured(0.9, more={"clean": 0.8}))
    assert "no better than chance" in reading("background/recall_alone", Measured(0.11, 0.1))
    assert reading("background/follows", Measured(float("nan"))).startswith("Could not be measured")
    assert verdict({}).startswith("The reliance")
    kinds = [verdict({"background/follows": Measured(value)}).split(":")[0] for value in (0.01, 0.1, 0.3, 0.7)]
    assert len(set(kinds)) == 4
