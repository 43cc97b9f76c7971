"""Search by picture, by id and by the text of a label; look at rows and their pictures."""

from __future__ import annotations

from typing import Annotated

from fastapi import APIRouter, Query, Request, Response

from proxemics.serve.answers import by_id, by_label, by_picture, get_row, item_of
from proxemics.serve.errors import STATUSES, Refusal
from proxemics.serve.pictures import Size
from proxemics.serve.routes.parameters import Count, Name, ServiceDep, Text, Where
from proxemics.serve.schemas import Item, Label, Labels, SearchAnswer
from proxemics.serve.upload import PICTURE_BODY, read_upload

router = APIRouter(prefix="/v1", tags=["search"], responses=STATUSES)


@router.post("/search", openapi_extra=PICTURE_BODY)
async def search_by_picture(request: Request, service: ServiceDep, k: Count = 10, where: Where = []) -> SearchAnswer:  # noqa: B006 - FastAPI copies it
    """Find the nearest rows of a picture.

    Send the picture as the field `picture` of a form, or as the bare body of the request. Its Exif orientation is
    honoured, and it is prepared exactly as pictures were in training.
    """
    return await by_picture(service, await read_upload(request), k, where)


@router.get("/neighbours")
async def search_by_id(service: ServiceDep, name: Name, k: Count = 10, where: Where = []) -> SearchAnswer:  # noqa: B006 - FastAPI copies it
    """Find the nearest rows of a row, itself left out."""
    return await by_id(service, name, k, where)


@router.get("/labels")
async def find_labels(
    service: ServiceDep,
    text: Annotated[str, Query(max_length=200, description="Words of a label; empty lists all.")] = "",
    limit: Annotated[int, Query(ge=1, le=1000)] = 50,
) -> Labels:
    """Find labels by their text, with the number of rows that have them."""
    found = service.labels.find(text, limit)
    return Labels(text=text, labels=[Label(label=label, count=count) for label, count in found])


@router.get("/items")
async def search_by_label(service: ServiceDep, text: Text, k: Count = 10, where: Where = []) -> SearchAnswer:  # noqa: B006 - FastAPI copies it
    """List rows whose label holds the words of a text; they have no scores, because nothing is compared."""
    return await by_label(service, text, k, where)


@router.get("/item")
async def get_item(service: ServiceDep, name: Name) -> Item:
    """Return what the index knows about one row."""
    return item_of(service, await get_row(service, name))


@router.get("/picture", response_class=Response, responses={200: {"content": {"image/jpeg": {}}}})
async def get_picture(service: ServiceDep, name: Name, size: Size = "small") -> Response:
    """Return a row's picture, shrunk, as JPEG. Which file that is, the index says."""
    row = await get_row(service, name)
    data = await service.decoder.run(lambda: service.pictures.thumbnail(name, row.meta[0], size))
    if data is None:
        raise Refusal(404, "no_picture", f"There is no picture of {name[:80]!r}; see --pictures.")
    return Response(data, media_type="image/jpeg", headers={"Cache-Control": "private, max-age=3600"})
