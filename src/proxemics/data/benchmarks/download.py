"""One file from the web: resumed after a break, verified, and in place only when it is whole."""

from __future__ import annotations

import http.client
import json
import time
import urllib.error
import urllib.request
from collections.abc import Callable
from pathlib import Path
from typing import IO
from urllib.parse import urlsplit

from proxemics.__about__ import __version__
from proxemics.core.errors import DataError
from proxemics.data.benchmarks.checksums import Checksum, verify

Progress = Callable[[int, int | None], None]
"""Called with the bytes so far and the bytes in all, if known."""
_BLOCK = 1 << 18
_BREAKS = (urllib.error.URLError, http.client.HTTPException, ConnectionError, TimeoutError)


class _WebOnly(urllib.request.HTTPRedirectHandler):
    """Follows redirects to http and https only; urllib itself would also go to ftp."""

    def redirect_request(
        self,
        req: urllib.request.Request,
        fp: IO[bytes],
        code: int,
        msg: str,
        headers: http.client.HTTPMessage,
        newurl: str,
    ) -> urllib.request.Request | None:
        _check_scheme(newurl)
        return super().redirect_request(req, fp, code, msg, headers, newurl)


def _check_scheme(url: str) -> None:
    if urlsplit(url).scheme not in ("http", "https"):
        raise DataError(f"Cannot fetch {url}: only http and https addresses are allowed.")


class _Restart(Exception):  # noqa: N818  no error: `_try` catches it, and the file begins anew
    """The server gives the file from the start, or another file than before."""


def download(
    url: str,
    target: str | Path,
    *,
    checksum: Checksum | None = None,
    attempts: int = 4,
    pause: float = 2.0,
    timeout: float = 60.0,
    max_bytes: int = 1 << 38,
    progress: Progress | None = None,
) -> Path:
    """Fetch a file, going on from where an earlier try stopped.

    Unfinished bytes lie in ``<target>.part``, with what identifies the version on the server beside them; a changed
    file is fetched from its start. A file that is already in place is verified and not fetched.

    Args:
        url: http or https.
        target: where to.
        checksum: what the whole file must have; None when none is known.
        attempts: connections to try; each goes on from the bytes that came.
        pause: seconds before the second try, doubled each time.
        timeout: seconds without a byte after which a connection counts as broken.
        max_bytes: refuse a larger file.
        progress: see :data:`Progress`.

    Returns:
        ``target``.

    Raises:
        DataError: the address is not http(s) or is refused, the connection broke each time (run again to go on), the
            file is too large, or the checksum differs (a fetched file is then removed).
    """
    path = Path(target)
    _check_scheme(url)
    if path.exists():
        if checksum is not None:
            verify(path, checksum)
        return path
    path.parent.mkdir(parents=True, exist_ok=True)
    part = path.with_name(path.name + ".part")
    reason = ""
    for attempt in range(attempts):
        if attempt:
            time.sleep(pause * 2 ** (attempt - 1))
        reason = _try(url, part, timeout, max_bytes, progress)
        if not reason:
            break
    if reason:
        raise DataError(f"Cannot fetch {url} in {attempts} tries: {reason}. {_kept(part)}")
    if checksum is not None:
        try:
            verify(part, checksum)
        except DataError as error:
            _forget(part)
            raise DataError(
                f"{str(error).split('. It is')[0]}. The fetched file was removed; run this again."
            ) from error
    part.replace(path)
    _note(part).unlink(missing_ok=True)
    return path


def _try(url: str, part: Path, timeout: float, max_bytes: int, progress: Progress | None) -> str:
    """Make one connection; return why the file is not whole, or nothing."""
    try:
        return "" if _pull(url, part, timeout, max_bytes, progress) else "the connection broke"
    except _Restart:
        _forget(part)
        return "the server has another version of the file"
    except urllib.error.HTTPError as error:
        if error.code >= 500 or error.code in (408, 429):
            return f"the server answers {error.code} ({error.reason})"
        raise DataError(
            f"{url} answers {error.code} ({error.reason}). The address may have moved; put the file into "
            f"{part.parent} by hand and run this again."
        ) from error
    except _BREAKS as error:
        return str(error)


def _pull(url: str, part: Path, timeout: float, max_bytes: int, progress: Progress | None) -> bool:
    """Get what is missing in one connection; return whether the file is whole."""
    done = part.stat().st_size if part.exists() else 0
    tag = _read_tag(part) if done else ""
    headers = {"User-Agent": f"proxemics/{__version__}", "Accept-Encoding": "identity"}
    if done and tag:
        headers |= {"Range": f"bytes={done}-", "If-Range": tag}
    elif done:  # nothing tells whether it is still the same file
        raise _Restart
    request = urllib.request.Request(url, headers=headers)  # noqa: S310  `download` has checked the scheme, `_WebOnly` checks redirects
    try:
        answer = urllib.request.build_opener(_WebOnly).open(request, timeout=timeout)
    except urllib.error.HTTPError as error:
        if error.code == 416:
            raise _Restart from error
        raise
    with answer:
        partial = answer.status == 206
        if partial and not str(answer.headers.get("Content-Range", "")).startswith(f"bytes {done}-"):
            raise _Restart
        done = done if partial else 0
        length = answer.headers.get("Content-Length")
        total = done + int(length) if length else None
        if total is not None and total > max_bytes:
            raise DataError(f"{url} is {total:,} bytes large; at most {max_bytes:,} are allowed.")
        _note(part).write_text(json.dumps({"url": url, "tag": _tag(answer.headers)}), encoding="utf-8")
        with part.open("ab" if partial else "wb") as file:
            while block := answer.read(_BLOCK):
                file.write(block)
                done += len(block)
                if done > max_bytes:
                    raise DataError(f"{url} sends more than {max_bytes:,} bytes, the most that is allowed.")
                if progress is not None:
                    progress(done, total)
    return total is None or done == total


def _tag(headers: http.client.HTTPMessage) -> str:
    """Return what identifies the version: a strong ETag, or the date of the last change."""
    tag = headers.get("ETag", "")
    return tag if tag and not tag.startswith("W/") else headers.get("Last-Modified", "")


def _note(part: Path) -> Path:
    return part.with_name(part.name + ".json")


def _read_tag(part: Path) -> str:
    try:
        return str(json.loads(_note(part).read_text(encoding="utf-8"))["tag"])
    except (OSError, ValueError, KeyError, TypeError):
        return ""


def _forget(part: Path) -> None:
    part.unlink(missing_ok=True)
    _note(part).unlink(missing_ok=True)


def _kept(part: Path) -> str:
    size = part.stat().st_size if part.exists() else 0
    return f"{size:,} bytes are kept in {part}; run this again to go on from there."
