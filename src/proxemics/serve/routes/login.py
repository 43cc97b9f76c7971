"""The form for the key, and the files that the page loads."""

from __future__ import annotations

import hmac
from typing import Annotated

from fastapi import APIRouter, Form, Request, Response
from starlette.responses import RedirectResponse

from proxemics.serve.errors import Refusal
from proxemics.serve.html import Renderer
from proxemics.serve.routes.parameters import ServiceDep
from proxemics.serve.session import COOKIE, LIFETIME_S, Sessions

router = APIRouter(include_in_schema=False)


@router.get("/login")
async def login_form(request: Request) -> Response:
    """Ask for the key."""
    renderer: Renderer = request.app.state.renderer
    return renderer.page("login.html", {"wrong": False})


@router.post("/login")
async def login(request: Request, service: ServiceDep, key: Annotated[str, Form(max_length=500)] = "") -> Response:
    """Begin a session when the key is right."""
    wanted = service.settings.key
    sessions: Sessions = request.app.state.sessions
    if wanted is not None and not hmac.compare_digest(key.strip().encode(), wanted.get_secret_value().encode()):
        renderer: Renderer = request.app.state.renderer
        return renderer.page("login.html", {"wrong": True}, status=401)
    answer = RedirectResponse("/", status_code=303)
    answer.set_cookie(
        COOKIE,
        sessions.begin(),
        max_age=LIFETIME_S,
        httponly=True,
        samesite="strict",
        secure=request.url.scheme == "https",
    )
    return answer


@router.post("/logout")
async def logout() -> Response:
    """End the session of this browser."""
    answer = RedirectResponse("/login", status_code=303)
    answer.delete_cookie(COOKIE, httponly=True, samesite="strict")
    return answer


@router.get("/static/{name}")
async def static_file(request: Request, name: str) -> Response:
    """Return one of the files that were read when the service started."""
    renderer: Renderer = request.app.state.renderer
    found = renderer.static.get(name)
    if found is None:
        raise Refusal(404, "not_found", "There is no such file.")
    headers = {"Cache-Control": "public, max-age=31536000, immutable", "ETag": f'"{found.digest}"'}
    return Response(found.content, media_type=found.media_type, headers=headers)
