"""Bundles: a model in one folder, tensors as safetensors and everything else as JSON.

``model.safetensors`` · ``model.json`` (constructor arguments, origin, fingerprint) · ``preprocess.json`` ·
``labels.json`` (class names, if given) · ``card.md`` (if given). A bundle needs neither the original weights nor a
network, and holds no code.
"""

from __future__ import annotations

import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from proxemics.__about__ import __version__
from proxemics.core.errors import ModelError, did_you_mean
from proxemics.core.files import atomic_path, read_json, write_json, write_text
from proxemics.data.labels import LabelMap
from proxemics.data.preprocess import Preprocess
from proxemics.models.embedder import Embedder

SCHEMA = 1
FILES = ("model.safetensors", "model.json", "preprocess.json", "labels.json", "card.md")
_REQUIRED = FILES[:3]


def save_bundle(
    embedder: Embedder, folder: str | Path, *, labels: Sequence[str] | None = None, card: str | None = None
) -> Path:
    """Write a bundle; readers see the old folder or the new one, never a half-written one.

    Args:
        embedder: on any device.
        folder: an absent or empty folder, or an older bundle, which is replaced.
        labels: names of the training classes in the order of their numbers (``LabelMap.names``).
        card: Markdown about the model.

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
    _check_target(target)
    try:
        target.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(dir=target.parent, prefix=f".{target.name}.") as work:
            new, old = Path(work) / "new", Path(work) / "old"
            new.mkdir()
            _write_files(embedder, new, labels, card)
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


def _check_target(target: Path) -> None:
    if not target.exists():
        return
    others = (
        sorted(path.name for path in target.iterdir() if path.name not in FILES) if target.is_dir() else [target.name]
    )
    if others:
        raise ModelError(
            f"{target} is no bundle (it holds {others[0]!r}) and would be replaced; choose another folder."
        )


def _write_files(embedder: Embedder, folder: Path, labels: Sequence[str] | None, card: str | None) -> None:
    from safetensors.torch import save_file

    state = {name: tensor.detach().cpu().contiguous() for name, tensor in embedder.state_dict().items()}
    with atomic_path(folder / "model.safetensors") as temporary:
        save_file(state, temporary, metadata={"format": "pt"})
    about = {
        "schema": SCHEMA,
        "kind": "proxemics embedder",
        "version": __version__,
        "arguments": embedder.arguments,
        "weights": embedder.weights,
        "fingerprint": embedder.fingerprint(),
    }
    write_json(folder / "model.json", about)
    write_text(folder / "preprocess.json", embedder.preprocess.to_json() + "\n")
    if labels is not None:
        LabelMap(tuple(labels)).save(folder / "labels.json")
    if card is not None:
        write_text(folder / "card.md", card)


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
    absent = [name for name in _REQUIRED if not (path / name).is_file()]
    if absent:
        raise ModelError(f"{path} is no bundle: it has no {absent[0]}. Give the folder that training or export wrote.")
    about = read_json(path / "model.json")
    arguments = _checked_arguments(about, path)
    preprocess = Preprocess.from_json((path / "preprocess.json").read_text(encoding="utf-8"))
    embedder = Embedder(**arguments, weights="none", preprocess=preprocess)
    _load_state(embedder, path / "model.safetensors")
    embedder.weights = str(about.get("weights", "unknown"))
    if embedder.fingerprint() != about.get("fingerprint"):
        raise ModelError(
            f"{path}: model.safetensors and model.json do not belong together. Copy the folder as a whole."
        )
    embedder.eval()
    return embedder


def load_labels(folder: str | Path) -> LabelMap | None:
    """Return the training classes of a bundle, or None when it was saved without them."""
    path = Path(folder) / "labels.json"
    return LabelMap.load(path) if path.is_file() else None


def _checked_arguments(about: Any, path: Path) -> dict[str, Any]:
    schema = about.get("schema") if isinstance(about, dict) else None
    if not isinstance(schema, int) or schema < 1 or not isinstance(about.get("arguments"), dict):
        raise ModelError(f"{path / 'model.json'} does not describe a bundle. Export the model again.")
    if schema > SCHEMA:
        raise ModelError(f"{path} was written by Proxemics {about.get('version')}, which is newer; update this one.")
    known = ("trunk", "dim", "pooling", "head_init", "layer_norm", "freeze_bn", "freeze_stages", "channels_last")
    arguments: dict[str, Any] = about["arguments"]
    for name in arguments:
        if name not in known:
            raise ModelError(f"{path / 'model.json'}: unknown argument {name!r}.{did_you_mean(name, known)}")
    return arguments


def _load_state(embedder: Embedder, file: Path) -> None:
    from safetensors import SafetensorError
    from safetensors.torch import load_file

    try:
        embedder.load_state_dict(load_file(file))
    except (SafetensorError, RuntimeError, OSError) as error:
        reason = " ".join(str(error).split())
        raise ModelError(f"{file} does not fit its model.json: {reason[:200]}. Copy the whole bundle again.") from error
