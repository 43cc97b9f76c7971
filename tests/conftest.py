"""Shared fixtures and command-line options."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

SHARED_DATA = Path(__file__).resolve().parents[2] / "shared" / "data"


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--slow", action="store_true", help="also run the tests marked slow")


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    reasons = []
    if not config.getoption("--slow"):
        reasons.append(("slow", "slow; run with --slow"))
    if not torch.cuda.is_available():
        reasons.append(("gpu", "no GPU on this machine"))
    if not (SHARED_DATA / "index.csv").exists():
        reasons.append(("data", "the real pictures (../shared/data) are not on this machine"))
    for item in items:
        for marker, reason in reasons:
            if marker in item.keywords:
                item.add_marker(pytest.mark.skip(reason=reason))


@pytest.fixture(scope="session")
def shared_data() -> Path:
    """The folder of real pictures; use together with ``@pytest.mark.data``."""
    return SHARED_DATA
