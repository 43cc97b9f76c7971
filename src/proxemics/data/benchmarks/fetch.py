"""Getting a benchmark: its files are fetched where an official address is known, verified, unpacked and written down.

Nothing here runs on import; the only caller is the verb ``proxemics data fetch``.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Literal

from proxemics.core.errors import DataError
from proxemics.core.files import read_json, write_json
from proxemics.data.benchmarks.archives import extract, is_archive
from proxemics.data.benchmarks.checksums import Checksum, digests, verify
from proxemics.data.benchmarks.download import download
from proxemics.data.benchmarks.release import Download, Release

State = Literal["fetched", "found", "done before", "by hand"]
Report = Callable[[str, int, int | None], None]
"""Called with a file name, the bytes so far and the bytes in all, if known."""
RECORD = "fetched.json"


@dataclass(frozen=True)
class Fetched:
    """What became of one file.

    Attributes:
        file: its name.
        state: ``by hand``: there is no address that a program may use, and the file does not lie in the folder.
        verified: by whom the checksum is given that it was compared with; empty when none is known.
        sha256: of the file; empty when it is absent. Write it down: it tells you next time whether you have the same.
        bytes: of the file.
        url: where it came from.
    """

    file: str
    state: State
    verified: str = ""
    sha256: str = ""
    bytes: int = 0
    url: str = ""


def fetch_release(
    release: Release, folder: str | Path, *, report: Report | None = None, attempts: int = 4, pause: float = 2.0
) -> list[Fetched]:
    """Fetch, verify and unpack the files of a release; what was done before is not done again.

    Archives that already lie in the folder (put there by hand) are verified and unpacked as well. ``fetched.json`` in
    the folder records what was done; archives may be deleted after that.

    Args:
        release: which.
        folder: where to; created.
        report: see :data:`Report`.
        attempts: connections to try for each file.
        pause: seconds before the second try.

    Returns:
        One entry a file.

    Raises:
        DataError: the release has no files that can be fetched; or a download, checksum or archive fails.
    """
    if not release.downloads:
        raise DataError(f"{release.title} cannot be fetched. {release.where}")
    target = Path(folder).expanduser()
    target.mkdir(parents=True, exist_ok=True)
    record: dict[str, Any] = read_json(target / RECORD) if (target / RECORD).exists() else {}
    results = []
    for one in release.downloads:
        if one.file in record:
            results.append(Fetched(**{**record[one.file], "state": "done before"}))
            continue
        fetched = _fetch(one, target, report, attempts, pause)
        results.append(fetched)
        if fetched.state != "by hand":
            record[one.file] = asdict(fetched)
            write_json(target / RECORD, record)
    return results


def _fetch(one: Download, target: Path, report: Report | None, attempts: int, pause: float) -> Fetched:
    path = target / one.file
    checksum = None if one.md5 is None else Checksum("md5", one.md5)
    state: State = "found" if path.exists() else "fetched"
    if state == "found":
        if checksum is not None:
            verify(path, checksum)
    elif not one.url:
        return Fetched(one.file, "by hand")
    else:
        progress = None if report is None else lambda now, total: report(one.file, now, total)
        download(one.url, path, checksum=checksum, attempts=attempts, pause=pause, progress=progress)
    if one.unpack is not None and is_archive(one.file):
        extract(path, target / one.unpack)
    digest = digests(path, ("sha256",))["sha256"]
    return Fetched(one.file, state, one.source if checksum else "", digest, path.stat().st_size, one.url)
