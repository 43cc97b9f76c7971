"""CUB-200-Paintings: paintings of the 200 species of CUB, for testing under a real shift of domain."""

from __future__ import annotations

from pathlib import Path

import pandas as pd

from proxemics.data.benchmarks import layout
from proxemics.data.benchmarks.release import Expected, Part, Release, class_list

_NAMES = class_list("cub200")
RELEASE = Release(
    name="cub200-paintings",
    title="CUB-200-Paintings",
    needed=(_NAMES[0],),
    inner=("images", "CUB-200-Painting", "CUB-200-Painting/images", "CUB_200_Painting", "cub200_drawing"),
    where=(
        "Put one folder a species there, named as in CUB-200-2011 (001.Black_footed_Albatross, ...). There is no "
        "official address: ask the authors of "
        "'Progressive Adversarial Networks for Fine-Grained Domain Adaptation' (CVPR 2020)."
    ),
    licence="Pictures collected from the web by the authors; for research, no licence is stated.",
    expected=Expected({"painting": Part(3047, 200)}, _NAMES),
)


def load_cub_paintings(root: str | Path, *, expected: Expected | None = RELEASE.expected) -> pd.DataFrame:
    """Read CUB-200-Paintings; species 101-200 are the test classes, as in CUB-200-2011.

    Args:
        root: the folder of the 200 folders, or one above it.
        expected: the numbers to hold it to; None for a subset.

    Returns:
        A checked table whose ``domain`` is ``painting`` and whose labels are those of
        :func:`proxemics.data.benchmarks.cub.load_cub`, so that the two tables can be joined.

    Raises:
        DataError: a folder is missing, or the numbers differ.
    """
    folder = layout.locate(root, RELEASE)
    found = layout.pictures_below(folder)
    frame = pd.DataFrame({"path": [path for _, path in found], "label": [label for label, _ in found]})
    frame["domain"] = "painting"
    layout.check_names(frame["label"], expected, RELEASE)
    names = _NAMES if expected is None or expected.names is None else expected.names
    half = set(names[: (len(names) + 1) // 2])
    frame["split"] = ["train" if label in half else "test" for label in frame["label"]]
    layout.check_parts(frame, "domain", expected, RELEASE)
    return layout.finish(frame, RELEASE, folder)
