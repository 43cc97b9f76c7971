"""What lies in a zip or tar archive, without unpacking it: nothing is written, and nothing that is a trap is read.

Refused are names that are absolute or climb with ``..``, links and devices, two files of one name, and archives that
would unpack to far more than any pictures do.
"""

from __future__ import annotations

import bz2
import gzip
import lzma
import stat
import tarfile
import zipfile
import zlib
from collections.abc import Iterator
from pathlib import Path, PurePosixPath
from typing import IO, NamedTuple, cast

from proxemics.core.errors import DataError
from proxemics.export.jobs.places import Place

SUFFIXES = (".zip", ".tar", ".tgz", ".tar.gz", ".tar.bz2", ".tbz2", ".tar.xz", ".txz")
MAX_FILES = 20_000_000
FREE_BYTES, MAX_RATIO = 1 << 30, 200
"""Up to a gigabyte may be packed however tightly; beyond it, 200 bytes for one of the archive are the limit."""
_DAMAGE = (
    zipfile.BadZipFile,
    tarfile.TarError,
    zlib.error,
    gzip.BadGzipFile,
    lzma.LZMAError,
    EOFError,
    RuntimeError,
    NotImplementedError,
    ValueError,
)


class Member(NamedTuple):
    """A file of an archive: where it lies, and what tells that it is still the same."""

    place: Place
    stamp: str

    @property
    def name(self) -> str:
        """Its path inside the archive, with ``/`` and without ``./`` in front."""
        return str(PurePosixPath(self.place.name.replace("\\", "/")))


def is_archive(path: Path) -> bool:
    """Tell archives by their names.

    Example:
        >>> is_archive(Path("a.tar.GZ")), is_archive(Path("a.csv"))
        (True, False)
    """
    return path.name.lower().endswith(SUFFIXES)


def list_members(archive: Path) -> list[Member]:
    """List the files of an archive.

    Args:
        archive: a zip, tar, tar.gz, tar.bz2 or tar.xz file.

    Returns:
        Its files in the order in which they lie there.

    Raises:
        DataError: damaged, of another kind, or one of the traps named at the top of this file.
    """
    found: list[Member] = []
    names: set[str] = set()
    try:
        for member in _members(archive):
            _check_name(archive, member.place.name)
            name = member.name
            if name in names:
                raise DataError(
                    f"{archive.name} holds two files named {name!r}. Such archives are refused; pack it again."
                )
            if len(found) >= MAX_FILES:
                raise DataError(f"{archive.name} holds more than {MAX_FILES:,} files, the most that is allowed.")
            names.add(name)
            found.append(member)
    except _DAMAGE as error:
        reason = " ".join(str(error).split()) or type(error).__name__
        raise DataError(f"{archive} cannot be read: {reason}. Make the archive again.") from error
    return found


def _members(archive: Path) -> Iterator[Member]:
    if zipfile.is_zipfile(archive):
        return _zip_members(archive)
    if _starts_like_tar(archive):
        return _tar_members(archive)
    return _stream_members(archive)


def _zip_members(archive: Path) -> Iterator[Member]:
    total = 0
    with zipfile.ZipFile(archive) as zipped:
        for info in zipped.infolist():
            kind = stat.S_IFMT(info.external_attr >> 16)
            if info.is_dir():
                continue
            if kind not in (0, stat.S_IFREG):
                raise _link(archive, info.filename)
            total += info.file_size
            _check_ratio(archive, total)
            place = Place("zip", str(archive), info.filename, 0, info.file_size)
            yield Member(place, f"{info.CRC:08x}-{info.file_size}")


def _starts_like_tar(archive: Path) -> bool:
    """Whether it is a tar without compression; only its first block is looked at."""
    try:
        with tarfile.open(archive, "r:"):
            return True
    except tarfile.TarError:
        return False


def _tar_members(archive: Path) -> Iterator[Member]:
    stamp = _stamp(archive)
    with tarfile.open(archive, "r:") as tarred:
        for member in tarred:
            if not _is_file(archive, member):
                continue
            place = Place("tar", str(archive), member.name, member.offset_data, member.size)
            yield Member(place, f"{stamp}-{member.size}")


def _stream_members(archive: Path) -> Iterator[Member]:
    stamp = _stamp(archive)
    with _opened(archive) as plain:
        counted = _Counting(plain, archive)
        # tarfile asks for nothing but reading.
        with tarfile.open(fileobj=cast("IO[bytes]", counted), mode="r|") as tarred:
            for number, member in enumerate(tarred):
                if _is_file(archive, member):
                    place = Place("stream", str(archive), member.name, number, member.size)
                    yield Member(place, f"{stamp}-{member.size}")


def _opened(archive: Path) -> IO[bytes]:
    with archive.open("rb") as file:
        start = file.read(6)
    if start.startswith(b"\x1f\x8b"):
        return cast("IO[bytes]", gzip.open(archive, "rb"))
    if start.startswith(b"BZh"):
        return cast("IO[bytes]", bz2.open(archive, "rb"))
    if start.startswith(b"\xfd7zXZ"):
        return cast("IO[bytes]", lzma.open(archive, "rb"))
    raise DataError(f"{archive} is neither a zip nor a tar archive. Give one that is, or a folder.")


class _Counting:
    """Counts the bytes that come out of a compressed file, and stops when they are too many."""

    def __init__(self, stream: IO[bytes], archive: Path) -> None:
        self._stream, self._archive, self._total = stream, archive, 0

    def read(self, size: int = -1) -> bytes:
        block = self._stream.read(size)
        self._total += len(block)
        _check_ratio(self._archive, self._total)
        return block


def _is_file(archive: Path, member: tarfile.TarInfo) -> bool:
    if member.isdir():
        return False
    if not member.isreg() or member.issparse():
        raise _link(archive, member.name)
    return True


def _link(archive: Path, name: str) -> DataError:
    return DataError(
        f"{archive.name} holds {name!r}, a link, device or file with holes. Such archives are refused; pack the files "
        "that the links point to (tar -h)."
    )


def _check_name(archive: Path, name: str) -> None:
    parts = PurePosixPath(name.replace("\\", "/"))
    if (
        parts.is_absolute()
        or ".." in parts.parts
        or "\0" in name
        or any(part.endswith(":") for part in parts.parts[:1])
    ):
        raise DataError(
            f"{archive.name} holds {name!r}, which would lie outside the folder it is unpacked to. The archive is "
            "refused."
        )


def _check_ratio(archive: Path, total: int) -> None:
    if total > FREE_BYTES and total > MAX_RATIO * archive.stat().st_size:
        raise DataError(
            f"{archive.name} has {archive.stat().st_size:,} bytes and unpacks to more than {total:,}, which no "
            "pictures do. The archive is refused."
        )


def _stamp(archive: Path) -> str:
    found = archive.stat()
    return f"{found.st_size}-{found.st_mtime_ns}"
