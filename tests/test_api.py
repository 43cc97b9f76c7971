"""What is public, frozen in ``api_surface.json``, so that nothing is renamed or dropped by accident.

After an intended change run ``python tests/test_api.py --update``, look at the difference, and tell users about it in
CHANGELOG.md.
"""

from __future__ import annotations

import argparse
import importlib
import inspect
import json
import sys
from pathlib import Path
from types import ModuleType

import pytest

SURFACE = Path(__file__).with_name("api_surface.json")
PACKAGE = Path(__file__).resolve().parents[1] / "src" / "proxemics"
# The command line is used through its verbs, not imported.
PRIVATE_ROOMS = {"cli"}
# Names that outsiders rely on whatever the snapshot says.
PROMISED = {
    "proxemics": ["__version__"],
    "proxemics.losses": [
        "NormSoftmax", "ProxyNCA", "ProxyNCAPlusPlus", "ProxyAnchor", "SoftTriple", "CosFace", "ArcFace", "PDLoss",
        "PotentialField", "check_loss",
    ],
    "proxemics.evaluation": ["evaluate_embeddings"],
    "proxemics.models": ["Embedder"],
    "proxemics.methods": ["SEE", "ODBA", "MSRCI", "CouCE", "CenterPolar", "ProbabilisticProxies"],
    "proxemics.methods.probabilistic": [
        "vmf_log_normalizer", "vmf_mean_resultant_length", "sample_vmf", "nivmf_log_density", "el_nivmf",
    ],
    "proxemics.methods.see": ["spherical_expansion"],
    "proxemics.methods.couce": ["amplitude_randomization"],
    "proxemics.methods.center_polar": ["centrifugal_step"],
}  # fmt: skip


def public_modules() -> list[str]:
    """Return the package and its rooms; packages inside a room count when they declare ``__all__``."""
    names = ["proxemics"]
    for path in sorted(PACKAGE.rglob("__init__.py")):
        parts = path.parent.relative_to(PACKAGE).parts
        room = parts[0] if parts else ""
        if room and room not in PRIVATE_ROOMS and "__all__" in path.read_text(encoding="utf-8"):
            names.append(".".join(["proxemics", *parts]))
    return names


def signature(value: object) -> str:
    """Return the parameter names of a callable; those that may be left out end in ``=``."""
    try:
        parameters = inspect.signature(value).parameters.values()  # type: ignore[arg-type]
    except (TypeError, ValueError):
        return "(?)"
    shown, star = [], False
    for parameter in parameters:
        if parameter.kind is parameter.KEYWORD_ONLY and not star:
            shown.append("*")
            star = True
        prefix = {parameter.VAR_POSITIONAL: "*", parameter.VAR_KEYWORD: "**"}.get(parameter.kind, "")
        star = star or prefix == "*"
        shown.append(prefix + parameter.name + ("=" if parameter.default is not parameter.empty else ""))
    return f"({', '.join(shown)})"


def describe(value: object) -> str:
    if isinstance(value, type):
        return f"class{signature(value)}"
    if isinstance(value, ModuleType):
        return "module"
    return f"function{signature(value)}" if callable(value) else "value"


def surface() -> dict[str, dict[str, str]]:
    """Return public module -> exported name -> what it is."""
    found = {}
    for name in public_modules():
        module = importlib.import_module(name)
        found[name] = {exported: describe(getattr(module, exported)) for exported in sorted(module.__all__)}
    return found


def differences(old: dict[str, dict[str, str]], new: dict[str, dict[str, str]]) -> list[str]:
    before = {f"{module}.{name}": what for module, names in old.items() for name, what in names.items()}
    after = {f"{module}.{name}": what for module, names in new.items() for name, what in names.items()}
    return [
        f"{name}: was {before.get(name, 'absent')}, is {after.get(name, 'absent')}"
        for name in sorted(before | after)
        if before.get(name) != after.get(name)
    ]


@pytest.fixture(scope="module")
def current() -> dict[str, dict[str, str]]:
    return surface()


def test_the_surface_is_as_recorded(current: dict[str, dict[str, str]]) -> None:
    recorded = json.loads(SURFACE.read_text(encoding="utf-8"))
    assert not differences(recorded, current), (
        "meant? then: python tests/test_api.py --update, and a line in CHANGELOG.md"
    )


def test_promised_names_are_there() -> None:
    missing = [
        f"{module}.{name}"
        for module, names in PROMISED.items()
        for name in names
        if not hasattr(importlib.import_module(module), name)
    ]
    assert missing == []


def test_promised_signatures_are_there(current: dict[str, dict[str, str]]) -> None:
    losses = current["proxemics.losses"]
    for name in PROMISED["proxemics.losses"][:-1]:
        assert losses[name].startswith("class(num_classes, dim"), (
            f"{name} is not built from (num_classes, dim): {losses[name]}"
        )
    shown = current["proxemics.evaluation"]["evaluate_embeddings"]
    assert shown.startswith("function(embeddings, labels, gallery=, gallery_labels=, *, recall_at="), shown


def test_a_dropped_and_a_renamed_name_are_seen() -> None:
    def before(a, *, b=1): ...
    def after(a, *, c=1): ...

    old = {"proxemics.x": {"f": describe(before), "Gone": "class()", "same": "value"}}
    new = {"proxemics.x": {"f": describe(after), "same": "value", "More": "class()"}}
    assert differences(old, new) == [
        "proxemics.x.Gone: was class(), is absent",
        "proxemics.x.More: was absent, is class()",
        "proxemics.x.f: was function(a, *, b=), is function(a, *, c=)",
    ]


def test_unknown_names_are_refused_with_an_attribute_error() -> None:
    # A lazy __getattr__ that answers everything would break hasattr, pickling and doctest.
    for name in public_modules():
        assert not hasattr(importlib.import_module(name), "no_such_name"), name


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument(
        "--update", action="store_true", required=True, help="write what is public now to api_surface.json"
    )
    parser.parse_args()
    found = surface()
    recorded = json.loads(SURFACE.read_text(encoding="utf-8")) if SURFACE.exists() else {}
    SURFACE.write_text(json.dumps(found, indent=2) + "\n", encoding="utf-8")
    sys.stdout.write("\n".join([*differences(recorded, found), f"{SURFACE.name} is up to date."]) + "\n")
