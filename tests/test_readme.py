"""What the README and the pages tell people to type must work.

A console block holds commands in lines that start with ``$ ``; a trailing backslash goes on in the next line. Every
command is checked without being run: verbs and options against the command line itself, targets against the Makefile,
files and extras against the tree. Blocks of Python must at least compile, and links to files must lead somewhere.
A block after the comment ``<!-- run in the tests -->`` is run as well, all blocks of a page in one empty folder, top to
bottom.
"""

from __future__ import annotations

import contextlib
import io
import os
import re
import shlex
import subprocess
import sys
from doctest import DocTestParser
from pathlib import Path
from typing import Annotated, Any, NamedTuple, get_args

import pytest
import typer
import typer.main

try:
    import tomllib
except ModuleNotFoundError:  # Python 3.10
    import tomli as tomllib

from proxemics.core.config import EvaluationConfig

ROOT = Path(__file__).resolve().parents[1]
PAGES = sorted(
    [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *ROOT.glob("docs/**/*.md"), *ROOT.glob("benchmarks/*.md")]
)
FENCE = re.compile(r"^(?P<indent> *)```(?P<kind>\w+)[^\n]*\n(?P<body>.*?)^(?P=indent)```", re.MULTILINE | re.DOTALL)
LINK = re.compile(r"\]\((?!https?:|mailto:|#)([^)\s#]+)(?:#[^)\s]*)?\)")
RUN = "<!-- run in the tests -->"
TARGET = re.compile(r"^([a-z][a-z-]*):", re.MULTILINE)
# Programs that are taken on trust, because they are not ours.
OTHERS = {
    "git",
    "cd",
    "ls",
    "cat",
    "source",
    "export",
    "mkdir",
    "cp",
    "rm",
    "curl",
    "unzip",
    "torchrun",
    "srun",
    "xdg-open",
    "pre-commit",
    "openssl",
}


class Block(NamedTuple):
    """One fenced block: where it is, its language, its text, and whether it is to be run."""

    where: str
    kind: str
    text: str
    run: bool


def blocks(page: str, where: str) -> list[Block]:
    found = []
    for match in FENCE.finditer(page):
        indent = len(match["indent"])
        body = "\n".join(line[indent:] for line in match["body"].splitlines())
        line = page.count("\n", 0, match.start()) + 1
        marked = page[: match.start()].rstrip().endswith(RUN)
        found.append(Block(f"{where}:{line}", match["kind"], body, marked))
    return found


def commands(block: Block) -> list[str]:
    """Return the commands of a console block, continued lines joined."""
    joined = re.sub(r"\\\n(?:> ?)?\s*", " ", block.text)
    return [line[2:].strip() for line in joined.splitlines() if line.startswith("$ ")]


ALL = [block for page in PAGES for block in blocks(page.read_text(encoding="utf-8"), page.relative_to(ROOT).as_posix())]


def problem(command: str) -> str:
    """Return what is wrong with a command line, or an empty string."""
    words = shlex.split(command, comments=True)
    while words and (words[0] == "nohup" or re.fullmatch(r"[A-Z][A-Z0-9_]*=.*", words[0])):
        words.pop(0)
    words = words[: next((place for place, word in enumerate(words) if word in (">", "2>&1", "&")), len(words))]
    if not words:
        return "no command"
    program, arguments = words[0].removeprefix(".venv/bin/"), words[1:]
    check = {"proxemics": _verb, "make": _make, "pip": _pip, "python": _python, "python3": _python}.get(program)
    if check is not None:
        return check(arguments)
    return "" if program in OTHERS else f"{program} is not a program that this test knows"


def _verb(arguments: list[str]) -> str:
    from proxemics.cli.main import app

    return parse(app, arguments)


