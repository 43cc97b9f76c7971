"""A bundle where there is no torch: ONNX Runtime, Pillow and NumPy read, prepare and embed pictures.

The pixels are those of :meth:`proxemics.data.Preprocess.crop_exact`, by the same code; those of the fast engine, which
training and ``proxemics embed`` use, differ by one grey level now and then. ``proxemics export`` writes the bundles
that this module runs.

Example:
    model = proxemics.runtime.load("bundle")
    vectors = model.embed(["a.jpg", "b.png"])  # (2, D) float32, unit length
    similarity = vectors[0] @ vectors[1]
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import islice
from os import PathLike
from pathlib import Path
from typing import Any, TypeAlias

import numpy as np
from numpy.typing import NDArray
from PIL import Image

from proxemics.core.errors import ExportError, ImageError, ModelError, ProxemicsError, did_you_mean
from proxemics.core.files import read_json
from proxemics.runtime.exact import ExactPreprocess
from proxemics.runtime.layout import CERTAINTY, LABELS, ONNX, PREPROCESS, THRESHOLDS, read_about, read_checked
from proxemics.runtime.pictures import MAX_PIXELS, check_pixels, open_image, read_image

__all__ = ["ExactPreprocess", "Model", "Picture", "load", "open_session"]

Picture: TypeAlias = "str | PathLike[str] | bytes | Image.Image"
"""A path, an encoded picture, or an open one."""
BATCH = 32


@dataclass(frozen=True, eq=False)
class Model:
    """A bundle that is ready to embed. It may be used from several threads.

    Attributes:
        folder: the bundle.
        fingerprint: of the model, 64 hex digits.
        preprocess_fingerprint: of the preprocessing, 16 hex digits; an index stores both.
        precision: of the ONNX file.
        dim: length D of the embeddings.
        preprocess: from a picture to what the trunk sees.
        labels: names of the training classes in the order of their numbers, or None.
        thresholds: content of ``thresholds.json``, or None before ``proxemics calibrate``.
        certainty: content of ``certainty.json``: what the lengths mean; or None.
        max_pixels: larger pictures are refused.
        session: the ONNX Runtime session.
    """

    folder: Path
    fingerprint: str
    preprocess_fingerprint: str
    precision: str
    dim: int
    preprocess: ExactPreprocess
    labels: tuple[str, ...] | None
    thresholds: dict[str, Any] | None
    certainty: dict[str, Any] | None
    max_pixels: int
    session: Any

    def embed(self, pictures: Iterable[Picture], *, batch_size: int = BATCH) -> NDArray[np.float32]:
        """Embed pictures.

        Args:
            pictures: N paths, encoded pictures (bytes) or Pillow images, of any modes and sizes.
            batch_size: pictures at a time; changes memory and speed only.

        Returns:
            (N, D) float32 of unit length, row i for picture i.

        Raises:
            ImageError: a picture cannot be read; the message names it.
        """
        return self.embed_with_lengths(pictures, batch_size=batch_size)[0]

    def lengths(self, pictures: Iterable[Picture], *, batch_size: int = BATCH) -> NDArray[np.float32]:
        """Return (N,) float32 κ, the lengths before the embeddings were normalised; ``certainty`` says what they mean.

        Args:
            pictures: as in :meth:`embed`.
            batch_size: as in :meth:`embed`.
        """
        return self.embed_with_lengths(pictures, batch_size=batch_size)[1]

    def embed_with_lengths(
        self, pictures: Iterable[Picture], *, batch_size: int = BATCH
    ) -> tuple[NDArray[np.float32], NDArray[np.float32]]:
        """Return what :meth:`embed` and :meth:`lengths` return, from one pass."""
        if isinstance(pictures, (str, bytes, PathLike, Image.Image)):
            raise ImageError("embed takes a list of pictures; write [picture] for a single one.")
        if batch_size < 1:
            raise ImageError(f"batch_size={batch_size}; give 1 or more.")
        units, lengths = [np.empty((0, self.dim), np.float32)], [np.empty(0, np.float32)]
        rows = enumerate(pictures)
        while part := [self.prepare(one, name=f"picture {number}") for number, one in islice(rows, batch_size)]:
            unit, length = self.encode(np.stack(part))
            units.append(unit)
            lengths.append(length)
        return np.concatenate(units), np.concatenate(lengths)

    def prepare(self, picture: Picture, *, name: str = "the picture") -> NDArray[np.float32]:
        """Read one picture and bring it into the form that the trunk sees.

        Args:
            picture: a path, an encoded picture or a Pillow image.
            name: what to call bytes or an image in an error.

        Returns:
            (3, size, size) float32.

        Raises:
            ImageError: it cannot be read, or is over ``max_pixels``.
        """
        if isinstance(picture, Image.Image):
            check_pixels(name, picture.width, picture.height, self.max_pixels)
            return self.preprocess(picture)
        if isinstance(picture, bytes):
            return self.preprocess(open_image(picture, name=name, max_pixels=self.max_pixels))
        if not isinstance(picture, (str, PathLike)):
            raise ImageError(
                f"{name} is no path, bytes or Pillow image but {type(picture).__name__}; give one of these."
            )
        return self.preprocess(read_image(picture, max_pixels=self.max_pixels))

    def encode(self, pixels: NDArray[np.float32]) -> tuple[NDArray[np.float32], NDArray[np.float32]]:
        """Embed prepared pictures.

        Args:
            pixels: (B, 3, size, size) float32 from :meth:`prepare`; B may be 0.

        Returns:
            (B, D) float32 of unit length, and (B,) float32 lengths.

        Raises:
            ImageError: another shape.
        """
        side = self.preprocess.size
        if pixels.shape[1:] != (3, side, side):
            raise ImageError(f"Prepared pictures are (B, 3, {side}, {side}), not {pixels.shape}; use prepare(...).")
        if len(pixels) == 0:
            return np.empty((0, self.dim), np.float32), np.empty(0, np.float32)
        inputs = {"pixels": np.ascontiguousarray(pixels, dtype=np.float32)}
        units, lengths = self.session.run(["embedding", "length"], inputs)
        return units, lengths


def load(
    folder: str | PathLike[str],
    *,
    precision: str = "float32",
    threads: int | None = None,
    max_pixels: int = MAX_PIXELS,
    providers: Sequence[str] = ("CPUExecutionProvider",),
) -> Model:
    """Load an exported bundle; neither torch nor a network is needed.

    Args:
        folder: written by ``proxemics export``.
        precision: ``float32``, or another one that was exported; ``parity.json`` says what it costs.
        threads: of one call; None leaves it to ONNX Runtime, which takes one a core.
        max_pixels: larger pictures are refused, by their header.
        providers: execution providers of ONNX Runtime.

    Returns:
        The model.

    Raises:
        ModelError: the folder is no bundle or was changed, or has no ONNX file of this precision.
        ExportError: ONNX Runtime is not installed or cannot run the file.
    """
    path = Path(folder)
    about = read_about(path)
    if precision not in ONNX:
        raise ModelError(f"precision={precision!r}; there are {', '.join(ONNX)}.{did_you_mean(precision, ONNX)}")
    if not (path / ONNX[precision]).is_file():
        here = [name for name, file in ONNX.items() if (path / file).is_file()]
        raise ModelError(
            f"{path} has no {ONNX[precision]}; {'it has ' + ', '.join(here) if here else 'it has no ONNX file'}. "
            "Write it with `proxemics export`."
        )
    preprocess = ExactPreprocess.from_json(read_checked(path, PREPROCESS, about).decode())
    graph = read_checked(path, ONNX[precision], about)
    session = open_session(graph, name=str(path / ONNX[precision]), threads=threads, providers=providers)
    labels = json.loads(read_checked(path, LABELS, about))["names"] if (path / LABELS).is_file() else None
    return Model(
        folder=path,
        fingerprint=about["fingerprint"],
        preprocess_fingerprint=str(about.get("preprocess_fingerprint", "")),
        precision=precision,
        dim=int(session.get_outputs()[0].shape[1]),
        preprocess=preprocess,
        labels=None if labels is None else tuple(labels),
        thresholds=_read(path / THRESHOLDS),
        certainty=_read(path / CERTAINTY),
        max_pixels=max_pixels,
        session=session,
    )


def open_session(
    graph: bytes, *, name: str, threads: int | None = None, providers: Sequence[str] = ("CPUExecutionProvider",)
) -> Any:
    """Make an ONNX Runtime session.

    Args:
        graph: content of an ONNX file.
        name: of the file, for messages.
        threads: of one call; None for one a core.
        providers: execution providers.

    Raises:
        ExportError: ONNX Runtime is not installed or cannot run the graph.
    """
    try:
        import onnxruntime
    except ImportError as error:
        raise ExportError("Running a bundle without torch needs onnxruntime: pip install onnxruntime.") from error
    options = onnxruntime.SessionOptions()
    options.log_severity_level = 3
    if threads is not None:
        options.intra_op_num_threads = threads
    try:
        return onnxruntime.InferenceSession(graph, options, providers=list(providers))
    except Exception as error:  # its errors share no public base class
        raise ExportError(f"ONNX Runtime cannot run {name}: {' '.join(str(error).split())[:300]}") from error


def _read(path: Path) -> dict[str, Any] | None:
    if not path.is_file():
        return None
    content = read_json(path)
    if not isinstance(content, dict):
        raise ProxemicsError(f"{path} does not hold what it should; write it again.")
    return content
