"""The service against its own OpenAPI description: made-up requests, and every answer is one that it announces."""

from __future__ import annotations

import io
from collections import Counter
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st
from hypothesis.errors import Unsatisfiable
from PIL import Image

schemathesis = pytest.importorskip("schemathesis", reason="schemathesis is not installed")
KINDS = ("PNG", "JPEG", "GIF", "BMP", "WEBP")
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
def schema(service: Any) -> Any:
    return schemathesis.openapi.from_url(f"{service.address}/openapi.json")


def fuzz(schema: Any, service: Any, examples: int) -> Counter[tuple[str, str, int]]:
    """Ask every operation with right and wrong values; return how often which status came."""
    seen: Counter[tuple[str, str, int]] = Counter()
    for result in schema.get_all_operations():
        operation = result.ok()
        for mode in schemathesis.GenerationMode:

            @given(case=operation.as_strategy(generation_mode=mode))
            @settings(max_examples=examples, **QUIET)
            def ask(case: Any) -> None:
                answer = case.call_and_validate()
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
    assert {("GET", "/v1/labels"), ("GET", "/v1/items"), ("GET", "/v1/info"), ("GET", "/metrics")} <= answered


def test_made_up_requests_get_announced_answers(schema: Any, service: Any) -> None:
    check(fuzz(schema, service, EXAMPLES))


@pytest.mark.slow
def test_ten_thousand_made_up_requests(schema: Any, service: Any) -> None:
    before = service.memory_mb()
    seen = fuzz(schema, service, MANY_EXAMPLES)
    check(seen)
    assert sum(seen.values()) >= 10_000
    assert service.memory_mb() - before < 60


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
