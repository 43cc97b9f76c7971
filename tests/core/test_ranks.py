"""Two gloo processes and one process on the joined batch agree, for every loss (user-pains 39, 40, 42, 44)."""

from __future__ import annotations

import importlib.util
import os
import subprocess
import sys
from pathlib import Path
from types import ModuleType

import pytest
import torch
from safetensors.torch import load_file
from warm_processes import Warm

from proxemics.core.ranks import gather_rows
from proxemics.losses.build import LOSSES

SCRIPT = Path(__file__).with_name("_two_processes.py")


def load_script() -> ModuleType:
    spec = importlib.util.spec_from_file_location("two_processes", SCRIPT)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.fixture(scope="module")
def two_processes(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Under torchrun itself; the other tests of two processes give warm ones its environment."""
    folder = tmp_path_factory.mktemp("two")
    line = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node=2", str(SCRIPT)]
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    done = subprocess.run([*line, str(folder)], capture_output=True, text=True, env=environment, timeout=240)
    assert done.returncode == 0, done.stderr[-2000:]
    return folder


@pytest.mark.parametrize("name", list(LOSSES))
def test_two_processes_equal_one_on_the_joined_batch(name: str, two_processes: Path) -> None:
    single = load_script().gradients(name)
    assert any(float(value.abs().max()) > 1e-6 for key, value in single.items() if key != "value")
    for number in (0, 1):
        found = load_file(two_processes / f"{name}-{number}.safetensors")
        assert set(found) == set(single)
        for key, value in single.items():
            # Relative to the largest entry: Potential Field's gradients are in the thousands and partly cancel.
            close = float(value.abs().max()) * 1e-5 + 1e-8
            torch.testing.assert_close(found[key], value, rtol=1e-5, atol=close, msg=f"{name} {key} rank {number}")


def test_one_process_launched_as_distributed_works(warm: Warm, tmp_path: Path) -> None:
    warm.run_ranks([str(SCRIPT), str(tmp_path)], count=1)


def test_without_processes_rows_are_untouched() -> None:
    rows = torch.randn(3, 2, requires_grad=True)
    assert gather_rows(rows) is rows
