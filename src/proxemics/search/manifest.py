"""What an index remembers of itself, so that no query from another model is answered."""

from __future__ import annotations

import json
from typing import Literal

from pydantic import BaseModel, ConfigDict, Field

from proxemics.core.errors import SearchError

FORMAT = 1
"""Version of the layout on disk or in a database; a newer one is refused."""


class ModelKey(BaseModel):
    """What decides the vector of a picture.

    Attributes:
        model: fingerprint of the model, 64 hex digits (``Embedder.fingerprint()``), or any name for vectors from
            elsewhere.
        preprocess: ``Preprocess.fingerprint()``, or empty for vectors from elsewhere.
        dim: length D of the vectors.
    """

    model_config = ConfigDict(frozen=True, extra="forbid")

    model: str = Field(min_length=1)
    preprocess: str = ""
    dim: int = Field(ge=1, le=16000)


class Manifest(BaseModel):
    """Written when an index is created; it does not change.

    Attributes:
        format: version of the layout.
        key: the model that the vectors come from.
        kind: ``exact`` scans every vector; ``hnsw`` searches a graph, and says how well.
        dtype: how vectors are kept for the search; ``int8`` keeps float32 beside it only if the back-end re-scores.
        version: version of Proxemics that created it.
        created: UTC, ISO 8601.
        title: free text.
    """

    model_config = ConfigDict(frozen=True, extra="forbid")

    format: int = FORMAT
    key: ModelKey
    kind: Literal["exact", "hnsw"] = "exact"
    dtype: Literal["float32", "int8"] = "float32"
    version: str = ""
    created: str = ""
    title: str = ""

    def check(self, key: ModelKey) -> None:
        """Refuse vectors from another model.

        Raises:
            SearchError: names both fingerprints.

        Example:
            >>> manifest = Manifest(key=ModelKey(model="a" * 64, preprocess="1", dim=4))
            >>> manifest.check(manifest.key)
            >>> manifest.check(ModelKey(model="b" * 64, preprocess="1", dim=4))
            Traceback (most recent call last):
            proxemics.core.errors.SearchError: The index holds vectors of model aaaaaaaaaaaa and ...
        """
        mine, theirs = self.key, key
        if mine.model != theirs.model:
            raise SearchError(
                f"The index holds vectors of model {mine.model[:12]} and the query comes from {theirs.model[:12]}; "
                "use the model that built it, or build a new index with this one."
            )
        if mine.preprocess != theirs.preprocess:
            raise SearchError(
                f"The index was built with preprocessing {mine.preprocess or '(none)'} and the query was prepared with "
                f"{theirs.preprocess or '(none)'}; the same model with another picture size gives other vectors."
            )
        if mine.dim != theirs.dim:
            raise SearchError(f"The index holds vectors of length {mine.dim}, and the query has {theirs.dim}.")


def read_manifest(text: str, where: str) -> Manifest:
    """Read what ``Manifest.model_dump_json`` wrote.

    Args:
        text: JSON.
        where: the address of the index, for messages.

    Raises:
        SearchError: the format is newer than this version of Proxemics knows, or the text is no manifest.

    Example:
        >>> read_manifest('{"format": 99}', "birds.index")
        Traceback (most recent call last):
        proxemics.core.errors.SearchError: The index birds.index has format 99, and this version of Proxemics reads ...
    """
    try:
        content = json.loads(text)
        if isinstance(content, dict) and int(content.get("format", FORMAT)) > FORMAT:
            raise SearchError(
                f"The index {where} has format {content['format']}, and this version of Proxemics reads up to "
                f"{FORMAT}; install a newer one (pip install -U proxemics)."
            )
        return Manifest.model_validate(content)
    except SearchError:
        raise
    except (ValueError, TypeError, OverflowError) as error:
        reason = str(error).partition("\n")[0]
        raise SearchError(f"The manifest of the index {where} is not usable: {reason}.") from error
