"""DomainNet (cleaned): 345 classes as clip art, infographs, paintings, quick drawings, photographs and sketches."""

from __future__ import annotations

from pathlib import Path
from typing import Literal

import pandas as pd

from proxemics.core.errors import DataError
from proxemics.data.benchmarks import layout
from proxemics.data.benchmarks.domains import split_by_source
from proxemics.data.benchmarks.release import Download, Expected, Part, Release, class_list

DOMAINS = ("clipart", "infograph", "painting", "quickdraw", "real", "sketch")
# Lines of <domain>_train.txt and <domain>_test.txt together.
_COUNTS = dict(zip(DOMAINS, (48129, 51605, 72266, 172500, 172947, 69128), strict=True))
_ADDRESS = "http://csr.bu.edu/ftp/visda/2019/multi-source"
_CLEANED = {"clipart", "painting"}
# The 45 test classes of universal cross-domain retrieval, as published.
UCDR_TEST = (
    *("airplane", "asparagus", "axe", "bandage", "beard", "blueberry", "boomerang", "bracelet", "bread"),
    *("cake", "campfire", "cloud", "dolphin", "donut", "elbow", "finger", "giraffe", "grapes"),
    *("hamburger", "helicopter", "hurricane", "ladder", "lightning", "marker", "megaphone", "moon", "motorbike"),
    *("octopus", "onion", "parrot", "peanut", "peas", "rainbow", "rollerskates", "sailboat", "scissors"),
    *("skateboard", "skyscraper", "snowman", "suitcase", "sweater", "tooth", "tornado", "watermelon", "windmill"),
)
RELEASE = Release(
    name="domainnet",
    title="DomainNet",
    needed=tuple(f"{domain}_{part}.txt" for domain in DOMAINS for part in ("train", "test")),
    inner=("DomainNet", "domainnet", "domain_net", "txt"),
    where=(
        "Put the six unpacked archives (clipart/, ..., sketch/; the cleaned ones of clipart and painting) and the "
        "twelve lists clipart_train.txt, ... there; `proxemics data fetch domainnet` gets them from ai.bu.edu/M3SDA."
    ),
    licence="Non-commercial research; the authors claim fair use of pictures from the web.",
    # Per domain only pictures are fixed: in painting a class can be absent from one list.
    expected=Expected({name: Part(count, 345) for name, count in _COUNTS.items()}, class_list("domainnet")),
    downloads=(
        *(
            Download(f"{name}.zip", f"{_ADDRESS}/{'groundtruth/' if name in _CLEANED else ''}{name}.zip")
            for name in DOMAINS
        ),
        *(
            Download(f"{name}_{part}.txt", f"{_ADDRESS}/domainnet/txt/{name}_{part}.txt", unpack=None)
            for name in DOMAINS
            for part in ("train", "test")
        ),
    ),
)
ClassSplit = Literal["half", "ucdr"]


def load_domainnet(
    root: str | Path,
    *,
    source: str | None = "real",
    class_split: ClassSplit = "half",
    expected: Expected | None = RELEASE.expected,
) -> pd.DataFrame:
    """Read DomainNet from its official lists.

    Args:
        root: the folder of the domains and the lists.
        source: the training domain, or None for a split by class alone.
        class_split: ``half``: the first half of the sorted names is seen; ``ucdr``: the 45 test classes of universal
            cross-domain retrieval (:data:`UCDR_TEST`) are unseen and all others seen.
        expected: the numbers to hold it to; None for a subset.

    Returns:
        A checked table; ``official`` is ``train`` or ``test``, the list that a picture comes from.

    Raises:
        DataError: a file is missing, class numbers do not count from 0, the lists overlap, or the numbers differ.
    """
    if class_split not in ("half", "ucdr"):
        raise DataError(f"Unknown class split {class_split!r}. Allowed are half and ucdr.")
    folder = layout.locate(root, RELEASE)
    names = None if expected is None else expected.names
    rows = []
    for domain in DOMAINS:
        for part in ("train", "test"):
            path = folder / f"{domain}_{part}.txt"
            lines = layout.read_fields(path, 2)
            numbers = layout.whole_numbers([number for _, number in lines], path.name)
            layout.check_numbers(numbers, first=0, count=345 if names is None else len(names), what=path.name)
            for (picture, _), number in zip(lines, numbers, strict=True):
                label = _label(picture, number, names, path)
                rows.append((str(folder / picture), label, domain, part))
    frame = pd.DataFrame(rows, columns=["path", "label", "domain", "official"])
    layout.check_names(frame["label"], expected, RELEASE)
    layout.check_disjoint(frame.assign(split=frame["official"]), RELEASE, column="path", what="path")
    _check_counts(frame, expected)
    layout.check_files(frame["path"], RELEASE)
    unseen = UCDR_TEST if class_split == "ucdr" else None
    return layout.finish(split_by_source(frame, source, DOMAINS, unseen=unseen), RELEASE, folder)


def _label(picture: str, number: int, names: tuple[str, ...] | None, path: Path) -> str:
    fields = picture.split("/")
    if len(fields) != 3:
        raise DataError(f"{path}: {picture!r} is not of the form domain/class/picture.")
    if names is not None and fields[1] in names and names[number] != fields[1]:
        raise DataError(f"{path}: {picture} has class number {number}, which is {names[number]}. Copy the list again.")
    return fields[1]


def _check_counts(frame: pd.DataFrame, expected: Expected | None) -> None:
    """Compare pictures a domain; that every class exists was checked over all domains together."""
    if expected is None:
        return
    found = {name: frame[frame["domain"] == name] for name in expected.parts}
    loose = {
        name: Part(want.images, int(found[name]["label"].nunique())) for name, want in expected.parts.items()
    }  # fmt: skip
    layout.check_parts(frame, "domain", Expected(loose), RELEASE)
