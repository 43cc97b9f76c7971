"""What Prometheus reads: how many requests, how long, how large the batches are, and how much of it is the model."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, generate_latest
from starlette.types import Scope

LATENCIES = (0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1.0, 2.0, 5.0, 10.0, 30.0)
STAGES = ("read", "decode", "model", "index")


class Metrics:
    """The counters of one service; nothing is shared between two in one process.

    Example:
        >>> metrics = Metrics()
        >>> with metrics.stage("model"):
        ...     pass
        >>> 'proxemics_stage_seconds_count{stage="model"} 1.0' in metrics.text().decode()
        True
    """

    def __init__(self) -> None:
        self._registry = CollectorRegistry()
        self._requests = Counter(
            "proxemics_requests",
            "Requests, by route, method and status (499: the client left).",
            ("route", "method", "status"),
            registry=self._registry,
        )
        self._seconds = Histogram(
            "proxemics_request_seconds",
            "From the headers of a request to the end of its answer.",
            ("route",),
            buckets=LATENCIES,
            registry=self._registry,
        )
        self._stages = Histogram(
            "proxemics_stage_seconds",
            "Time spent reading bodies (read), on pictures before the model (decode), in the model, and in the index.",
            ("stage",),
            buckets=LATENCIES,
            registry=self._registry,
        )
        self.batch_size = Histogram(
            "proxemics_batch_size",
            "Pictures that the model embedded in one go.",
            buckets=(1, 2, 4, 8, 16, 32, 64),
            registry=self._registry,
        )
        self.queue_length = Gauge(
            "proxemics_queue_length", "Pictures that wait for the model.", registry=self._registry
        )
        self.in_flight = Gauge("proxemics_in_flight", "Requests that are worked on.", registry=self._registry)
        for stage in STAGES:
            self._stages.labels(stage)

    @contextmanager
    def stage(self, name: str) -> Iterator[None]:
        """Measure one stage of :data:`STAGES`."""
        started = time.perf_counter()
        try:
            yield
        finally:
            self._stages.labels(name).observe(time.perf_counter() - started)

    def request(self, scope: Scope, status: int, seconds: float) -> None:
        """Count one request under its route, so that made-up paths do not fill the memory."""
        route = getattr(scope.get("route"), "path", "unknown")
        method = scope["method"] if scope["method"] in ("GET", "POST", "HEAD", "PUT", "DELETE", "OPTIONS") else "other"
        self._requests.labels(route, method, str(status)).inc()
        self._seconds.labels(route).observe(seconds)

    def text(self) -> bytes:
        """Return all of it in the text format of Prometheus."""
        return generate_latest(self._registry)
