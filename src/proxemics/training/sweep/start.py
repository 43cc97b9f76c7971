"""What a sweep starts: tie this process to the sweep's life, then become the ordinary command.

    python -m proxemics.training.sweep.start PARENT_PID train --config ... --out ...

When the sweep is killed, the kernel ends the run with it (Linux), so that no orphan goes on writing. Elsewhere the
orphan finishes, and its lock keeps other sweeps away until then.
"""

from __future__ import annotations

import ctypes
import os
import signal
import sys

_PR_SET_PDEATHSIG = 1


def tie_to(parent: int) -> bool:
    """Ask to be killed when the parent dies; False when it is already dead."""
    if sys.platform == "linux":
        ctypes.CDLL(None, use_errno=True).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
    return os.getppid() == parent


def main(arguments: list[str]) -> None:
    """Replace this process by ``proxemics`` with the arguments after the first."""
    parent, *rest = arguments
    if not tie_to(int(parent)):
        raise SystemExit(1)
    os.execv(sys.executable, [sys.executable, "-m", "proxemics", *rest])  # noqa: S606 - no shell is wanted


if __name__ == "__main__":
    main(sys.argv[1:])
