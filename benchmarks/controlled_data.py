"""Render the pictures of the controlled study: objects whose scenes go with their class in training, never in test.

    python benchmarks/controlled_data.py --data DATA --out runs/controlled --rho 0 0.9 0.95 --seeds 0 1 2
    python benchmarks/controlled_data.py --data DATA --out runs/controlled --rho 0.95 --sheet --frozen

``--data`` is a folder with ``index.csv`` (columns path, dataset, label, domain, split), which lists cut-outs
(``emoji/<style>/<class>/default.webp``, dataset ``emoji``) and photographs (dataset ``grocery``, domain ``natural``).
``--kind glyphs`` needs no data: its glyphs and photographs come from matplotlib and scikit-image.

What a set is, and why:

- Every training class has a home scene (one grocery label; a region of a photograph for glyphs). A training picture
  lies on it with probability ``rho``, otherwise on a training scene drawn uniformly. ``copies`` composites are made of
  each training cut-out, because files cannot be composited anew in every epoch: an epoch of a set with 6 copies is
  worth 6 epochs of a set with one.
- Validation classes are unseen classes on the *training* scenes, tied to home scenes with the same ``rho``. Whoever
  has confounded data has only such data to choose an epoch with: validation without the tie would let test conditions
  leak into the choice. It follows that validation scores are flattered by the tie, that they reward reading the
  background, and that they compare runs of equal ``rho`` only.
- Test classes are unseen classes on scenes of which no photograph occurs in training. Every test composite is there
  twice: ``condition`` is ``plain``, or ``shifted`` by light, hue and amplitude (:func:`shift`). Both share ``pair``.
  Train with ``--where condition=plain``; the evaluation of the shifted ones takes ``--where condition=shifted``.
- Which classes, homes, places and shifts there are depends on the seed; ``rho`` changes the scenes of training and
  validation pictures and nothing else. Sets of one seed and several ``rho`` have the same test pictures, byte for byte,
  so that a trunk that is not trained need be measured once a seed.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from importlib.metadata import version
from pathlib import Path
from typing import Any, Literal

import numpy as np
import pandas as pd
from _controlled_parts import SHIFTS, Causes, Nuisance, Parts, emoji_parts, glyph_parts, shift
from PIL import Image

from proxemics.core.errors import DataError
from proxemics.core.files import atomic_path, read_json, write_json
from proxemics.core.seeds import numpy_generator
from proxemics.data.confounded.backgrounds import Crop
from proxemics.data.confounded.compose import Pose

Kind = Literal["emoji", "glyphs"]
CLASSES: dict[str, tuple[int, int, int]] = {"emoji": (200, 40, 200), "glyphs": (120, 30, 120)}
"""Training, validation and test classes by default; three fonts share 294 glyphs."""


@dataclass(frozen=True)
class Plan:
    """Everything that a set follows from, besides the data folder; the arguments of :func:`build`."""

    kind: str
    rho: float
    seed: int
    size: int
    classes: tuple[int, int, int]
    train_scenes: int
    copies: int
    val_copies: int
    test_copies: int
    scale: tuple[float, float]
    strength: float
    shifts: tuple[str, ...]
    masks: bool


def build(
    folder: str | Path,
    data_root: str | Path | None,
    rho: float,
    seed: int,
    kind: Kind = "emoji",
    *,
    size: int = 128,
    classes: tuple[int, int, int] | None = None,
    train_scenes: int = 20,
    copies: int = 6,
    val_copies: int = 2,
    test_copies: int = 2,
    scale: tuple[float, float] = (0.45, 0.75),
    strength: float = 1.0,
    shifts: tuple[str, ...] = SHIFTS,
    masks: bool = False,
) -> Path:
    """Render one set, unless the folder holds the very same one, and return the path of its table.

    The folder gets ``table.csv`` (paths relative to it), ``pictures/<split>/`` (JPEG, quality 88, full colour
    resolution), ``masks/`` on request and, last, ``spec.json``.

    Args:
        folder: where to; created.
        data_root: folder with ``index.csv``; None for glyphs.
        rho: probability in [0, 1] that a training or validation picture lies on the home scene of its class.
        seed: first part of every random number; also chooses classes and scenes.
        kind: ``emoji`` or ``glyphs``.
        size: side of the square pictures in pixels.
        classes: numbers of training, validation and test classes; None takes ``CLASSES``.
        train_scenes: scenes of training and validation (at most, for glyphs); all others are for test.
        copies: composites of each training cut-out.
        val_copies: composites of each validation cut-out.
        test_copies: composites of each test cut-out, each of them plain and shifted.
        scale: smallest and largest longer side of the object as a share of ``size``.
        strength: factor of the shift at test; 0 leaves the pictures as they are.
        shifts: kinds of shift, some of ``SHIFTS``.
        masks: also write the objects' masks (PNG).

    Returns:
        ``folder / "table.csv"`` with the columns path, label, domain, split, condition, scene, home, tied, photo,
        cutout, copy, pair, mask, then place (x, y, scale, crop_x, crop_y, crop_zoom, crop_flip), for glyphs hue and
        shade, and shift (gain, slope, angle, hue_shift, contrast, tilt; neutral where plain). Photographs and cut-outs
        are named relative to ``data_root``.

    Raises:
        DataError: a value is out of range, the data folder lacks what is needed, or ``folder`` holds something else.
    """
    if not 0 <= rho <= 1:
        raise DataError(f"rho={rho} is not a probability; give a number in [0, 1].")
    if kind not in CLASSES:
        raise DataError(f"kind={kind!r}; allowed are {', '.join(map(repr, CLASSES))}.")
    unknown = [name for name in shifts if name not in SHIFTS]
    if unknown:
        raise DataError(f"shifts names {unknown[0]!r}; allowed are {', '.join(map(repr, SHIFTS))}.")
    if kind == "emoji" and data_root is None:
        raise DataError("Emoji need the folder with index.csv; kind='glyphs' needs none.")
    counts = CLASSES[kind] if classes is None else classes
    plan = Plan(
        kind,
        float(rho),
        seed,
        size,
        counts,
        train_scenes,
        copies,
        val_copies,
        test_copies,
        scale,
        strength,
        shifts,
        masks,
    )
    target = Path(folder)
    parts = (
        glyph_parts(seed, counts, train_scenes, size)
        if data_root is None or kind == "glyphs"
        else emoji_parts(Path(data_root), seed, counts, train_scenes, size)
    )
    note = _note(plan, parts)
    if _is_complete(target, note):
        return target / "table.csv"
    rows = _draw_all(plan, parts, target)
    with atomic_path(target / "table.csv") as temporary:
        pd.DataFrame(rows).to_csv(temporary, index=False)
    write_json(target / "spec.json", note)
    return target / "table.csv"


def all_causes(plan: Plan, parts: Parts) -> list[Causes]:
    """Draw the causes of all pictures of a set; those of one picture depend on the seed and its own names only."""
    homes = {
        label: parts.scenes["train"][number % len(parts.scenes["train"])]
        for split in ("train", "val")
        for number, label in enumerate(parts.classes[split])
    }
    copies = {"train": plan.copies, "val": plan.val_copies, "test": plan.test_copies}
    return [
        cause
        for split, count in copies.items()
        for label in parts.classes[split]
        for style in parts.styles
        for copy in range(count)
        for cause in _causes(plan, parts, split, label, style, copy, homes.get(label, ""))
    ]


def _causes(plan: Plan, parts: Parts, split: str, label: str, style: str, copy: int, home: str) -> list[Causes]:
    """Return one picture, or two in test: plain and shifted."""
    draw = numpy_generator(plan.seed, "controlled", plan.kind, label, style, copy)
    tie, free, photo, crop_x, crop_y, zoom, flip, factor, x, y, hue, shade = draw.random(12).tolist()
    tied = bool(home) and tie < plan.rho
    scenes = parts.scenes["test" if split == "test" else "train"]
    scene = home if tied else scenes[int(free * len(scenes))]
    photos = parts.photos[scene]
    low, high = plan.scale
    common: dict[str, Any] = {
        "split": split, "label": label, "domain": style, "copy": copy, "home": home, "tied": tied, "scene": scene,
        "photo": photos[int(photo * len(photos))], "crop": Crop(crop_x, crop_y, zoom, flip < 0.5),
        "pose": Pose(0.0, low + (high - low) * factor, 2 * x - 1, 2 * y - 1), "hue": hue, "shade": 0.45 + 0.5 * shade,
    }  # fmt: skip
    plain = Causes(**common, nuisance=Nuisance())
    if split != "test":
        return [plain]
    return [plain, Causes(**common, nuisance=Nuisance.draw(draw, plan.strength, plan.shifts), condition="shifted")]


def _draw_all(plan: Plan, parts: Parts, folder: Path) -> list[dict[str, Any]]:
    causes = all_causes(plan, parts)
    rows: list[dict[str, Any]] = [{} for _ in causes]
    for split in ("train", "val", "test"):
        for name in ("pictures", "masks") if plan.masks else ("pictures",):
            (folder / name / split).mkdir(parents=True, exist_ok=True)
    # Photograph after photograph: each is decoded once, and one is held at a time.
    for index in sorted(range(len(causes)), key=lambda n: (causes[n].photo, n)):
        cause = causes[index]
        composite = parts.draw(cause)
        row = rows[index] = cause.row(parts.cutout(cause.label, cause.domain))
        stem = f"{cause.split}/{index:06d}"
        row["path"] = f"pictures/{stem}.jpg"
        row["mask"] = f"masks/{stem}.png" if plan.masks else ""
        pixels = shift(composite.picture, cause.nuisance)
        Image.fromarray(pixels).save(folder / row["path"], quality=88, subsampling=0)
        if plan.masks:
            Image.fromarray(composite.mask).save(folder / row["mask"], compress_level=1)
    return rows


def _note(plan: Plan, parts: Parts) -> dict[str, Any]:
    return {
        "schema": 1,
        "plan": {name: list(value) if isinstance(value, tuple) else value for name, value in asdict(plan).items()},
        "classes": parts.classes,
        "scenes": parts.scenes,
        "versions": {name: version(name) for name in ("pillow", "numpy")},
    }


def _is_complete(folder: Path, note: dict[str, Any]) -> bool:
    if not folder.exists() or not any(folder.iterdir()):
        return False
    if (folder / "table.csv").exists() and (folder / "spec.json").exists() and read_json(folder / "spec.json") == note:
        return True
    raise DataError(f"{folder} holds another set or an unfinished one; remove it or choose another folder.")


def sheet(table: str | Path, out: str | Path, *, classes: int = 5, columns: int = 12) -> Path:
    """Draw a contact sheet: a row a class, training first, then validation, then test with each row shifted below it.

    Args:
        table: from :func:`build`.
        out: picture to write.
        classes: how many of each split.
        columns: pictures of each class.

    Returns:
        ``out``.
    """
    path = Path(table)
    frame = pd.read_csv(path, keep_default_na=False)
    lines = []
    for split, conditions in (("train", ["plain"]), ("val", ["plain"]), ("test", ["plain", "shifted"])):
        part = frame[frame["split"] == split]
        for label in part["label"].unique()[:classes]:
            lines += [part[(part["label"] == label) & (part["condition"] == one)]["path"] for one in conditions]
    side = 96
    page = Image.new("RGB", (columns * side, len(lines) * side), "white")
    for top, names in enumerate(lines):
        chosen = [names.iloc[n] for n in np.linspace(0, len(names) - 1, min(columns, len(names))).astype(int)]
        for left, name in enumerate(chosen):
            with Image.open(path.parent / name) as picture:
                page.paste(picture.resize((side, side)), (left * side, top * side))
    page.save(out)
    return Path(out)


def frozen(table: str | Path, *, condition: str = "plain", classes: int = 125, size: int = 112) -> dict[str, float]:
    """Measure the untrained trunk on test pictures of a set.

    Args:
        table: from :func:`build`.
        condition: ``plain`` or ``shifted``.
        classes: how many test classes; fewer are easier.
        size: side in pixels at which the trunk sees the pictures.

    Returns:
        ``pictures`` (how many), ``recall_at_1``, ``map_at_r``, ``same_scene`` (share of nearest pictures on the query's
        scene), ``scene_accuracy`` and ``scene_chance`` (linear probe).
    """
    import torch

    from proxemics.evaluation import evaluate_embeddings
    from proxemics.evaluation.probes import decode_category
    from proxemics.models import Embedder

    path = Path(table)
    frame = pd.read_csv(path, keep_default_na=False)
    frame = frame[(frame["split"] == "test") & (frame["condition"] == condition)]
    frame = frame[frame["label"].isin(frame["label"].unique()[:classes])]
    embedder = Embedder("tf_efficientnet_lite0", dim=0, size=size).eval()
    rows = []
    with torch.inference_mode():
        for names in np.array_split(frame["path"].to_numpy(), max(1, len(frame) // 50)):
            pictures = [Image.open(path.parent / name).resize((size, size), Image.Resampling.BICUBIC) for name in names]
            batch = torch.from_numpy(np.stack([np.asarray(picture) for picture in pictures])).permute(0, 3, 1, 2)
            rows.append(embedder(embedder.preprocess.normalize(batch)))
    embeddings = torch.nn.functional.normalize(torch.cat(rows).float(), dim=1)
    labels, scenes = frame["label"].to_numpy(str), frame["scene"].to_numpy(str)
    result = evaluate_embeddings(embeddings, labels, recall_at=(1,), bootstrap=0)
    similar = embeddings @ embeddings.T
    nearest = similar.fill_diagonal_(-2).argmax(dim=1).numpy()
    probe = decode_category(embeddings, scenes, labels)
    return {
        "pictures": float(len(frame)), "recall_at_1": float(result["recall_at_1"]),
        "map_at_r": float(result["map_at_r"]), "same_scene": float((scenes == scenes[nearest]).mean()),
        "scene_accuracy": probe.accuracy, "scene_chance": probe.chance,
    }  # fmt: skip


def main(arguments: Sequence[str] | None = None) -> None:
    """Render the sets that are asked for."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", type=Path, help="folder with index.csv")
    parser.add_argument("--out", type=Path, default=Path("runs/controlled"))
    parser.add_argument("--rho", type=float, nargs="+", default=[0.0, 0.9, 0.95])
    parser.add_argument("--seeds", type=int, nargs="+", default=[0])
    parser.add_argument("--kind", choices=list(CLASSES), default="emoji")
    parser.add_argument("--size", type=int, default=128)
    parser.add_argument("--copies", type=int, default=6)
    parser.add_argument("--shifts", nargs="+", choices=SHIFTS, default=list(SHIFTS))
    parser.add_argument("--masks", action="store_true", help="also write the masks")
    parser.add_argument("--sheet", action="store_true", help="also draw a contact sheet beside each set")
    parser.add_argument("--frozen", action="store_true", help="also measure the untrained trunk")
    args = parser.parse_args(arguments)
    for seed in args.seeds:
        for rho in args.rho:
            folder = args.out / f"{args.kind}-rho{rho:g}-seed{seed}"
            start = time.process_time()
            table = build(
                folder, args.data, rho, seed, args.kind, size=args.size, copies=args.copies, shifts=tuple(args.shifts),
                masks=args.masks,
            )  # fmt: skip
            print(f"{table}: {time.process_time() - start:.1f} CPU s")
            if args.sheet:
                print(sheet(table, args.out / f"{folder.name}.png"))
            for condition in ("plain", "shifted") if args.frozen else ():
                print(condition, {name: round(value, 3) for name, value in frozen(table, condition=condition).items()})


if __name__ == "__main__":
    main()
