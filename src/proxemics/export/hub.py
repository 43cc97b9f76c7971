"""Send a bundle to a model hub and fetch one back. A folder on a disk or a share serves as a hub as well."""

from __future__ import annotations

import sys
import tempfile
from pathlib import Path
from typing import Any
from urllib.parse import unquote, urlsplit

from proxemics.core.errors import ExportError
from proxemics.export.hub_layout import HUB_FILES, read_hub_folder, write_hub_folder


def push(bundle: str | Path, repo: str, *, public: bool = False, classes: bool = False) -> str:
    """Send a bundle.

    Args:
        bundle: written by training or export.
        repo: ``user/name`` on the hub, or a folder; see :func:`local_folder`.
        public: make a new repository visible to everyone; one that is there keeps what it is.
        classes: also send the classes that were enrolled; they are yours, not the model's.

    Returns:
        Where it is now: an address or a folder.

    Raises:
        ModelError: the bundle is damaged, or the folder holds something else.
        ExportError: the hub cannot be reached or refuses.
    """
    folder = local_folder(repo)
    if folder is not None:
        return str(write_hub_folder(bundle, folder, classes=classes))
    with tempfile.TemporaryDirectory(prefix="proxemics-") as work:
        staged = write_hub_folder(bundle, Path(work) / "repo", classes=classes)
        hub = _hub()
        try:
            api = hub.HfApi()
            api.create_repo(repo, private=not public, exist_ok=True)
            api.upload_folder(
                repo_id=repo,
                folder_path=staged,
                commit_message="Bundle written by Proxemics",
                allow_patterns=list(HUB_FILES),
                delete_patterns=list(HUB_FILES),  # what an older bundle had and this one has not
            )
        except Exception as error:  # the hub's client raises kinds of several packages
            raise _refused(repo, error) from error
        return f"{hub.constants.ENDPOINT}/{repo}"


def pull(repo: str, out: str | Path, *, revision: str | None = None) -> Path:
    """Fetch a bundle; every file is compared with the hash that was recorded when it was sent.

    Args:
        repo: ``user/name`` on the hub, or a folder; see :func:`local_folder`.
        out: the bundle to write: absent, empty, or an older bundle, which is replaced.
        revision: branch, tag or commit on the hub; None for the newest.

    Returns:
        The bundle, absolute.

    Raises:
        ExportError: there is no such repository, it holds no bundle, or a file is not what was sent.
        ModelError: ``out`` holds something else.
    """
    folder = local_folder(repo)
    if folder is not None:
        if not folder.is_dir():
            raise ExportError(f"There is no folder {folder}.")
        return read_hub_folder(folder, out)
    with tempfile.TemporaryDirectory(prefix="proxemics-") as work:
        hub = _hub()
        try:
            hub.snapshot_download(repo, revision=revision, local_dir=work, allow_patterns=list(HUB_FILES))
        except Exception as error:  # the hub's client raises kinds of several packages
            raise _refused(repo, error) from error
        return read_hub_folder(work, out, name=repo)


def local_folder(repo: str) -> Path | None:
    """Return the folder that a repository name stands for, or None for a name on the hub.

    A folder is what begins with ``file://``, ``/``, ``.`` or ``~``, what has a drive letter, and every folder that
    exists.

    Example:
        >>> local_folder("./models/birds"), local_folder("ada/birds-of-no-folder")
        (PosixPath('models/birds'), None)
        >>> local_folder("file:///srv/models/two%20birds")
        PosixPath('/srv/models/two birds')
    """
    if repo.startswith("file://"):
        return Path(unquote(urlsplit(repo).path))
    path = Path(repo).expanduser()
    is_path = repo.startswith(("/", ".", "~")) or "\\" in repo or path.is_absolute() or path.is_dir()
    return path if is_path else None


def _hub() -> Any:
    try:
        import huggingface_hub
        import huggingface_hub.constants
        from huggingface_hub.utils.tqdm import disable_progress_bars
    except ImportError as error:
        raise ExportError(
            "A model hub needs the package huggingface_hub: pip install 'proxemics[hub]'. A folder needs none: write "
            "./folder or file:///folder."
        ) from error
    if not sys.stderr.isatty():
        disable_progress_bars()
    return huggingface_hub


def _refused(repo: str, error: Exception) -> ExportError:
    reason = " ".join(str(error).split())[:300].rstrip(".") or type(error).__name__
    return ExportError(
        f"The model hub did not take part in {repo!r}: {reason}. Check the name, the network and the login (`hf auth "
        "login`), or give a folder (./folder or file:///folder)."
    )
