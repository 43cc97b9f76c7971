"""Checksums of downloaded files, as authors and registries write them."""

from __future__ import annotations

import base64
import binascii
import hashlib
from pathlib import Path
from typing import NamedTuple

from proxemics.core.errors import DataError

_SIZES = {"md5": 32, "sha256": 64, "sha512": 128}


class Checksum(NamedTuple):
    """An algorithm (md5, sha256, sha512) and the digest in lower-case hex."""

    algorithm: str
    digest: str


def parse_integrity(text: str) -> Checksum:
    """Read the ``integrity`` field of npm, such as ``sha512-<base64>``.

    Raises:
        DataError: it is of another form or length.

    Example:
        >>> parse_integrity("sha256-47DEQpj8HBSa+/TImW+5JCeuQeRkm5NMpJWZG3hSuFU=").digest[:8]
        'e3b0c442'
    """
    algorithm, _, encoded = text.partition("-")
    try:
        digest = base64.b64decode(encoded, validate=True).hex()
    except binascii.Error as error:
        raise DataError(f"The integrity {text!r} is not base64.") from error
    if len(digest) != _SIZES.get(algorithm):
        raise DataError(f"The integrity {text!r} is not of the form md5-, sha256- or sha512- and base64.")
    return Checksum(algorithm, digest)


def digests(path: Path, algorithms: tuple[str, ...]) -> dict[str, str]:
    """Read a file once and return its digests in hex by algorithm."""
    hashers = {name: hashlib.new(name, usedforsecurity=name != "md5") for name in algorithms}
    with path.open("rb") as file:
        while block := file.read(1 << 20):
            for hasher in hashers.values():
                hasher.update(block)
    return {name: hasher.hexdigest() for name, hasher in hashers.items()}


def verify(path: Path, checksum: Checksum) -> None:
    """Compare a file with its checksum.

    Raises:
        DataError: they differ; the file is kept.
    """
    found = digests(path, (checksum.algorithm,))[checksum.algorithm]
    if found != checksum.digest.lower():
        raise DataError(
            f"{path.name} has the {checksum.algorithm.upper()} {found}, expected {checksum.digest}. It is damaged or "
            f"another file: delete {path} and fetch it again."
        )
