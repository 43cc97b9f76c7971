"""Parameters that several routes share."""

from __future__ import annotations

from typing import Annotated

from fastapi import Depends, Query, Request
from pydantic import Field

from proxemics.serve.answers import MOST_FILTERS
from proxemics.serve.service import Service

MOST_RESULTS = 100
_TEXT = r"^[^\x00]*$"
_CONDITION = r"^[a-z_]+(=[^\x00]*|[<>]=?-?[0-9]{1,15})$"
"""What is promised to be understood; more is, and what is not gets a better message than a pattern could give."""


def service_of(request: Request) -> Service:
    """Return the service that this application belongs to."""
    service: Service = request.app.state.service
    return service


ServiceDep = Annotated[Service, Depends(service_of)]
Count = Annotated[int, Query(ge=1, le=MOST_RESULTS, description="Rows wanted.")]
Where = Annotated[
    list[Annotated[str, Field(max_length=500, json_schema_extra={"pattern": _CONDITION})]],
    Query(
        max_length=MOST_FILTERS,
        description="Conditions that rows must meet, such as `label=cat|dog` or `price<10`; all of them must hold.",
    ),
]
Name = Annotated[str, Query(alias="id", min_length=1, max_length=512, pattern=_TEXT, description="An id of the index.")]
Text = Annotated[str, Query(min_length=1, max_length=200, pattern=_TEXT, description="Words of a label.")]
