"""Add classes from a few pictures, without training, and remove them; only with ``--allow-enrol``."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
from fastapi import APIRouter, Request
from pydantic import BaseModel, ConfigDict, Field

from proxemics.core.files import atomic_path
from proxemics.data.decode import open_image
from proxemics.search.classes.book import BLANK, UNKNOWN, UNSEEN
from proxemics.search.local.layout import thumbnail_file
from proxemics.search.open import backend_of
from proxemics.serve.errors import STATUSES, Refusal
from proxemics.serve.pictures import SIDES, encode
from proxemics.serve.routes.parameters import ServiceDep
from proxemics.serve.schemas import Enrolled, Forgotten
from proxemics.serve.service import Service
from proxemics.serve.upload import FIELD, Upload, read_form

router = APIRouter(prefix="/v1", tags=["classes"], responses=STATUSES)
MOST_PICTURES, MOST_LABEL = 32, 200
LABEL = rf"^(?![{BLANK}]*{UNKNOWN}[{BLANK}]*$)[^{UNSEEN}]*[^{UNSEEN}{BLANK}][^{UNSEEN}]*$"
"""What a label is, for the description: :func:`check_name` decides."""
FORM: dict[str, Any] = {
    "requestBody": {
        "required": True,
        "content": {
            "multipart/form-data": {
                "schema": {
                    "type": "object",
                    "required": ["label", FIELD],
                    "properties": {
                        "label": {"type": "string", "minLength": 1, "maxLength": MOST_LABEL, "pattern": LABEL},
                        FIELD: {
                            "type": "array",
                            "minItems": 1,
                            "maxItems": MOST_PICTURES,
                            "items": {"type": "string", "format": "binary"},
                        },
                    },
                }
            }
        },
    }
}


class Forget(BaseModel):
    """Which class to remove."""

    model_config = ConfigDict(extra="forbid")

    label: str = Field(min_length=1, max_length=512)


@router.post("/enrol", openapi_extra=FORM)
async def enrol_class(request: Request, service: ServiceDep) -> Enrolled:
    """Add pictures to a class; a new one begins. The pictures become rows of the index as well.

    Send a form with the field `label` and one to 32 pictures as fields `picture`. All are added, or none.
    """
    _allow(service)
    form = await read_form(request)
    label = form.fields.get("label", "").strip()
    if not 1 <= len(form.uploads) <= MOST_PICTURES:
        raise Refusal(
            400, "no_picture", f"Send 1 to {MOST_PICTURES} pictures as fields {FIELD!r}, not {len(form.uploads)}."
        )
    if not label or len(label) > MOST_LABEL:
        raise Refusal(
            422, "no_label", f"Send the name of the class as the field 'label', {MOST_LABEL} characters at most."
        )
    uploads = {f"enrolled/{label}/{one.digest[:32]}": one for one in form.uploads}
    pixels = [await service.pixels(one.data) for one in uploads.values()]
    embedded = [await service.embedding.submit(one) for one in pixels]
    vectors, lengths = np.stack([one[0] for one in embedded]), np.array([one[1] for one in embedded], np.float32)
    names = list(uploads)
    done, added = await service.index.call(lambda index: service.classes.enrol(index, label, names, vectors, lengths))
    service.labels.add(label, added)
    await service.decoder.run(lambda: _keep_thumbnails(service, uploads))
    return done


@router.post("/forget")
async def forget_class(service: ServiceDep, forget: Forget) -> Forgotten:
    """Remove a class and the rows that came with it; other rows of that label stay."""
    _allow(service)
    done, names = await service.index.call(lambda index: service.classes.forget(index, forget.label))
    service.labels.add(forget.label, -done.rows)
    await service.decoder.run(lambda: _drop_thumbnails(service, names))
    return done


def _allow(service: Service) -> None:
    if not service.settings.allow_enrol:
        raise Refusal(
            403, "no_enrolment", "Classes are not added over HTTP here; start the service with --allow-enrol."
        )


def _drop_thumbnails(service: Service, names: Sequence[str]) -> None:
    for name in names:
        service.pictures.forget(name)
        if backend_of(service.settings.index) == "local":
            thumbnail_file(Path(service.settings.index), name).unlink(missing_ok=True)


def _keep_thumbnails(service: Service, uploads: dict[str, Upload]) -> None:
    if backend_of(service.settings.index) != "local":
        return
    for name, upload in uploads.items():
        small = encode(open_image(upload.data, max_pixels=service.settings.max_pixels), SIDES["small"])
        with atomic_path(thumbnail_file(Path(service.settings.index), name)) as temporary:
            temporary.write_bytes(small)
        service.pictures.forget(name)
