"""A rendered set on disk: pictures, masks, the table of causes and a note of where every part comes from."""

from __future__ import annotations

import json
from importlib.metadata import version
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from PIL import Image

from proxemics.core.errors import DataError, ProxemicsError
from proxemics.core.files import atomic_path, read_json, write_json
from proxemics.data.confounded.backgrounds import PHOTOGRAPHS, SOURCES
from proxemics.data.confounded.glyphs import FONTS
from proxemics.data.confounded.render import Scene
from proxemics.data.confounded.spec import ConfoundedSpec

if TYPE_CHECKING:
    import pandas as pd

Format = Literal["png", "jpeg"]
_SUFFIX: dict[str, str] = {"png": ".png", "jpeg": ".jpg"}
_COLUMNS = ("path", "label", "domain", "split", "background")


def write(spec: ConfoundedSpec, folder: str | Path, *, format: Format = "png", overwrite: bool = False) -> Path:
    """Render a set into a folder and return the path of its table.

    The folder gets ``table.csv`` and ``table.parquet`` (paths relative to the folder; columns path, label, domain,
    split, background, the other causes, and mask), ``pictures/<split>/<label>/``, ``masks/<split>/<label>/`` and
    ``spec.json`` with the specification, versions and credits. ``spec.json`` is written last: a folder that holds the
    same one is complete and is left as it is.

    Args:
        spec: what to draw.
        folder: where to; created.
        format: ``png`` keeps every pixel; ``jpeg`` (quality 95) is five times smaller. Masks are always PNG.
        overwrite: write into a folder that holds something else.

    Returns:
        ``folder / "table.csv"``.

    Raises:
        DataError: the folder holds something else, or the format is unknown.
        ProxemicsError: the disk is full or cannot be written.

    Example:
        >>> import tempfile
        >>> table = write(ConfoundedSpec(train_classes=2, test_classes=2, per_class=1), tempfile.mkdtemp())
        >>> table.read_text().splitlines()[0][:39]
        'path,label,domain,split,background,tied'
    """
    if format not in _SUFFIX:
        raise DataError(f"The format is {format!r}; allowed are {', '.join(map(repr, _SUFFIX))}.")
    target = Path(folder)
    note = _note(spec, format)
    if _is_complete(target, note, overwrite):
        return target / "table.csv"
    scene = Scene(spec)
    try:
        (target / "spec.json").unlink(missing_ok=True)
        rows = [_write_picture(scene, index, target, format) for index in range(spec.num_images)]
    except OSError as error:
        raise ProxemicsError(
            f"Cannot write into {target}: {error.strerror or error}. Free some space or choose another folder."
        ) from error
    _write_table(rows, target)
    write_json(target / "spec.json", note)
    return target / "table.csv"


def _is_complete(folder: Path, note: dict[str, Any], overwrite: bool) -> bool:
    if not folder.exists() or not any(folder.iterdir()):
        return False
    spec_file = folder / "spec.json"
    if spec_file.exists() and read_json(spec_file) == note and (folder / "table.csv").exists():
        return not overwrite
    if not overwrite:
        raise DataError(
            f"{folder} is not empty and holds another set or an unfinished one. "
            "Choose an empty folder, or pass overwrite=True to write into this one."
        )
    return False


def _write_picture(scene: Scene, index: int, folder: Path, format: Format) -> dict[str, Any]:
    causes = scene.causes(index)
    picture, mask = scene.draw(causes)
    row: dict[str, Any] = dict(scene.row(causes))
    stem = f"{causes.split}/{row['label']}/{index:06d}"
    row["path"], row["mask"] = f"pictures/{stem}{_SUFFIX[format]}", f"masks/{stem}.png"
    if index % scene.spec.per_class == 0:  # the first picture of a class makes its folders
        for name in ("path", "mask"):
            (folder / row[name]).parent.mkdir(parents=True, exist_ok=True)
    if format == "png":
        Image.fromarray(picture).save(folder / row["path"], compress_level=1)
    else:
        Image.fromarray(picture).save(folder / row["path"], quality=95)
    Image.fromarray(mask).save(folder / row["mask"], compress_level=1)
    return row


def _write_table(rows: list[dict[str, Any]], folder: Path) -> pd.DataFrame:
    import pandas as pd

    table = pd.DataFrame(rows)
    table = table[[*_COLUMNS, *(name for name in table.columns if name not in _COLUMNS)]]
    with atomic_path(folder / "table.csv") as temporary:
        table.to_csv(temporary, index=False)
    with atomic_path(folder / "table.parquet") as temporary:
        table.to_parquet(temporary, index=False)
    return table


def _note(spec: ConfoundedSpec, format: Format) -> dict[str, Any]:
    photographs = {SOURCES[name].photograph for name in spec.sources}
    note = {
        "schema": 1,
        "spec": spec.model_dump(mode="json"),
        "format": format,
        "versions": {name: version(name) for name in ("matplotlib", "scikit-image", "pillow", "numpy")},
        "fonts": {domain: FONTS[domain] for domain in spec.all_domains},
        "photographs": {
            name: {"file": entry.file, "licence": entry.licence, "credit": entry.credit}
            for name, entry in PHOTOGRAPHS.items()
            if name in photographs
        },
    }
    return dict(json.loads(json.dumps(note)))
