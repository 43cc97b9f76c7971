"""Marks on neighbours, kept in one SQLite file and written out as CSV."""

from __future__ import annotations

import csv
import io
import sqlite3
from collections.abc import Iterator
from contextlib import closing, suppress
from datetime import datetime, timezone
from pathlib import Path

from proxemics.core.errors import ConfigError
from proxemics.serve.errors import Refusal
from proxemics.serve.schemas import Mark

COLUMNS = ("at", "query_kind", "query", "query_name", "result", "label", "score", "verdict", "model")
MOST_MARKS = 1_000_000
"""Marks that are kept; more are refused, so that nobody fills the disk."""
_SCHEMA = """
CREATE TABLE IF NOT EXISTS marks (
    at TEXT NOT NULL, query_kind TEXT NOT NULL, query TEXT NOT NULL, query_name TEXT NOT NULL, result TEXT NOT NULL,
    label TEXT, score REAL, verdict TEXT NOT NULL, model TEXT NOT NULL,
    PRIMARY KEY (query_kind, query, result, model)
) WITHOUT ROWID
"""


class Feedback:
    """A store of marks. Use it from one thread at a time.

    Args:
        path: the SQLite file; made when it is absent.
        model: fingerprint of the model whose neighbours are marked.
        limit: marks at most.

    Raises:
        ConfigError: the file cannot be opened, or is none of SQLite.

    Example:
        >>> import tempfile
        >>> store = Feedback(Path(tempfile.mkdtemp()) / "feedback.sqlite", model="abc")
        >>> mark = Mark(query_kind="id", query="a", result="b", verdict="wrong", score=0.5)
        >>> store.put(mark, label="cat"), store.marks("id", "a")
        (1, {'b': 'wrong'})
        >>> store.put(mark.model_copy(update={"verdict": "none"}), label="cat")
        0
    """

    def __init__(self, path: Path, *, model: str, limit: int = MOST_MARKS) -> None:
        self._model, self._limit = model, limit
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            self._connection = sqlite3.connect(path, isolation_level=None, check_same_thread=False, timeout=10)
            self._connection.execute("PRAGMA journal_mode=WAL")
            self._connection.execute("PRAGMA synchronous=NORMAL")
            self._connection.execute(_SCHEMA)
        except (sqlite3.Error, OSError) as error:
            raise ConfigError(
                f"The file for marks, {path}, cannot be used ({error}); name one that may be written with --feedback."
            ) from error

    def put(self, mark: Mark, *, label: str | None) -> int:
        """Keep a mark in the place of an older one on the same pair, or take it back.

        Args:
            mark: what was said.
            label: of the neighbour, from the index.

        Returns:
            How many marks are kept now.

        Raises:
            Refusal: 507, as many are kept as may.
        """
        pair = (mark.query_kind, mark.query, mark.result, self._model)
        if mark.verdict == "none":
            where = "query_kind = ? AND query = ? AND result = ? AND model = ?"
            self._connection.execute(f"DELETE FROM marks WHERE {where}", pair)  # noqa: S608 - a constant
            return self.count()
        if self.count() >= self._limit:
            raise Refusal(507, "feedback_full", f"{self._limit} marks are kept, and no more fit; export them first.")
        now = datetime.now(timezone.utc).isoformat(timespec="seconds")
        self._connection.execute(
            "INSERT OR REPLACE INTO marks VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?)",
            (now, *pair[:2], mark.query_name, mark.result, label, mark.score, mark.verdict, self._model),
        )
        return self.count()

    def count(self) -> int:
        """Return how many marks are kept."""
        return int(self._connection.execute("SELECT count(*) FROM marks").fetchone()[0])

    def marks(self, kind: str, query: str) -> dict[str, str]:
        """Return the marks of one query: id of the neighbour to verdict."""
        return dict(
            self._connection.execute(
                "SELECT result, verdict FROM marks WHERE query_kind = ? AND query = ? AND model = ?",
                (kind, query, self._model),
            )
        )

    def csv(self) -> str:
        """Return all marks as CSV with a header, the oldest first."""
        rows = self._connection.execute(f"SELECT {', '.join(COLUMNS)} FROM marks ORDER BY at, query, result")  # noqa: S608 - constants
        return "".join(write_csv(rows))

    def close(self) -> None:
        """Close the file."""
        with suppress(sqlite3.Error):
            self._connection.close()


def write_csv(rows: Iterator[tuple[object, ...]] | sqlite3.Cursor) -> Iterator[str]:
    """Write rows of :data:`COLUMNS` as CSV lines, header first."""
    with closing(io.StringIO(newline="")) as buffer:
        writer = csv.writer(buffer)
        writer.writerow(COLUMNS)
        for row in rows:
            writer.writerow([harmless(value) for value in row])
        yield buffer.getvalue()


def harmless(value: object) -> object:
    r"""Put an apostrophe before text that a spreadsheet would run as a formula.

    Example:
        >>> harmless('=HYPERLINK("http://x")'), harmless("-1+1"), harmless("cat"), harmless(-0.5)
        ('\'=HYPERLINK("http://x")', "'-1+1", 'cat', -0.5)
    """
    if isinstance(value, str) and value[:1] in ("=", "+", "-", "@", "\t", "\r", "\n"):
        return f"'{value}"
    return value