def parse(app: typer.Typer, arguments: list[str]) -> str:
    """Parse the arguments with the command line itself, its verbs taken out; return what it complains about."""
    command: Any = typer.main.get_command(app)
    _silence(command)
    try:
        with contextlib.redirect_stdout(io.StringIO()):
            command.main(args=arguments, prog_name="proxemics", standalone_mode=False)
    except Exception as error:
        message = error.format_message() if hasattr(error, "format_message") else repr(error)
        # The paths of an example need not exist here.
        return "" if "does not exist" in message else message or repr(error)
    return ""


def _silence(command: Any) -> None:
    children = getattr(command, "commands", None)
    if children is None:
        command.callback = None
    for child in (children or {}).values():
        _silence(child)


def _make(arguments: list[str]) -> str:
    targets = set(TARGET.findall((ROOT / "Makefile").read_text(encoding="utf-8")))
    missing = [word for word in arguments if "=" not in word and word not in targets]
    return f"the Makefile has no target {missing}" if missing else ""


def _pip(arguments: list[str]) -> str:
    extras = set(
        tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]["optional-dependencies"]
    )
    for word in arguments:
        match = re.fullmatch(r"(?:proxemics|\.)\[([\w,-]+)\].*", word)
        if match and (missing := set(match[1].split(",")) - extras):
            return f"there is no extra {sorted(missing)}"
    return ""


def _python(arguments: list[str]) -> str:
    if arguments[:2] == ["-m", "pip"]:
        return _pip(arguments[2:])
    if arguments[:1] == ["-m"] or not arguments:
        return ""
    return "" if arguments[0] == "-c" or (ROOT / arguments[0]).exists() else f"there is no file {arguments[0]}"


@pytest.mark.parametrize("block", [b for b in ALL if b.kind in {"console", "python"}], ids=lambda block: block.where)
def test_blocks_are_right(block: Block) -> None:
    if block.kind == "python":
        # Examples with prompts are compiled one by one; other blocks as they stand.
        examples = [one.source for one in DocTestParser().get_examples(block.text)] or [block.text]
        for number, source in enumerate(examples):
            compile(source, f"{block.where} ({number})", "exec")
        return
    assert commands(block), f"{block.where}: a console block without a line that starts with '$ '"
    wrong = {command: found for command in commands(block) if (found := problem(command))}
    assert wrong == {}, block.where


def test_shell_commands_are_in_console_blocks() -> None:
    # A ```bash block would escape the checks.
    assert [block.where for block in ALL if block.kind in {"bash", "sh", "shell", "zsh"}] == []


def dead_links(page: Path) -> list[str]:
    return [
        target
        for target in LINK.findall(FENCE.sub("", page.read_text(encoding="utf-8")))
        if not (page.parent / target).exists()
    ]


def test_no_block_of_commands_escapes() -> None:
    """A block without a language is not looked at above, so it must hold no command."""
    found = []
    for page in PAGES:
        language: str | None = None
        for number, line in enumerate(page.read_text(encoding="utf-8").splitlines(), 1):
            if line.lstrip().startswith("```"):
                language = line.strip().removeprefix("```") if language is None else None
            elif language == "" and re.match(r"\s*(\$ |nohup |proxemics |make |pip )", line):
                found.append(f"{page.name}:{number}: {line}")
    assert found == []


@pytest.mark.parametrize("protocol", get_args(EvaluationConfig.model_fields["protocol"].annotation))
def test_every_protocol_has_a_page(protocol: str) -> None:
    page = (ROOT / "docs" / "protocols" / f"{protocol}.md").read_text(encoding="utf-8")
    assert f"--protocol {protocol}" in page or f"evaluation.protocol={protocol}" in page
    assert f"protocols/{protocol}.md" in (ROOT / "mkdocs.yml").read_text(encoding="utf-8")


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.relative_to(ROOT).as_posix())
def test_links_lead_somewhere(page: Path) -> None:
    assert dead_links(page) == []


def test_a_dead_link_is_caught(tmp_path: Path) -> None:
    page = tmp_path / "a.md"
    page.write_text("[a](a.md#top) [b](b.md) [c](https://x.y/z) [d](#d)\n```text\n[e](e.md)\n```\n![f](f.png)\n")
    assert dead_links(page) == ["b.md", "f.png"]


