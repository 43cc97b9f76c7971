"""The page, and the parts of it that htmx asks for. Each part is also reachable without a script, as a whole page."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any

from fastapi import APIRouter, Form, Query, Request, Response
from PIL import Image

from proxemics.data.decode import open_image
from proxemics.serve.answers import by_id, by_label, by_picture, examples, get_row
from proxemics.serve.decode import check_picture
from proxemics.serve.errors import Refusal
from proxemics.serve.html import Renderer
from proxemics.serve.routes.feedback import keep
from proxemics.serve.routes.parameters import MOST_RESULTS, Name, ServiceDep
from proxemics.serve.routes.status import describe
from proxemics.serve.schemas import Mark, SearchAnswer
from proxemics.serve.service import Service
from proxemics.serve.upload import Upload, one_upload, read_form, read_upload

router = APIRouter(include_in_schema=False)
Count = Annotated[int, Query(ge=1, le=MOST_RESULTS)]
Filters = Annotated[str, Query(max_length=1000)]
COUNTS = (12, 24, 48)


def split_filters(text: str) -> list[str]:
    """Split what was typed into the filter field: conditions stand on lines, or have semicolons between them.

    Example:
        >>> split_filters("domain=photo; price<10 ")
        ['domain=photo', 'price<10']
    """
    return [part.strip() for part in text.replace("\n", ";").split(";") if part.strip()]


async def show(
    request: Request, service: Service, answer: SearchAnswer | None, values: Mapping[str, Any] | None = None
) -> Response:
    """Render an answer: as a part for htmx, as a whole page for everyone else."""
    renderer: Renderer = request.app.state.renderer
    marks: dict[str, str] = {}
    if answer is not None and answer.query.kind != "label":
        query = answer.query
        marks = await service.with_feedback(lambda feedback: feedback.marks(query.kind, query.key)) or {}
    shown = {
        "answer": answer,
        "marks": marks,
        "examples": await examples(service) if answer is None else [],
        "can_mark": service.feedback is not None,
        "can_show": service.pictures.available,
        "can_map": service.maps.available and service.pictures.available,
        "match_threshold": service.classes.verify,
        "k": COUNTS[0],
        "where": "",
        "text": "",
        **(values or {}),
    }
    if request.headers.get("hx-request") == "true":
        return renderer.page("answer.html", shown)
    return renderer.page(
        "page.html",
        {**shown, "info": await describe(service), "counts": COUNTS, "has_key": service.settings.key is not None},
    )


@router.get("/")
async def page(request: Request, service: ServiceDep) -> Response:
    """Return the page, ready for a first search."""
    return await show(request, service, None)


@router.post("/page/search")
async def page_search(request: Request, service: ServiceDep) -> Response:
    """Search by the picture in the form."""
    form = await read_form(request)
    k, where = whole(form.fields.get("k", "")), form.fields.get("where", "")[:1000]
    answer = await by_picture(service, one_upload(form), k, split_filters(where))
    return await show(request, service, answer, {"k": k, "where": where})


def whole(text: str) -> int:
    """Read how many rows are wanted.

    Raises:
        Refusal: 422, it is no number from 1 to 100.

    Example:
        >>> whole("24"), whole("")
        (24, 12)
    """
    if not text:
        return COUNTS[0]
    if not text.isascii() or not text.isdigit() or len(text) > 4 or not 1 <= int(text) <= MOST_RESULTS:
        raise Refusal(422, "invalid_value", f"k={text[:20]!r} is no number from 1 to {MOST_RESULTS}.")
    return int(text)


@router.get("/page/neighbours")
async def page_neighbours(
    request: Request, service: ServiceDep, name: Name, k: Count = COUNTS[0], where: Filters = ""
) -> Response:
    """Search by a row of the index."""
    answer = await by_id(service, name, k, split_filters(where))
    return await show(request, service, answer, {"k": k, "where": where})


@router.get("/page/items")
async def page_items(
    request: Request,
    service: ServiceDep,
    text: Annotated[str, Query(max_length=200)] = "",
    k: Count = COUNTS[0],
    where: Filters = "",
) -> Response:
    """List rows by the text of their label."""
    answer = await by_label(service, text, k, split_filters(where)) if text.strip() else None
    return await show(request, service, answer, {"k": k, "where": where, "text": text})


@router.post("/page/feedback")
async def page_feedback(request: Request, service: ServiceDep, mark: Annotated[Mark, Form()]) -> Response:
    """Keep a mark and return the button as it is now."""
    await keep(service, mark)
    renderer: Renderer = request.app.state.renderer
    return renderer.page("mark.html", {"mark": mark})


@router.post("/page/map")
async def page_map(
    request: Request, service: ServiceDep, name: Name, query: Annotated[str, Query(max_length=512)] = ""
) -> Response:
    """Draw the similarity maps of a row and the query: another row, or the picture that is sent again."""
    row = await get_row(service, name)
    other = await get_row(service, query) if query else None
    upload = await read_upload(request) if other is None else None

    def pictures() -> tuple[Image.Image, Image.Image]:
        neighbour = service.pictures.picture(name, row.meta[0])
        first = _open(service, upload) if upload else service.pictures.picture(query, other.meta[0]) if other else None
        if neighbour is None or first is None:
            raise Refusal(404, "no_picture", "One of the two pictures cannot be read, so there is no map of them.")
        return first, neighbour

    drawn = await service.maps.draw(*await service.decoder.run(pictures))
    label = row.meta[0].get("label")
    renderer: Renderer = request.app.state.renderer
    return renderer.page("map.html", {"maps": drawn, "label": label if label not in (None, "") else name})


def _open(service: Service, upload: Upload) -> Image.Image:
    check_picture(upload.data, max_pixels=service.settings.max_pixels)
    return open_image(upload.data, name="The picture", max_pixels=service.settings.max_pixels)
