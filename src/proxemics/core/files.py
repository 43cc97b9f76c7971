"""Atomic files: readers see the old content or the new, never a half-written one."""

from __future__ import annotations

import json
import os
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from proxemics.core.errors import ProxemicsError


@contextmanager
def atomic_path(path: str | Path) -> Iterator[Path]:
    """Yield a temporary path beside ``path`` that replaces it when the block ends well.

    Args:
        path: the file to write; its folder is created.

    Yields:
        The path to write to; it has the same suffix as ``path``.

    Raises:
        ProxemicsError: the disk is full or the folder cannot be written; the old file is untouched.

    Example:
        >>> import tempfile
        >>> target = Path(tempfile.mkdtemp()) / "a.txt"
        >>> with atomic_path(target) as temporary:
        ...     _ = temporary.write_text("hello")
        >>> target.read_text()
        'hello'
    """
    target = Path(path)
    temporary: Path | None = None
    try:
        target.parent.mkdir(parents=True, exist_ok=True)
        handle, name = tempfile.mkstemp(dir=target.parent, prefix=f".{target.name}.", suffix=target.suffix)
        os.close(handle)
        temporary = Path(name)
        yield temporary
        with temporary.open("rb+") as written:
            os.fsync(written.fileno())
        temporary.chmod(0o666 & ~_umask())
        temporary.replace(target)
    except OSError as error:
        raise ProxemicsError(
            f"Cannot write {target}: {error.strerror or error}. Free some space or choose another folder with --out; "
            "what was written before is untouched."
        ) from error
    finally:
        if temporary is not None:
            temporary.unlink(missing_ok=True)


def _umask() -> int:
    mask = os.umask(0)
    os.umask(mask)
    return mask


def write_text(path: str | Path, text: str) -> None:
    """Write UTF-8 text atomically; see :func:`atomic_path`."""
    with atomic_path(path) as temporary:
        temporary.write_text(text, encoding="utf-8")


def write_json(path: str | Path, value: Any) -> None:
    """Write indented JSON atomically; NaN and infinity are refused because JSON has no such numbers."""
    write_text(path, json.dumps(value, indent=2, ensure_ascii=False, allow_nan=False) + "\n")


def read_json(path: str | Path) -> Any:
    """Read a JSON file.

    Raises:
        ProxemicsError: the file is absent or is not JSON.
    """
    try:
        return json.loads(Path(path).read_text(encoding="utf-8"))
    except FileNotFoundError as error:
        raise ProxemicsError(f"No file {path}.") from error
    except (json.JSONDecodeError, UnicodeDecodeError) as error:
        raise ProxemicsError(f"{path} is not valid JSON: {error}.") from error
