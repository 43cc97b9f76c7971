"""Tiny trees in the exact official layouts, and a server on loopback."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import numpy as np
import pytest
from scipy.io import savemat

from proxemics.data.benchmarks.release import Expected, Part

BIRDS = ("001.Albatross", "002.Ani", "003.Auklet", "004.Wren")
OBJECTS = ("Bed", "Bike", "Bottle", "TV")
THINGS = ("ant", "bat", "cat")


def touch(path: Path) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(b"x")


def lines(path: Path, *rows: str) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("".join(f"{row}\n" for row in rows), encoding="utf-8")


def cub(root: Path) -> Expected:
    folder = root / "CUB_200_2011"
    lines(folder / "classes.txt", *(f"{i} {name}" for i, name in enumerate(BIRDS, 1)))
    paths = [(f"{name}/{name[4:]}_{k}.jpg", i) for i, name in enumerate(BIRDS, 1) for k in range(2)]
    for path, _ in paths:
        touch(folder / "images" / path)
    lines(folder / "images.txt", *(f"{k} {path}" for k, (path, _) in enumerate(paths, 1)))
    lines(folder / "image_class_labels.txt", *(f"{k} {i}" for k, (_, i) in enumerate(paths, 1)))
    lines(folder / "train_test_split.txt", *(f"{k} {k % 2}" for k in range(1, 9)))
    return Expected({"train": Part(4, 2), "test": Part(4, 2)}, BIRDS)


def paintings(root: Path) -> Expected:
    names = ("001.Black_footed_Albatross", "002.Laysan_Albatross")
    for name in names:
        touch(root / "CUB-200-Painting" / "images" / name / f"{name[4:]}_0.jpg")
    return Expected({"painting": Part(2, 2)}, names)


def _structs(rows: list[tuple[object, ...]], fields: list[str]) -> np.ndarray:
    array = np.zeros((1, len(rows)), dtype=[(name, object) for name in fields])
    for i, row in enumerate(rows):
        array[0, i] = row
    return array


def _names(names: list[str]) -> np.ndarray:
    array = np.empty((1, len(names)), dtype=object)
    array[0] = names
    return array


CARS = ["AM General Hummer", "Ram C/V Van"]
CAR_FIELDS = ["bbox_x1", "bbox_y1", "bbox_x2", "bbox_y2", "class", "fname"]
CARS_EXPECTED = Expected({"train": Part(2, 1), "test": Part(2, 1)}, ("001.AM_General_Hummer", "002.Ram_C_V_Van"))


def cars(root: Path) -> Expected:
    for part in ("train", "test"):
        rows = [(1, 1, 9, 9, k, f"{k:05d}.jpg") for k in (1, 2)]
        for row in rows:
            touch(root / f"cars_{part}" / str(row[-1]))
        place = "devkit/cars_train_annos.mat" if part == "train" else "cars_test_annos_withlabels.mat"
        (root / place).parent.mkdir(exist_ok=True)
        savemat(root / place, {"annotations": _structs(rows, CAR_FIELDS)})
    savemat(root / "devkit/cars_meta.mat", {"class_names": _names(CARS)})
    return CARS_EXPECTED


def cars_pooled(root: Path) -> Expected:
    rows = [(f"car_ims/{k:06d}.jpg", 1, 1, 9, 9, 1 + k % 2, k % 2) for k in range(1, 5)]
    for row in rows:
        touch(root / str(row[0]))
    fields = ["relative_im_path", *CAR_FIELDS[:5], "test"]
    savemat(root / "cars_annos.mat", {"annotations": _structs(rows, fields), "class_names": _names(CARS)})
    return CARS_EXPECTED


def sop(root: Path) -> Expected:
    folder = root / "Stanford_Online_Products"
    number = 0
    for part, classes in (("train", (1, 2)), ("test", (3, 4))):
        rows = ["image_id class_id super_class_id path"]
        for label in classes:
            for k in range(2):
                number += 1
                path = f"bicycle_final/{label}_{k}.JPG"
                touch(folder / path)
                rows.append(f"{number} {label} 1 {path}")
        lines(folder / f"Ebay_{part}.txt", *rows)
    return Expected({"train": Part(4, 2), "test": Part(4, 2)})


def inshop(root: Path) -> Expected:
    rows = []
    for item, part, k in ((1, "train", 0), (1, "train", 1), (2, "query", 0), (2, "gallery", 1), (3, "gallery", 0)):
        path = f"img/WOMEN/Dresses/id_{item:08d}/0{k}_1_front.jpg"
        touch(root / "Img" / path)
        rows.append(f"{path}                 id_{item:08d} {part}")
    lines(root / "Eval/list_eval_partition.txt", str(len(rows)), "image_name item_id evaluation_status", *rows)
    return Expected({"train": Part(2, 1), "query": Part(1, 1), "gallery": Part(2, 2)})


def pacs(root: Path) -> Expected:
    names = ("dog", "elephant", "giraffe", "guitar", "horse", "house", "person")
    for domain in ("photo", "art_painting", "cartoon", "sketch"):
        rows = [f"{domain}/{name}/pic_001.jpg {i}" for i, name in enumerate(names, 1)]
        for row in rows:
            touch(root / "kfold" / row.split()[0])
        lines(root / "splits" / f"{domain}_test_kfold.txt", *rows)
    touch(root / "kfold/photo/dog/.DS_Store")
    return Expected({name: Part(7, 7) for name in ("photo", "art_painting", "cartoon", "sketch")}, names)


def office_home(root: Path) -> Expected:
    domains = ("Art", "Clipart", "Product", "Real World")
    for domain in domains:
        for name in OBJECTS:
            touch(root / "OfficeHomeDataset_10072016" / domain / name / "00001.jpg")
    lines(root / "OfficeHomeDataset_10072016/ImageInfo.csv", "anything")
    return Expected({name: Part(4, 4) for name in domains}, OBJECTS)


def domainnet(root: Path) -> Expected:
    domains = ("clipart", "infograph", "painting", "quickdraw", "real", "sketch")
    for domain in domains:
        for part, k in (("train", 1), ("test", 2)):
            rows = [f"{domain}/{name}/{domain}_{i:03d}_{k:06d}.jpg {i}" for i, name in enumerate(THINGS)]
            for row in rows:
                touch(root / row.split()[0])
            lines(root / f"{domain}_{part}.txt", *rows)
    return Expected({name: Part(6, 3) for name in domains}, THINGS)


def inaturalist(root: Path) -> Expected:
    for part, classes in (("train", (0, 2)), ("test", (1,))):
        rows = [f"train_val2018/Aves/{label}/{part}{k}.jpg" for label in classes for k in range(2)]
        for row in rows:
            touch(root / row)
        lines(root / f"Inat_dataset_splits/Inaturalist_{part}_set1.txt", *rows)
    return Expected({"train": Part(4, 2), "test": Part(2, 1)})


@pytest.fixture
def trees() -> dict[str, Callable[[Path], Expected]]:
    """By benchmark: a function that makes its tiny tree and returns the numbers of that tree."""
    return {
        "cub200": cub,
        "cub200-paintings": paintings,
        "cars196": cars,
        "cars196-pooled": cars_pooled,
        "sop": sop,
        "inshop": inshop,
        "pacs": pacs,
        "office-home": office_home,
        "domainnet": domainnet,
        "inaturalist2018": inaturalist,
    }


class Files:
    """What the server on loopback gives out, and how badly.

    ``break_after`` counts bytes after which a connection is cut, ``breaks`` how often; ``asked`` lists Range headers.
    """

    def __init__(self) -> None:
        self.content: dict[str, bytes] = {}
        self.tags: dict[str, str] = {}
        self.break_after: int | None = None
        self.breaks = 0
        self.ranges = True
        self.status: int | None = None
        self.moved: dict[str, str] = {}
        self.asked: list[str | None] = []
        self.address = ""


@pytest.fixture
def server() -> Iterator[Files]:
    files = Files()

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            asked = self.headers.get("Range")
            files.asked.append(asked)
            name = self.path.lstrip("/")
            if name in files.moved:
                self.send_response(302)
                self.send_header("Location", files.moved[name])
                self.end_headers()
                return
            if files.status is not None or name not in files.content:
                self.send_error(files.status or 404)
                return
            body, tag = files.content[name], files.tags.get(name, '"one"')
            start = int(asked[6:-1]) if asked and files.ranges and self.headers.get("If-Range") == tag else 0
            if start >= len(body) > 0:
                self.send_error(416)
                return
            self.send_response(206 if start else 200)
            if start:
                self.send_header("Content-Range", f"bytes {start}-{len(body) - 1}/{len(body)}")
            self.send_header("ETag", tag)
            self.send_header("Content-Length", str(len(body) - start))
            self.end_headers()
            rest = body[start:]
            if files.breaks and files.break_after is not None:
                files.breaks -= 1
                rest = rest[: files.break_after]
            self.wfile.write(rest)

        def log_message(self, format: str, *args: object) -> None:
            """Say nothing."""

    running = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    thread = threading.Thread(target=running.serve_forever, daemon=True)
    thread.start()
    files.address = f"http://127.0.0.1:{running.server_address[1]}"
    yield files
    running.shutdown()
    running.server_close()
