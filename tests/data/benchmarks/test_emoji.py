"""Emoji-5: the rule against the pictures we test with, and the whole way from a registry on loopback."""

from __future__ import annotations

import base64
import csv
import hashlib
import io
import json
import re
import tarfile
from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

from proxemics.core.errors import DataError
from proxemics.data.benchmarks import emoji, npm
from proxemics.data.benchmarks.emoji import PACKAGES, build_emoji, check_counts, resvg
from proxemics.data.benchmarks.emoji_rule import COUNTS, PATHS, SHARED_BY, STYLES, choose, digest_of, split_of
from proxemics.data.benchmarks.npm import PUBLIC_REGISTRY, Package, get_package, registry_address
from proxemics.data.benchmarks.release import Part
from proxemics.data.sources import load_table

BODY = '<path fill="currentColor" d="M4 4h8v8H4z"/>'


def icon_set(names: list[str]) -> bytes:
    content = json.dumps({"prefix": "x", "icons": {name: {"body": BODY} for name in names}}).encode()
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w:gz") as archive:
        info = tarfile.TarInfo("package/icons.json")
        info.size = len(content)
        archive.addfile(info, io.BytesIO(content))
    return buffer.getvalue()


def fake_render(text: str, size: int) -> bytes:
    assert "currentColor" not in text
    buffer = io.BytesIO()
    Image.new("RGBA", (size, size), (31, 31, 31, 255)).save(buffer, "PNG")
    return buffer.getvalue()


@pytest.fixture
def packages(server: Any) -> dict[str, Package]:
    """Five tiny icon sets with two classes, served as npm serves packages."""
    made = {}
    for style in STYLES:
        names = ["ear", "abacus", "flag-x", "z"] + ["ear-dark-skin-tone", "ear-medium-skin-tone"] * (style == "noto")
        body = icon_set(names)
        server.content[f"@icons/{style}/-/{style}-1.0.0.tgz"] = body
        integrity = "sha512-" + base64.b64encode(hashlib.sha512(body).digest()).decode()
        made[style] = Package(f"@icons/{style}", "1.0.0", integrity, "MIT")
    return made


TINY = {("noto", "train"): Part(2, 1), ("noto", "test"): Part(1, 1), ("openmoji", "test"): Part(1, 1)}


def test_the_rule() -> None:
    icons = {style: ["ab", "ab-light-skin-tone", "cd", "ef", "flag-a", "q"] for style in SHARED_BY}
    icons["noto"] = [
        "ab",
        "ab-light-skin-tone",
        "ab-light-skin-tone-dark-skin-tone",
        "ef-light-skin-tone",
        "flag-a",
        "q",
    ]
    icons[STYLES[4]] = ["ab", "cd"]
    assert [one.path for one in choose(icons)] == [
        *(f"{style}/ab/{variant}.webp" for style in SHARED_BY for variant in ("default", "light")),
        f"{STYLES[4]}/ab/default.webp",
    ]
    for label in ("ab", "abacus", "ear", "naïve"):
        assert (split_of(label) == "test") == bool(int(hashlib.sha1(label.encode()).hexdigest(), 16) % 2)


@pytest.mark.data
def test_counts_are_those_of_the_pictures_we_test_with(shared_data: Path) -> None:
    with (shared_data / "index.csv").open(encoding="utf-8") as file:
        rows = [row for row in csv.DictReader(file) if row["dataset"] == "emoji"]
    assert Counter((row["domain"], row["split"]) for row in rows) == {key: part.images for key, part in COUNTS.items()}
    assert all(split_of(row["label"]) == row["split"] for row in rows)
    # Choosing from the chosen names changes nothing.
    tones = {"default": "", "light": "-light-skin-tone", "dark": "-dark-skin-tone"}
    icons = {style: [] for style in STYLES}
    for row in rows:
        icons[row["domain"]].append(row["label"] + tones[Path(row["path"]).stem])
    again = choose(icons)
    assert {f"emoji/{one.path}" for one in again} == {row["path"] for row in rows}
    check_counts(again, COUNTS)
    assert digest_of(one.path for one in again) == PATHS


def test_the_whole_way_from_a_registry(server: Any, packages: dict[str, Package], tmp_path: Path) -> None:
    seen = []
    options = {"packages": packages, "counts": TINY, "render": fake_render, "registry": server.address + "/"}
    path = build_emoji(tmp_path, **options, progress=lambda *now: seen.append(now))
    table = load_table(path)
    assert len(table) == 11 == seen[-1][0]
    assert table[table["label"] == "abacus"]["split"].unique().tolist() == ["test"]
    assert table.groupby("variant").size().to_dict() == {"dark": 1, "default": 10}
    with Image.open(tmp_path / "noto/ear/dark.webp") as opened:
        assert (opened.format, opened.mode, opened.size) == ("WEBP", "RGBA", (96, 96)) or opened.mode == "RGB"
    about = json.loads((tmp_path / "about.json").read_text())
    assert about["packages"]["noto"]["licence"] == "MIT"
    assert server.address not in (tmp_path / "about.json").read_text()
    asked = len(server.asked)
    build_emoji(tmp_path, **options)
    assert len(server.asked) == asked  # archives are kept


