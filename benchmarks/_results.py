"""The common schema of result files; see README.md beside this file."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Mapping, Sequence
from importlib.metadata import distributions, version
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
RESULTS = ROOT / "benchmarks" / "results"


def write_results(
    name: str,
    rows: Sequence[Mapping[str, Any]],
    *,
    packages: Sequence[str] = ("torch", "numpy"),
    folder: Path = RESULTS,
) -> Path:
    """Write ``rows`` to ``results/<name>.json`` and return the path.

    Args:
        name: file name without its suffix.
        rows: see README.md.
        packages: distributions whose versions matter to the numbers; the absent ones are left out.
        folder: where to write.
    """
    command = " ".join(["python", *(_relative(argument) for argument in sys.argv)])
    versions = {"python": sys.version.split()[0], **_versions(packages)}
    document = {
        "schema": 1,
        "command": command,
        "commit": _commit(),
        "versions": versions,
        "machine": _machine(),
        "rows": list(rows),
    }
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / f"{name}.json"
    path.write_text(json.dumps(document, indent=2, allow_nan=False) + "\n", encoding="utf-8")
    return path


def _relative(argument: str) -> str:
    path = Path(argument)
    return path.relative_to(ROOT).as_posix() if path.is_absolute() and path.is_relative_to(ROOT) else argument


def _versions(packages: Sequence[str]) -> dict[str, str]:
    installed = {distribution.name for distribution in distributions()}
    return {package: version(package) for package in packages if package in installed}


def _commit() -> str:
    """Return the short commit, with ``+`` behind it when files were changed since."""
    try:
        commit = _git("rev-parse", "--short", "HEAD")
        return commit + ("+" if _git("status", "--porcelain", "--", "src") else "")
    except (OSError, subprocess.CalledProcessError):
        return "unknown"


def _git(*arguments: str) -> str:
    done = subprocess.run(["git", *arguments], cwd=ROOT, check=True, capture_output=True, text=True)
    return done.stdout.strip()


def _machine() -> str:
    count = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    cores = f"{count} core" + ("s" if count != 1 else "")
    try:
        import torch
    except ImportError:
        return cores
    return f"{cores}, {torch.cuda.get_device_name(0) if torch.cuda.is_available() else 'no GPU'}"
