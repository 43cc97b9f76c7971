"""Downloads against a server on loopback: whole, broken, resumed, changed, damaged."""

from __future__ import annotations

import hashlib
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from proxemics.core.errors import DataError
from proxemics.data.benchmarks.checksums import Checksum, digests, parse_integrity
from proxemics.data.benchmarks.download import download

BODY = np.random.default_rng(0).bytes(1_000_000)
MD5 = Checksum("md5", hashlib.md5(BODY).hexdigest())


def left(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir())


def test_a_file_arrives_whole_and_verified(server: Any, tmp_path: Path) -> None:
    server.content["a.bin"] = BODY
    seen = []
    path = download(
        f"{server.address}/a.bin",
        tmp_path / "a.bin",
        checksum=MD5,
        progress=lambda now, total: seen.append((now, total)),
    )
    assert path.read_bytes() == BODY
    assert left(tmp_path) == ["a.bin"]
    assert seen[-1] == (len(BODY), len(BODY))
    assert download(f"{server.address}/a.bin", path, checksum=MD5) == path
    assert len(server.asked) == 1  # what is there is not fetched again


def test_a_broken_connection_goes_on_where_it_stopped(server: Any, tmp_path: Path) -> None:
    server.content["a.bin"] = BODY
    server.break_after, server.breaks = 300_000, 2
    path = download(f"{server.address}/a.bin", tmp_path / "a.bin", checksum=MD5, pause=0)
    assert path.read_bytes() == BODY
    assert server.asked == [None, "bytes=300000-", "bytes=600000-"]


def test_a_later_run_goes_on_too(server: Any, tmp_path: Path) -> None:
    server.content["a.bin"] = BODY
    server.break_after, server.breaks = 300_000, 1
    with pytest.raises(
        DataError, match=r"the connection broke. 300,000 bytes are kept in .*a.bin.part; run this again"
    ):
        download(f"{server.address}/a.bin", tmp_path / "a.bin", checksum=MD5, attempts=1)
    assert left(tmp_path) == ["a.bin.part", "a.bin.part.json"]
    download(f"{server.address}/a.bin", tmp_path / "a.bin", checksum=MD5, attempts=1)
    assert server.asked[-1] == "bytes=300000-"
    assert left(tmp_path) == ["a.bin"]


def test_a_file_that_changed_meanwhile_is_fetched_from_its_start(server: Any, tmp_path: Path) -> None:
    server.content["a.bin"] = b"old" * 200_000
    server.break_after, server.breaks = 300_000, 1
    with pytest.raises(DataError, match="the connection broke"):
        download(f"{server.address}/a.bin", tmp_path / "a.bin", attempts=1)
    server.content["a.bin"], server.tags["a.bin"] = BODY, '"two"'
    assert download(f"{server.address}/a.bin", tmp_path / "a.bin", attempts=1).read_bytes() == BODY


def test_a_server_without_ranges_starts_again(server: Any, tmp_path: Path) -> None:
    server.content["a.bin"], server.ranges = BODY, False
    server.break_after, server.breaks = 300_000, 1
    assert download(f"{server.address}/a.bin", tmp_path / "a.bin", checksum=MD5, pause=0).read_bytes() == BODY


def test_bytes_of_unknown_origin_are_not_trusted(server: Any, tmp_path: Path) -> None:
    server.content["a.bin"] = BODY
    (tmp_path / "a.bin.part").write_bytes(b"junk" * 10)
    assert download(f"{server.address}/a.bin", tmp_path / "a.bin", pause=0).read_bytes() == BODY
    server.content["b.bin"] = b"short"
    (tmp_path / "b.bin.part").write_bytes(b"much longer than the file")
    (tmp_path / "b.bin.part.json").write_text('{"tag": "\\"one\\""}')
    assert download(f"{server.address}/b.bin", tmp_path / "b.bin", pause=0).read_bytes() == b"short"


def test_a_wrong_checksum_leaves_nothing(server: Any, tmp_path: Path) -> None:
    server.content["a.bin"] = BODY[:-1] + b"?"
    with pytest.raises(DataError, match=rf"has the MD5 .*, expected {MD5.digest}. The fetched file was removed"):
        download(f"{server.address}/a.bin", tmp_path / "a.bin", checksum=MD5)
    assert left(tmp_path) == []
    (tmp_path / "a.bin").write_bytes(b"put there by hand")
    with pytest.raises(DataError, match=r"damaged or another file: delete .*a.bin and fetch"):
        download(f"{server.address}/a.bin", tmp_path / "a.bin", checksum=MD5)
    assert left(tmp_path) == ["a.bin"]  # the user's own file is kept


def test_refusals_are_told(server: Any, tmp_path: Path) -> None:
    with pytest.raises(DataError, match=r"answers 404 .*put the file into .* by hand"):
        download(f"{server.address}/none.bin", tmp_path / "none.bin")
    assert len(server.asked) == 1  # no second try
    server.status = 503
    with pytest.raises(DataError, match=r"in 2 tries: the server answers 503"):
        download(f"{server.address}/none.bin", tmp_path / "none.bin", attempts=2, pause=0)
    for url in ("file:///etc/passwd", "ftp://host/a.zip"):
        with pytest.raises(DataError, match="only http and https"):
            download(url, tmp_path / "a")
    with pytest.raises(DataError, match=r"in 1 tries: .*refused"):
        download("http://127.0.0.1:9/a", tmp_path / "a", attempts=1)


def test_redirects_are_followed_on_the_web_and_nowhere_else(server: Any, tmp_path: Path) -> None:
    server.content["new.bin"] = BODY
    server.moved = {
        "old.bin": f"{server.address}/new.bin",
        "ftp.bin": "ftp://127.0.0.1/a",
        "disk.bin": "file:///etc/passwd",
    }
    assert download(f"{server.address}/old.bin", tmp_path / "old.bin").read_bytes() == BODY
    with pytest.raises(DataError, match=r"Cannot fetch ftp://127\.0\.0\.1/a: only http and https"):
        download(f"{server.address}/ftp.bin", tmp_path / "ftp.bin", attempts=1)
    with pytest.raises(DataError):
        download(f"{server.address}/disk.bin", tmp_path / "disk.bin", attempts=1)
    assert not (tmp_path / "disk.bin").exists()


def test_a_file_that_is_too_large_is_refused(server: Any, tmp_path: Path) -> None:
    server.content["a.bin"] = BODY
    with pytest.raises(DataError, match="1,000,000 bytes large; at most 1,000 are allowed"):
        download(f"{server.address}/a.bin", tmp_path / "a.bin", max_bytes=1000)


def test_integrity_of_npm(tmp_path: Path) -> None:
    (tmp_path / "a").write_bytes(b"")
    empty = parse_integrity("sha256-47DEQpj8HBSa+/TImW+5JCeuQeRkm5NMpJWZG3hSuFU=")
    assert digests(tmp_path / "a", ("sha256",))["sha256"] == empty.digest
    for text in ("sha512-47DEQpj8HBSa+/TImW+5JCeuQeRkm5NMpJWZG3hSuFU=", "crc32-AAAA", "sha256-%%%"):
        with pytest.raises(DataError, match="The integrity"):
            parse_integrity(text)
