"""Confounded glyphs: determinism, the confounding itself, interventions, distinct classes, files and composites."""

from __future__ import annotations

import hashlib
import re
import subprocess
import sys
from dataclasses import fields, replace
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from PIL import Image
from pydantic import ValidationError

from proxemics.core.errors import DataError
from proxemics.data.confounded import (
    PHOTOGRAPHS,
    SOURCES,
    Causes,
    ConfoundedSpec,
    Scene,
    choose_glyphs,
    co_occurrence,
    composite,
    cut_out,
    draw_causes,
    glyphs,
    render,
    tied_background,
    write,
)
from proxemics.data.confounded.backgrounds import Crop, cut_crop, load_source
from proxemics.data.confounded.compose import Light, Pose, place, relight
from proxemics.data.confounded.glyphs import GlyphFont, candidates, fit, package_folder, thumbnail

SMALL = ConfoundedSpec(train_classes=4, test_classes=3, per_class=4, seed=3)


@pytest.fixture(scope="module")
def scene() -> Scene:
    return Scene(SMALL)


def digest(array: np.ndarray) -> str:
    return hashlib.sha256(np.ascontiguousarray(array).tobytes()).hexdigest()


# Determinism


def test_equal_specs_give_equal_bits_in_another_process() -> None:
    code = (
        "import hashlib; from proxemics.data.confounded import ConfoundedSpec, render;"
        "r = render(ConfoundedSpec(train_classes=4, test_classes=3, per_class=4, seed=3));"
        "print(hashlib.sha256(r.pictures.tobytes() + r.masks.tobytes() + r.table.to_csv().encode()).hexdigest())"
    )
    other = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    here = render(SMALL)
    expected = hashlib.sha256(here.pictures.tobytes() + here.masks.tobytes() + here.table.to_csv().encode())
    assert other.stdout.strip() == expected.hexdigest()


def test_a_picture_depends_on_seed_and_index_only(scene: Scene) -> None:
    whole = render(SMALL)
    for index in (27, 0, 13):  # out of order, from a scene that drew nothing before
        picture, mask = scene.draw(scene.causes(index))
        assert digest(picture) == digest(whole.pictures[index])
        assert digest(mask) == digest(whole.masks[index])


def test_another_seed_gives_other_classes_and_pictures() -> None:
    other = Scene(SMALL.model_copy(update={"seed": 4}))
    assert other.points != Scene(SMALL).points


def test_the_causes_of_one_picture_are_golden() -> None:
    """A change of the random streams would silently change everybody's set."""
    causes = draw_causes(ConfoundedSpec(), 45)
    assert (causes.class_id, causes.domain, causes.split) == (2, "mono_bold", "train")
    assert [causes.background, round(causes.hue, 6), round(causes.pose.rotation, 6)] == ["coat", 0.996963, 6.344638]


# Confounding


@pytest.mark.parametrize("rho", [0.0, 0.5, 1.0])
def test_rho_is_the_rate_at_which_class_and_background_go_together(rho: float) -> None:
    spec = ConfoundedSpec(train_classes=40, test_classes=40, per_class=50, rho=rho)
    causes = [draw_causes(spec, index) for index in range(spec.num_images)]
    sources = len(spec.sources)
    for split, expected in (("train", rho + (1 - rho) / sources), ("test", 1 / sources)):
        hits = [c.background == tied_background(spec, c.class_id) for c in causes if c.split == split]
        spread = np.sqrt(expected * (1 - expected) / len(hits))
        assert abs(np.mean(hits) - expected) <= 4 * spread, split
    assert not any(c.tied for c in causes if c.split == "test")


def test_test_backgrounds_are_uniform_and_independent_of_the_class() -> None:
    spec = ConfoundedSpec(train_classes=2, test_classes=64, per_class=100, rho=1.0)
    causes = [draw_causes(spec, index) for index in range(200, spec.num_images)]
    table = co_occurrence(causes, spec)[2:]
    expected = 100 / len(spec.sources)
    statistic = ((table - expected) ** 2 / expected).sum()
    freedom = 64 * (len(spec.sources) - 1)
    assert abs(statistic - freedom) < 5 * np.sqrt(2 * freedom)


