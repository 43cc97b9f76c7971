"""``cub-synthdomains`` and ``cars-synthdomains``: train on photographs, test in photographs and synthetic domains.

Our definition, deterministic; not the undefined 'Ext.' sets of the papers, whose name must not be used for it.
"""

from __future__ import annotations

import os
import re
import shutil
from collections import Counter
from collections.abc import Callable, Sequence
from pathlib import Path

import numpy as np
import pandas as pd
from PIL import Image, ImageOps

from proxemics.core.errors import DataError, did_you_mean
from proxemics.core.files import atomic_path, write_json
from proxemics.data.benchmarks.synth_effects import EFFECTS
from proxemics.data.table import check_table

SOURCES = {"cub-synthdomains": "cub200", "cars-synthdomains": "cars196"}
SHORT_SIDE = 256


def write_synth_domains(
    frame: pd.DataFrame,
    folder: str | Path,
    *,
    name: str,
    domains: Sequence[str] = tuple(EFFECTS),
    progress: Callable[[int, int], None] | None = None,
) -> Path:
    """Write the set into a folder.

    ``photo/`` holds the originals, linked when that is possible and else copied. Test pictures are turned upright,
    brought to a short side of at most 256 px (bicubic), and saved in each synthetic domain as JPEG of quality 95.
    Pictures that are there already are not made again, so a broken run goes on.

    Args:
        frame: a table with splits, from :func:`~proxemics.data.benchmarks.cub.load_cub` or
            :func:`~proxemics.data.benchmarks.cars.load_cars`.
        folder: where to; created.
        name: one of :data:`SOURCES`, for the record.
        domains: which of :data:`~proxemics.data.benchmarks.synth_effects.EFFECTS`.
        progress: called with the test pictures done and in all.

    Returns:
        ``folder / "table.csv"``: columns path (relative to the folder), label, domain, split. It is written last.

    Raises:
        DataError: a name is unknown, there are no test rows, or a picture cannot be read.
    """
    if name not in SOURCES:
        raise DataError(f"Unknown data set {name!r}.{did_you_mean(name, SOURCES)} There are: {', '.join(SOURCES)}.")
    for domain in domains:
        if domain not in EFFECTS:
            raise DataError(
                f"Unknown domain {domain!r}.{did_you_mean(domain, EFFECTS)} There are: {', '.join(EFFECTS)}."
            )
    target = Path(folder).expanduser()
    used = check_table(frame)
    used = used[used["split"].isin(["train", "test"])]
    test = used[used["split"] == "test"]
    if test.empty:
        raise DataError("The table has no test rows; the synthetic domains are made of those.")
    places = _places(used)
    rows = []
    for path, label, split in used[["path", "label", "split"]].itertuples(index=False):
        place = Path("photo") / places[path]
        _link(Path(path), target / place)
        rows.append((place.as_posix(), label, "photo", split))
    for done, (path, label) in enumerate(test[["path", "label"]].itertuples(index=False), start=1):
        rows += _make(Path(path), label, places[path].with_suffix(".jpg"), target, domains)
        if progress is not None:
            progress(done, len(test))
    write_json(
        target / "about.json",
        {"name": name, "domains": list(domains), "short_side": SHORT_SIDE, "jpeg_quality": 95, "pictures": len(rows)},
    )
    with atomic_path(target / "table.csv") as temporary:
        pd.DataFrame(rows, columns=["path", "label", "domain", "split"]).to_csv(temporary, index=False)
    return target / "table.csv"


def _places(frame: pd.DataFrame) -> dict[str, Path]:
    """Return ``class/picture`` for each path; pictures of equal name from two folders get their folder's name, too."""
    stems = [(label, Path(path).stem) for path, label in zip(frame["path"], frame["label"], strict=True)]
    counts = Counter(stems)
    places = {}
    for path, key in zip(frame["path"], stems, strict=True):
        source = Path(path)
        name = source.name if counts[key] == 1 else f"{source.parent.name}-{source.name}"
        places[path] = Path(_folder_name(key[0])) / name
    if len({place.with_suffix("") for place in places.values()}) < len(places):
        raise DataError("Two pictures of one class have the same file name and folder name. Rename one of them.")
    return places


def _make(path: Path, label: str, name: Path, target: Path, domains: Sequence[str]) -> list[tuple[str, str, str, str]]:
    places = {domain: Path(domain) / name for domain in domains}
    waiting = {domain: place for domain, place in places.items() if not (target / place).exists()}
    if waiting:
        pixels = _read(path)
        for domain, place in waiting.items():
            with atomic_path(target / place) as temporary:
                Image.fromarray(EFFECTS[domain](pixels)).save(temporary, "JPEG", quality=95)
    return [(place.as_posix(), label, domain, "test") for domain, place in places.items()]


def _read(path: Path) -> np.ndarray[tuple[int, ...], np.dtype[np.uint8]]:
    try:
        with Image.open(path) as opened:
            picture = ImageOps.exif_transpose(opened).convert("RGB")
    except (OSError, SyntaxError, ValueError) as error:
        raise DataError(f"Cannot read {path}: {error}.") from error
    short = min(picture.size)
    if short > SHORT_SIDE:
        width, height = (max(1, round(side * SHORT_SIDE / short)) for side in picture.size)
        picture = picture.resize((width, height), Image.Resampling.BICUBIC)
    return np.asarray(picture, dtype=np.uint8)


def _folder_name(label: str) -> str:
    return re.sub(r"[^\w.-]", "_", label)


def _link(source: Path, place: Path) -> None:
    if place.exists():
        return
    place.parent.mkdir(parents=True, exist_ok=True)
    try:
        os.link(source.resolve(), place)
    except OSError:
        shutil.copyfile(source, place)
