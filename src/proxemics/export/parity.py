"""Whether an ONNX file gives the vectors of torch, at several batch sizes, and what its precision costs in Recall@1."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Mapping
from typing import Any, TypeAlias

import numpy as np
import torch
from numpy.typing import NDArray

from proxemics.core.errors import ExportError
from proxemics.core.seeds import numpy_generator
from proxemics.data.preprocess import Preprocess
from proxemics.evaluation.assess import Assessment, assess
from proxemics.evaluation.paired import class_sums, paired_bootstrap
from proxemics.export.sample import Pictures, pixel_batches
from proxemics.models.embedder import Embedder
from proxemics.runtime import open_session
from proxemics.training.log import Reporter

Encode: TypeAlias = Callable[[NDArray[np.float32]], tuple[NDArray[np.float32], NDArray[np.float32]]]
"""From prepared pictures (B, 3, S, S) to unit embeddings (B, D) and lengths (B,)."""
BATCHES = (1, 3, 17)
TOLERANCE = 1e-4
"""A float32 file is refused when a value of a unit embedding is further from torch's."""
TASK = "drift"


def torch_encoder(embedder: Embedder) -> Encode:
    """Return the model in torch, float32, on the CPU; the reference."""
    model = embedder.to("cpu", torch.float32).eval()

    def encode(pixels: NDArray[np.float32]) -> tuple[NDArray[np.float32], NDArray[np.float32]]:
        with torch.inference_mode():
            found = model.encode(torch.from_numpy(pixels))
        return found.unit.numpy(), torch.linalg.vector_norm(found.raw, dim=-1).numpy()

    return encode


def onnx_encoder(graph: bytes, name: str) -> Encode:
    """Return an ONNX graph in ONNX Runtime, with as many threads as torch has.

    Raises:
        ExportError: ONNX Runtime cannot run it.
    """
    session = open_session(graph, name=name, threads=torch.get_num_threads())

    def encode(pixels: NDArray[np.float32]) -> tuple[NDArray[np.float32], NDArray[np.float32]]:
        units, lengths = session.run(["embedding", "length"], {"pixels": pixels})
        return units, lengths

    return encode


def parity_pixels(pictures: Pictures, preprocess: Preprocess) -> tuple[NDArray[np.float32], str]:
    """Return the input of the comparison: real pictures where there are any, else noise.

    Returns:
        (17, 3, S, S) float32, and what it is.
    """
    count = max(BATCHES)
    if pictures.tested is not None and len(pictures.tested):
        rows = pictures.tested.iloc[:count]
        (found,) = pixel_batches(rows, preprocess, max_pixels=pictures.max_pixels, size=count)
        return np.resize(found, (count, *found.shape[1:])), f"{len(rows)} pictures"
    noise = numpy_generator(0, "parity").standard_normal((count, 3, preprocess.size, preprocess.size))
    return noise.astype(np.float32), "noise"


def compare(reference: Encode, other: Encode, pixels: NDArray[np.float32]) -> list[dict[str, float]]:
    """Compare two encoders at the batch sizes of :data:`BATCHES`.

    Args:
        reference: usually torch.
        other: what is compared with it.
        pixels: (17, 3, S, S) float32.

    Returns:
        For each size ``batch``, ``max_difference`` of a value of a unit embedding, ``min_cosine``, and
        ``max_length_difference``, relative.

    Raises:
        ExportError: a value is not finite.
    """
    found = []
    for size in BATCHES:
        (mine, length), (theirs, other_length) = reference(pixels[:size]), other(pixels[:size])
        if not (np.isfinite(theirs).all() and np.isfinite(other_length).all()):
            raise ExportError("it gives values that are not finite; leave this precision out.")
        found.append(
            {
                "batch": size,
                "max_difference": float(np.abs(mine - theirs).max()),
                "min_cosine": float(_cosines(mine, theirs).min()),
                "max_length_difference": float((np.abs(length - other_length) / np.maximum(length, 1e-12)).max()),
            }
        )
    return found


def measure_drift(
    reference: Encode, others: Mapping[str, Encode], pictures: Pictures, preprocess: Preprocess, reporter: Reporter
) -> tuple[dict[str, Any], dict[str, dict[str, Any]]]:
    """Measure Recall@1 of each encoder on the same pixels, and the difference to the reference query by query.

    Args:
        reference: torch.
        others: by precision.
        pictures: with ``tested``.
        preprocess: of the model.
        reporter: hears of progress.

    Returns:
        What was measured (``recall_at_1`` of torch, ``queries``, ``classes``, ``protocol``, ``pictures``), and for each
        precision ``recall_at_1``, ``drift`` (its difference to torch), ``interval`` (95 %, over classes; None where the
        protocol has several tasks), ``changed`` (share of queries whose answer turned right or wrong), ``min_cosine``
        and ``mean_cosine``.

    Raises:
        ImageError: a picture cannot be read.
        EvaluationError: the pictures cannot be searched, such as those of one class.
    """
    rows = pictures.tested
    if rows is None:
        raise ExportError("There are no pictures to measure with.")
    encoders = {"": reference, **others}
    parts: dict[str, list[NDArray[np.float32]]] = {name: [] for name in encoders}
    reporter.start(TASK, len(rows))
    for pixels in pixel_batches(rows, preprocess, max_pixels=pictures.max_pixels):
        for name, encode in encoders.items():
            parts[name].append(encode(pixels)[0])
        reporter.advance(TASK, len(pixels))
    reporter.finish(TASK)
    units = {name: np.concatenate(part) for name, part in parts.items()}
    update = {"recall_at": (1,), "clustering": False, "bootstrap": 0}
    evaluation = pictures.evaluation.model_copy(update=update)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # a collapsed model was reported when it was trained
        found = {name: assess(unit, rows, evaluation, intervals=False) for name, unit in units.items()}
    base = found.pop("")
    about = {
        "pictures": pictures.said,
        "queries": base.result.num_queries,
        "classes": int(rows["label"].nunique()),
        "protocol": evaluation.protocol,
        "recall_at_1": float(base.result["recall_at_1"]),
    }
    return about, {
        name: {**_difference(base, one), **_cosine_facts(units[""], units[name])} for name, one in found.items()
    }


def _difference(base: Assessment, other: Assessment) -> dict[str, Any]:
    before = np.asarray(base.result.per_query["recall_at_1"], np.float64)
    after = np.asarray(other.result.per_query["recall_at_1"], np.float64)
    known = ~np.isnan(before)
    interval = None
    if not base.tasks:
        paired = paired_bootstrap([class_sums(after, before, base.result.groups["class"])])
        interval = None if np.isnan(paired.low) else [paired.low, paired.high]
    return {
        "recall_at_1": float(other.result["recall_at_1"]),
        "drift": float(other.result["recall_at_1"] - base.result["recall_at_1"]),
        "interval": interval,
        "changed": float((before[known] != after[known]).mean()),
    }


def _cosine_facts(mine: NDArray[np.float32], theirs: NDArray[np.float32]) -> dict[str, float]:
    cosines = _cosines(mine, theirs)
    return {"min_cosine": float(cosines.min()), "mean_cosine": float(cosines.mean())}


def _cosines(mine: NDArray[np.float32], theirs: NDArray[np.float32]) -> NDArray[np.float64]:
    a, b = mine.astype(np.float64), theirs.astype(np.float64)
    norms = np.linalg.norm(a, axis=1) * np.linalg.norm(b, axis=1)
    cosines: NDArray[np.float64] = (a * b).sum(1) / np.maximum(norms, 1e-12)
    return np.minimum(cosines, 1.0)
