"""The key: in a header for programs, in a cookie after the form for people, and on every route that is not open."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest
from starlette.testclient import TestClient

from proxemics.core.errors import ConfigError, SearchError
from proxemics.serve.app import create_app
from proxemics.serve.settings import ServeSettings

KEY = "correct horse battery"


@pytest.fixture(scope="module")
def locked(gallery: Any) -> Iterator[TestClient]:
    app = create_app(ServeSettings(**gallery.settings(key=KEY, host="0.0.0.0", allow_hosts=("birds.example",))))
    with TestClient(app, base_url="http://birds.example", follow_redirects=False) as client:
        yield client


def test_every_route_but_the_open_ones_asks_for_the_key(locked: TestClient) -> None:
    paths = locked.get("/openapi.json", headers={"X-API-Key": KEY}).json()["paths"]
    asked = [(method, path) for path, methods in paths.items() for method in methods if path != "/health"]
    asked += [
        ("get", "/"),
        ("post", "/page/search"),
        ("get", "/page/items"),
        ("post", "/page/map"),
        ("get", "/nothing"),
    ]
    asked += [("get", "/openapi.json"), ("post", "/page/feedback"), ("get", "/page/neighbours"), ("post", "/logout")]
    assert len(asked) > 15
    for method, path in asked:
        answer = locked.request(method, path)
        assert answer.status_code == 401, path
        assert answer.json()["code"] == "key_needed"
        assert answer.headers["www-authenticate"].startswith("Bearer")
    for path in ("/health", "/login", "/static/serve.css"):
        assert locked.get(path).status_code == 200


def test_both_headers_open_the_api(locked: TestClient, encode: Callable[..., bytes], photo: Any) -> None:
    for headers in ({"X-API-Key": KEY}, {"Authorization": f"Bearer {KEY}"}):
        assert locked.post("/v1/search", content=encode(photo(1)), headers=headers).status_code == 200
    for headers in ({"X-API-Key": KEY + "x"}, {"X-API-Key": ""}, {"Authorization": KEY}):
        assert locked.get("/v1/info", headers=headers).status_code == 401


def test_a_browser_enters_the_key_once(locked: TestClient) -> None:
    page = locked.get("/", headers={"Accept": "text/html,*/*;q=0.8"})
    assert page.status_code == 303
    assert page.headers["location"] == "/login"
    part = locked.get("/page/items?text=a", headers={"HX-Request": "true"})
    assert part.status_code == 401
    assert 'href="/login"' in part.text
    wrong = locked.post("/login", data={"key": "not the key at all"})
    assert wrong.status_code == 401
    assert "This is not the key." in wrong.text
    assert "set-cookie" not in wrong.headers
    right = locked.post("/login", data={"key": f" {KEY} "})
    assert right.status_code == 303
    cookie = right.headers["set-cookie"]
    assert "HttpOnly" in cookie
    assert "SameSite=strict" in cookie
    assert KEY not in cookie
    assert locked.get("/").status_code == 200
    left = locked.post("/logout")
    assert left.status_code == 303
    assert locked.get("/").status_code == 401


def test_keys_cannot_be_tried_at_will(gallery: Any) -> None:
    app = create_app(ServeSettings(**gallery.settings(key=KEY, rate=1, burst=20)))
    with TestClient(app, base_url="http://127.0.0.1") as client:
        statuses = [client.post("/login", data={"key": str(number)}).status_code for number in range(6)]
        assert statuses[:4] == [401] * 4
        assert 429 in statuses
    app = create_app(ServeSettings(**gallery.settings(key=KEY, rate=1, burst=20)))
    with TestClient(app, base_url="http://127.0.0.1") as client:
        statuses = [client.get("/v1/info", headers={"X-API-Key": str(number)}).status_code for number in range(22)]
        assert statuses[:20] == [401] * 20
        assert statuses[21] == 429


def test_an_index_of_another_model_is_refused(gallery: Any, tmp_path: Any) -> None:
    """User-pains 89: both fingerprints are named."""
    from proxemics.models.bundle import save_bundle
    from proxemics.models.embedder import Embedder

    other = Embedder("test_resnet", dim=16, weights="none", size=32, seed=5)
    save_bundle(other, tmp_path / "bundle")
    with pytest.raises(SearchError) as caught:
        create_app(ServeSettings(**gallery.settings(model=str(tmp_path / "bundle"))))
    assert other.fingerprint()[:12] in str(caught.value)
    assert gallery.embedder.fingerprint()[:12] in str(caught.value)
    with pytest.raises(ConfigError, match="no folder"):
        create_app(ServeSettings(**gallery.settings(pictures=str(tmp_path / "absent"))))
    with pytest.raises(ConfigError, match="no key"):
        create_app(ServeSettings(**gallery.settings(host="0.0.0.0")))
