"""Pictures out of a request: as a form, or as the bare body."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass, field
from typing import Any

from starlette.datastructures import UploadFile
from starlette.requests import Request

from proxemics.serve.errors import Refusal

FIELD = "picture"
MOST_FILES, MOST_FIELDS = 64, 20
_BINARY = {"type": "string", "format": "binary"}
PICTURE_BODY: dict[str, Any] = {
    "requestBody": {
        "required": True,
        "content": {
            "multipart/form-data": {"schema": {"type": "object", "required": [FIELD], "properties": {FIELD: _BINARY}}},
            "application/octet-stream": {"schema": _BINARY},
        },
    }
}
"""How the body of a search is described in OpenAPI."""


@dataclass(frozen=True)
class Upload:
    """One picture as it came.

    Attributes:
        data: its bytes.
        name: the file name that the client gave it; shown and kept as text, never used as a path.
    """

    data: bytes = field(repr=False)
    name: str = ""

    @property
    def digest(self) -> str:
        """SHA-256 of the bytes, by which feedback names the picture."""
        return hashlib.sha256(self.data).hexdigest()


@dataclass(frozen=True)
class FilledForm:
    """A form as it came.

    Attributes:
        uploads: the pictures, in their order; fields left empty are passed over.
        fields: the other fields; of those that stand twice, the last.
    """

    uploads: list[Upload]
    fields: dict[str, str]


async def read_upload(request: Request) -> Upload:
    """Read the one picture of a request, from a form or as the bare body.

    Raises:
        Refusal: 400 when there is none, or several.
    """
    return one_upload(await read_form(request)) if is_form(request) else Upload(await request.body())


async def read_form(request: Request) -> FilledForm:
    """Read all pictures and fields of a form.

    Raises:
        Refusal: 400 when it is none, or has too many parts.
    """
    if not is_form(request):
        raise Refusal(415, "no_form", "Send a form, as multipart/form-data.")
    async with request.form(max_files=MOST_FILES, max_fields=MOST_FIELDS) as form:
        files = [value for name, value in form.multi_items() if name == FIELD and isinstance(value, UploadFile)]
        uploads = [Upload(await one.read(), clean_name(one.filename or "")) for one in files]
        fields = {name: value for name, value in form.multi_items() if isinstance(value, str)}
    return FilledForm([one for one in uploads if one.data or one.name], fields)


def one_upload(form: FilledForm) -> Upload:
    """Return the one picture of a form.

    Raises:
        Refusal: 400 when there is none, or several.
    """
    if len(form.uploads) != 1:
        raise Refusal(400, "no_picture", f"The form has {len(form.uploads)} files named {FIELD!r}; send one.")
    return form.uploads[0]


def is_form(request: Request) -> bool:
    """Say whether the body is a form with files."""
    return request.headers.get("content-type", "").lower().startswith("multipart/form-data")


def clean_name(name: str) -> str:
    r"""Keep the last part of a file name, without control characters, 200 characters at most.

    Example:
        >>> clean_name("C:\\photos\\bird\x00.jpg"), clean_name("../../etc/passwd")
        ('bird.jpg', 'passwd')
    """
    last = name.replace("\\", "/").rpartition("/")[2]
    return "".join(sign for sign in last if sign.isprintable())[:200]
