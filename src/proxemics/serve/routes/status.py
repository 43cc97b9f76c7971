"""What is served, whether it works, and how fast."""

from __future__ import annotations

from fastapi import APIRouter, Response

from proxemics.__about__ import __version__
from proxemics.search.index import Index
from proxemics.serve.decode import FORMATS
from proxemics.serve.errors import STATUSES
from proxemics.serve.routes.parameters import ServiceDep
from proxemics.serve.schemas import Health, Info, Limits
from proxemics.serve.service import Service

router = APIRouter(tags=["status"], responses=STATUSES)


async def describe(service: Service) -> Info:
    """Describe a service as it is now."""
    facts, settings, identify = service.engine.facts, service.settings, service.classes.identify
    book = await service.index.call(lambda _: service.classes.book)
    return Info(
        version=__version__,
        model=facts.fingerprint,
        engine=facts.engine,
        precision=facts.precision,
        dim=facts.dim,
        size=service.engine.preprocess.size,
        index=await service.index.call(_title),
        items=await service.index.call(lambda index: index.count()),
        labels=len(service.labels),
        classes=len(book) if book is not None else 0,
        threshold=identify.threshold if identify is not None else None,
        match_threshold=service.classes.verify,
        certainty=service.scale is not None,
        maps=service.maps.available and service.pictures.available,
        enrol=settings.allow_enrol,
        limits=Limits(
            max_bytes=settings.max_bytes, max_pixels=settings.max_pixels, rate=settings.rate, formats=list(FORMATS)
        ),
    )


def _title(index: Index) -> str:
    return index.manifest.title or index.address.rstrip("/").rpartition("/")[2]


@router.get("/v1/info")
async def get_info(service: ServiceDep) -> Info:
    """Return the model, the index and the limits."""
    return await describe(service)


@router.get("/health")
async def get_health(service: ServiceDep) -> Health:
    """Say that the service lives; needs no key."""
    return Health(status="ok", waiting=service.embedding.waiting)


@router.get("/metrics", response_class=Response, responses={200: {"content": {"text/plain": {}}}})
async def get_metrics(service: ServiceDep) -> Response:
    """Return counters and histograms in the text format of Prometheus."""
    service.metrics.queue_length.set(service.embedding.waiting)
    return Response(service.metrics.text(), media_type="text/plain; version=0.0.4; charset=utf-8")
