"""The facts that every result file carries, so that a number can be traced and measured again."""

from __future__ import annotations

import os
import platform
import shlex
import subprocess
import sys
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

import torch

PACKAGES = ("torch", "torchvision", "timm", "numpy", "pillow", "lightning-fabric", "scikit-learn", "simplejpeg")


def versions() -> dict[str, str]:
    """Return the versions of Python, Proxemics and the packages that can change a number."""
    found = {name: _version(name) for name in ("proxemics", *PACKAGES)}
    return {"python": platform.python_version(), **{name: one for name, one in found.items() if one is not None}}


def _version(name: str) -> str | None:
    try:
        return version(name)
    except PackageNotFoundError:
        return None


def machine() -> str:
    """Describe the machine in a few words, without its name.

    Example:
        >>> "cores" in machine()
        True
    """
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    gpu = torch.cuda.get_device_name(0) if torch.cuda.is_available() else "no GPU"
    return f"{cores} cores ({platform.machine()}), {gpu}"


def command() -> str:
    """Return the command line of this process, with the program's name instead of its path."""
    program = Path(sys.argv[0]).name if sys.argv and sys.argv[0] else "python"
    return shlex.join(["proxemics" if program in ("__main__.py", "proxemics") else program, *sys.argv[1:]])


def commit() -> str | None:
    """Return the commit of the source tree Proxemics runs from, or None when it is an installed package."""
    if "site-packages" in Path(__file__).parts:
        return None
    try:
        done = subprocess.run(
            ["git", "rev-parse", "HEAD"],  # noqa: S607 - whatever git the user has
            cwd=Path(__file__).parent,
            capture_output=True,
            text=True,
            timeout=5,
            check=False,
        )
    except (OSError, subprocess.TimeoutExpired):
        return None
    return done.stdout.strip() if done.returncode == 0 else None


def peak_memory_mb() -> float:
    """Return the largest resident size of this process so far, in MB."""
    import resource  # not on Windows

    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return round(peak / (1024 * 1024 if sys.platform == "darwin" else 1024), 1)
