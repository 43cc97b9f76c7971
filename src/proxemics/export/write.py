"""``export``: everything that another machine needs to use a model, in one folder."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from proxemics.core.errors import ConfigError
from proxemics.core.files import write_json, write_text
from proxemics.export.card import write_card
from proxemics.export.certainty import certainty_facts
from proxemics.export.licence import find_licences
from proxemics.export.onnx import import_onnx
from proxemics.export.sample import Pictures, choose_pictures
from proxemics.export.source import open_source
from proxemics.export.variants import Precisions, choose_precisions, without_onnx, write_variants
from proxemics.models.bundle import copy_added, save_bundle
from proxemics.runtime.layout import CARD, CERTAINTY, PARITY, PROBE
from proxemics.training.log import Reporter, Silent

IMAGES = 1000
"""Test pictures that Recall@1 is measured on, at most, unless asked otherwise."""


def export(
    run: str | Path,
    out: str | Path,
    *,
    onnx: bool = True,
    precision: Sequence[str] | None = None,
    source: str | None = None,
    where: Mapping[str, str] | None = None,
    images: int = IMAGES,
    licence: str | None = None,
    reporter: Reporter | None = None,
) -> dict[str, Any]:
    """Write a bundle for other machines.

    Args:
        run: a run folder, or a bundle folder.
        out: the folder to write: absent, empty, or an older bundle, which is replaced whole. Thresholds and enrolled
            classes of the same model stay.
        onnx: also write ONNX files, compare them with torch and measure them.
        precision: ``float32``, ``float16``, ``int8``; None for all that can be written.
        source: pictures to calibrate and to measure on: a folder or a table; None for those of the run.
        where: filter on the rows of ``source``.
        images: test pictures to measure on, at most; 0 for all.
        licence: of this model, such as ``apache-2.0``.
        reporter: hears of progress.

    Returns:
        ``folder``, ``fingerprint``, ``files`` (name to bytes), ``parity`` (content of ``parity.json``), ``certainty``
        (whether lengths were trained) and ``licences``.

    Raises:
        ProxemicsError: no model, no pictures where they are needed, a trunk that ONNX cannot hold, or a folder of
            something else; what was there is untouched.
    """
    if not onnx and (precision is not None or source is not None):
        raise ConfigError("--precision and --data are about the ONNX files; leave out --no-onnx to have them.")
    if where and source is None:
        raise ConfigError("--where needs --data: it chooses among the rows of other pictures.")
    found, reporter = open_source(run), reporter or Silent()
    plan: tuple[Pictures, Precisions] | None = None
    if onnx:
        import_onnx()  # before any work
        pictures = choose_pictures(found, data=source, where=where, images=images)
        plan = pictures, choose_precisions(precision, pictures)
    licences = find_licences(found, licence)
    certainty = certainty_facts(found)
    parity = without_onnx()

    def more(folder: Path) -> None:
        nonlocal parity
        if plan is not None:
            parity = write_variants(found.embedder, folder, plan[1], plan[0], reporter)
        write_json(folder / PARITY, parity)
        write_json(folder / CERTAINTY, certainty)
        if found.probe is not None:
            write_json(folder / PROBE, found.probe)
        write_text(folder / CARD, write_card(found, licences, certainty, parity))
        copy_added(found.bundle, folder)

    labels = None if found.labels is None else found.labels.names
    target = save_bundle(found.embedder, out, labels=labels, more=more)
    return {
        "folder": str(target),
        "fingerprint": found.embedder.fingerprint(),
        "files": _sizes(target),
        "parity": parity,
        "certainty": certainty["trained"],
        "licences": licences._asdict(),
    }


def _sizes(folder: Path) -> dict[str, int]:
    files = sorted(path for path in folder.rglob("*") if path.is_file())
    return {path.relative_to(folder).as_posix(): path.stat().st_size for path in files}