@pytest.mark.parametrize("page", sorted({block.where.rpartition(":")[0] for block in ALL if block.run}))
def test_marked_blocks_run(page: str, tmp_path: Path) -> None:
    folder = os.pathsep.join([str(Path(sys.executable).parent), os.environ["PATH"]])
    environment = {**os.environ, "PATH": folder, "HF_HUB_OFFLINE": "1"}
    for block in ALL:
        if not block.run or block.where.rpartition(":")[0] != page:
            continue
        script = "\n".join(commands(block)).replace(".venv/bin/", "")
        call = (
            [sys.executable, "-c", block.text] if block.kind == "python" else ["bash", "-euo", "pipefail", "-c", script]
        )
        done = subprocess.run(
            call, cwd=tmp_path, env=environment, capture_output=True, text=True, stdin=subprocess.DEVNULL
        )
        assert done.returncode == 0, f"{block.where}\n{done.stdout[-2000:]}\n{done.stderr[-2000:]}"


def test_the_page_reader_sees_blocks_and_commands() -> None:
    console = "```console\n$ make demo\noutput\n$ proxemics train a \\\n    --out b\n```"
    page = f"text\n{RUN}\n\n{console}\n- x\n  ```python\n  x = 1\n  ```\n"
    first, second = blocks(page, "p")
    assert (first.where, first.run, commands(first)) == ("p:4", True, ["make demo", "proxemics train a  --out b"])
    assert (second.kind, second.run, second.text) == ("python", False, "x = 1")


@pytest.mark.parametrize(
    ("command", "expected"),
    [
        ("make demo", ""),
        ("OMP_NUM_THREADS=1 make test ARGS=--slow", ""),
        ("make tset", "the Makefile has no target ['tset']"),
        ("pip install -e '.[dev]'", ""),
        ("pip install 'proxemics[nope]'", "there is no extra ['nope']"),
        ("python benchmarks/startup.py", ""),
        ("python benchmarks/gone.py", "there is no file benchmarks/gone.py"),
        ("frobnicate", "frobnicate is not a program that this test knows"),
        (".venv/bin/proxemics --help", ""),
        ("proxemics demo --out runs/demo", ""),
        ("proxemics dmeo", "No such command 'dmeo'"),
        ("proxemics demo --outt runs/demo", "No such option"),
    ],
)
def test_a_wrong_command_is_caught(command: str, expected: str) -> None:
    found = problem(command)
    assert expected in found
    assert bool(found) == bool(expected)


@pytest.mark.parametrize(
    ("command", "expected"),
    [
        ("train pictures", ""),
        ("--verbose train pictures --epochs 3", ""),
        ("train --help", ""),
        ("config show a.yaml", ""),
        ("train pictures --table absent.csv", ""),
        ("", "Usage: proxemics"),
        ("--bogus train pictures", "No such option: --bogus"),
        ("train", "Missing argument 'source'"),
        ("train a b", "unexpected extra argument"),
        ("train a --epochs x", "Invalid value for '--epochs'"),
        ("config shwo", "No such command 'shwo'"),
    ],
)
def test_the_parser_of_verbs_runs_nothing_and_misses_nothing(command: str, expected: str) -> None:
    app = typer.Typer(no_args_is_help=True, rich_markup_mode=None)
    nested = typer.Typer()
    app.callback()(lambda verbose=False: None)
    app.add_typer(nested, name="config")

    @app.command()
    def train(source: str, epochs: int = 1, table: Annotated[Path | None, typer.Option(exists=True)] = None) -> None:
        raise AssertionError("the verb was run")

    @nested.command()
    def show(path: str) -> None:
        raise AssertionError("the verb was run")

    nested.command("keys")(lambda: None)
    found = parse(app, command.split())
    assert expected in found
    assert bool(found) == bool(expected)
