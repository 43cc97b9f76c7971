"""Archives from strangers."""

from __future__ import annotations

import errno
import gzip
import io
import random
import tarfile
import zipfile
from pathlib import Path

import pytest

from proxemics.core.errors import DataError
from proxemics.data.benchmarks import archives
from proxemics.data.benchmarks.archives import extract, is_archive


def make_zip(path: Path, files: dict[str, bytes], *, link: str = "") -> Path:
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive:
        for name, content in files.items():
            archive.writestr(name, content)
        if link:
            info = zipfile.ZipInfo(link)
            info.external_attr = 0o120777 << 16
            archive.writestr(info, "/etc")
    return path


def make_tar(path: Path, files: dict[str, bytes], *, special: tuple[str, bytes] | None = None) -> Path:
    with tarfile.open(path, "w:gz") as archive:
        for name, content in files.items():
            info = tarfile.TarInfo(name)
            info.size = len(content)
            archive.addfile(info, io.BytesIO(content))
        if special:
            info = tarfile.TarInfo(special[0])
            info.type, info.linkname = special[1], "../../outside"
            archive.addfile(info)
    return path


def everything(folder: Path) -> set[str]:
    return {path.relative_to(folder).as_posix() for path in folder.rglob("*") if path.is_file()}


@pytest.mark.parametrize("make", [make_zip, make_tar])
def test_files_land_in_the_folder(tmp_path: Path, make) -> None:
    archive = make(tmp_path / "a.bin", {"set/one.jpg": b"1", "./set/deep/two é.jpg": b"22", "readme": b""})
    assert extract(archive, tmp_path / "out") == 3
    assert everything(tmp_path / "out") == {"set/one.jpg", "set/deep/two é.jpg", "readme"}
    assert (tmp_path / "out/set/deep/two é.jpg").read_bytes() == b"22"
    assert extract(archive, tmp_path / "out") == 3  # again, over what is there


@pytest.mark.parametrize("make", [make_zip, make_tar])
@pytest.mark.parametrize(
    "name", ["../evil", "a/../../evil", "/evil", "..\\evil", "C:\\evil", "\\\\host\\share\\evil", "a/..\\..\\evil"]
)
def test_nothing_is_written_outside(tmp_path: Path, make, name: str) -> None:
    out = tmp_path / "deep/out"
    archive = make(tmp_path / "a.bin", {"good": b"1", name: b"evil"})
    with pytest.raises(DataError, match=r"would be written outside .*The archive is refused"):
        extract(archive, out)
    assert everything(tmp_path) == {"a.bin", "deep/out/good"}
    assert not Path("/evil").exists()


def test_links_and_devices_are_refused(tmp_path: Path) -> None:
    with pytest.raises(DataError, match="'door', a link or device"):
        extract(make_zip(tmp_path / "a.zip", {}, link="door"), tmp_path / "out")
    for kind in (tarfile.SYMTYPE, tarfile.LNKTYPE, tarfile.FIFOTYPE, tarfile.CHRTYPE):
        archive = make_tar(tmp_path / "a.tgz", {}, special=("door", kind))
        with pytest.raises(DataError, match="'door', a link or device"):
            extract(archive, tmp_path / "out")
    assert everything(tmp_path / "out") == set()


def test_a_link_that_lies_there_is_not_followed_outside(tmp_path: Path) -> None:
    (tmp_path / "out").mkdir()
    (tmp_path / "outside").mkdir()
    (tmp_path / "out/door").symlink_to(tmp_path / "outside")
    with pytest.raises(DataError, match="would be written outside"):
        extract(make_zip(tmp_path / "a.zip", {"door/evil": b"1"}), tmp_path / "out")
    assert everything(tmp_path / "outside") == set()


def test_limits_hold_for_what_really_comes(tmp_path: Path) -> None:
    bomb = make_zip(tmp_path / "a.zip", {"zeros": b"\0" * 5_000_000})
    assert bomb.stat().st_size < 10_000
    with pytest.raises(DataError, match="unpacks to more than 1,000,000 bytes"):
        extract(bomb, tmp_path / "out", max_bytes=1_000_000)
    many = make_zip(tmp_path / "b.zip", {str(i): b"" for i in range(20)})
    with pytest.raises(DataError, match="more than 10 files"):
        extract(many, tmp_path / "out", max_files=10)


