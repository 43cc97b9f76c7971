"""Archives from strangers."""

from __future__ import annotations

import io
import tarfile
import zipfile
from pathlib import Path

import pytest

from proxemics.core.errors import DataError
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
        with pytest.raises(DataError, match="Delete it and fetch it again"):
            extract(tmp_path / name, tmp_path / "out")


def test_archives_are_known_by_name() -> None:
    assert [is_archive(name) for name in ("a.ZIP", "a.tar.gz", "a.tgz", "a.txt", "a.mat")] == [True] * 3 + [False] * 2
