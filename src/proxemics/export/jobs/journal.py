"""What a job has done so far: a folder beside the output with finished parts, and a line for each in a journal.

A part counts when its line stands in the journal and its file is the one that the line describes. A process may die at
any moment: a part without a line, or a line cut short, is done again.
"""

from __future__ import annotations

import hashlib
import json
import os
import shutil
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any

import pyarrow as pa
import pyarrow.parquet as pq

from proxemics.core.errors import DataError, ProxemicsError
from proxemics.core.files import atomic_path, read_json, write_json
from proxemics.export.jobs.output import open_writer

_WORDS = {
    "model": "the model",
    "preprocess": "the preprocessing",
    "engine": "the engine",
    "precision": "the precision",
    "basis": "the ONNX file or the device",
    "runtime": "the version of the engine",
    "version": "the version of Proxemics",
}


@dataclass(frozen=True)
class Part:
    """A finished part.

    Attributes:
        rows: hash of the rows that it was made from.
        sha256: of its file.
        count: rows in its file.
        failures: id, path and reason of its unreadable pictures.
    """

    rows: str
    sha256: str
    count: int
    failures: list[tuple[str, str, str]]


class Journal:
    """The folder of a job; one process at a time may have it open.

    Args:
        folder: created when absent.

    Raises:
        DataError: another process works in it, or it is something else.
    """

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        if folder.exists() and not (folder / "lock").is_file():
            raise DataError(
                f"{folder} is in the way and was not made by `proxemics embed`; move it, or choose another --out."
            )
        try:
            folder.mkdir(parents=True, exist_ok=True)
            self._lock: IO[str] = (folder / "lock").open("a")
        except OSError as error:
            raise ProxemicsError(f"Cannot write {folder}: {error.strerror or error}. Choose another --out.") from error
        _take(self._lock, folder)
        self.done: dict[int, Part] = {}

    def recorded(self) -> dict[str, Any] | None:
        """Return what the unfinished job was started with, or None when there is none."""
        file = self.folder / "job.json"
        if not file.is_file():
            return None
        found = read_json(file)
        return found if isinstance(found, dict) else None

    def begin(self, job: Mapping[str, Any], *, restart: bool = False) -> None:
        """Go on with the job in the folder, or start one.

        Args:
            job: everything that decides the vectors but the pictures.
            restart: throw away what another job left.

        Raises:
            DataError: the folder holds the parts of another job; the message says what differs.
        """
        earlier = self.recorded()
        if earlier is not None and earlier != dict(job) and not restart:
            raise DataError(self._differs(earlier, job))
        if earlier != dict(job) or restart:
            self._clear()
            write_json(self.folder / "job.json", dict(job))
        self.done = self._read()

    def _differs(self, earlier: Mapping[str, Any], job: Mapping[str, Any]) -> str:
        names = [name for name in sorted({*earlier, *job}) if earlier.get(name) != job.get(name)]
        words = ", ".join(
            f"{_WORDS.get(name, name)} ({_short(earlier.get(name))}, now {_short(job.get(name))})" for name in names
        )
        return (
            f"{self.folder} holds an unfinished job that differs in {words}. Give its command again to finish it, add "
            "--restart to throw it away, or choose another --out."
        )

    def _clear(self) -> None:
        for path in self.folder.iterdir():
            if path.name != "lock":
                path.unlink()

    def _read(self) -> dict[int, Part]:
        found: dict[int, Part] = {}
        file = self.folder / "journal.jsonl"
        for line in file.read_text(encoding="utf-8", errors="replace").splitlines() if file.is_file() else []:
            record = _record(line)
            if record is not None:
                found[record[0]] = record[1]
        return {number: part for number, part in found.items() if self._is_whole(number, part)}

    def _is_whole(self, number: int, part: Part) -> bool:
        try:
            return hashlib.sha256(self.path(number).read_bytes()).hexdigest() == part.sha256
        except OSError:
            return False

    def path(self, number: int) -> Path:
        """Return the file of a part."""
        return self.folder / f"part-{number:07d}.parquet"

    def write(self, number: int, table: pa.Table, *, rows: str, failures: list[tuple[str, str, str]]) -> None:
        """Keep a finished part.

        Args:
            number: of the part.
            table: its rows.
            rows: hash of what it was made from.
            failures: id, path and reason of unreadable pictures.

        Raises:
            ProxemicsError: the disk is full; what was written before is kept.
        """
        with atomic_path(self.path(number)) as temporary:
            with open_writer(temporary, table.schema) as writer:
                writer.write_table(table)
            sha256 = hashlib.sha256(temporary.read_bytes()).hexdigest()
        record = {"part": number, "rows": rows, "sha256": sha256, "count": table.num_rows, "failures": failures}
        file = self.folder / "journal.jsonl"
        try:
            with file.open("ab+") as handle:
                if handle.tell() and not _ends_a_line(handle):
                    handle.write(b"\n")
                handle.write(json.dumps(record).encode() + b"\n")
                handle.flush()
                os.fsync(handle.fileno())
        except OSError as error:
            raise ProxemicsError(
                f"Cannot write {file}: {error.strerror or error}. Free some space and go on."
            ) from error
        self.done[number] = Part(rows, sha256, table.num_rows, failures)

    def read(self, number: int) -> pa.Table:
        """Return the rows of a finished part."""
        return pq.read_table(self.path(number))

    def is_empty(self) -> bool:
        """Whether no part was ever finished in the folder."""
        return not any(self.folder.glob("part-*.parquet"))

    def close(self) -> None:
        """Let other processes have the folder."""
        self._lock.close()

    def remove(self) -> None:
        """Delete the folder; the job is done."""
        shutil.rmtree(self.folder, ignore_errors=True)
        self.close()


def _record(line: str) -> tuple[int, Part] | None:
    """Read a line of the journal; None for one that was cut short by a kill."""
    try:
        record = json.loads(line)
        failures = [(str(a), str(b), str(c)) for a, b, c in record["failures"]]
        return int(record["part"]), Part(record["rows"], record["sha256"], int(record["count"]), failures)
    except (ValueError, KeyError, TypeError):
        return None


def _ends_a_line(handle: IO[bytes]) -> bool:
    handle.seek(-1, os.SEEK_END)
    return handle.read(1) == b"\n"


def _take(lock: IO[str], folder: Path) -> None:
    try:
        import fcntl
    except ModuleNotFoundError:  # Windows: two jobs at once in one folder are not noticed
        return
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        lock.close()
        raise DataError(f"Another process is writing {folder}. Wait for it, or choose another --out.") from None


def _short(value: object) -> str:
    text = str(value)
    return text[:12] if len(text) == 64 else text
