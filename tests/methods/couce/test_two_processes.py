"""Two processes give the terms, gradients and buffers of one process on the joined batch."""

from __future__ import annotations

import importlib.util
from pathlib import Path
from types import ModuleType

import pytest
import torch
from safetensors.torch import load_file
from warm_processes import Warm

SCRIPT = Path(__file__).with_name("_two_processes.py")


def load_script() -> ModuleType:
    spec = importlib.util.spec_from_file_location("couce_two_processes", SCRIPT)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.fixture(scope="module")
def two_processes(warm: Warm, tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("two")
    warm.run_ranks([str(SCRIPT), str(folder)])
    return folder


@pytest.mark.parametrize("case", list(load_script().CASES))
def test_two_processes_equal_one_on_the_joined_batch(case: str, two_processes: Path) -> None:
    single = load_script().outcome(case)
    assert {"1.odba_backdoor", "1.msrci_invariance"} <= set(single)
    for number in (0, 1):
        found = load_file(two_processes / f"{case}-{number}.safetensors")
        assert set(found) == set(single)
        for key, value in single.items():
            close = float(value.abs().max()) * 2e-4 + 1e-6
            torch.testing.assert_close(found[key], value, rtol=1e-3, atol=close, msg=f"{case} {key} rank {number}")
