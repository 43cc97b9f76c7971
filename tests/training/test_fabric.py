"""Lightning Fabric comes without torchmetrics, and torchmetrics is not harmed."""

from __future__ import annotations

import subprocess
import sys

import pytest

pytest.importorskip("torchmetrics", reason="without torchmetrics there is nothing to keep out")

AFTER = """
import sys
{before}
from proxemics.training.fabric import Fabric
print("torchmetrics.functional" in sys.modules)
from lightning_fabric.utilities.imports import _TORCHMETRICS_GREATER_EQUAL_1_0_0 as is_known
import torchmetrics
print(is_known, torchmetrics.MeanMetric.__name__, torchmetrics.__spec__ is not None)
"""


@pytest.mark.parametrize(("before", "loaded"), [("", False), ("import torchmetrics", True)])
def test_torchmetrics_is_known_and_loaded_only_by_others(before: str, loaded: bool) -> None:
    program = AFTER.format(before=before)
    ended = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert ended.stdout.split("\n")[:2] == [str(loaded), "True MeanMetric True"]


def test_a_broken_fabric_leaves_no_stand_in_behind() -> None:
    program = (
        "import sys; sys.modules['lightning_fabric'] = None\n"
        "try: import proxemics.training.fabric\n"
        "except ImportError: print('refused')\n"
        "print('torchmetrics' in sys.modules)"
    )
    ended = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert ended.stdout.split() == ["refused", "False"]