def test_damage_is_told(tmp_path: Path) -> None:
    good = make_tar(tmp_path / "a.tgz", {"a": bytes(range(256)) * 4000})
    (tmp_path / "cut.tgz").write_bytes(good.read_bytes()[:-200])
    (tmp_path / "page.zip").write_text("<html>Not found</html>")
    zipped = bytearray(make_zip(tmp_path / "b.zip", {"a": bytes(range(256)) * 400}).read_bytes())
    zipped[60] ^= 255
    (tmp_path / "bad.zip").write_bytes(zipped)
    for name in ("cut.tgz", "page.zip", "bad.zip"):
        with pytest.raises(DataError, match=r"Delete it.* and fetch it again"):
            extract(tmp_path / name, tmp_path / "out")


@pytest.mark.parametrize("kind", ["gz", "bz2", "xz"])
@pytest.mark.parametrize("compressible", [False, True])
def test_damage_in_the_middle_is_seen(tmp_path: Path, kind: str, compressible: bool) -> None:
    """The checksum of a compressed tar archive stands at its end, behind the last file."""
    content = bytes(range(256)) * 4000 if compressible else random.Random(0).randbytes(300_000)
    good = tmp_path / f"a.tar.{kind}"
    with tarfile.open(good, f"w:{kind}") as archive:
        for number in range(3):
            info = tarfile.TarInfo(f"{number}.jpg")
            info.size = len(content)
            archive.addfile(info, io.BytesIO(content))
    assert extract(good, tmp_path / "good") == 3
    damaged = bytearray(good.read_bytes())
    middle = len(damaged) // 2
    damaged[middle : middle + 4] = bytes(255 - value for value in damaged[middle : middle + 4])
    good.write_bytes(damaged)
    with pytest.raises(DataError, match=r"Delete it.* and fetch it again"):
        extract(good, tmp_path / "bad")


def test_a_password_and_an_unknown_compression_are_no_damage(tmp_path: Path) -> None:
    archive = make_zip(tmp_path / "a.zip", {"a": b"1"})
    locked = bytearray(archive.read_bytes())
    for mark, place in ((b"PK\3\4", 6), (b"PK\1\2", 8)):
        locked[locked.index(mark) + place] |= 1
    (tmp_path / "locked.zip").write_bytes(locked)
    with pytest.raises(DataError, match=r"locked\.zip is locked with a password\. Unpack it by hand"):
        extract(tmp_path / "locked.zip", tmp_path / "out")
    odd = bytearray(archive.read_bytes())
    for mark, place in ((b"PK\3\4", 8), (b"PK\1\2", 10)):
        odd[odd.index(mark) + place] = 99
    (tmp_path / "odd.zip").write_bytes(odd)
    with pytest.raises(DataError, match=r"packed in a way that is not known here: .*Unpack it by hand into"):
        extract(tmp_path / "odd.zip", tmp_path / "out")


def test_a_full_disk_is_no_damage(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*_: object) -> int:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(archives, "_copy", full)
    with pytest.raises(OSError, match="No space left"):
        extract(make_tar(tmp_path / "a.tgz", {"a": b"1"}), tmp_path / "out")


def test_a_tar_archive_that_goes_on_for_long_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(archives, "_PADDING", 1 << 16)
    archive = make_tar(tmp_path / "a.tgz", {"a": b"1"})
    archive.write_bytes(gzip.compress(gzip.decompress(archive.read_bytes()) + bytes(1 << 20)))
    with pytest.raises(DataError, match="goes on for more than 65,536 bytes"):
        extract(archive, tmp_path / "out")


def test_archives_are_known_by_name() -> None:
    assert [is_archive(name) for name in ("a.ZIP", "a.tar.gz", "a.tgz", "a.txt", "a.mat")] == [True] * 3 + [False] * 2