def test_rho_changes_the_background_and_nothing_else() -> None:
    """Runs that differ in rho see the same objects, so that their difference is the confounding."""
    free, bound = (ConfoundedSpec(rho=rho) for rho in (0.0, 1.0))
    for index in range(0, 1200, 37):
        a, b = draw_causes(free, index), draw_causes(bound, index)
        assert replace(a, background="", tied=False) == replace(b, background="", tied=False)


def test_classes_of_train_and_test_are_disjoint_and_domains_take_turns() -> None:
    table = render(SMALL).table
    train, test = (set(table.loc[table["split"] == split, "label"]) for split in ("train", "test"))
    assert (len(train), len(test), len(train & test)) == (4, 3, 0)
    assert table.groupby("label")["domain"].nunique().min() == 3


def test_test_domains_are_only_seen_in_test() -> None:
    spec = ConfoundedSpec(train_classes=3, test_classes=3, per_class=2, domains=("sans_bold",), test_domains=("stix",))
    table = render(spec).table
    assert table.groupby("split")["domain"].unique().map(list).to_dict() == {"train": ["sans_bold"], "test": ["stix"]}


# Interventions


def test_a_new_background_keeps_the_object(scene: Scene) -> None:
    causes = scene.causes(5)
    other = next(name for name in SOURCES if SOURCES[name].photograph != SOURCES[causes.background].photograph)
    before, after = scene.draw(causes), scene.draw(replace(causes, background=other))
    assert digest(before.mask) == digest(after.mask)
    inside, outside = before.mask == 255, before.mask == 0
    difference = np.abs(before.picture.astype(int) - after.picture.astype(int))
    assert difference[inside].max() <= 1
    assert difference[outside].mean() > 10


def test_a_new_hue_keeps_the_background(scene: Scene) -> None:
    causes = scene.causes(5)
    before, after = scene.draw(causes), scene.draw(replace(causes, hue=(causes.hue + 0.5) % 1))
    difference = np.abs(before.picture.astype(int) - after.picture.astype(int))
    assert difference[before.mask == 0].max() == 0
    assert difference[before.mask == 255].mean() > 10


def test_nuisances_at_zero_leave_one_object_a_class_and_domain() -> None:
    calm = SMALL.model_copy(
        update={
            "rotation": 0.0,
            "translation": 0.0,
            "illumination": 0.0,
            "scale": (0.5, 0.5),
            "domains": ("sans_bold",),
        }
    )
    rendered = render(calm)
    for start in range(0, calm.num_images, calm.per_class):
        assert len({digest(mask) for mask in rendered.masks[start : start + calm.per_class]}) == 1
    assert (rendered.table["illumination"] == 1).all()


def test_objects_stay_inside_and_keep_to_the_scale() -> None:
    spec = SMALL.model_copy(update={"scale": (0.3, 0.6), "rotation": 0.0, "per_class": 20})
    masks = render(spec).masks
    assert not masks[:, [0, -1]].any()
    assert not masks[:, :, [0, -1]].any()
    sides = [max(np.ptp(np.nonzero(mask > 127), axis=1)) + 1 for mask in masks]
    outline = 2 * 2
    assert min(sides) >= 0.3 * 96 - 2
    assert max(sides) <= 0.6 * 96 + outline + 2
    assert max(sides) - min(sides) > 15


# Glyphs


def test_look_alikes_are_one_class() -> None:
    """Latin A, Greek Alpha and Cyrillic A have the same shape, and so have o and O."""
    chosen = {chr(point) for point in choose_glyphs(["serif_bold"], 600)}
    assert len(chosen & set("AΑА")) <= 1
    assert len(chosen & set("oOοΟоО0")) <= 1
    assert len(chosen & set("pрρ")) <= 1


def how_many_distinct(characters: str, rotation: float, monkeypatch: pytest.MonkeyPatch) -> int:
    monkeypatch.setattr(glyphs, "candidates", lambda domains: [ord(character) for character in characters])
    with pytest.raises(DataError) as caught:
        choose_glyphs(["sans"], 99, rotation=rotation)
    return int(re.findall(r"have (\d+) glyphs", str(caught.value))[0])


