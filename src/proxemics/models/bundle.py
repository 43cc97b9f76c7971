"""Bundles: a model in one folder, tensors as safetensors and everything else as JSON.

``model.safetensors`` · ``model.json`` (constructor arguments, origin, fingerprint, hashes) · ``preprocess.json`` ·
``labels.json`` (class names, if given) · ``card.md`` (if given) · what exports, calibration and enrolment add; the full
list is in :mod:`proxemics.runtime.layout`. A bundle needs neither the original weights nor a network, and holds no
code.
"""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from proxemics.__about__ import __version__
from proxemics.core.errors import ModelError, ProxemicsError, did_you_mean
from proxemics.core.files import atomic_path, write_json, write_text
from proxemics.data.labels import LabelMap
from proxemics.data.preprocess import Preprocess
from proxemics.models.embedder import Embedder
from proxemics.runtime.layout import (
    ABOUT,
    CARD,
    CLASSES,
    HASHED,
    KIND,
    KNOWN,
    LABELS,
    MODEL,
    PREPROCESS,
    REQUIRED,
    SCHEMA,
    THRESHOLDS,
    file_sha256,
    read_about,
    read_checked,
    unknown_files,
)

_PRINT = "preprocess_fingerprint"


def save_bundle(
    embedder: Embedder,
    folder: str | Path,
    *,
    labels: Sequence[str] | None = None,
    card: str | None = None,
    more: Callable[[Path], None] | None = None,
) -> Path:
    """Write a bundle; readers see the old folder or the new one, never a half-written one.

    Args:
        embedder: on any device.
        folder: an absent or empty folder, or an older bundle, which is replaced. Thresholds and enrolled classes of an
            older bundle stay if it holds the same model and preprocessing.
        labels: names of the training classes in the order of their numbers (``LabelMap.names``).
        card: Markdown about the model.
        more: adds files to the new folder before it takes its place; of those in
            :data:`proxemics.runtime.layout.KNOWN`.

    Returns:
        The folder.

    Raises:
        ModelError: the folder holds something else, or cannot be written.

    Example:
        >>> embedder = Embedder("test_resnet", dim=8, weights="none", size=64)
        >>> folder = save_bundle(embedder, Path(tempfile.mkdtemp()) / "bundle", labels=["cat", "dog"])
        >>> load_bundle(folder).fingerprint() == embedder.fingerprint()
        True
    """
    target = Path(folder).absolute()

    def write(new: Path) -> None:
        _write_parts(embedder, new, labels, card)
        if more is not None:
            more(new)
        about = _about(embedder, new)
        write_json(new / ABOUT, about)
        _keep_added(target, new, about)

    return replace_folder(target, write)


def replace_folder(folder: str | Path, write: Callable[[Path], None], *, known: tuple[str, ...] = KNOWN) -> Path:
    """Write a folder of known files beside its place and swap it in whole.

    Args:
        folder: absent, empty, or holding known files only.
        write: fills the new folder it is given.
        known: relative paths of the files that may be there.

    Returns:
        The folder, absolute.

    Raises:
        ModelError: the folder holds something else, or cannot be written; what was there is untouched.
    """
    target = Path(folder).absolute()
    if target.exists():
        others = unknown_files(target, known) if target.is_dir() else [target.name]
        if others:
            raise ModelError(
                f"{target} is no bundle (it holds {others[0]!r}) and would be replaced; choose another folder."
            )
    try:
        target.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(dir=target.parent, prefix=f".{target.name}.") as work:
            new, old = Path(work) / "new", Path(work) / "old"
            new.mkdir()
            write(new)
            _swap(new, target, old)
    except OSError as error:
        raise ModelError(
            f"Cannot write the bundle {target}: {error.strerror or error}. Free some space or choose another folder."
        ) from error
    return target


def _swap(new: Path, target: Path, old: Path) -> None:
    if not target.exists():
        new.replace(target)
        return
    target.replace(old)
    try:
        new.replace(target)
    except OSError:
        old.replace(target)
        raise


