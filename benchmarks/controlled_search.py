"""The search for options of MSRCI that help against a nuisance shift, on the pictures of the controlled study.

    python benchmarks/controlled_search.py --data DATA --runs runs/controlled_search --workers 2

Runs of ``controlled.py`` with other variants, on seed 0, which is not among the reported ones: its test classes are
looked at to choose. The rows go to ``results/controlled_msrci.json``; with ``--table`` they go on to the page.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Sequence

import controlled
from _controlled_table import table
from _page import put_into
from _results import RESULTS, ROOT

NAME = "controlled_msrci"

WHOLE = "lambda_v: 1.0, lambda_a: 1.0, fraction: 1.0, ramp_epochs: 1"
SEARCH = {
    "none": [],
    "none_views_4": controlled.VARIANTS["none_views_4"],
    "strong": ["data.augmentation=strong"],
    "msrci_pixel": [f"methods.msrci={{layer: pixel, {WHOLE}}}"],
    "msrci_pixel_scale": [f"methods.msrci={{layer: pixel, mode: scale, sigma: 0.5, {WHOLE}}}"],
    "msrci_layer2_100": ["methods.msrci={layer: layer2, lambda_v: 100.0, fraction: 1.0, ramp_epochs: 1}"],
    "msrci_pixel_50": controlled.VARIANTS["msrci_pixel_50"],
    "msrci_layer2_scale": [f"methods.msrci={{layer: layer2, mode: scale, sigma: 0.5, {WHOLE}}}"],
    "msrci_pixel_means": [f"methods.msrci={{layer: pixel, eta: [1.0, 1.0, 1.0], {WHOLE}}}"],
}


def main(arguments: Sequence[str]) -> None:
    """Run the search, and print its table."""
    controlled.PROGRAM = "controlled_search.py"
    controlled.AGAINST.clear()  # all against one base: see the page for what that does not say
    controlled.VARIANTS.clear()
    controlled.VARIANTS.update(SEARCH)
    result = RESULTS / f"{NAME}.json"
    own = ["--seeds", "0", "--rho", "0.95", "--kind", "emoji", "--result", str(result)]
    controlled.main([*own, "--runs", str(ROOT / "runs" / "controlled_search"), *arguments])
    if "--table" in arguments:
        put_into(ROOT / "docs" / "evidence.md", NAME, table(json.loads(result.read_text()), list(SEARCH)))


if __name__ == "__main__":
    main(sys.argv[1:])