def test_turned_arrows_are_one_class_when_pictures_turn(monkeypatch: pytest.MonkeyPatch) -> None:
    diagonal = "↖↗↘↙"
    assert how_many_distinct(diagonal, 0, monkeypatch) == 4
    assert how_many_distinct(diagonal, 25, monkeypatch) == 4  # 90 degrees apart: two pictures differ by 50 at most
    assert how_many_distinct(diagonal, 45, monkeypatch) < 4
    assert how_many_distinct("NZ", 0, monkeypatch) == 2


def test_blank_thin_and_full_glyphs_are_refused() -> None:
    assert thumbnail(None) is None
    assert thumbnail(Image.new("L", (10, 60), 255)) is None
    assert thumbnail(Image.new("L", (40, 40), 255)) is None
    assert GlyphFont("sans", 32).mask(" ") is None
    assert thumbnail(GlyphFont("sans", 64).mask("R")) is not None


def test_there_are_thousands_of_candidates() -> None:
    points = candidates(["sans"])
    assert len(points) > 3000
    assert not {ord(" "), ord("é"), 0x2588} & set(points)


def test_too_many_classes_say_how_many_there_are() -> None:
    with pytest.raises(DataError, match=r"5000 classes were asked for, and the domains stix_italic have \d+ glyphs"):
        choose_glyphs(["stix_italic"], 5000)


def test_a_missing_package_names_the_fix() -> None:
    with pytest.raises(DataError, match=r"no_such_package is not installed. Install it with: pip install 'proxemics"):
        package_folder("no_such_package")


def test_fit_keeps_the_aspect() -> None:
    assert fit(Image.new("L", (30, 10)), 60).size == (60, 20)


# Backgrounds


def test_backgrounds_are_in_the_wheel_and_free_to_use() -> None:
    folder = package_folder("skimage") / "data"
    for entry in PHOTOGRAPHS.values():
        assert (folder / entry.file).is_file()
        assert entry.licence in ("CC0", "public domain")


@pytest.mark.parametrize("name", sorted(SOURCES))
def test_every_source_is_a_textured_region(name: str) -> None:
    region = load_source(name)
    left, top, right, bottom = SOURCES[name].box
    assert region.size == (right - left, bottom - top)
    assert np.asarray(cut_crop(region, Crop(), 64)).std() > 4


def test_crops_differ_and_stay_in_the_region() -> None:
    region = Image.fromarray(np.arange(100 * 80 * 3, dtype=np.uint32).reshape(100, 80, 3).astype(np.uint8))
    corners = [cut_crop(region, Crop(x, y, 1.0), 32) for x in (0, 1) for y in (0, 1)]
    assert len({digest(crop) for crop in corners}) == 4
    assert digest(cut_crop(region, Crop(flip=True), 32)) == digest(cut_crop(region, Crop(), 32)[:, ::-1])


# Specification


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        ({"domains": ("san",)}, "'san' is no domain. Allowed: sans, .* Did you mean 'sans'?"),
        ({"backgrounds": ("brick",)}, "'brick' is no background. Allowed: flag, .* Did you mean 'brick-red'?"),
        ({"domains": ("sans", "sans")}, "A domain is named twice"),
        ({"scale": (0.9, 0.2)}, r"scale is \[0.9, 0.2\]; give \[smallest, largest\]"),
        ({"rho": 1.5}, "less than or equal to 1"),
        ({"roh": 0.5}, "Extra inputs are not permitted"),
    ],
)
def test_wrong_specs_say_what_is_allowed(wrong: dict[str, object], message: str) -> None:
    with pytest.raises(ValidationError, match=message):
        ConfoundedSpec(**wrong)  # type: ignore[arg-type]


def test_an_index_outside_the_set_is_refused() -> None:
    with pytest.raises(DataError, match="There is no picture 28; this set has 0 to 27"):
        draw_causes(SMALL, 28)