def _write_parts(embedder: Embedder, folder: Path, labels: Sequence[str] | None, card: str | None) -> None:
    from safetensors.torch import save_file

    state = {name: tensor.detach().cpu().contiguous() for name, tensor in embedder.state_dict().items()}
    with atomic_path(folder / MODEL) as temporary:
        save_file(state, temporary, metadata={"format": "pt"})
    write_text(folder / PREPROCESS, embedder.preprocess.to_json() + "\n")
    if labels is not None:
        LabelMap(tuple(labels)).save(folder / LABELS)
    if card is not None:
        write_text(folder / CARD, card)


def _about(embedder: Embedder, folder: Path) -> dict[str, Any]:
    return {
        "schema": SCHEMA,
        "kind": KIND,
        "version": __version__,
        "arguments": embedder.arguments,
        "dim": embedder.dim,
        "weights": embedder.weights,
        "fingerprint": embedder.fingerprint(),
        _PRINT: embedder.preprocess.fingerprint(),
        "files": {name: file_sha256(folder / name) for name in HASHED if (folder / name).is_file()},
    }


def _keep_added(old: Path, new: Path, about: dict[str, Any]) -> None:
    """Keep what other verbs added to the bundle that is replaced, if it is about the same vectors."""
    try:
        before = read_about(old)
        same = before["fingerprint"] == about["fingerprint"]
        if not same or Preprocess.from_json((old / PREPROCESS).read_text("utf-8")).fingerprint() != about[_PRINT]:
            return
    except (ProxemicsError, OSError):
        return  # absent, or nothing that could be kept
    copy_added(old, new)


def copy_added(source: Path, target: Path) -> None:
    """Copy thresholds and enrolled classes that ``target`` does not have; both are bundles of one model."""
    for group in ((THRESHOLDS,), CLASSES):
        if not any((target / name).exists() for name in group):
            for name in group:
                if (source / name).is_file():
                    shutil.copyfile(source / name, target / name)


def load_bundle(folder: str | Path) -> Embedder:
    """Read a bundle and check that it is what was saved.

    Args:
        folder: written by :func:`save_bundle`.

    Returns:
        The embedder, on the CPU, in evaluation mode.

    Raises:
        ModelError: files are missing, changed, or of a newer version.
    """
    path = Path(folder)
    absent = [name for name in REQUIRED if not (path / name).is_file()]
    if absent:
        raise ModelError(f"{path} is no bundle: it has no {absent[0]}. Give the folder that training or export wrote.")
    about = read_about(path)
    arguments = _checked_arguments(about["arguments"], path)
    preprocess = Preprocess.from_json(read_checked(path, PREPROCESS, about).decode())
    embedder = Embedder(**arguments, weights="none", preprocess=preprocess)
    _load_state(embedder, path / MODEL)
    embedder.weights = str(about.get("weights", "unknown"))
    if embedder.fingerprint() != about.get("fingerprint"):
        raise ModelError(
            f"{path}: model.safetensors and model.json do not belong together. Copy the folder as a whole."
        )
    embedder.eval()
    return embedder


def load_labels(folder: str | Path) -> LabelMap | None:
    """Return the training classes of a bundle, or None when it was saved without them."""
    path = Path(folder) / LABELS
    return LabelMap.load(path) if path.is_file() else None


def _checked_arguments(arguments: dict[str, Any], path: Path) -> dict[str, Any]:
    known = ("trunk", "dim", "pooling", "head_init", "layer_norm", "freeze_bn", "freeze_stages", "channels_last")
    for name in arguments:
        if name not in known:
            raise ModelError(f"{path / ABOUT}: unknown argument {name!r}.{did_you_mean(name, known)}")
    return arguments


def _load_state(embedder: Embedder, file: Path) -> None:
    from safetensors import SafetensorError
    from safetensors.torch import load_file

    try:
        embedder.load_state_dict(load_file(file))
    except (SafetensorError, RuntimeError, OSError) as error:
        reason = " ".join(str(error).split())
        raise ModelError(f"{file} does not fit its model.json: {reason[:200]}. Copy the whole bundle again.") from error
