"""Files are replaced whole or not at all."""

from __future__ import annotations

import errno
import os
from pathlib import Path

import pytest

from proxemics.core.errors import ProxemicsError
from proxemics.core.files import atomic_path, read_json, write_json, write_text


def _fail_in_the_middle(path: Path, error: Exception) -> None:
    with atomic_path(path) as temporary:
        temporary.write_text("half")
        raise error


def test_failure_inside_the_block_keeps_the_old_file(tmp_path: Path) -> None:
    write_text(tmp_path / "a.txt", "old")
    with pytest.raises(RuntimeError):
        _fail_in_the_middle(tmp_path / "a.txt", RuntimeError())
    assert (tmp_path / "a.txt").read_text() == "old"
    assert list(tmp_path.iterdir()) == [tmp_path / "a.txt"]


def test_full_disk_is_one_clear_line_and_keeps_the_old_file(tmp_path: Path) -> None:
    write_text(tmp_path / "a.txt", "old")
    with pytest.raises(ProxemicsError, match=r"Cannot write .*a\.txt: No space left on device\. Free some space"):
        _fail_in_the_middle(tmp_path / "a.txt", OSError(errno.ENOSPC, os.strerror(errno.ENOSPC)))
    assert (tmp_path / "a.txt").read_text() == "old"


def test_a_file_where_a_folder_should_be(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(ProxemicsError, match="Cannot write"):
        write_text(tmp_path / "file" / "a.txt", "x")


def test_json_round_trip_and_refusals(tmp_path: Path) -> None:
    write_json(tmp_path / "a.json", {"é": [1, 2.5]})
    assert read_json(tmp_path / "a.json") == {"é": [1, 2.5]}
    with pytest.raises(ValueError, match="not JSON compliant"):
        write_json(tmp_path / "a.json", float("nan"))
    assert read_json(tmp_path / "a.json") == {"é": [1, 2.5]}
    (tmp_path / "bad.json").write_text("{")
    with pytest.raises(ProxemicsError, match="not valid JSON"):
        read_json(tmp_path / "bad.json")
    with pytest.raises(ProxemicsError, match="No file"):
        read_json(tmp_path / "absent.json")


def test_written_files_follow_the_umask(tmp_path: Path) -> None:
    write_text(tmp_path / "a.txt", "x")
    mask = os.umask(0)
    os.umask(mask)
    assert (tmp_path / "a.txt").stat().st_mode & 0o777 == 0o666 & ~mask
