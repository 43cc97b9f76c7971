"""A whole release from a server on loopback."""

from __future__ import annotations

import hashlib
import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from proxemics.core.errors import DataError
from proxemics.data.benchmarks import BENCHMARKS
from proxemics.data.benchmarks.cub import RELEASE, load_cub
from proxemics.data.benchmarks.fetch import fetch_release
from proxemics.data.benchmarks.release import Download


@pytest.fixture
def packed(trees: Any, server: Any, tmp_path: Path) -> tuple[Any, Any]:
    """CUB's release with its address on loopback, and the numbers of the tiny tree in it."""
    import tarfile

    expected = trees["cub200"](tmp_path / "made")
    with tarfile.open(tmp_path / "cub.tgz", "w:gz") as archive:
        archive.add(tmp_path / "made/CUB_200_2011", "CUB_200_2011")
    body = (tmp_path / "cub.tgz").read_bytes()
    server.content["CUB_200_2011.tgz"] = body
    file = replace(RELEASE.downloads[0], url=f"{server.address}/CUB_200_2011.tgz", md5=hashlib.md5(body).hexdigest())
    return replace(RELEASE, downloads=(file,)), expected


def test_fetched_files_make_a_set_that_passes(packed: Any, server: Any, tmp_path: Path) -> None:
    release, expected = packed
    server.break_after, server.breaks = 200, 1
    seen = []
    (one,) = fetch_release(release, tmp_path / "to", report=lambda *now: seen.append(now), pause=0)
    assert (one.state, one.verified, one.file) == ("fetched", "users", "CUB_200_2011.tgz")
    assert one.sha256 == hashlib.sha256(server.content["CUB_200_2011.tgz"]).hexdigest()
    assert len(load_cub(tmp_path / "to", expected=expected)) == 8
    assert seen[-1][0] == "CUB_200_2011.tgz"
    assert json.loads((tmp_path / "to/fetched.json").read_text())["CUB_200_2011.tgz"]["sha256"] == one.sha256

    (tmp_path / "to/CUB_200_2011.tgz").unlink()  # to save space
    asked = len(server.asked)
    (again,) = fetch_release(release, tmp_path / "to")
    assert (again.state, again.sha256, len(server.asked)) == ("done before", one.sha256, asked)


def test_a_damaged_archive_is_not_unpacked(packed: Any, server: Any, tmp_path: Path) -> None:
    release, _ = packed
    server.content["CUB_200_2011.tgz"] += b"!"
    with pytest.raises(DataError, match="The fetched file was removed"):
        fetch_release(release, tmp_path / "to")
    assert list((tmp_path / "to").iterdir()) == []


def test_files_put_there_by_hand_are_verified_and_unpacked(packed: Any, server: Any, tmp_path: Path) -> None:
    release, expected = packed
    body = server.content["CUB_200_2011.tgz"]
    by_hand = replace(release, downloads=(replace(release.downloads[0], url=""), Download("list.txt", unpack=None)))
    to = tmp_path / "to"
    assert [one.state for one in fetch_release(by_hand, to)] == ["by hand", "by hand"]
    (to / "CUB_200_2011.tgz").write_bytes(body[:-1])
    with pytest.raises(DataError, match="damaged or another file"):
        fetch_release(by_hand, to)
    (to / "CUB_200_2011.tgz").write_bytes(body)
    (to / "list.txt").write_text("anything")
    archive, text = fetch_release(by_hand, to)
    assert (archive.state, archive.verified, text.state, text.verified) == ("found", "users", "found", "")
    assert len(load_cub(to, expected=expected)) == 8
    assert server.asked == []


def test_a_set_without_files_says_whom_to_ask(tmp_path: Path) -> None:
    with pytest.raises(DataError, match=r"cannot be fetched\. .*ask the authors"):
        fetch_release(BENCHMARKS["cub200-paintings"].release, tmp_path)


def test_addresses_and_checksums_are_well_formed() -> None:
    for one in BENCHMARKS.values():
        for file in one.release.downloads:
            assert file.url == "" or file.url.startswith(("https://", "http://"))
            assert (file.md5 is None) == (file.source == "")
            assert file.md5 is None or (len(file.md5) == 32 and int(file.md5, 16))
