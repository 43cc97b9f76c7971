"""Searches, rows, pictures and marks over HTTP, against what the library says of the same pictures."""

from __future__ import annotations

import csv
import io
import re
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image
from starlette.testclient import TestClient

from proxemics.core.files import write_json
from proxemics.search.index import Index
from proxemics.search.items import Items
from proxemics.serve.app import create_app
from proxemics.serve.settings import ServeSettings

EXIF_ORIENTATION = 0x0112
BACK = {
    2: Image.Transpose.FLIP_LEFT_RIGHT,
    3: Image.Transpose.ROTATE_180,
    4: Image.Transpose.FLIP_TOP_BOTTOM,
    5: Image.Transpose.TRANSPOSE,
    6: Image.Transpose.ROTATE_90,
    7: Image.Transpose.TRANSVERSE,
    8: Image.Transpose.ROTATE_270,
}


def search(service: Any, data: bytes, **params: Any) -> dict[str, Any]:
    answer = service.client.post("/v1/search", files={"picture": ("a photo.png", data)}, params=params)
    assert answer.status_code == 200, answer.text
    body: dict[str, Any] = answer.json()
    return body


def scores(answer: dict[str, Any]) -> dict[str, float]:
    return {hit["id"]: hit["score"] for hit in answer["results"]}


def test_a_picture_of_the_index_finds_itself(service: Any, gallery: Any) -> None:
    name = gallery.ids[17]
    answer = search(service, (gallery.pictures / name).read_bytes(), k=5)
    first = answer["results"][0]
    assert (first["rank"], first["id"], first["label"]) == (1, name, name.partition("/")[0])
    assert first["score"] == pytest.approx(1, abs=1e-5)
    assert first["meta"]["path"] == name
    assert [hit["rank"] for hit in answer["results"]] == [1, 2, 3, 4, 5]
    found = [hit["score"] for hit in answer["results"]]
    assert found == sorted(found, reverse=True)
    assert sum(vote["count"] for vote in answer["votes"]) == 5
    assert answer["query"]["name"] == "a photo.png"
    assert answer["decision"] is None
    assert answer["certainty"] is None, "nothing trained the lengths of this model"


def test_scores_are_the_cosines_of_the_library(
    service: Any, gallery: Any, encode: Callable[..., bytes], photo: Callable[..., Image.Image]
) -> None:
    picture = photo(3)
    answer = search(service, encode(picture), k=96)
    paths = [gallery.pictures / name for name in gallery.ids]
    with torch.inference_mode():
        pixels = torch.from_numpy(np.stack([gallery.embedder.preprocess(one) for one in [*paths, picture]]))
        vectors = gallery.embedder.encode(pixels).unit.numpy()
    expected = dict(zip(gallery.ids, (vectors[:-1] @ vectors[-1]).tolist(), strict=True))
    assert scores(answer) == pytest.approx(expected, abs=2e-3)  # the fast road may be one grey level off


def test_a_bare_body_and_a_form_give_the_same(service: Any, encode: Callable[..., bytes], photo: Any) -> None:
    data = encode(photo(4), "JPEG")
    form = search(service, data)
    for kind in ("image/jpeg", "application/octet-stream", "nonsense"):
        bare = service.client.post("/v1/search", content=data, headers={"Content-Type": kind})
        assert bare.status_code == 200
        assert scores(bare.json()) == scores(form)
        assert bare.json()["query"]["key"] == form["query"]["key"]


def test_orientation_changes_nothing(service: Any, gallery: Any, encode: Callable[..., bytes], photo: Any) -> None:
    """User-pains 68: the same photo in all eight Exif orientations, seen as training sees it."""
    upright = photo(5, (64, 40))
    expected = scores(search(service, encode(upright), k=96))
    turned = scores(search(service, encode(upright.transpose(BACK[6])), k=96))
    assert max(abs(turned[name] - expected[name]) for name in expected) > 1e-3, "the model cannot tell"
    for orientation in range(1, 9):
        stored = upright.transpose(BACK[orientation]) if orientation in BACK else upright
        exif = Image.Exif()
        exif[EXIF_ORIENTATION] = orientation
        found = scores(search(service, encode(stored, exif=exif), k=96))
        assert found == pytest.approx(expected, abs=1e-6), orientation


