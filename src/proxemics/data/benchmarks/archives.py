"""Unpacking zip and tar files from strangers: nothing is written outside the folder, and not more than is allowed."""

from __future__ import annotations

import lzma
import stat
import tarfile
import zipfile
import zlib
from collections.abc import Iterator
from pathlib import Path, PurePosixPath
from typing import IO, NamedTuple

from proxemics.core.errors import DataError

_BLOCK = 1 << 20
_PADDING = 1 << 26
"""Bytes that may follow the last member of a tar archive."""
_DAMAGE = (zipfile.BadZipFile, tarfile.TarError, zlib.error, lzma.LZMAError, EOFError)


class _Entry(NamedTuple):
    name: str
    is_folder: bool
    stream: IO[bytes] | None  # None for folders, and for what is neither a file nor a folder


def extract(archive: str | Path, folder: str | Path, *, max_bytes: int = 1 << 39, max_files: int = 5_000_000) -> int:
    """Unpack a zip, tar, tar.gz, tar.bz2 or tar.xz file.

    Names that are absolute or climb with ``..``, links of any kind, devices, and anything that would land outside the
    folder through a link that already lies there are refused; the bytes that really come are counted, not the sizes
    that the archive states.

    Args:
        archive: the file.
        folder: where to; created.
        max_bytes: refuse more unpacked bytes.
        max_files: refuse more files.

    Returns:
        The number of files written.

    Raises:
        DataError: as said, or the archive is damaged, of another kind, or locked with a password. Files written before
            stay; damage of a compressed tar archive may show only at its end.
        OSError: the disk is full, or the folder cannot be written.
    """
    source, target = Path(archive), Path(folder)
    target.mkdir(parents=True, exist_ok=True)
    left, count = max_bytes, 0
    try:
        for entry in _entries(source):
            place = _place(entry.name, target.resolve(), source)
            if entry.is_folder:
                place.mkdir(parents=True, exist_ok=True)
                continue
            if entry.stream is None:
                raise DataError(f"{source.name} holds {entry.name!r}, a link or device. Such archives are refused.")
            count += 1
            if count > max_files:
                raise DataError(f"{source.name} holds more than {max_files:,} files, the most that is allowed.")
            place.parent.mkdir(parents=True, exist_ok=True)
            left -= _copy(entry.stream, place, left, source, max_bytes)
    except _DAMAGE as error:
        raise _damaged(source, error) from error
    except NotImplementedError as error:  # zipfile: a compression, a cipher or a version that it does not know
        raise DataError(
            f"{source} is packed in a way that is not known here: {error}. Unpack it by hand into {target}."
        ) from error
    except OSError as error:
        if error.errno is not None:  # the system's; those of gzip and bz2 have no number
            raise
        raise _damaged(source, error) from error
    return count


def _damaged(source: Path, error: Exception) -> DataError:
    return DataError(
        f"{source} cannot be unpacked: {error}. Delete it, and what was unpacked from it, and fetch it again."
    )


def is_archive(name: str) -> bool:
    """Tell archives by their names."""
    return name.lower().endswith((".zip", ".tar", ".tgz", ".tar.gz", ".tar.bz2", ".tar.xz"))


def _entries(source: Path) -> Iterator[_Entry]:
    if zipfile.is_zipfile(source):
        with zipfile.ZipFile(source) as zipped:
            for info in zipped.infolist():
                kind = stat.S_IFMT(info.external_attr >> 16)
                if info.is_dir() or kind not in (0, stat.S_IFREG):
                    yield _Entry(info.filename, info.is_dir(), None)
                    continue
                if info.flag_bits & 1:
                    raise DataError(f"{source.name} is locked with a password. Unpack it by hand.")
                with zipped.open(info) as stream:
                    yield _Entry(info.filename, False, stream)
    elif tarfile.is_tarfile(source):
        with tarfile.open(source, "r:*") as tarred:
            for member in tarred:
                yield _Entry(member.name, member.isdir(), tarred.extractfile(member) if member.isreg() else None)
            _read_to_the_end(tarred, source)
    else:
        raise DataError(f"{source} is neither a zip nor a tar archive. Delete it and fetch it again.")


def _read_to_the_end(tarred: tarfile.TarFile, source: Path) -> None:
    """Read what follows the last member: only then does the compression compare its checksum."""
    left = _PADDING
    while tarred.fileobj is not None and (block := tarred.fileobj.read(_BLOCK)):
        left -= len(block)
        if left < 0:
            raise DataError(f"{source.name} goes on for more than {_PADDING:,} bytes after its last file.")


def _place(name: str, folder: Path, source: Path) -> Path:
    """Return the path of an entry, which lies in the folder whatever links are there."""
    parts = PurePosixPath(name.replace("\\", "/"))
    outside = parts.is_absolute() or ".." in parts.parts or any(":" in part for part in parts.parts) or "\0" in name
    place = folder.joinpath(*parts.parts) if not outside else folder
    if outside or not place.resolve().is_relative_to(folder):
        raise DataError(
            f"{source.name} holds {name!r}, which would be written outside {folder}. The archive is refused."
        )
    return place


def _copy(stream: IO[bytes], place: Path, left: int, source: Path, allowed: int) -> int:
    written = 0
    with place.open("wb") as file:
        while block := stream.read(_BLOCK):
            written += len(block)
            if written > left:
                raise DataError(f"{source.name} unpacks to more than {allowed:,} bytes, the most that is allowed.")
            file.write(block)
    return written
