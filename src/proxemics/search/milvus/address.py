"""The address of an index on Milvus: a file for Milvus Lite, or a server."""

from __future__ import annotations

import os
from dataclasses import dataclass, field
from pathlib import Path
from urllib.parse import parse_qsl, quote, urlencode, urlsplit

from proxemics.core.errors import SearchError
from proxemics.search.remote import index_name

_FORMS = "write milvus:FILE.db?index=NAME for Milvus Lite, or milvus+http://host:19530?index=NAME for a server"
_OPTIONS = ("index", "token", "database")


@dataclass(frozen=True)
class MilvusAddress:
    """A parsed address.

    Attributes:
        name: of the index, and of its collection.
        shown: the address without the token; it opens the same index where MILVUS_TOKEN holds the token.
        file: the path of Milvus Lite, or None.
        uri: of the server; empty for Milvus Lite.
        database: of the server; empty for its default.
        token: what lets in; it is never shown.
    """

    name: str
    shown: str
    file: Path | None = None
    uri: str = ""
    database: str = ""
    token: str = field(default="", repr=False)

    @classmethod
    def parse(cls, address: str) -> MilvusAddress:
        """Read an address.

        Raises:
            SearchError: it has no index, no file, or a parameter that is not known.

        Example:
            >>> MilvusAddress.parse("milvus+http://db.example:19530?index=birds&token=me:secret").shown
            'milvus+http://db.example:19530?index=birds'
            >>> MilvusAddress.parse("milvus:birds.db?index=birds").file.name
            'birds.db'
        """
        base, _, query = address.partition("?")
        options = dict(parse_qsl(query, keep_blank_values=True))
        unknown = sorted(set(options) - set(_OPTIONS))
        if unknown:
            raise SearchError(
                f"The address of Milvus has a parameter {unknown[0][:40]!r}; give index, token, database."
            )
        name = index_name(options.get("index", ""))
        scheme, _, rest = base.partition(":")
        if scheme.lower() == "milvus" and not rest.startswith("//"):
            return cls._file(name, rest)
        if scheme.lower() in ("milvus+http", "milvus+https"):
            return cls._server(name, scheme.lower().removeprefix("milvus+"), rest, options)
        raise SearchError(f"The address is not one of Milvus; {_FORMS}.")

    @classmethod
    def _file(cls, name: str, path: str) -> MilvusAddress:
        if not path.endswith(".db"):
            raise SearchError(f"The file of Milvus Lite is {path!r}, and its name must end in .db; {_FORMS}.")
        return cls(name, f"milvus:{path}?index={name}", file=Path(path).expanduser().resolve())

    @classmethod
    def _server(cls, name: str, scheme: str, rest: str, options: dict[str, str]) -> MilvusAddress:
        try:
            parts = urlsplit(f"{scheme}:{rest}")
            host, port = parts.hostname, parts.port or (443 if scheme == "https" else 19530)
        except ValueError:
            host, port = None, 0
        if not host or parts.path.strip("/"):
            raise SearchError(f"The address of the Milvus server is not understood; {_FORMS}.")
        if parts.username is not None:
            raise SearchError(
                "The address of the Milvus server holds a user; give &token=USER:PASSWORD, or set MILVUS_TOKEN."
            )
        place = f"{f'[{host}]' if ':' in host else host}:{port}"
        database = options.get("database", "")
        shown = {"index": name} | ({"database": database} if database else {})
        return cls(
            name,
            f"milvus+{scheme}://{place}?{urlencode(shown, quote_via=quote)}",
            uri=f"{scheme}://{place}",
            database=database,
            token=options.get("token", "") or os.environ.get("MILVUS_TOKEN", ""),
        )
