"""Marks on neighbours: keep them, and write them out."""

from __future__ import annotations

from typing import Any

from fastapi import APIRouter, Response

from proxemics.serve.answers import get_row, item_of
from proxemics.serve.errors import STATUSES, ErrorBody, Refusal
from proxemics.serve.routes.parameters import ServiceDep
from proxemics.serve.schemas import Mark, Marked
from proxemics.serve.service import Service

FULL: dict[int | str, dict[str, Any]] = {507: {"model": ErrorBody, "description": "No more marks fit."}}
router = APIRouter(prefix="/v1", tags=["feedback"], responses={**STATUSES, **FULL})


async def keep(service: Service, mark: Mark) -> Marked:
    """Keep a mark on a neighbour that the index has.

    Raises:
        Refusal: 404, there is no such neighbour, or no marks are kept.
    """
    label = item_of(service, await get_row(service, mark.result)).label
    count = await service.with_feedback(lambda feedback: feedback.put(mark, label=label))
    if count is None:
        raise Refusal(404, "no_feedback", "This service keeps no marks; start it with --feedback FILE.")
    return Marked(result=mark.result, verdict=mark.verdict, marks=count)


@router.post("/feedback")
async def mark_neighbour(service: ServiceDep, mark: Mark) -> Marked:
    """Say that a neighbour is wrong, or right, or take that back; the latest word on a pair counts."""
    return await keep(service, mark)


@router.get("/feedback.csv", response_class=Response, responses={200: {"content": {"text/csv": {}}}})
async def export_marks(service: ServiceDep) -> Response:
    """Return all marks as CSV. Text that a spreadsheet would run as a formula begins with an apostrophe."""
    text = await service.with_feedback(lambda feedback: feedback.csv())
    if text is None:
        raise Refusal(404, "no_feedback", "This service keeps no marks; start it with --feedback FILE.")
    return Response(text, media_type="text/csv", headers={"Content-Disposition": 'attachment; filename="feedback.csv"'})
