"""The application: parts, guards and routes put together."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from fastapi import FastAPI, Security
from fastapi.security import APIKeyHeader, HTTPBearer

from proxemics.__about__ import __version__
from proxemics.serve.checks import Check, check_host, check_key, check_origin, check_rate
from proxemics.serve.errors import install_handlers
from proxemics.serve.guard import Guard
from proxemics.serve.html import Renderer
from proxemics.serve.limits import RateLimiter
from proxemics.serve.routes import enrol, feedback, login, page, search, status
from proxemics.serve.service import Service, open_service
from proxemics.serve.session import Sessions
from proxemics.serve.settings import ServeSettings, check_exposure

ABOUT = (
    "Search pictures by picture, by id and by the text of a label. Scores are cosines. Errors are JSON with one clear "
    "line and a code for programs."
)


def create_app(settings: ServeSettings) -> FastAPI:
    """Open the model and the index, and build the application around them.

    Args:
        settings: all of them.

    Returns:
        An ASGI application; its shutdown closes what was opened.

    Raises:
        ConfigError: it would be open to other machines without a key, or the key is too short.
        ProxemicsError: the model or the index cannot be opened, or they do not belong together.
    """
    check_exposure(settings)
    return build_app(open_service(settings))


def build_app(service: Service) -> FastAPI:
    """Build the application around parts that are open."""
    settings, sessions = service.settings, Sessions()

    @asynccontextmanager
    async def lifespan(_: FastAPI) -> AsyncIterator[None]:
        service.start()
        yield
        await service.stop()

    app = FastAPI(
        title="Proxemics", version=__version__, description=ABOUT, lifespan=lifespan, docs_url=None, redoc_url=None
    )
    app.state.service, app.state.sessions, app.state.renderer = service, sessions, Renderer()
    install_handlers(app)
    key = settings.key.get_secret_value() if settings.key is not None else None
    described = [] if key is None else [
        Security(HTTPBearer(auto_error=False)), Security(APIKeyHeader(name="X-API-Key", auto_error=False))
    ]  # fmt: skip
    for part in (search, feedback, enrol):
        app.include_router(part.router, dependencies=described)
    for part in (status, page, login):
        app.include_router(part.router)
    app.add_middleware(
        Guard,
        checks=checks_of(settings, sessions, key),
        metrics=service.metrics,
        max_in_flight=settings.max_in_flight,
        max_bytes=settings.max_bytes,
        body_timeout_s=settings.body_timeout_s,
        request_timeout_s=settings.request_timeout_s,
    )
    return app


def checks_of(settings: ServeSettings, sessions: Sessions, key: str | None) -> list[Check]:
    """Return what every request must pass; the rate comes before the key, so that keys cannot be tried at will."""
    checks: list[Check] = [check_host({settings.host, *settings.allow_hosts}), check_origin]
    checks.append(check_rate(RateLimiter(settings.rate, settings.burst)))
    if key is not None:
        checks.append(check_key(key, sessions))
    return checks
