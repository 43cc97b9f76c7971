"""Classes over HTTP: enrolled, decided with a threshold, kept on disk, and forgotten without a trace."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from PIL import Image
from starlette.testclient import TestClient

from proxemics.core.errors import SearchError
from proxemics.evaluation.operating_point import Rate, Threshold
from proxemics.evaluation.threshold_file import Source, save_thresholds
from proxemics.search.classes.store import load_book
from proxemics.search.index import Index
from proxemics.search.manifest import ModelKey
from proxemics.serve.app import create_app
from proxemics.serve.settings import ServeSettings

NEAR = 0.9995
Send = Callable[..., Any]


def threshold(kind: Any, value: float) -> Threshold:
    rate = Rate(value=0.01)
    return Threshold(
        kind=kind, target=0.01, threshold=value, interval=(value, value), level=0.95, false_match=rate, miss=rate,
        negatives=1000, positives=1000, pictures=1000, classes=50,
    )  # fmt: skip


@pytest.fixture
def own(gallery: Any, tmp_path: Path) -> Any:
    """A copy of the gallery that a test may change, with thresholds."""
    shutil.copytree(gallery.bundle, tmp_path / "bundle")
    shutil.copytree(gallery.index, tmp_path / "index", ignore=shutil.ignore_patterns("feedback*"))
    embedder = gallery.embedder
    key = ModelKey(model=embedder.fingerprint(), preprocess=embedder.preprocess.fingerprint(), dim=embedder.dim)
    for kind in ("verify", "identify"):
        save_thresholds(tmp_path / "bundle", key, threshold(kind, NEAR), Source())
    return gallery.settings(model=str(tmp_path / "bundle"), index=str(tmp_path / "index"), allow_enrol=True)


@pytest.fixture
def client(own: Any) -> Iterator[TestClient]:
    with TestClient(create_app(ServeSettings(**own)), base_url="http://127.0.0.1") as client:
        yield client


def enrol(client: TestClient, label: str, *pictures: bytes) -> Any:
    files = [("picture", (f"{place}.png", data, "image/png")) for place, data in enumerate(pictures)]
    return client.post("/v1/enrol", data={"label": label}, files=files)


def test_a_class_lives_from_enrolment_to_forgetting(
    client: TestClient, own: Any, encode: Callable[..., bytes], photo: Any
) -> None:
    stranger, twin = encode(photo(77)), encode(photo(77, (120, 96)))
    assert client.post("/v1/search", content=stranger).json()["decision"] is None
    done = enrol(client, "kite", stranger, encode(photo(77, (90, 72))))
    assert done.status_code == 200, done.text
    assert done.json() == {"label": "kite", "pictures": 2, "classes": 1}
    answer = client.post("/v1/search", content=twin, params={"k": 3}).json()
    decision = answer["decision"]
    assert (decision["known"], decision["label"], decision["threshold"]) == (True, "kite", NEAR)
    assert decision["score"] >= NEAR
    first = answer["results"][0]
    assert (first["label"], first["match"]) == ("kite", True)
    assert client.get(first["picture"]).status_code == 200
    assert client.get("/v1/info").json()["classes"] == 1
    assert client.get("/v1/labels", params={"text": "kite"}).json()["labels"] == [{"label": "kite", "count": 2}]
    other = client.post("/v1/search", content=encode(Image.new("RGB", (40, 40), "white")), params={"k": 96}).json()
    assert (other["decision"]["known"], other["decision"]["label"], other["decision"]["nearest"]) == (
        False,
        None,
        "kite",
    )
    assert [hit["match"] for hit in other["results"]] == [hit["score"] >= NEAR for hit in other["results"]]
    page = client.post("/page/search", files={"picture": ("x.png", encode(Image.new("RGB", (40, 40), "white")))})
    assert "Unknown" in page.text
    assert len(load_book(own["model"])) == 1
    assert client.post("/v1/forget", json={"label": "kite"}).json() == {"label": "kite", "rows": 2, "classes": 0}
    again = client.post("/v1/search", content=twin, params={"k": 96}).json()
    assert "kite" not in {hit["label"] for hit in again["results"]}
    assert again["decision"] is None
    assert client.get(first["picture"]).status_code == 404
    assert not list((Path(own["index"]) / "thumbnails").rglob("*.jpg"))
    assert client.get("/v1/labels", params={"text": "kite"}).json()["labels"] == []
    assert client.post("/v1/forget", json={"label": "kite"}).json()["code"] == "no_such_class"


def test_forgetting_leaves_rows_that_were_not_enrolled(
    client: TestClient, own: Any, gallery: Any, encode: Callable[..., bytes], photo: Any
) -> None:
    label = gallery.ids[0].partition("/")[0]
    assert enrol(client, label, encode(photo(5))).status_code == 200
    assert client.post("/v1/forget", json={"label": label}).json()["rows"] == 1
    with Index.open(own["index"], read_only=True) as index:
        assert index.count() == 96


@pytest.mark.parametrize("label", ["", "   ", "unknown", "a\nb", "x" * 300])
def test_names_that_cannot_be_are_refused(
    client: TestClient, own: Any, encode: Callable[..., bytes], photo: Any, label: str
) -> None:
    assert enrol(client, label, encode(photo(5))).status_code == 422
    with Index.open(own["index"], read_only=True) as index:
        assert index.count() == 96


def test_all_pictures_are_enrolled_or_none(client: TestClient, encode: Callable[..., bytes], photo: Any) -> None:
    assert enrol(client, "kite", encode(photo(5)), b"nonsense").status_code == 415
    assert enrol(client, "kite").status_code in (400, 415)
    assert enrol(client, "kite", *[encode(photo(5))] * 33).status_code == 400
    assert client.get("/v1/info").json()["classes"] == 0
    assert client.get("/v1/info").json()["items"] == 96


def test_where_the_index_fails_the_book_stays_as_it_was(
    client: TestClient, encode: Callable[..., bytes], photo: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fails(*_: Any, **__: Any) -> None:
        raise SearchError("The disk is full.")

    index = client.app.state.service.index.call_now(lambda opened: opened)  # type: ignore[attr-defined]  # of Starlette
    with monkeypatch.context() as broken:
        broken.setattr(index, "upsert", fails)
        answer = enrol(client, "kite", encode(photo(5)))
        assert (answer.status_code, answer.json()["code"]) == (503, "index_unavailable")
    assert client.get("/v1/info").json()["classes"] == 0
    assert enrol(client, "kite", encode(photo(5))).json()["pictures"] == 1
    with monkeypatch.context() as broken:
        broken.setattr(index, "remove", fails)
        assert client.post("/v1/forget", json={"label": "kite"}).status_code == 503
    assert client.get("/v1/info").json()["classes"] == 1
    assert client.post("/v1/forget", json={"label": "kite"}).json() == {"label": "kite", "rows": 1, "classes": 0}


def test_a_book_that_the_command_line_changes_is_read_again(
    client: TestClient, own: Any, encode: Callable[..., bytes], photo: Any
) -> None:
    from proxemics.search.classes.enrolment import enrol_folder, forget_classes

    data = encode(photo(9))
    folder = Path(own["model"]).parent / "owl"
    folder.mkdir()
    (folder / "a.png").write_bytes(data)
    enrol_folder(own["model"], folder, settings=["data.workers=0"])
    assert client.post("/v1/search", content=data).json()["decision"]["label"] == "owl"
    forget_classes(own["model"], ["owl"])
    assert client.post("/v1/search", content=data).json()["decision"] is None


def test_classes_are_changed_only_where_that_is_allowed(gallery: Any, encode: Callable[..., bytes], photo: Any) -> None:
    with TestClient(create_app(ServeSettings(**gallery.settings())), base_url="http://127.0.0.1") as client:
        answer = enrol(client, "kite", encode(photo(5)))
        assert (answer.status_code, answer.json()["code"]) == (403, "no_enrolment")
        assert client.post("/v1/forget", json={"label": "kite"}).status_code == 403
