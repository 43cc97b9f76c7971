"""Every setting of the service in one frozen object, and the rule about who may reach it."""

from __future__ import annotations

import ipaddress
from pathlib import Path
from typing import Annotated

from pydantic import BaseModel, ConfigDict, Field, SecretStr

from proxemics.core.errors import ConfigError

SHORTEST_KEY = 16
"""Characters that an API key must have at least."""

Seconds = Annotated[float, Field(gt=0)]


class ServeSettings(BaseModel):
    """What the service serves, to whom, and within which limits.

    Attributes:
        model: a run folder, a bundle folder or an exported folder.
        index: address of the index, see :class:`proxemics.search.index.Index`.
        host: address to listen on.
        port: 0 picks a free one.
        pictures: the folder that paths in the index lead into; None shows the thumbnails that the index keeps.
        classes: folder of the class book; None: beside the weights.
        feedback: SQLite file for marks; None puts it into the folder of the index.
        key: what a client must send; None asks for nothing.
        no_key: allow other machines without a key.
        allow_hosts: names of this machine that a browser may use, beside addresses and localhost.
        allow_enrol: whether clients may add and remove classes.
        max_bytes: of one request body.
        max_pixels: of one picture, width times height, by its header.
        rate: searches a second that one client may make in the long run; 0 sets no limit.
        burst: searches that one client may make at once.
        max_in_flight: requests that are worked on at a time.
        batch_size: pictures that the model embeds in one go at most.
        batch_wait_ms: how long a picture waits for others that are already being decoded.
        queue: pictures that may wait for the model; more are sent away.
        head_timeout_s: for the line and the headers of a request to arrive.
        body_timeout_s: for the body of a request to arrive.
        request_timeout_s: for the answer to be made.
        decode_timeout_s: for one picture to be decoded.
        decoders: pictures that are decoded at a time.
        engine: see :func:`proxemics.export.engines.open.open_engine`.
        precision: as above.
        threads: of the engine; None lets it choose.

    Example:
        >>> ServeSettings(model=Path("bundle"), index="gallery").host
        '127.0.0.1'
    """

    model_config = ConfigDict(frozen=True, extra="forbid")

    model: Path
    index: str = Field(min_length=1)
    host: str = Field("127.0.0.1", min_length=1)
    port: int = Field(8000, ge=0, le=65535)
    pictures: Path | None = None
    classes: Path | None = None
    feedback: Path | None = None
    key: SecretStr | None = None
    no_key: bool = False
    allow_hosts: tuple[str, ...] = ()
    allow_enrol: bool = False
    max_bytes: int = Field(20_000_000, ge=1_000)
    max_pixels: int = Field(50_000_000, ge=1)
    rate: float = Field(20.0, ge=0)
    burst: int = Field(60, ge=1)
    max_in_flight: int = Field(64, ge=1)
    batch_size: int = Field(16, ge=1, le=1024)
    batch_wait_ms: float = Field(3.0, ge=0, le=1000)
    queue: int = Field(128, ge=1)
    head_timeout_s: Seconds = 10.0
    body_timeout_s: Seconds = 30.0
    request_timeout_s: Seconds = 60.0
    decode_timeout_s: Seconds = 15.0
    decoders: int = Field(2, ge=1, le=64)
    engine: str = "auto"
    precision: str = "float32"
    threads: int | None = Field(None, ge=1)


def is_loopback(host: str) -> bool:
    """Say whether a host can only be reached from this machine.

    Example:
        >>> [is_loopback(host) for host in ("127.0.0.1", "::1", "localhost", "0.0.0.0", "gallery.example")]
        [True, True, True, False, False]
    """
    if host.lower() == "localhost":
        return True
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False


def check_exposure(settings: ServeSettings) -> None:
    """Refuse to open the service to other machines by accident, and keys that are easily guessed.

    Raises:
        ConfigError: says what to do.

    Example:
        >>> check_exposure(ServeSettings(model=Path("bundle"), index="gallery", host="0.0.0.0"))
        Traceback (most recent call last):
        proxemics.core.errors.ConfigError: Host 0.0.0.0 can be reached from other machines and there is no key; ...
    """
    if settings.key is not None and len(settings.key.get_secret_value()) < SHORTEST_KEY:
        raise ConfigError(
            f"The API key has {len(settings.key.get_secret_value())} characters; give at least {SHORTEST_KEY}, for "
            "example from `openssl rand -hex 24`."
        )
    if not is_loopback(settings.host) and settings.key is None and not settings.no_key:
        raise ConfigError(
            f"Host {settings.host} can be reached from other machines and there is no key; give --key-file, or say "
            "--no-key if everyone may search and see the pictures."
        )


def read_key(path: Path) -> SecretStr:
    """Read an API key from a file that holds nothing else.

    Raises:
        ConfigError: the file cannot be read, is empty or holds several lines.
    """
    try:
        lines = path.read_text(encoding="utf-8").strip().splitlines()
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(f"--key-file {path} cannot be read: {getattr(error, 'strerror', None) or error}.") from error
    if len(lines) != 1 or not lines[0].isascii() or not lines[0].isprintable():
        raise ConfigError(f"--key-file {path} must hold the key as one line of plain ASCII, and nothing else.")
    return SecretStr(lines[0].strip())
