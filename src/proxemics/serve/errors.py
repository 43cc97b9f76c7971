"""Errors as clients see them: a status, a code for programs, and one clear line."""

from __future__ import annotations

import logging
from typing import Any

from fastapi import FastAPI, Request
from fastapi.exceptions import RequestValidationError
from pydantic import BaseModel, Field
from starlette.exceptions import HTTPException
from starlette.responses import JSONResponse, RedirectResponse, Response

from proxemics.core.errors import ImageError, ProxemicsError, SearchError
from proxemics.serve.html import Renderer

logger = logging.getLogger("proxemics.serve")

CODES = {400: "bad_request", 401: "key_needed", 403: "forbidden", 404: "not_found", 405: "method_not_allowed"}
STATUSES: dict[int | str, dict[str, Any]] = {}
"""Descriptions of the error answers for OpenAPI; filled below."""


class ErrorBody(BaseModel):
    """The body of every answer that is no success."""

    error: str = Field(description="One line that says what is wrong and what to do.")
    code: str = Field(description="For programs; does not change between versions.")
    status: int = Field(description="The HTTP status once more.")
    request_id: str = Field(description="Names this request in the log of the server.")


for _status, _text in (
    (400, "The request cannot be understood."),
    (401, "The API key is missing or wrong."),
    (403, "The request comes from another web site, or is not allowed here."),
    (404, "There is no such id, or no such page."),
    (408, "The body did not arrive in time."),
    (413, "The body, or the picture in it, is too large."),
    (415, "The body is no picture in an allowed format."),
    (422, "A value is out of range, or the picture is damaged."),
    (429, "This client asks too often."),
    (503, "The service has too much to do, or a part of it is away."),
):
    STATUSES[_status] = {"model": ErrorBody, "description": _text}


class Refusal(HTTPException):
    """An answer that is no success, made on purpose.

    Args:
        status: HTTP status.
        code: for programs.
        message: one line for people.
        retry_after: seconds after which it is worth another try.
        close: end the connection, because the rest of the request will not be read.
    """

    def __init__(
        self, status: int, code: str, message: str, *, retry_after: int | None = None, close: bool = False
    ) -> None:
        headers: dict[str, str] = {}
        if retry_after is not None:
            headers["Retry-After"] = str(retry_after)
        if close:
            headers["Connection"] = "close"
        if status == 401:
            headers["WWW-Authenticate"] = 'Bearer realm="proxemics"'
        super().__init__(status, message, headers)
        self.code = code


def error_response(request: Request, refusal: HTTPException) -> Response:
    """Render a refusal: a fragment of the page for htmx, JSON for everyone else."""
    code = getattr(refusal, "code", None) or CODES.get(refusal.status_code, f"status_{refusal.status_code}")
    body = ErrorBody(
        error=" ".join(str(refusal.detail).split()),
        code=code,
        status=refusal.status_code,
        request_id=getattr(request.state, "request_id", ""),
    )
    headers = dict(refusal.headers or {})
    if refusal.status_code == 401 and _is_navigation(request):
        return RedirectResponse("/login", 303)
    renderer: Renderer | None = getattr(request.app.state, "renderer", None) if "app" in request.scope else None
    if renderer is not None and request.headers.get("hx-request") == "true":
        return renderer.page("error.html", body.model_dump(), status=refusal.status_code, headers=headers)
    return JSONResponse(body.model_dump(), refusal.status_code, headers)


def _is_navigation(request: Request) -> bool:
    """Say whether a browser asks for a page that it will show in place of another."""
    wants_page = request.headers.get("accept", "").startswith("text/html")
    return request.method == "GET" and wants_page and "hx-request" not in request.headers


def as_refusal(error: Exception) -> HTTPException:
    """Turn any error into what the client is told; the details of accidents stay in the log.

    Example:
        >>> as_refusal(SearchError("the server went away")).status_code
        503
        >>> as_refusal(ZeroDivisionError("secret")).detail
        'Something went wrong on the server; its log has the details under this request id.'
    """
    if isinstance(error, HTTPException):
        if error.status_code == 404 and not isinstance(error, Refusal):
            return Refusal(404, "not_found", "There is no such page; /openapi.json lists what there is.")
        return error
    if isinstance(error, RequestValidationError):
        first = error.errors()[0]
        where = ".".join(str(part) for part in first["loc"])
        return Refusal(422, "invalid_value", f"{where}: {first['msg']}.")
    if isinstance(error, ImageError):
        return Refusal(422, "damaged_picture", str(error))
    if isinstance(error, SearchError):
        return Refusal(503, "index_unavailable", str(error), retry_after=5)
    if isinstance(error, ProxemicsError):
        return Refusal(422, "invalid_value", str(error))
    return Refusal(
        500, "internal", "Something went wrong on the server; its log has the details under this request id."
    )


def install_handlers(app: FastAPI) -> None:
    """Make every error of the application leave through :func:`error_response`."""

    async def handle(request: Request, error: Exception) -> Response:
        return error_response(request, as_refusal(error))

    for kind in (HTTPException, RequestValidationError, ProxemicsError):
        app.add_exception_handler(kind, handle)