def test_the_table_holds_every_cause(scene: Scene) -> None:
    row = scene.row(scene.causes(0))
    named = {field.name for field in fields(Causes)} - {"class_id", "crop", "pose", "light", "shade"}
    assert named <= set(row)


# Files


@pytest.fixture(scope="module")
def written(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write(SMALL, tmp_path_factory.mktemp("glyphs"))


def test_written_pictures_are_the_rendered_ones(written: Path) -> None:
    table = pd.read_csv(written)
    whole = render(SMALL)
    assert list(table.columns[:5]) == ["path", "label", "domain", "split", "background"]
    assert {"rotation", "scale", "illumination", "hue", "mask"} <= set(table.columns)
    for index in (0, 17, 27):
        assert digest(np.asarray(Image.open(written.parent / table["path"][index]))) == digest(whole.pictures[index])
        assert digest(np.asarray(Image.open(written.parent / table["mask"][index]))) == digest(whole.masks[index])
    pd.testing.assert_frame_equal(table, pd.read_parquet(written.with_suffix(".parquet")))


def test_a_complete_folder_is_left_alone_and_another_set_is_refused(written: Path) -> None:
    before = written.stat().st_mtime_ns
    assert write(SMALL, written.parent) == written
    assert written.stat().st_mtime_ns == before
    with pytest.raises(DataError, match="is not empty and holds another set or an unfinished one"):
        write(SMALL.model_copy(update={"rho": 0.1}), written.parent)


def test_an_interrupted_folder_is_not_taken_for_complete(tmp_path: Path) -> None:
    spec = SMALL.model_copy(update={"per_class": 1})
    write(spec, tmp_path)
    (tmp_path / "spec.json").unlink()
    with pytest.raises(DataError, match="overwrite=True"):
        write(spec, tmp_path)
    assert write(spec, tmp_path, overwrite=True).exists()


def test_jpeg_is_near_and_an_unknown_format_is_refused(tmp_path: Path) -> None:
    spec = SMALL.model_copy(update={"per_class": 1})
    table = pd.read_csv(write(spec, tmp_path, format="jpeg"))
    seen = np.asarray(Image.open(tmp_path / table["path"][0])).astype(int)
    assert np.abs(seen - render(spec).pictures[0]).mean() < 6
    with pytest.raises(DataError, match="The format is 'gif'; allowed are 'png', 'jpeg'"):
        write(spec, tmp_path / "other", format="gif")  # type: ignore[arg-type]


# Composites


RED = np.zeros((20, 30, 4), dtype=np.uint8)
RED[5:15, 5:25] = (200, 10, 10, 255)
BLUE = Image.new("RGB", (50, 40), (0, 0, 250))


def test_a_cut_out_lies_where_its_mask_says() -> None:
    (result,) = composite([RED], [BLUE], size=64, scale=(0.5, 0.5))
    assert (result.picture[result.mask == 255] == (200, 10, 10)).all()
    assert (result.picture[result.mask == 0] == (0, 0, 250)).all()
    height, width = (np.ptp(axis) + 1 for axis in np.nonzero(result.mask == 255))
    assert (height, width) == (16, 32)


def test_a_picture_with_a_mask_equals_its_cut_out() -> None:
    options = {"size": 48, "rotation": 30.0, "translation": 1.0, "illumination": 0.5, "seed": 7}
    (a,) = composite([RED], [BLUE], **options)  # type: ignore[arg-type]
    (b,) = composite([RED[..., :3]], [BLUE], masks=[RED[..., 3] > 0], **options)  # type: ignore[arg-type]
    assert digest(a.picture) == digest(b.picture)
    assert digest(a.mask) == digest(b.mask)


def test_without_size_only_the_background_changes() -> None:
    picture = np.random.default_rng(0).integers(0, 255, (33, 47, 3), dtype=np.uint8)
    mask = np.zeros((33, 47), dtype=np.uint8)
    mask[8:20, 10:30] = 255
    (result,) = composite([picture], [BLUE], masks=[mask], size=None)
    assert digest(result.mask) == digest(mask)
    assert (result.picture[mask == 255] == picture[mask == 255]).all()
    assert (result.picture[mask == 0] == (0, 0, 250)).all()


def test_soft_edges_have_no_dark_fringe() -> None:
    """Colour under zero alpha (black here) must not leak in when the cut-out is scaled."""
    soft = np.zeros((40, 40, 4), dtype=np.uint8)
    soft[10:30, 10:30] = 255
    white = Image.new("RGB", (64, 64), "white")
    (result,) = composite([soft], [white], size=32, scale=(0.4, 0.4), rotation=20, seed=1)
    assert result.picture.min() >= 253


def test_each_composite_depends_on_its_place_only() -> None:
    backgrounds = [load_source("brick-red"), load_source("dusk")]
    many = list(composite([RED] * 4, backgrounds, rotation=90.0, translation=1.0, seed=5))
    again = list(composite([RED] * 3, backgrounds, rotation=90.0, translation=1.0, seed=5))
    assert [digest(item.picture) for item in again] == [digest(item.picture) for item in many[:3]]
    assert len({digest(item.picture) for item in many}) == 4


def test_pairing_sets_the_background() -> None:
    results = composite([RED] * 3, [BLUE, Image.new("RGB", (9, 9), "lime")], pairing=[1, 0, 1], size=32)
    assert [item.picture[0, 0].tolist() for item in results] == [[0, 255, 0], [0, 0, 250], [0, 255, 0]]


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (([BLUE], [BLUE]), "A RGB picture of 50 x 40 has no transparency"),
        (([RED], []), "There are objects and no background"),
        (([RED], [BLUE], [RED[..., 3], RED[..., 3]]), "masks has 2 entries for 1 objects"),
        (([BLUE], [BLUE], [RED[..., 3]]), "The mask is 30 x 20 and its picture 50 x 40"),
        (([RED[..., :3]], [BLUE], [np.zeros((20, 30), bool)]), "The mask is empty"),
    ],
)
def test_wrong_composites_say_what_is_wrong(arguments: tuple[list[object], ...], message: str) -> None:
    objects, backgrounds, *masks = arguments
    with pytest.raises(DataError, match=message):
        list(composite(objects, backgrounds, masks=masks[0] if masks else None))  # type: ignore[arg-type]