def test_jpeg_orientation_is_that_of_the_training_reader(
    service: Any, gallery: Any, encode: Callable[..., bytes], photo: Any, tmp_path: Any
) -> None:
    from proxemics.data.decode import decode_tensor

    with torch.inference_mode():
        for orientation in (1, 3, 6, 7):
            exif = Image.Exif()
            exif[EXIF_ORIENTATION] = orientation
            data = encode(photo(6, (64, 40)), "JPEG", exif=exif, quality=95)
            (tmp_path / "turned.jpg").write_bytes(data)
            pixels = gallery.embedder.preprocess.batch([decode_tensor(tmp_path / "turned.jpg")])
            vector = gallery.embedder.encode(pixels).unit[0].numpy()
            name = gallery.ids[0]
            with Image.open(gallery.pictures / name) as other:
                same = (
                    gallery.embedder.encode(torch.from_numpy(gallery.embedder.preprocess(other)[None])).unit[0].numpy()
                )
            assert scores(search(service, data, k=96))[name] == pytest.approx(float(vector @ same), abs=1e-5)


def test_search_by_id_leaves_itself_out(service: Any, gallery: Any) -> None:
    name = gallery.ids[30]
    answer = service.client.get("/v1/neighbours", params={"id": name, "k": 96}).json()
    assert len(answer["results"]) == 95
    assert answer["missing"] == 1
    assert name not in scores(answer)
    assert answer["query"] == {"kind": "id", "key": name, "name": ""}


def test_filters_hold_for_every_kind_of_search(service: Any, gallery: Any) -> None:
    label = gallery.ids[0].partition("/")[0]
    data = (gallery.pictures / gallery.ids[50]).read_bytes()
    only = search(service, data, k=20, where=[f"label={label}", "price>=3"])
    assert {hit["label"] for hit in only["results"]} == {label}
    assert min(hit["meta"]["price"] for hit in only["results"]) == 3
    assert len(only["results"]) == 5
    assert only["missing"] == 15
    near = service.client.get("/v1/neighbours", params={"id": gallery.ids[0], "where": "price<4"}).json()
    assert set(scores(near)) == set(gallery.ids[1:4])
    listed = service.client.get("/v1/items", params={"text": "class", "where": "price>90", "k": 50}).json()
    assert set(scores(listed)) == set(gallery.ids[91:])


@pytest.mark.parametrize("where", ["label", "price<cheap", "=x", "a<>b"])
def test_a_filter_that_is_not_understood_is_422(service: Any, gallery: Any, where: str) -> None:
    answer = service.client.get("/v1/neighbours", params={"id": gallery.ids[0], "where": where})
    assert answer.status_code == 422
    assert answer.json()["code"] == "bad_filter"


def test_too_many_filters_are_422(service: Any, gallery: Any) -> None:
    answer = service.client.get("/page/neighbours", params={"id": gallery.ids[0], "where": "price<9;" * 11})
    assert (answer.status_code, answer.json()["error"]) == (422, "There are 11 filters; give at most 10.")
    answer = service.client.get("/page/neighbours", params={"id": gallery.ids[0], "where": "price<9;" * 10})
    assert answer.status_code == 200


