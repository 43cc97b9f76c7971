"""Zip and tar archives: read like the folder that was packed, and traps refused."""

from __future__ import annotations

import io
import os
import stat
import subprocess
import tarfile
import zipfile
from collections.abc import Callable
from pathlib import Path

import pytest

from proxemics.core.errors import DataError, ImageError
from proxemics.export.jobs import archives
from proxemics.export.jobs.archives import list_members
from proxemics.export.jobs.batches import Batch
from proxemics.export.jobs.local import with_stream
from proxemics.export.jobs.pictures import open_pictures
from proxemics.export.jobs.places import PlaceReader, stream_bytes

Pack = Callable[..., Path]
KINDS = ("zip", "tar", "tar.gz", "tar.bz2", "tar.xz")


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("around", [False, True])
def test_an_archive_is_read_as_its_folder(photos: Path, pack: Pack, kind: str, around: bool) -> None:
    wanted = open_pictures(photos)
    found = open_pictures(pack(photos, kind, around=around))
    front = "photos/" if around else ""
    assert found.frame["id"].to_list() == [front + one for one in wanted.frame["id"]]
    assert found.frame["label"].to_list() == wanted.frame["label"].to_list()
    assert found.frame["path"].iloc[0] == f"{photos}.{kind}!/{front}ant/0.png"
    wanted_bytes = [Path(path).read_bytes() for path in wanted.frame["path"]]
    if kind in ("zip", "tar"):
        reader = PlaceReader()
        assert [reader.read(place) for place in found.places] == wanted_bytes
        reader.close()
    else:
        numbers = [place.offset for place in found.places]
        assert list(stream_bytes(found.places[0].container, numbers)) == wanted_bytes


def test_nothing_is_written(photos: Path, pack: Pack) -> None:
    archive = pack(photos, "tar.gz")
    before = sorted(photos.parent.rglob("*"))
    open_pictures(archive)
    assert sorted(photos.parent.rglob("*")) == before


def test_the_system_tar_can_be_read(photos: Path) -> None:
    subprocess.run(["tar", "-czf", photos.with_suffix(".tgz"), "-C", photos.parent, "./photos"], check=True)
    found = open_pictures(photos.with_suffix(".tgz"))
    assert sorted(found.frame["label"].unique()) == ["ant", "bée", "cat"]


NAMES = ("../out.jpg", "a/../../out.jpg", "/etc/out.jpg", "C:/out.jpg", "..\\out.jpg")


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("kind", ["zip", "tar", "tar.gz"])
def test_a_name_that_climbs_is_refused(tmp_path: Path, name: str, kind: str) -> None:
    archive = tmp_path / f"a.{kind}"
    _write(archive, {name: b"x", "b/ok.jpg": b"x"})
    with pytest.raises(DataError, match="would lie outside the folder"):
        open_pictures(archive)


def _write(archive: Path, files: dict[str, bytes]) -> None:
    if archive.suffix == ".zip":
        with zipfile.ZipFile(archive, "w", zipfile.ZIP_DEFLATED) as zipped:
            for name, data in files.items():
                zipped.writestr(zipfile.ZipInfo(name), data, zipfile.ZIP_DEFLATED)
        return
    with tarfile.open(archive, "w:gz" if archive.suffix == ".gz" else "w:") as tarred:
        for name, data in files.items():
            info = tarfile.TarInfo(name)
            info.size = len(data)
            tarred.addfile(info, io.BytesIO(data))


@pytest.mark.parametrize("kind", [tarfile.SYMTYPE, tarfile.LNKTYPE, tarfile.FIFOTYPE, tarfile.CHRTYPE])
@pytest.mark.parametrize("suffix", ["tar", "tar.gz"])
def test_links_and_devices_in_a_tar_are_refused(tmp_path: Path, kind: bytes, suffix: str) -> None:
    archive = tmp_path / f"a.{suffix}"
    with tarfile.open(archive, "w:gz" if suffix.endswith("gz") else "w:") as tarred:
        info = tarfile.TarInfo("cat/1.jpg")
        info.type, info.linkname = kind, "/etc/passwd"
        tarred.addfile(info)
    with pytest.raises(DataError, match="a link, device or file with holes"):
        list_members(archive)