def test_a_package_that_was_changed_is_refused(server: Any, packages: dict[str, Package], tmp_path: Path) -> None:
    server.content["@icons/noto/-/noto-1.0.0.tgz"] = icon_set(["other"])
    with pytest.raises(DataError, match=r"has the SHA512 .*`npm pack @icons/noto@1.0.0`"):
        build_emoji(tmp_path, packages=packages, registry=server.address, render=fake_render)
    assert not (tmp_path / "table.csv").exists()


def test_other_numbers_are_refused(server: Any, packages: dict[str, Package], tmp_path: Path) -> None:
    with pytest.raises(DataError, match="noto train: 2 pictures of 1 classes, expected 1134 of 806"):
        build_emoji(tmp_path, packages=packages, registry=server.address, render=fake_render)


@pytest.mark.data
def test_other_classes_of_equal_number_are_refused(shared_data: Path, server: Any, tmp_path: Path) -> None:
    """The names of the real set, with one test class called otherwise, through the whole build."""
    with (shared_data / "index.csv").open(encoding="utf-8") as file:
        rows = [row for row in csv.DictReader(file) if row["dataset"] == "emoji"]
    other = next(name for name in ("zebra-a", "zebra-b", "zebra-c", "zebra-d") if split_of(name) == "test")
    tones = {"default": "", "light": "-light-skin-tone", "dark": "-dark-skin-tone"}
    made = {}
    for style in STYLES:
        names = [
            (other if row["label"] == "zebra" else row["label"]) + tones[Path(row["path"]).stem]
            for row in rows
            if row["domain"] == style
        ]
        body = icon_set(names)
        server.content[f"@icons/{style}/-/{style}-1.0.0.tgz"] = body
        integrity = "sha512-" + base64.b64encode(hashlib.sha512(body).digest()).decode()
        made[style] = Package(f"@icons/{style}", "1.0.0", integrity, "MIT")
    with pytest.raises(DataError, match="the classes are not those of the set"):
        build_emoji(tmp_path, packages=made, registry=server.address, render=fake_render)
    assert not (tmp_path / "table.csv").exists()


def test_an_archive_that_is_no_icon_set_is_told(tmp_path: Path) -> None:
    for name, content in (("a.tgz", b"page"), ("b.tgz", icon_set(["a"] * 50)[:60])):
        (tmp_path / name).write_bytes(content)
        with pytest.raises(DataError, match="Delete it and try again"):
            emoji.read_icons(tmp_path / name)


def test_an_archive_of_npm_pack_is_used(packages: dict[str, Package], server: Any, tmp_path: Path) -> None:
    package = packages["noto"]
    (tmp_path / "icons-noto-1.0.0.tgz").write_bytes(server.content["@icons/noto/-/noto-1.0.0.tgz"])
    assert get_package(package, tmp_path, registry="http://127.0.0.1:9") == tmp_path / "icons-noto-1.0.0.tgz"


def test_the_registry_is_that_of_npm_or_the_public_one(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(npm.shutil, "which", lambda name: None)
    monkeypatch.delenv("npm_config_registry", raising=False)
    monkeypatch.setenv("NPM_CONFIG_REGISTRY", "https://capital.example")
    assert registry_address() == "https://capital.example"
    monkeypatch.setenv("npm_config_registry", "https://registry.example/path/")
    assert registry_address() == "https://registry.example/path"
    monkeypatch.delenv("npm_config_registry")
    monkeypatch.delenv("NPM_CONFIG_REGISTRY", raising=False)
    assert registry_address() == PUBLIC_REGISTRY
    tool = tmp_path / "npm"
    tool.write_text("#!/bin/sh\necho https://mirror.example/\n")
    tool.chmod(0o755)
    monkeypatch.setattr(npm.shutil, "which", lambda name: str(tool))
    assert registry_address() == "https://mirror.example"
    tool.write_text("#!/bin/sh\necho undefined\n")
    assert registry_address() == PUBLIC_REGISTRY


def test_without_the_renderer_the_extra_is_named(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setitem(__import__("sys").modules, "resvg_py", None)
    with pytest.raises(DataError, match=re.escape('pip install "proxemics[emoji]"')):
        build_emoji(tmp_path)


def test_the_renderer_draws_with_alpha() -> None:
    pytest.importorskip("resvg_py", reason="the extra `emoji` is not installed")
    text = emoji.svg({"icons": {"a": {"body": BODY}}}, "a")
    pixels = np.asarray(Image.open(io.BytesIO(resvg()(text, 32))).convert("RGBA"))
    assert pixels.shape == (32, 32, 4)
    assert pixels[16, 16].tolist() == [31, 31, 31, 255]
    assert pixels[2, 2, 3] == 0


def test_packages_are_pinned() -> None:
    assert set(PACKAGES) == set(STYLES)
    for package in PACKAGES.values():
        assert package.integrity.startswith("sha512-")
        assert re.fullmatch(r"\d+\.\d+\.\d+", package.version)