def test_a_picture_that_the_model_sees_nothing_in_is_told_so(
    gallery: Any, encode: Callable[..., bytes], photo: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    app = create_app(ServeSettings(**gallery.settings()))
    engine = app.state.service.engine
    monkeypatch.setattr(
        engine, "encode", lambda pixels: (np.zeros((len(pixels), 16), np.float32), np.zeros(len(pixels)))
    )
    with TestClient(app, base_url="http://127.0.0.1") as client:
        answer = client.post("/v1/search", content=encode(photo()))
    assert (answer.status_code, answer.json()["code"]) == (422, "no_direction")


def test_labels_by_text(service: Any, gallery: Any) -> None:
    labels = service.client.get("/v1/labels", params={"text": "CLASS E07"}).json()["labels"]
    assert labels == [{"label": "class é07", "count": 8}]
    assert len(service.client.get("/v1/labels").json()["labels"]) == 12
    answer = service.client.get("/v1/items", params={"text": "é07", "k": 3}).json()
    assert [hit["label"] for hit in answer["results"]] == ["class é07"] * 3
    assert {hit["score"] for hit in answer["results"]} == {None}


def test_rows_and_their_pictures(service: Any, gallery: Any) -> None:
    name = gallery.ids[9]
    row = service.client.get("/v1/item", params={"id": name}).json()
    assert row["id"] == name
    picture = service.client.get(row["picture"])
    assert picture.headers["content-type"] == "image/jpeg"
    shown = np.asarray(Image.open(io.BytesIO(picture.content)), dtype=float)
    original = np.asarray(Image.open(gallery.pictures / name), dtype=float)
    assert shown.shape == (40, 40, 3)
    assert np.abs(shown - original).mean() < 12
    for path in ("/v1/item", "/v1/picture", "/v1/neighbours"):
        answer = service.client.get(path, params={"id": "no such id"})
        assert answer.status_code == 404
        assert answer.json()["code"] == "no_such_id"
        assert answer.json()["request_id"] == answer.headers["x-request-id"]


def test_what_is_served(service: Any, gallery: Any) -> None:
    info = service.client.get("/v1/info").json()
    assert info["model"] == gallery.embedder.fingerprint()
    assert (info["items"], info["labels"], info["dim"], info["index"]) == (96, 12, 16, "Stripes")
    assert service.client.get("/health").json()["status"] == "ok"


def test_metrics_tell_model_from_the_rest(service: Any, encode: Callable[..., bytes], photo: Any) -> None:
    def read() -> dict[str, float]:
        lines = service.client.get("/metrics").text.splitlines()
        return {name: float(value) for name, value in (line.rsplit(" ", 1) for line in lines if line[0] != "#")}

    before = read()
    for seed in range(3):
        search(service, encode(photo(seed)))
    after = read()
    for name in (
        'proxemics_requests_total{method="POST",route="/v1/search",status="200"}',
        'proxemics_stage_seconds_count{stage="decode"}',
        'proxemics_stage_seconds_count{stage="model"}',
        'proxemics_stage_seconds_count{stage="index"}',
        "proxemics_batch_size_sum",
        'proxemics_request_seconds_count{route="/v1/search"}',
    ):
        assert after[name] - before.get(name, 0) == 3, name
    assert after["proxemics_queue_length"] == 0
    service.client.get("/made/up/" + "x" * 50)
    assert not [name for name in read() if "made" in name], "paths that nobody defined would fill the memory"


def test_marks_are_kept_and_exported(service: Any, gallery: Any) -> None:
    mark = {"query_kind": "id", "query": gallery.ids[0], "result": gallery.ids[1], "score": 0.5, "verdict": "wrong"}
    mark["query_name"] = "=cmd|' /C calc'!A0"
    first = service.client.post("/v1/feedback", json=mark)
    assert first.status_code == 200, first.text
    again = service.client.post("/v1/feedback", json={**mark, "verdict": "right"})
    assert again.json()["marks"] == first.json()["marks"], "the latest word on a pair counts"
    service.client.post("/v1/feedback", json=mark)
    export = service.client.get("/v1/feedback.csv")
    assert export.headers["content-type"].startswith("text/csv")
    rows = [row for row in csv.DictReader(io.StringIO(export.text)) if row["result"] == gallery.ids[1]]
    assert len(rows) == 1
    assert rows[0]["verdict"] == "wrong"
    assert rows[0]["label"] == gallery.ids[1].partition("/")[0]
    assert rows[0]["query_name"] == "'" + mark["query_name"]
    assert rows[0]["model"] == gallery.embedder.fingerprint()
    for change, status in (({"result": "absent"}, 404), ({"verdict": "maybe"}, 422), ({"score": 7}, 422)):
        assert service.client.post("/v1/feedback", json={**mark, **change}).status_code == status
    taken_back = service.client.post("/v1/feedback", json={**mark, "verdict": "none"})
    assert taken_back.json()["marks"] == first.json()["marks"] - 1


def test_a_map_can_be_drawn_of_any_two(service: Any, gallery: Any, encode: Callable[..., bytes], photo: Any) -> None:
    drawn = service.client.post("/page/map", params={"id": gallery.ids[0], "query": gallery.ids[1]})
    assert drawn.status_code == 200, drawn.text
    assert drawn.text.count("data:image/webp;base64,") == 2
    files = {"picture": ("x.png", encode(photo(1)))}
    assert service.client.post("/page/map", params={"id": gallery.ids[0]}, files=files).status_code == 200
    assert service.client.post("/page/map", params={"id": gallery.ids[0]}).status_code == 400


def test_the_page_works_without_a_script(service: Any, gallery: Any) -> None:
    page = service.client.get("/page/neighbours", params={"id": gallery.ids[3]})
    assert page.text.count('class="card"') == 12
    assert "<!doctype html>" in page.text
    part = service.client.get("/page/neighbours", params={"id": gallery.ids[3]}, headers={"HX-Request": "true"})
    assert "<!doctype html>" not in part.text
    files = {"picture": ("x.png", (gallery.pictures / gallery.ids[3]).read_bytes())}
    sent = service.client.post("/page/search", files=files, data={"k": "24", "where": "price<10"})
    assert sent.text.count('class="card"') == 10
    assert service.client.post("/page/search", files=files, data={"k": "many"}).status_code == 422


def test_what_an_index_says_is_shown_as_text(gallery: Any, tmp_path: Any) -> None:
    evil = "<script>alert(1)</script>\"'`{{7*7}}"
    with Index.open(str(gallery.index), read_only=True) as index:
        key, vectors = index.manifest.key, index.get(gallery.ids[:2]).vectors
    with Index.create(str(tmp_path / "evil"), key, title=evil) as index:
        index.add(Items.make([evil, "b"], vectors, [{"label": evil, "path": "/etc/passwd"}, {"label": "b"}]))
    app = create_app(ServeSettings(**gallery.settings(index=str(tmp_path / "evil"))))
    with TestClient(app, base_url="http://127.0.0.1") as client:
        page = client.get("/page/neighbours", params={"id": "b"}).text
        assert "<script>alert" not in page
        assert "&lt;script&gt;alert(1)&lt;/" in page
        assert "{{7*7}}" in page
        assert client.get("/v1/picture", params={"id": evil}).status_code == 404
        assert client.get("/v1/item", params={"id": evil}).json()["meta"]["path"] == "passwd"


def test_certainty_of_the_query_and_of_every_neighbour(gallery: Any, serve: Any, tmp_path: Path) -> None:
    """A bundle whose lengths mean certainty, and rows that know theirs, as `proxemics embed --kappa` writes them."""
    shutil.copytree(gallery.bundle, tmp_path / "bundle")
    paths = [gallery.pictures / name for name in gallery.ids]
    with torch.inference_mode():
        pixels = torch.from_numpy(np.stack([gallery.embedder.preprocess(path) for path in paths]))
        encoded = gallery.embedder.encode(pixels)
    lengths = encoded.raw.norm(dim=1).numpy()
    long, middle = (float(np.quantile(lengths, share)) for share in (0.8, 0.5))
    rows = [
        {"kappa": long, "kept": 0.2, "error_rate": 0.01}, {"kappa": middle, "kept": 0.5, "error_rate": 0.1},
        {"kappa": 0.0, "kept": 1.0, "error_rate": 0.25},
    ]  # fmt: skip
    found = {"schema": 1, "trained": True, "queries": 400, "errors": 100, "levels": rows}
    write_json(tmp_path / "bundle" / "certainty.json", found)
    with Index.open(str(gallery.index), read_only=True) as old:
        key = old.manifest.key
    meta = [
        {"label": name.partition("/")[0], "kappa": float(one)} for name, one in zip(gallery.ids, lengths, strict=True)
    ]
    with Index.create(str(tmp_path / "index"), key) as index:
        index.add(Items.make(gallery.ids, encoded.unit.numpy(), meta))
        index.add(Items.make(["without"], np.ones((1, 16)), [{"label": "x"}]))
    service = serve(gallery.settings(model=str(tmp_path / "bundle"), index=str(tmp_path / "index")))
    word = {
        name: "high" if one >= long else "medium" if one >= middle else "low"
        for name, one in zip(gallery.ids, lengths, strict=True)
    }
    assert len(set(word.values())) == 3
    name = next(name for name in gallery.ids if word[name] == "high")
    by_picture = search(service, (gallery.pictures / name).read_bytes(), k=97)
    by_id = service.client.get("/v1/neighbours", params={"id": name, "k": 97}).json()
    for answer in (by_picture, by_id):
        assert (answer["certainty"]["word"], answer["certainty"]["error_rate"]) == ("high", 0.01)
        for hit in answer["results"]:
            told = hit["certainty"]["word"] if hit["certainty"] is not None else None
            assert told == word.get(hit["id"]), hit
    assert {hit["id"] for hit in by_picture["results"]} >= {"without", name}
    page = service.client.get("/page/neighbours", params={"id": name}).text
    assert "Certainty <b>high</b>" in page
    assert re.search(r'<span class="sure (high|medium|low)" title="[^"]+">Certainty \1</span>', page)
