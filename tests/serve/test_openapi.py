"""The service against its own OpenAPI description: made-up requests, and every answer is one that it announces."""

from __future__ import annotations

import io
import re
import shutil
from collections import Counter
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st
from hypothesis.errors import Unsatisfiable
from PIL import Image

from proxemics.serve.routes.enrol import LABEL, MOST_LABEL

schemathesis = pytest.importorskip("schemathesis", reason="schemathesis is not installed")
KINDS = ("PNG", "JPEG", "GIF", "BMP", "WEBP")
FORM_TEXT = [schemathesis.checks.negative_data_rejection]
"""Of a form: all that it carries is text, so a label that is meant as a number cannot be told from its digits."""
EXAMPLES, MANY_EXAMPLES = 15, 600
QUIET = {
    "deadline": None,
    "derandomize": True,
    "database": None,
    "phases": [Phase.explicit, Phase.generate],
    "suppress_health_check": list(HealthCheck),
}


def picture(seed: int, kind: str, width: int, height: int) -> bytes:
    pixels = np.random.default_rng(seed).integers(0, 256, (height, width, 3), dtype=np.uint8)
    buffer = io.BytesIO()
    Image.fromarray(pixels).save(buffer, kind)
    return buffer.getvalue()


PICTURES = st.builds(picture, st.integers(0, 99), st.sampled_from(KINDS), st.integers(1, 40), st.integers(1, 40))
# To a schema a picture is any bytes; those that are none are refused, so real ones are drawn.
schemathesis.openapi.format("binary", PICTURES)
schemathesis.openapi.media_type("application/octet-stream", PICTURES)


@pytest.fixture(scope="module")
def open_service(gallery: Any, serve: Any, tmp_path_factory: pytest.TempPathFactory) -> Any:
    """A service that lets its classes and its index be changed, on copies of them."""
    copy = tmp_path_factory.mktemp("changed")
    shutil.copytree(gallery.bundle, copy / "bundle")
    shutil.copytree(gallery.index, copy / "index")
    return serve(gallery.settings(model=str(copy / "bundle"), index=str(copy / "index"), allow_enrol=True))


@pytest.fixture(scope="module")
def schema(open_service: Any) -> Any:
    return schemathesis.openapi.from_url(f"{open_service.address}/openapi.json")


def fuzz(schema: Any, service: Any, examples: int) -> Counter[tuple[str, str, int]]:
    """Ask every operation with right and wrong values; return how often which status came."""
    seen: Counter[tuple[str, str, int]] = Counter()
    for result in schema.get_all_operations():
        operation = result.ok()
        for mode in schemathesis.GenerationMode:

            @given(case=operation.as_strategy(generation_mode=mode))
            @settings(max_examples=examples, **QUIET)
            def ask(case: Any) -> None:
                answer = case.call_and_validate(excluded_checks=FORM_TEXT if case.path == "/v1/enrol" else [])
                seen[case.method, case.path, answer.status_code] += 1

            try:
                ask()
            except Unsatisfiable:  # nothing can be wrong about an operation without parameters
                assert mode == schemathesis.GenerationMode.NEGATIVE
                assert not operation.definition.raw.get("parameters")
    assert service.client.get("/health").status_code == 200
    return seen


def check(seen: Counter[tuple[str, str, int]]) -> None:
    statuses = Counter(status for (_, _, status), count in seen.items() for _ in range(count))
    assert not [status for status in statuses if status >= 500], seen
    answered = {(method, path) for method, path, status in seen if status == 200}
    assert ("POST", "/v1/search") in answered, "no made-up picture was searched for"
    assert ("POST", "/v1/enrol") in answered, "no made-up class was enrolled"
    assert {("GET", "/v1/labels"), ("GET", "/v1/items"), ("GET", "/v1/info"), ("GET", "/metrics")} <= answered


def test_made_up_requests_get_announced_answers(schema: Any, open_service: Any) -> None:
    check(fuzz(schema, open_service, EXAMPLES))


@pytest.mark.slow
def test_ten_thousand_made_up_requests(schema: Any, open_service: Any) -> None:
    before = open_service.memory_mb()
    seen = fuzz(schema, open_service, MANY_EXAMPLES)
    check(seen)
    assert sum(seen.values()) >= 10_000
    assert open_service.memory_mb() - before < 60


@pytest.mark.parametrize(
    "label", ["", "  ", "\u200b", "unknown", " unknown", "unknown\u200b", "a\nb", "a\x7fb", "a\u202eb", "a" * 201]
)
def test_labels_outside_of_the_description_are_refused(open_service: Any, label: str) -> None:
    assert not re.search(LABEL, label) or len(label) > MOST_LABEL
    files = {"picture": ("a.png", picture(0, "PNG", 9, 9))}
    answer = open_service.client.post("/v1/enrol", data={"label": label}, files=files)
    assert answer.status_code == 422, answer.text


@pytest.mark.parametrize("label", ["a", " a b ", "unknown bird", "Möwe", "گل‌سرخ", "👩‍🔬", "a" * 200])
def test_labels_within_the_description_are_taken(open_service: Any, label: str) -> None:
    assert re.search(LABEL, label)
    files = {"picture": ("a.png", picture(0, "PNG", 9, 9))}
    answer = open_service.client.post("/v1/enrol", data={"label": label}, files=files)
    assert (answer.status_code, answer.json().get("label")) == (200, label.strip()), answer.text


def test_every_operation_is_described(service: Any) -> None:
    document = service.client.get("/openapi.json").json()
    assert document["openapi"].startswith("3.")
    for path, operations in document["paths"].items():
        for method, operation in operations.items():
            assert operation["description"].strip(), (method, path)
            for status in ("400", "422", "429", "503"):
                body = operation["responses"][status]["content"]["application/json"]["schema"]
                assert body == {"$ref": "#/components/schemas/ErrorBody"}, (method, path, status)
    body = document["paths"]["/v1/search"]["post"]["requestBody"]["content"]
    assert set(body) == {"multipart/form-data", "application/octet-stream"}
