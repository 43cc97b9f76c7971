"""A bundle in the layout of model hubs, and back: ``README.md`` is the card, ``config.json`` describes the model.

``config.json`` also holds the SHA-256 of every file, so that what comes back is what was sent. Everything is text,
JSON, safetensors or ONNX; a file of any other kind is neither sent nor fetched.
"""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

from proxemics.core.errors import ExportError, ModelError
from proxemics.core.files import read_json, write_json, write_text
from proxemics.models.bundle import replace_folder
from proxemics.runtime.layout import (
    ABOUT,
    CARD,
    CLASSES,
    KNOWN,
    REQUIRED,
    check_files,
    file_sha256,
    read_about,
    read_card,
)

README, CONFIG = "README.md", "config.json"
_PLAIN = tuple(name for name in KNOWN if name not in (ABOUT, CARD))
HUB_FILES = (README, CONFIG, *_PLAIN)
"""Everything that a repository may be given by, or may give to, this package."""
_BARE_CARD = "---\nlicense: unknown\nlibrary_name: proxemics\npipeline_tag: image-feature-extraction\n---\n\n"


def write_hub_folder(bundle: str | Path, folder: str | Path, *, classes: bool = False) -> Path:
    """Write a bundle as a repository folder.

    Args:
        bundle: written by training or export.
        folder: absent, empty, or an older repository folder, whose files are replaced.
        classes: also give away the classes that were enrolled.

    Returns:
        The folder, absolute.

    Raises:
        ModelError: the bundle is damaged, or the folder holds something else.
    """
    source = Path(bundle)
    about = _checked(source)
    return replace_folder(folder, lambda new: _fill_hub(source, new, about, classes), known=HUB_FILES)


def _checked(source: Path) -> dict[str, Any]:
    if (source / "bundle" / ABOUT).is_file() and not (source / ABOUT).is_file():
        raise ModelError(f"{source} is a run folder; export it first: proxemics export {source} --out bundle.")
    absent = [name for name in REQUIRED if not (source / name).is_file()]
    if absent:
        raise ModelError(f"{source} is no bundle: it has no {absent[0]}. Give a folder that training or export wrote.")
    about = read_about(source)
    check_files(source, about)
    return about


def _fill_hub(source: Path, new: Path, about: dict[str, Any], classes: bool) -> None:
    text = read_card(source) or "# An image embedding by Proxemics\n"
    write_text(new / README, text if text.startswith("---\n") else _BARE_CARD + text)
    for name in _PLAIN:
        if (source / name).is_file() and (classes or name not in CLASSES):
            (new / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copyfile(source / name, new / name)
    sent = [name for name in HUB_FILES if name != CONFIG and (new / name).is_file()]
    config = {
        "model_type": "proxemics",
        "library_name": "proxemics",
        "bundle": about if about["schema"] >= 2 else {key: value for key, value in about.items() if key != "files"},
        "sha256": {name: file_sha256(new / name) for name in sent},
    }
    write_json(new / CONFIG, config)


def read_hub_folder(folder: str | Path, out: str | Path, *, name: str | None = None) -> Path:
    """Turn a repository folder back into a bundle, after every file was compared with its hash.

    Args:
        folder: written by :func:`write_hub_folder`, or fetched from a hub; it may hold more, which is left there.
        out: the bundle to write: absent, empty, or an older bundle, which is replaced.
        name: what to call the repository in an error; default: the folder.

    Returns:
        The bundle, absolute.

    Raises:
        ExportError: the folder holds no model of this package, or a file is missing or changed.
        ModelError: ``out`` holds something else, or the model is of a newer version.
    """
    source, called = Path(folder), name or str(folder)
    if not (source / CONFIG).is_file():
        raise ExportError(f"{called} holds no {CONFIG}; it is no model that `proxemics hub push` wrote.")
    config = read_json(source / CONFIG)
    good = (
        isinstance(config, dict) and isinstance(config.get("bundle"), dict) and isinstance(config.get("sha256"), dict)
    )
    if not good or config.get("library_name") != "proxemics":
        raise ExportError(f"{CONFIG} of {called} does not describe a model of Proxemics; something else wrote it.")
    hashes: dict[str, Any] = config["sha256"]
    _check_hashes(source, hashes, called)

    def write(new: Path) -> None:
        for file in hashes:
            target = new / (CARD if file == README else file)
            target.parent.mkdir(parents=True, exist_ok=True)
            shutil.copyfile(source / file, target)
        write_json(new / ABOUT, config["bundle"])
        _checked(new)

    return replace_folder(out, write)


def _check_hashes(source: Path, hashes: dict[str, Any], called: str) -> None:
    for name, recorded in hashes.items():
        if name not in HUB_FILES:
            raise ExportError(f"{CONFIG} of {called} lists {name!r}, which is no file of a bundle; nothing was taken.")
        if not (source / name).is_file():
            raise ExportError(f"{called} has no {name}, which its {CONFIG} lists. Fetch or push the model again.")
        if file_sha256(source / name) != recorded:
            raise ExportError(
                f"{name} of {called} is not the file that was sent: its hash differs. Fetch or push the model again."
            )
