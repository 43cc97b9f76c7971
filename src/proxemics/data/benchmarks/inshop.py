"""In-Shop Clothes Retrieval (DeepFashion): train, query and gallery come from the official list."""

from __future__ import annotations

from pathlib import Path

import pandas as pd

from proxemics.core.errors import DataError
from proxemics.data.benchmarks import layout
from proxemics.data.benchmarks.release import Download, Expected, Part, Release

RELEASE = Release(
    name="inshop",
    title="In-Shop Clothes Retrieval",
    needed=("Eval/list_eval_partition.txt",),
    inner=("In-shop Clothes Retrieval Benchmark", "In-shop", "inshop"),
    where=(
        "Put Eval/list_eval_partition.txt and the unpacked Img/img.zip (so that Img/img/WOMEN/... exists) there; the "
        "authors give access at mmlab.ie.cuhk.edu.hk/projects/DeepFashion/InShopRetrieval.html."
    ),
    licence="Non-commercial research, under the agreement of the DeepFashion authors.",
    expected=Expected({"train": Part(25882, 3997), "query": Part(14218, 3985), "gallery": Part(12612, 3985)}),
    downloads=(Download("img.zip", unpack="Img"),),
)


def load_inshop(root: str | Path, *, expected: Expected | None = RELEASE.expected) -> pd.DataFrame:
    """Read In-Shop; query and gallery are different sets, so set ``evaluation.protocol: query_gallery``.

    Args:
        root: the folder with ``Eval`` and ``Img``.
        expected: the numbers to hold it to; None for a subset.

    Returns:
        A checked table: ``label`` is the item (``id_00000001``), ``role`` is ``query`` or ``gallery`` for the test
        pictures and empty for training, ``domain`` is empty.

    Raises:
        DataError: a file is missing, the parts overlap, a query's item is not in the gallery, or the numbers differ.
    """
    folder = layout.locate(root, RELEASE)
    path = folder / "Eval/list_eval_partition.txt"
    lines = layout.read_fields(path, 3, skip=2)
    stated = layout.read_lines(path)[0]
    if not stated.isdigit() or int(stated) != len(lines):
        raise DataError(f"{path}: the first line says {stated} pictures and {len(lines)} follow. Copy the file again.")
    pictures = folder / "Img" if (folder / "Img" / "img").is_dir() else folder
    rows = []
    for picture, item, part in lines:
        if part not in ("train", "query", "gallery"):
            raise DataError(f"{path}: the status {part!r} of {picture} is not train, query or gallery.")
        split, role = ("train", "") if part == "train" else ("test", part)
        rows.append((str(pictures / picture), item, "", split, role, part))
    frame = pd.DataFrame(rows, columns=["path", "label", "domain", "split", "role", "part"])
    layout.check_disjoint(frame, RELEASE)
    _check_roles(frame)
    layout.check_parts(frame, "part", expected, RELEASE)
    layout.check_files(frame["path"], RELEASE)
    return layout.finish(frame.drop(columns="part"), RELEASE, folder)


def _check_roles(frame: pd.DataFrame) -> None:
    query, gallery = (frame[frame["role"] == role] for role in ("query", "gallery"))
    both = sorted(set(query["path"]) & set(gallery["path"]))
    if both:
        raise DataError(f"In-Shop Clothes Retrieval: {len(both)} pictures are query and gallery, first {both[0]}.")
    absent = sorted(set(query["label"]) - set(gallery["label"]))
    if absent:
        raise DataError(
            f"In-Shop Clothes Retrieval: {len(absent)} query items have no gallery picture, first {absent[0]}. Copy "
            "the official list again."
        )
