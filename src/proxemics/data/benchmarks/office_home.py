"""Office-Home: 65 everyday objects as art, clip art, product pictures and photographs."""

from __future__ import annotations

from pathlib import Path

import pandas as pd

from proxemics.core.errors import DataError
from proxemics.data.benchmarks import layout
from proxemics.data.benchmarks.domains import split_by_source
from proxemics.data.benchmarks.release import Expected, Part, Release, class_list

DOMAINS = ("Art", "Clipart", "Product", "Real World")
_COUNTS = {"Art": 2427, "Clipart": 4365, "Product": 4439, "Real World": 4357}
_OTHER_NAMES = ("RealWorld", "Real_World")
RELEASE = Release(
    name="office-home",
    title="Office-Home",
    needed=DOMAINS[:3],
    inner=("OfficeHomeDataset_10072016", "OfficeHome", "office_home"),
    where=(
        "Put the unpacked OfficeHomeDataset_10072016.zip there (folders Art, Clipart, Product and Real World); the "
        "authors share it on Google Drive, see hemanthdv.org/officeHomeDataset.html."
    ),
    licence="Non-commercial research and education.",
    expected=Expected({name: Part(count, 65) for name, count in _COUNTS.items()}, class_list("office_home")),
)


def load_office_home(
    root: str | Path, *, source: str | None = "Real World", expected: Expected | None = RELEASE.expected
) -> pd.DataFrame:
    """Read Office-Home with the split of :func:`proxemics.data.benchmarks.domains.split_by_source`.

    Args:
        root: the folder of the four domains, or the one that holds it.
        source: the training domain, or None for a split by class alone.
        expected: the numbers to hold it to; None for a subset.

    Returns:
        A checked table; the domain is ``Real World`` also when the folder is named ``RealWorld`` or ``Real_World``.

    Raises:
        DataError: a folder is missing, or the numbers differ.
    """
    folder = layout.locate(root, RELEASE)
    real = next((name for name in (DOMAINS[3], *_OTHER_NAMES) if (folder / name).is_dir()), None)
    if real is None:
        raise DataError(f"Office-Home is not complete in {folder}: missing Real World. {RELEASE.where}")
    rows = [
        (path, label, domain)
        for domain, place in zip(DOMAINS, (*DOMAINS[:3], real), strict=True)
        for label, path in layout.pictures_below(folder / place)
    ]
    frame = pd.DataFrame(rows, columns=["path", "label", "domain"])
    layout.check_names(frame["label"], expected, RELEASE)
    layout.check_parts(frame, "domain", expected, RELEASE)
    return layout.finish(split_by_source(frame, source, DOMAINS), RELEASE, folder)
