"""The licences and the safety of everything that an extra of the package brings (user-pains 80, 81)."""

from __future__ import annotations

import ast
import re
from importlib.metadata import Distribution, PackageNotFoundError, distribution
from pathlib import Path

import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

try:
    import tomllib
except ModuleNotFoundError:  # Python 3.10
    import tomli as tomllib

ROOT = Path(__file__).resolve().parents[1]
# Published by an attacker; the exclusion must stay.
MALICIOUS = dict.fromkeys(("lightning-fabric", "lightning", "pytorch-lightning"), ("2.6.2", "2.6.3"))
COPYLEFT = re.compile(r"\bA?GPL|\b(?:GNU )?(?:Affero )?General Public License", re.IGNORECASE)
LESSER = re.compile(r"\bLGPL|Lesser General Public|Library General Public", re.IGNORECASE)


PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
EXTRAS = list(PROJECT["optional-dependencies"])
# Under the LGPL, which asks nothing of a program that imports a library; none comes with `all`.
LESSER_ALLOWED = {"psycopg", "psycopg-binary"}


def declared() -> list[Requirement]:
    """Return every requirement in pyproject.toml, of the package and of its extras."""
    extras = PROJECT["optional-dependencies"].values()
    return [Requirement(text) for text in [*PROJECT["dependencies"], *(text for extra in extras for text in extra)]]


def closure(name: str, extra: str) -> dict[str, Distribution]:
    """Return the installed distributions that ``name[extra]`` needs, by canonical name."""
    waiting: list[tuple[str, str]] = [(name, extra), (name, "")]
    seen: set[tuple[str, str]] = set()
    found: dict[str, Distribution] = {}
    while waiting:
        key = waiting.pop()
        if key in seen:
            continue
        seen.add(key)
        try:
            found[key[0]] = distribution(key[0])
        except PackageNotFoundError as error:
            raise AssertionError(f"{key[0]} is required by the extra {extra!r} and is not installed") from error
        for text in found[key[0]].requires or []:
            requirement = Requirement(text)
            if requirement.marker is None or requirement.marker.evaluate({"extra": key[1]}):
                child = canonicalize_name(requirement.name)
                waiting += [(child, ""), *((child, wanted) for wanted in requirement.extras)]
    return found


def licence(found: Distribution) -> str:
    """Return the licence expression, else the classifiers, else the first line of the field or of the licence file."""
    fields = found.metadata
    if expression := fields.get("License-Expression"):
        return expression
    classifiers = [
        text.rpartition(" :: ")[2] for text in fields.get_all("Classifier") or [] if text.startswith("License ::")
    ]
    field = (fields.get("License") or "").strip().partition("\n")[0]
    return " OR ".join(classifiers) or (field if field != "UNKNOWN" else "") or _licence_file(found)


def _licence_file(found: Distribution) -> str:
    for path in found.files or []:
        if re.search(r"licen[cs]e|copying", path.name, re.IGNORECASE) and ".dist-info" in str(path):
            return path.read_text(encoding="utf-8").strip().partition("\n")[0].strip()
    return ""


def holds_files(found: Distribution) -> bool:
    """Return whether there is anything in it beside its metadata."""
    return any(".dist-info" not in str(path) for path in found.files or [])


def is_copyleft(text: str) -> bool:
    """Return whether every choice that a licence expression offers has a part under GPL or AGPL.

    ``AND`` joins parts that all apply, ``OR`` offers a choice. The exception for the run-time libraries of the compiler
    frees their users from the GPL.
    """

    def bad(part: str) -> bool:
        return bool(COPYLEFT.search(part)) and not LESSER.search(part) and "GCC-exception" not in part

    parts = re.split(r"\s+AND\s+", text.replace("(", " ").replace(")", " "))
    return any(all(bad(choice) for choice in re.split(r"\s+OR\s+", part)) for part in parts)


@pytest.fixture(scope="module")
def dependencies() -> dict[str, Distribution]:
    return closure("proxemics", "all")


def test_the_installed_package_knows_every_extra() -> None:
    """Otherwise the tests below would look at an older pyproject.toml."""
    known = set(distribution("proxemics").metadata.get_all("Provides-Extra") or [])
    assert known == set(EXTRAS), 'install it again: pip install -e ".[dev]"'
    assert {"train", "index", "pg", "milvus", "onnx", "openvino", "hub", "ray", "serve", "all", "dev"} <= known


@pytest.mark.parametrize("extra", EXTRAS)
def test_no_dependency_of_an_extra_is_gpl_and_each_declares_a_licence(extra: str) -> None:
    found = closure("proxemics", extra)
    assert len(found) > 30
    wanted = map(Requirement, PROJECT["optional-dependencies"][extra])
    own = {canonicalize_name(one.name) for one in wanted if one.marker is None or one.marker.evaluate()}
    assert own <= set(found)
    assert {name: licence(one) for name, one in found.items() if is_copyleft(licence(one))} == {}
    assert {name for name, one in found.items() if holds_files(one) and not licence(one)} == set()
    lesser = {name for name, one in found.items() if LESSER.search(licence(one))}
    assert lesser <= (LESSER_ALLOWED if extra in ("pg", "dev") else set())


def test_the_closure_reaches_what_it_should(dependencies: dict[str, Distribution]) -> None:
    assert {"torch", "timm", "pandas", "jinja2", "scikit-image", "usearch", "fastapi"} <= set(dependencies)
    assert set(closure("proxemics", "pg")) >= LESSER_ALLOWED
    assert "psycopg" not in dependencies
    assert "ray" in closure("proxemics", "ray")


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("GPL-3.0-or-later", True),
        ("AGPL-3.0", True),
        ("GNU General Public License v3 (GPLv3)", True),
        ("GNU Affero General Public License v3", True),
        ("MIT AND GPL-2.0-only", True),
        ("MIT AND (GPL-2.0-only OR AGPL-3.0-only)", True),
        ("BSD-3-Clause AND MIT", False),
        ("GPL-2.0-only OR MIT", False),
        ("LGPL-2.1-or-later", False),
        ("GNU Lesser General Public License v3 (LGPLv3)", False),
        ("BSD-3-Clause AND GPL-3.0-or-later WITH GCC-exception-3.1", False),
        ("", False),
    ],
)
def test_copyleft_is_recognised(text: str, expected: bool) -> None:
    assert is_copyleft(text) is expected


def test_albumentations_is_not_used(dependencies: dict[str, Distribution]) -> None:
    forbidden = {"albumentations", "albucore", "albumentationsx"}
    assert not forbidden & set(dependencies)
    assert not forbidden & {canonicalize_name(requirement.name) for requirement in declared()}
    for path in (ROOT / "src").rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            names = [alias.name for alias in node.names] if isinstance(node, ast.Import) else []
            names += [node.module or ""] if isinstance(node, ast.ImportFrom) else []
            assert not {name.partition(".")[0] for name in names} & forbidden, path


def test_malicious_releases_are_excluded() -> None:
    used = [requirement for requirement in declared() if canonicalize_name(requirement.name) in MALICIOUS]
    assert used, "the training extra needs lightning-fabric"
    for requirement in used:
        allowed = [
            version for version in MALICIOUS[canonicalize_name(requirement.name)] if version in requirement.specifier
        ]
        assert allowed == [], f"{requirement} allows a release published by an attacker"


def test_no_malicious_release_is_installed() -> None:
    found = closure("proxemics", "dev")
    assert {"lightning", "lightning-fabric", "pytorch-lightning"} <= set(found)
    assert [name for name, one in found.items() if one.version in MALICIOUS.get(name, ())] == []
