"""All benchmarks by name."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import pandas as pd

from proxemics.core.errors import DataError, did_you_mean
from proxemics.data.benchmarks import (
    cars,
    cub,
    cub_paintings,
    domainnet,
    inaturalist,
    inshop,
    office_home,
    pacs,
    sop,
)
from proxemics.data.benchmarks.release import Release


class Benchmark(NamedTuple):
    """A release, its loader (``load(root, expected=...)``), and the source domain it can be told to train on."""

    release: Release
    load: Callable[..., pd.DataFrame]
    domains: tuple[str, ...] = ()


BENCHMARKS: dict[str, Benchmark] = {
    one.release.name: one
    for one in (
        Benchmark(cub.RELEASE, cub.load_cub),
        Benchmark(cub_paintings.RELEASE, cub_paintings.load_cub_paintings),
        Benchmark(cars.RELEASE, cars.load_cars),
        Benchmark(sop.RELEASE, sop.load_sop),
        Benchmark(inshop.RELEASE, inshop.load_inshop),
        Benchmark(pacs.RELEASE, pacs.load_pacs, pacs.DOMAINS),
        Benchmark(office_home.RELEASE, office_home.load_office_home, office_home.DOMAINS),
        Benchmark(domainnet.RELEASE, domainnet.load_domainnet, domainnet.DOMAINS),
        Benchmark(inaturalist.RELEASE, inaturalist.load_inaturalist),
    )
}


def find_benchmark(name: str) -> Benchmark:
    """Return a benchmark by name.

    Raises:
        DataError: there is none of this name.

    Example:
        >>> find_benchmark("cub200").release.title
        'CUB-200-2011'
    """
    if name not in BENCHMARKS:
        raise DataError(
            f"Unknown data set {name!r}.{did_you_mean(name, BENCHMARKS)} There are: {', '.join(BENCHMARKS)}."
        )
    return BENCHMARKS[name]
