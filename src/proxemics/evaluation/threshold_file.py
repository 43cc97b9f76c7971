"""``thresholds.json``: calibrated thresholds beside the model that they belong to, and a reader that refuses others."""

from __future__ import annotations

from pathlib import Path
from typing import Protocol

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from proxemics.core.errors import EvaluationError, ProxemicsError
from proxemics.core.files import read_json, write_text
from proxemics.evaluation.operating_point import Kind, Threshold
from proxemics.runtime.layout import THRESHOLDS as NAME

SCHEMA = 1
_HOW = {"verify": "proxemics calibrate MODEL --for verify", "identify": "proxemics calibrate MODEL --for identify"}


class KeyLike(Protocol):
    """What decides the vector of a picture, such as :class:`proxemics.search.manifest.ModelKey`."""

    @property
    def model(self) -> str:
        """Fingerprint of the model."""

    @property
    def preprocess(self) -> str:
        """Fingerprint of the preprocessing."""

    @property
    def dim(self) -> int:
        """Length of the vectors."""


class Model(BaseModel):
    """The model that thresholds belong to; see :class:`KeyLike`."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    model: str = Field(min_length=1)
    preprocess: str = ""
    dim: int = Field(ge=1)


class Source(BaseModel):
    """What a threshold was calibrated on, and by which command.

    Attributes:
        data: folder or table of the pictures, or the run that they were held out in.
        split: ``val`` for the validation classes of a run, ``all`` for other pictures.
        fingerprint: of the table of pictures, 64 hex digits; empty for embeddings from elsewhere.
        unseen: True when the classes are known not to have trained the model, None when that cannot be known.
        command: the command line.
        created: UTC, ISO 8601.
        version: of Proxemics.
    """

    model_config = ConfigDict(frozen=True, extra="forbid")

    data: str = ""
    split: str = "all"
    fingerprint: str = ""
    unseen: bool | None = None
    command: str = ""
    created: str = ""
    version: str = ""


class Entry(BaseModel):
    """One threshold and where it came from."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    point: Threshold
    source: Source


class Thresholds(BaseModel):
    """The content of ``thresholds.json``: at most one operating point of each kind.

    Attributes:
        format: version of the file, ``schema`` in JSON.
        model: what they belong to.
        verify: for comparing two pictures.
        identify: for looking a picture up among enrolled classes.
    """

    model_config = ConfigDict(frozen=True, extra="forbid", populate_by_name=True)

    format: int = Field(default=SCHEMA, alias="schema")
    model: Model
    verify: Entry | None = None
    identify: Entry | None = None

    def point(self, kind: Kind) -> Threshold:
        """Return the operating point of a kind.

        Raises:
            EvaluationError: it was not calibrated; the message names the command.
        """
        entry = self.verify if kind == "verify" else self.identify
        if entry is None:
            raise EvaluationError(f"No threshold to {kind} with was calibrated; run `{_HOW[kind]}`.")
        return entry.point


def thresholds_path(folder: str | Path) -> Path:
    """Return where the thresholds of a run or a bundle are: beside the weights.

    Example:
        >>> thresholds_path("bundle").as_posix()
        'bundle/thresholds.json'
    """
    place = Path(folder)
    return (place / "bundle" if (place / "bundle" / "model.safetensors").exists() else place) / NAME


def save_thresholds(folder: str | Path, key: KeyLike, point: Threshold, source: Source) -> Path:
    """Write an operating point; the other kind stays in the file when it belongs to the same model.

    Args:
        folder: a run, a bundle or any folder.
        key: the model.
        point: what was found.
        source: on what.

    Returns:
        The file.
    """
    path, model = thresholds_path(folder), _model(key)
    entries: dict[str, Entry | None] = {point.kind: Entry(point=point, source=source)}
    if path.exists():
        try:
            before = _read(path)
        except ProxemicsError:
            before = None  # damaged or of another version: written anew
        if before is not None and before.model == model:
            entries = {"verify": before.verify, "identify": before.identify, **entries}
    content = Thresholds(model=model, verify=entries.get("verify"), identify=entries.get("identify"))
    write_text(path, content.model_dump_json(indent=2, by_alias=True) + "\n")
    return path


def load_thresholds(folder: str | Path, key: KeyLike) -> Thresholds:
    """Read the thresholds of a model.

    Args:
        folder: a run, a bundle, a folder with ``thresholds.json``, or that file.
        key: the model whose scores are to be compared with them.

    Raises:
        EvaluationError: there are none, they are of a newer version, or they belong to another model, whose scores
            mean something else.
    """
    path = Path(folder) if Path(folder).suffix == ".json" else thresholds_path(folder)
    if not path.exists():
        raise EvaluationError(f"{path.parent} holds no {NAME}; run `proxemics calibrate` first.")
    found = _read(path)
    check_model(found, key, path)
    return found


def check_model(thresholds: Thresholds, key: KeyLike, path: Path) -> None:
    """Refuse thresholds of another model.

    Raises:
        EvaluationError: names both.
    """
    mine, theirs = thresholds.model, _model(key)
    if mine.model != theirs.model:
        raise EvaluationError(
            f"{path} belongs to model {mine.model[:12]} and the scores come from {theirs.model[:12]}, where a "
            "similarity means something else; calibrate this model."
        )
    if mine.preprocess != theirs.preprocess or mine.dim != theirs.dim:
        raise EvaluationError(
            f"{path} was calibrated with preprocessing {mine.preprocess or '(none)'} and vectors of length {mine.dim}, "
            f"and the scores come from {theirs.preprocess or '(none)'} and {theirs.dim}; calibrate anew."
        )


def _model(key: KeyLike) -> Model:
    return Model(model=key.model, preprocess=key.preprocess, dim=key.dim)


def _read(path: Path) -> Thresholds:
    raw = read_json(path)
    schema = raw.get("schema") if isinstance(raw, dict) else None
    if isinstance(schema, int) and schema > SCHEMA:
        raise EvaluationError(f"{path} is of format {schema}, which is newer than this version; update Proxemics.")
    try:
        return Thresholds.model_validate(raw)
    except ValidationError as error:
        where = ".".join(str(part) for part in error.errors()[0]["loc"])
        raise EvaluationError(f"{path} is damaged at {where or 'the top'}; run `proxemics calibrate` again.") from error
