"""Which files a bundle may hold, and how it is found out that they are the ones that were written.

``model.json`` names the schema and the SHA-256 of every file that decides a vector or a class name. The hashes find
damaged, mixed-up and changed files; they are no signature, since whoever can write the folder can write new ones.
"""

from __future__ import annotations

import hashlib
from pathlib import Path
from typing import Any

from proxemics.core.errors import ModelError, ProxemicsError
from proxemics.core.files import read_json

SCHEMA = 2
"""2: ``model.json`` lists hashes. Bundles of schema 1 are read as well; they hold no ONNX."""
KIND = "proxemics embedder"

MODEL, ABOUT, PREPROCESS, LABELS, CARD = FILES = (
    "model.safetensors",
    "model.json",
    "preprocess.json",
    "labels.json",
    "card.md",
)
"""What every save writes anew; the last two only if there is something to say."""
REQUIRED = (MODEL, ABOUT, PREPROCESS)
ONNX = {
    "float32": "onnx/model.onnx",
    "float16": "onnx/model.fp16.onnx",
    "int8": "onnx/model.int8.onnx",
}
"""Precision to file."""
PARITY, CERTAINTY, PROBE = EXPORTED = ("parity.json", "certainty.json", "probe.json")
"""Written by an export."""
THRESHOLDS = "thresholds.json"
CLASSES = ("classes.safetensors", "classes.json")
ADDED = (THRESHOLDS, *CLASSES)
"""Added to a finished bundle by ``proxemics calibrate`` and ``proxemics enrol``; kept while the model is the same."""
KNOWN = (*FILES, *ONNX.values(), *EXPORTED, *ADDED)
"""Everything that may lie in a bundle; a folder that holds anything else is not replaced."""
HASHED = (MODEL, PREPROCESS, LABELS, *ONNX.values())
"""Files whose SHA-256 ``model.json`` records."""


def file_sha256(path: Path) -> str:
    """Return the SHA-256 of a file as 64 hex digits."""
    digest = hashlib.sha256()
    with path.open("rb") as file:
        while block := file.read(1 << 20):
            digest.update(block)
    return digest.hexdigest()


def unknown_files(folder: Path, known: tuple[str, ...] = KNOWN) -> list[str]:
    """Return what lies in a folder and is in no bundle, as sorted relative paths; unknown folders are not entered.

    Args:
        folder: to look into.
        known: relative paths that are expected.
    """
    parents = {parent.as_posix() for name in known for parent in Path(name).parents}
    found: list[str] = []
    waiting = [folder]
    while waiting:
        for path in waiting.pop().iterdir():
            name = path.relative_to(folder).as_posix()
            if name in parents and path.is_dir() and not path.is_symlink():
                waiting.append(path)
            elif name not in known:
                found.append(name)
    return sorted(found)


def read_about(folder: Path) -> dict[str, Any]:
    """Read ``model.json`` and check that this version understands it.

    Returns:
        At least ``schema``, ``fingerprint`` (text), ``arguments`` (a dictionary) and ``files`` (name to SHA-256; empty
        for schema 1).

    Raises:
        ModelError: the folder is no bundle, or one of a newer version.
    """
    path = folder / ABOUT
    if not path.is_file():
        raise ModelError(f"{folder} is no bundle: it has no {ABOUT}. Give the folder that training or export wrote.")
    about = read_json(path)
    schema = about.get("schema") if isinstance(about, dict) else None
    if not isinstance(schema, int) or schema < 1 or not isinstance(about.get("arguments"), dict):
        raise ModelError(f"{path} does not describe a bundle. Export the model again.")
    if schema > SCHEMA:
        raise ModelError(f"{folder} was written by Proxemics {about.get('version')}, which is newer; update this one.")
    files = about.get("files") if schema >= 2 else {}
    if not isinstance(about.get("fingerprint"), str) or not isinstance(files, dict):
        raise ModelError(f"{path} does not describe a bundle. Export the model again.")
    return {**about, "files": files}


def read_card(folder: Path) -> str | None:
    """Read ``card.md``; None when there is none.

    Raises:
        ModelError: it is no UTF-8 text.
    """
    path = folder / CARD
    try:
        return path.read_text(encoding="utf-8") if path.is_file() else None
    except UnicodeDecodeError as error:
        raise ModelError(f"{path} is no UTF-8 text ({error.reason} at byte {error.start}); save it as UTF-8.") from None


def read_checked(folder: Path, name: str, about: dict[str, Any]) -> bytes:
    """Read a file of a bundle and compare it with its recorded hash.

    Args:
        folder: the bundle.
        name: one of :data:`HASHED`.
        about: from :func:`read_about`.

    Returns:
        The bytes.

    Raises:
        ModelError: the file is absent, or is not the one that was written.
    """
    path = folder / name
    try:
        data = path.read_bytes()
    except OSError as error:
        raise ModelError(f"{path} cannot be read: {error.strerror or error}. Copy the bundle as a whole.") from error
    recorded = about["files"].get(name)
    if about["schema"] >= 2 and recorded != hashlib.sha256(data).hexdigest():
        raise _changed(path, recorded)
    return data


def check_files(folder: Path, about: dict[str, Any]) -> None:
    """Compare every recorded file with its hash.

    Raises:
        ModelError: a file is missing or changed, or an ONNX file is not recorded.
    """
    for name in HASHED:
        check_file(folder, name, about)


def check_file(folder: Path, name: str, about: dict[str, Any]) -> None:
    """Compare one file with its recorded hash.

    Args:
        folder: the bundle.
        name: one of :data:`HASHED`.
        about: from :func:`read_about`.

    Raises:
        ModelError: the file is recorded and missing, or there and not the one that is recorded.
    """
    path, recorded = folder / name, about["files"].get(name)
    if recorded is not None and not path.is_file():
        raise ModelError(f"{path} is missing. Copy the bundle as a whole.")
    if about["schema"] >= 2 and path.is_file() and recorded != file_sha256(path):
        raise _changed(path, recorded)


def _changed(path: Path, recorded: object) -> ProxemicsError:
    why = "is not recorded in model.json" if recorded is None else "is not the file that was exported: its hash differs"
    return ModelError(f"{path} {why}. Copy the bundle as a whole, or export the model again.")