def test_pairing_outside_the_backgrounds_is_refused() -> None:
    with pytest.raises(DataError, match="pairing names background 2; allowed are 0 to 0"):
        list(composite([RED], [BLUE], pairing=[2]))


@pytest.mark.data
def test_emoji_cut_outs_go_onto_photographs(shared_data: Path) -> None:
    files = sorted((shared_data / "emoji" / "noto").rglob("*.webp"))[:12]
    objects = [Image.open(file) for file in files]
    backgrounds = [load_source(name) for name in ("wood", "grass-green")]
    results = list(composite(objects, backgrounds, size=96, rotation=20.0, translation=1.0, illumination=0.4))
    shares = [float((item.mask > 127).mean()) for item in results]
    assert len(results) == 12
    assert all(0.03 < share < 0.5 for share in shares)


# Steps


def test_place_turns_counter_clockwise_about_the_middle() -> None:
    bar = Image.fromarray(np.pad(np.full((1, 20), 255, np.uint8), ((9, 10), (0, 0))))
    turned = np.asarray(place(bar, Pose(rotation=90, scale=0.5), 40)) > 100
    assert np.ptp(np.nonzero(turned)[1]) <= 2 < 15 < np.ptp(np.nonzero(turned)[0])
    tilted = np.asarray(place(bar, Pose(rotation=30, scale=0.8), 80)).astype(float)
    rows, columns = np.nonzero(tilted > 100)
    assert np.corrcoef(rows, columns)[0, 1] < -0.9  # right end up, as a person means counter-clockwise


def test_cut_out_drops_the_margin() -> None:
    assert cut_out(RED).size == (20, 10)


def test_relight_clips_and_slopes() -> None:
    flat = np.full((4, 9, 3), 200, np.float32)
    assert relight(flat, Light(gain=2.0)).max() == 255
    sloped = relight(flat, Light(slope=0.5)).astype(int)
    assert sloped[0, -1, 0] - sloped[0, 0, 0] == 100
