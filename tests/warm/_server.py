"""A process that has imported the modules given, and forks what it is asked to run.

Requests come on standard input and answers go to standard output, each a line of JSON: either the command line, folder,
variables and files of a new process, answered with its number; or the number of a process, answered with its exit code
once it has one. When the requests end, so does every process that was started.
"""

from __future__ import annotations

import gc
import importlib
import json
import os
import resource
import runpy
import signal
import sys
from contextlib import suppress
from pathlib import Path
from typing import Any


def become(request: dict[str, Any]) -> None:
    """Turn the forked child into what a new process would be."""
    import numpy as np

    signal.signal(signal.SIGINT, signal.default_int_handler)
    for number, path in enumerate((os.devnull, request["out"], request["err"])):
        opened = os.open(path, os.O_RDWR | os.O_CREAT | os.O_APPEND, 0o644)
        os.dup2(opened, number)
        os.close(opened)
    os.chdir(request["cwd"])
    os.environ.clear()
    os.environ.update(request["env"])
    if request["limit_file_bytes"] is not None:
        resource.setrlimit(resource.RLIMIT_FSIZE, (request["limit_file_bytes"],) * 2)
    np.random.seed()  # noqa: NPY002 - or every child would draw the same


def run(line: list[str]) -> None:
    """Do what Python does with such a command line: a script, or -m and a module."""
    module = line[0] == "-m"
    sys.argv = line[1:] if module else line
    sys.path[0] = str(Path.cwd() if module else Path(line[0]).parent)
    if module:
        runpy.run_module(line[1], run_name="__main__", alter_sys=True)
    else:
        runpy.run_path(line[0], run_name="__main__")


def main(modules: list[str]) -> None:
    """Serve; in a child, come back when it has run, so that it ends as every process does."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)
    for name in modules:
        with suppress(ImportError):  # of a package that is not installed
            importlib.import_module(name)
    gc.freeze()
    living = set()
    for text in iter(sys.stdin.readline, ""):
        request = json.loads(text)
        if "line" in request:
            child = os.fork()
            if child == 0:
                answers.close()
                become(request)
                return run(request["line"])
            living.add(child)
            answer = child
        else:
            child, status = os.waitpid(request["wait"], os.WNOHANG)
            living.discard(child)
            answer = os.waitstatus_to_exitcode(status) if child else None
        answers.write(f"{json.dumps(answer)}\n")
        answers.flush()
    for child in living:
        os.kill(child, signal.SIGKILL)
    return None


if __name__ == "__main__":
    main(sys.argv[1:])
