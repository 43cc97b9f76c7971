"""The address of an index on PostgreSQL: where it is, what to show of it, and what psycopg is given."""

from __future__ import annotations

from dataclasses import dataclass, field
from urllib.parse import parse_qsl, quote, urlencode

from proxemics.core.errors import SearchError
from proxemics.search.remote import index_name

_PLACE = ("user", "password", "host", "port", "dbname")


@dataclass(frozen=True)
class PgAddress:
    """A parsed address.

    Attributes:
        name: of the index, and of its table.
        settings: what psycopg is given; they hold the password, so they are never shown.
        shown: the address without passwords; it opens the same index where the password comes from elsewhere.
    """

    name: str
    settings: dict[str, str] = field(repr=False)
    shown: str

    @classmethod
    def parse(cls, address: str) -> PgAddress:
        """Read ``postgresql://user:password@host:port/database?index=NAME``; other parameters go to psycopg.

        Raises:
            SearchError: psycopg is absent, the address has no index, or libpq does not understand it.

        Example:
            >>> PgAddress.parse("postgresql://me:secret@db.example/shop?index=birds&sslmode=require").shown
            'postgresql://me@db.example/shop?index=birds&sslmode=require'
        """
        base, _, query = address.partition("?")
        pairs = parse_qsl(query, keep_blank_values=True)
        name = index_name(next((value for key, value in pairs if key == "index"), ""))
        rest = urlencode([pair for pair in pairs if pair[0] != "index"], quote_via=quote)
        settings = _read(f"{base}?{rest}" if rest else base)
        return cls(name, settings, _show(settings, name))


def _read(url: str) -> dict[str, str]:
    try:
        import pgvector  # noqa: F401  # said here when it is absent, not at the first vector
        from psycopg import Error
        from psycopg.conninfo import conninfo_to_dict
    except ImportError as error:
        raise SearchError('An index on PostgreSQL needs psycopg and pgvector: pip install "proxemics[pg]".') from error
    try:
        return {key: str(value) for key, value in conninfo_to_dict(url).items() if value is not None}
    except (Error, UnicodeError):
        # The message of libpq may quote a part of the password, so it is not passed on.
        raise SearchError(
            "The address of PostgreSQL is not understood; write postgresql://user@host:5432/database?index=NAME, with "
            "special characters of user and password written as %XX, and parameters that libpq knows."
        ) from None


def _show(settings: dict[str, str], name: str) -> str:
    host, user = settings.get("host", ""), settings.get("user", "")
    outside = host.startswith("/") or "," in host  # a folder of sockets, or several servers
    place = "" if outside else (f"[{host}]" if ":" in host else host)
    port = f":{settings['port']}" if "port" in settings and not outside else ""
    options = {"index": name}
    if outside:
        options |= {key: settings[key] for key in ("host", "port") if key in settings}
    options |= {key: value for key, value in settings.items() if key not in _PLACE and "password" not in key}
    at = f"{quote(user, safe='')}@" if user else ""
    database = quote(settings.get("dbname", ""), safe="")
    return f"postgresql://{at}{place}{port}/{database}?{urlencode(options, quote_via=quote)}"
