"""The JSON that clients get, as models from which OpenAPI is written."""

from __future__ import annotations

from typing import Literal

from pydantic import BaseModel, ConfigDict, Field

Value = str | int | float | bool | None


class Certainty(BaseModel):
    """How certain the model is of the picture itself, whatever it is compared with."""

    word: Literal["high", "medium", "low"]
    share: float = Field(ge=0, le=1, description="Share of the run's test pictures that it is more certain than.")
    error_rate: float | None = Field(
        description="How many of the test pictures that are at least so certain were answered wrongly, if known."
    )
    kappa: float = Field(description="Length of the embedding before it was normalised.")


class Hit(BaseModel):
    """One row of the index in an answer."""

    rank: int = Field(ge=1)
    id: str
    score: float | None = Field(description="Cosine to the query, -1 to 1; null where nothing was compared.")
    match: bool | None = Field(
        description="Whether the score reaches the calibrated threshold of two pictures of one class, if there is one."
    )
    label: str | None
    meta: dict[str, Value] = Field(description="What the index knows about the row; paths are shortened.")
    picture: str | None = Field(description="Where its thumbnail is, or null.")
    certainty: Certainty | None = Field(
        None, description="Of the row itself, where the index knows its length as `kappa` and the length has a meaning."
    )


class Vote(BaseModel):
    """How often a label stands among the neighbours."""

    label: str
    count: int = Field(ge=1)


class Decision(BaseModel):
    """Which enrolled class a picture belongs to, or none of them."""

    known: bool = Field(description="Whether the picture belongs to a class of the class book.")
    label: str | None = Field(description="The class, or null for an unknown one.")
    nearest: str = Field(description="The class that fits best, near enough or not.")
    score: float = Field(description="Cosine of the picture and the centre of that class.")
    threshold: float | None = Field(
        description="The score that is needed; null where none was calibrated, and every picture gets a class."
    )


class Query(BaseModel):
    """What was searched for."""

    kind: Literal["picture", "id", "label"]
    key: str = Field(description="SHA-256 of the uploaded bytes, the id, or the text.")
    name: str = Field(description="File name that came with the picture; only ever shown.")


class Seconds(BaseModel):
    """Where the time went."""

    decode: float = 0.0
    model: float = Field(0.0, description="Waiting for the model included.")
    index: float = Field(0.0, description="Waiting for the index included.")


class SearchAnswer(BaseModel):
    """Neighbours of a query, the nearest first."""

    query: Query
    results: list[Hit]
    missing: int = Field(ge=0, description="Rows fewer than asked for, because no more meet the filter.")
    votes: list[Vote]
    decision: Decision | None = Field(None, description="Null while no class is enrolled.")
    certainty: Certainty | None = Field(None, description="Null where the model's lengths mean no certainty.")
    seconds: Seconds


class Label(BaseModel):
    """A label of the index."""

    label: str
    count: int = Field(ge=1)


class Labels(BaseModel):
    """Labels that match a text, the best match first."""

    text: str
    labels: list[Label]


class Item(BaseModel):
    """A row of the index."""

    id: str
    label: str | None
    meta: dict[str, Value]
    picture: str | None


class Mark(BaseModel):
    """What a person says about one neighbour of one query."""

    model_config = ConfigDict(extra="forbid")

    query_kind: Literal["picture", "id"]
    query: str = Field(min_length=1, max_length=512, description="`query.key` of the answer.")
    query_name: str = Field("", max_length=200)
    result: str = Field(min_length=1, max_length=512, description="The id of the neighbour.")
    score: float | None = Field(None, ge=-1.01, le=1.01)
    verdict: Literal["wrong", "right", "none"] = Field(description="`none` takes a mark back.")


class Marked(BaseModel):
    """The mark that holds now."""

    result: str
    verdict: Literal["wrong", "right", "none"]
    marks: int = Field(ge=0, description="Marks that are kept in all.")


class Enrolled(BaseModel):
    """A class after pictures were added to it."""

    label: str
    pictures: int = Field(ge=0, description="Pictures of the class in all.")
    classes: int = Field(ge=0)


class Forgotten(BaseModel):
    """A class after it was removed."""

    label: str
    rows: int = Field(ge=0, description="Rows of the index that came with the class and were removed.")
    classes: int = Field(ge=0)


class Limits(BaseModel):
    """What a client may ask for."""

    max_bytes: int
    max_pixels: int
    rate: float
    formats: list[str]


class Info(BaseModel):
    """What is served."""

    version: str
    model: str = Field(description="Fingerprint of the model.")
    engine: str
    precision: str
    dim: int
    size: int = Field(description="Side of the square that the model sees, pixels.")
    index: str
    items: int
    labels: int
    classes: int = Field(description="Enrolled classes.")
    threshold: float | None = Field(description="The score below which a picture belongs to no enrolled class.")
    match_threshold: float | None = Field(description="The score from which two pictures count as one class.")
    certainty: bool
    maps: bool
    enrol: bool
    limits: Limits


class Health(BaseModel):
    """Whether the service works."""

    status: Literal["ok"]
    waiting: int = Field(ge=0, description="Pictures that wait for the model.")