def test_a_link_in_a_zip_is_refused(tmp_path: Path) -> None:
    with zipfile.ZipFile(tmp_path / "a.zip", "w") as zipped:
        info = zipfile.ZipInfo("cat/1.jpg")
        info.external_attr = (stat.S_IFLNK | 0o777) << 16
        zipped.writestr(info, "/etc/passwd")
    with pytest.raises(DataError, match="a link, device or file with holes"):
        list_members(tmp_path / "a.zip")


@pytest.mark.filterwarnings("ignore:Duplicate name")
@pytest.mark.parametrize("kind", ["zip", "tar"])
def test_two_files_of_one_name_are_refused(tmp_path: Path, kind: str) -> None:
    archive = tmp_path / f"a.{kind}"
    if kind == "zip":
        with zipfile.ZipFile(archive, "w") as zipped:
            for data in (b"one", b"two"):
                zipped.writestr("cat/1.jpg", data)
    else:
        with tarfile.open(archive, "w") as tarred:
            for data in (b"one", b"two"):
                info = tarfile.TarInfo("cat/1.jpg")
                info.size = len(data)
                tarred.addfile(info, io.BytesIO(data))
    with pytest.raises(DataError, match=r"holds two files named 'cat/1\.jpg'"):
        list_members(archive)


@pytest.mark.parametrize("kind", ["zip", "tar.gz"])
def test_a_bomb_is_refused_before_it_goes_off(tmp_path: Path, kind: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(archives, "FREE_BYTES", 1 << 20)
    archive = tmp_path / f"a.{kind}"
    _write(archive, {f"cat/{number}.jpg": bytes(4 << 20) for number in range(3)})
    assert archive.stat().st_size < 50_000
    with pytest.raises(DataError, match="which no pictures do"):
        list_members(archive)


def test_a_member_that_lies_about_its_size_is_not_read_further(tmp_path: Path) -> None:
    archive = tmp_path / "a.zip"
    _write(archive, {"cat/1.jpg": bytes(1 << 20)})
    content = archive.read_bytes()
    archive.write_bytes(content.replace((1 << 20).to_bytes(4, "little"), (100).to_bytes(4, "little")))
    (member,) = list_members(archive)
    with pytest.raises(ImageError, match=r"a\.zip!/cat/1\.jpg cannot be read: Bad CRC-32"):
        PlaceReader().read(member.place)


@pytest.mark.parametrize("kind", ["zip", "tar", "tar.gz"])
def test_a_damaged_archive_is_told(photos: Path, pack: Pack, kind: str) -> None:
    archive = pack(photos, kind)
    content = archive.read_bytes()
    archive.write_bytes(content[: len(content) // 2])
    with pytest.raises(DataError, match=r"photos\.(zip|tar|tar\.gz)"):
        list_members(archive)


def test_what_is_no_archive_is_told(tmp_path: Path) -> None:
    (tmp_path / "a.zip").write_text("just text")
    with pytest.raises(DataError, match="neither a zip nor a tar archive"):
        open_pictures(tmp_path / "a.zip")
    with zipfile.ZipFile(tmp_path / "b.zip", "w") as zipped:
        zipped.writestr("notes.txt", "x")
    with pytest.raises(DataError, match="holds no picture that counts"):
        open_pictures(tmp_path / "b.zip")


def test_a_sparse_file_is_refused(tmp_path: Path) -> None:
    with (tmp_path / "1.jpg").open("wb") as file:
        file.truncate(1 << 20)
        file.seek(0, os.SEEK_END)
        file.write(b"x")
    subprocess.run(["tar", "-Scf", tmp_path / "a.tar", "-C", tmp_path, "1.jpg"], check=True)
    with pytest.raises(DataError, match="file with holes"):
        list_members(tmp_path / "a.tar")


def test_an_archive_that_shrinks_while_it_is_read_is_told(photos: Path, pack: Pack) -> None:
    archive = pack(photos, "tar.gz")
    places = open_pictures(archive).places
    with tarfile.open(archive, "w:gz") as tarred:
        tarred.add(photos / "ant" / "0.png", "ant/0.png")
    with pytest.raises(DataError, match="became shorter while it was read"):
        list(with_stream([Batch(0, 0, places[:4])]))
