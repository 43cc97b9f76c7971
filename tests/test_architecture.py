"""The rules of the house, read from the source itself: floors, sizes, no pickle, no ``**kwargs``, docstrings.

Every rule has a second test that feeds it a violation, so that a checker that sees nothing cannot pass.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path
from statistics import median
from typing import NamedTuple

import pytest

SOURCE = Path(__file__).resolve().parents[1] / "src"
# A new room gets its floor here and in docs/architecture.md.
FLOORS = {
    "core": 0, "runtime": 0,
    "data": 1, "models": 1,
    "losses": 2, "methods": 2,
    "evaluation": 3,
    "training": 4,
    "report": 5, "search": 5, "export": 5,
    "cli": 6, "serve": 6,
}  # fmt: skip
ROOF = 7  # proxemics/__init__.py and __main__.py; no room imports from there
SIDEWAYS = {("models", "data"), ("methods", "losses"), ("cli", "serve"), ("runtime", "core")}

LONGEST = 500
MEDIAN = 150

PICKLERS = {"pickle", "_pickle", "cPickle", "dill", "cloudpickle", "joblib", "shelve", "marshal", "jsonpickle"}
# Not a pickler: torch.load(weights_only=True) raises it for a file it refuses.
HARMLESS = {"pickle.UnpicklingError"}
PICKLING_CALLS = {"read_pickle", "to_pickle"}


class Module(NamedTuple):
    """One source file: its dotted name, whether it is a package, and its text."""

    name: str
    package: bool
    text: str

    @property
    def room(self) -> str | None:
        """The room, or None for the files of the roof."""
        parts = self.name.split(".")
        return parts[1] if len(parts) > 1 and parts[1] in FLOORS else None

    @property
    def tree(self) -> ast.Module:
        return ast.parse(self.text, self.name)


def modules() -> list[Module]:
    found = []
    for path in sorted(SOURCE.rglob("*.py")):
        parts = path.relative_to(SOURCE).with_suffix("").parts
        package = parts[-1] == "__init__"
        found.append(Module(".".join(parts[:-1] if package else parts), package, path.read_text(encoding="utf-8")))
    return found


MODULES = modules()


def module(name: str, text: str, *, package: bool = False) -> Module:
    return Module(name, package, text)


# --- floors -----------------------------------------------------------------------------------------------------------


def imported(source: Module) -> Iterator[tuple[int, str]]:
    """Yield (line, dotted name) for every import, wherever it stands; names of `from` imports are appended."""
    for node in ast.walk(source.tree):
        if isinstance(node, ast.Import):
            yield from ((node.lineno, alias.name) for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            base = node.module or ""
            if node.level:
                parts = source.name.split(".")
                parts = parts[: len(parts) - node.level + source.package]
                base = ".".join([*parts, base] if base else parts)
            yield from ((node.lineno, f"{base}.{alias.name}") for alias in node.names)
        elif isinstance(node, ast.Call) and _called(node) in {"import_module", "__import__"}:
            first = node.args[0] if node.args else None
            if isinstance(first, ast.Constant) and isinstance(first.value, str):
                yield node.lineno, first.value


def _called(node: ast.Call) -> str:
    function = node.func
    return (
        function.attr if isinstance(function, ast.Attribute) else function.id if isinstance(function, ast.Name) else ""
    )


def upward(source: Module) -> list[str]:
    """Return one sentence for every import that breaks the order of the floors."""
    if source.room is None:
        return []
    wrong = []
    for line, name in imported(source):
        package, *rest = name.split(".")
        if package != "proxemics" or (rest and rest[0].startswith("__about__")) or rest == ["__version__"]:
            continue
        target = rest[0] if rest and rest[0] in FLOORS else None
        if target == source.room or (source.room, target) in SIDEWAYS:
            continue
        here, there = FLOORS[source.room], ROOF if target is None else FLOORS[target]
        if there >= here:
            label = "the roof" if target is None else target
            wrong.append(f"{source.name}:{line}: {source.room} (floor {here}) imports {name} ({label}, floor {there})")
    return wrong


def test_imports_point_downward() -> None:
    assert not [sentence for source in MODULES for sentence in upward(source)]


def test_every_room_has_a_floor() -> None:
    rooms = {path.parent.name for path in (SOURCE / "proxemics").glob("*/__init__.py")}
    assert rooms <= set(FLOORS), f"give {rooms - set(FLOORS)} a floor in this file and in docs/architecture.md"
    files = {path.stem for path in (SOURCE / "proxemics").glob("*.py")}
    assert files <= {"__init__", "__about__", "__main__"}, "modules live in rooms, not at the top of the package"


def test_floors_are_documented() -> None:
    page = (SOURCE.parent / "docs" / "architecture.md").read_text(encoding="utf-8")
    assert [room for room, floor in FLOORS.items() if f"| {floor} | `{room}` |" not in page] == []


@pytest.mark.parametrize(
    ("name", "text", "package"),
    [
        ("proxemics.core.a", "from proxemics.data import table", False),
        ("proxemics.core.a", "import proxemics.losses.base", False),
        ("proxemics.losses.a", "def f():\n    from proxemics.training import loop", False),
        ("proxemics.losses.a", "if TYPE_CHECKING:\n    from proxemics import evaluation", False),
        ("proxemics.losses.a", "from proxemics import fit", False),
        ("proxemics.losses.a", "import proxemics", False),
        ("proxemics.losses.a", "from ..training import loop", False),
        ("proxemics.losses", "from ..training.loop import fit", True),
        ("proxemics.losses", "from .. import cli", True),
        ("proxemics.losses.deep.a", "from ...cli import main", False),
        ("proxemics.losses.a", "import importlib\nimportlib.import_module('proxemics.report.page')", False),
        ("proxemics.data.a", "from proxemics.models import Embedder", False),
        ("proxemics.losses.a", "from proxemics.methods import see", False),
        ("proxemics.report.a", "import proxemics.export", False),
    ],
)
def test_an_upward_import_is_caught(name: str, text: str, package: bool) -> None:
    assert len(upward(module(name, text, package=package))) == 1


@pytest.mark.parametrize(
    ("name", "text", "package"),
    [
        ("proxemics.training.a", "from proxemics.core.errors import DataError\nimport torch, proxemics.data", False),
        ("proxemics.models.a", "from proxemics.data.preprocess import Preprocess", False),
        ("proxemics.methods.a", "from ..losses.base import ProxyLoss", False),
        ("proxemics.losses.a", "from .base import ProxyLoss\nfrom . import build", False),
        ("proxemics.losses", "from .base import ProxyLoss\nfrom . import build", True),
        ("proxemics.cli.main", "def f():\n    from proxemics.training import fit", False),
        ("proxemics.core.a", "from proxemics import __version__\nfrom proxemics.__about__ import __version__", False),
        ("proxemics", "from proxemics.training import fit", True),
    ],
)
def test_a_downward_import_is_allowed(name: str, text: str, package: bool) -> None:
    assert upward(module(name, text, package=package)) == []


# --- sizes ------------------------------------------------------------------------------------------------------------


def too_long(sources: list[Module]) -> list[str]:
    lengths = [(source.name, len(source.text.splitlines())) for source in sources]
    wrong = [f"{name}: {length} lines, at most {LONGEST}" for name, length in lengths if length > LONGEST]
    middle = median(length for _, length in lengths)
    return wrong + ([f"median of {middle} lines, under {MEDIAN} wanted"] if middle >= MEDIAN else [])


def test_files_are_short() -> None:
    # Empty and one-line files would flatter the median.
    assert too_long([source for source in MODULES if len(source.text.splitlines()) > 5]) == []


def test_long_files_are_caught() -> None:
    small, large, huge = (module(f"proxemics.core.{n}", "x = 1\n" * n) for n in (20, 200, 501))
    assert too_long([small, small, huge]) == ["proxemics.core.501: 501 lines, at most 500"]
    assert too_long([small, large, large]) == ["median of 200 lines, under 150 wanted"]


# --- no pickle, eval or exec ------------------------------------------------------------------------------------------


def unsafe(source: Module) -> list[str]:
    """Return one sentence for every import or call that could run code from a file or a string."""
    wrong = [
        f"{source.name}:{line}: imports {name}"
        for line, name in imported(source)
        if name.split(".")[0] in PICKLERS and name not in HARMLESS
    ]  # fmt: skip
    for node in ast.walk(source.tree):
        if isinstance(node, ast.Call) and (reason := _unsafe_call(node)):
            wrong.append(f"{source.name}:{node.lineno}: {reason}")
    return wrong


def _unsafe_call(node: ast.Call) -> str:
    name = ast.unparse(node.func)
    keywords = {keyword.arg: ast.unparse(keyword.value) for keyword in node.keywords}
    if name in {"eval", "exec", "builtins.eval", "builtins.exec"}:
        return f"calls {name}"
    if name == "torch.save":
        return "torch.save writes pickle; use safetensors"
    if name == "torch.load" and keywords.get("weights_only") != "True":
        return "torch.load without weights_only=True"
    if keywords.get("allow_pickle", "False") != "False":
        return "allow_pickle"
    if name.endswith("yaml.load") or name.endswith("unsafe_load"):
        return "yaml.load can build any object; use safe_load"
    return f"calls {name}" if name.rpartition(".")[2] in PICKLING_CALLS else ""


def test_nothing_is_unsafe() -> None:
    assert not [sentence for source in MODULES for sentence in unsafe(source)]


@pytest.mark.parametrize(
    "text",
    [
        "import pickle",
        "from pickle import loads",
        "def f():\n    import cloudpickle as c",
        "eval('1')",
        "exec('x = 1')",
        "torch.save({}, path)",
        "torch.load(path)",
        "torch.load(path, weights_only=False)",
        "np.load(path, allow_pickle=True)",
        "pd.read_pickle(path)",
        "frame.to_pickle(path)",
        "yaml.load(text, Loader=yaml.Loader)",
    ],
)
def test_an_unsafe_call_is_caught(text: str) -> None:
    assert len(unsafe(module("proxemics.core.a", text))) == 1


def test_safe_calls_are_allowed() -> None:
    calls = ["model.eval()", "torch.load(p, weights_only=True)", "np.load(p, allow_pickle=False)", "yaml.safe_load(t)"]
    calls.append("from pickle import UnpicklingError")
    assert unsafe(module("proxemics.core.a", "\n".join([*calls, "re.compile('a')"]))) == []


# --- public functions and classes -------------------------------------------------------------------------------------

Definition = ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef


def public(source: Module) -> Iterator[tuple[str, Definition]]:
    """Yield the public classes, functions and methods, and the `__init__` and `__call__` of public classes."""

    def inside(body: list[ast.stmt], prefix: str) -> Iterator[tuple[str, Definition]]:
        for node in body:
            if not isinstance(node, Definition):
                continue
            if node.name.startswith("_") and not (prefix and node.name in {"__init__", "__call__", "__new__"}):
                continue
            yield prefix + node.name, node
            if isinstance(node, ast.ClassDef):
                yield from inside(node.body, f"{prefix}{node.name}.")

    if not any(part.startswith("_") for part in source.name.split(".")):
        yield from inside(source.tree.body, "")


def undocumented(source: Module) -> list[str]:
    wrong = [] if ast.get_docstring(source.tree) else [f"{source.name}: the module has no docstring"]
    for name, node in public(source):
        if "." not in name and not ast.get_docstring(node):
            wrong.append(f"{source.name}:{node.lineno}: {name} has no docstring")
    return wrong


def tunnels(source: Module) -> list[str]:
    return [
        f"{source.name}:{node.lineno}: {name} takes **{node.args.kwarg.arg}, which hides typing errors"
        for name, node in public(source)
        if not isinstance(node, ast.ClassDef) and node.args.kwarg
    ]


def test_everything_public_has_a_docstring() -> None:
    assert not [sentence for source in MODULES for sentence in undocumented(source)]


def test_nothing_public_takes_any_keyword() -> None:
    assert not [sentence for source in MODULES for sentence in tunnels(source)]


def test_missing_docstrings_are_caught() -> None:
    text = '"""Doc."""\ndef f(): ...\ndef _g(): ...\nclass A:\n    """Doc."""\nclass B: ...'
    assert undocumented(module("proxemics.core.a", text)) == [
        "proxemics.core.a:2: f has no docstring",
        "proxemics.core.a:6: B has no docstring",
    ]
    assert undocumented(module("proxemics.core.a", "x = 1")) == ["proxemics.core.a: the module has no docstring"]


def test_keyword_tunnels_are_caught() -> None:
    functions = "def f(**a): ...\ndef _g(**a): ...\nclass A:\n"
    methods = "".join(f"    def {name}(self, **{name[-3]}): ...\n" for name in ("__init__", "measure", "_private"))
    text = functions + methods
    found = [sentence.split(": ")[1].split(",")[0] for sentence in tunnels(module("proxemics.core.a", text))]
    assert found == ["f takes **a", "A.__init__ takes **t", "A.measure takes **u"]
