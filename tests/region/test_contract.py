"""What is public is documented, and tested by name."""

import importlib
import inspect
import pydoc
import re
import sys
from collections.abc import Iterator
from importlib.metadata import version
from types import ModuleType
from typing import TypeVar

import pytest
from support.process import finished

import libhamiregion
import libhamiregion.agent
import libhamiregion.exporter
import libhamiregion.node
import libhamiregion.plan
import libhamiregion.report
import libhamiregion.run

PACKAGES = (
    libhamiregion,
    libhamiregion.run,
    libhamiregion.node,
    libhamiregion.exporter,
    libhamiregion.plan,
    libhamiregion.report,
    libhamiregion.agent,
)


def public_names(package: ModuleType) -> list[str]:
    """Names that a package declares: in `__all__`, or as `from .x import X as X`."""
    found = vars(package)
    declared = [name for name in found if not name.startswith("_")]
    return getattr(package, "__all__", None) or [
        name for name in declared if not inspect.ismodule(found[name])
    ]


PUBLIC = {
    name: getattr(package, name)
    for package in PACKAGES
    for name in public_names(package)
    if inspect.isclass(getattr(package, name)) or inspect.isroutine(getattr(package, name))
}


def public_members(cls: type) -> Iterator[tuple[str, object]]:
    """What a class of ours adds: methods and properties, not fields, not enum members."""
    for name, member in vars(cls).items():
        if not name.startswith("_") and (
            inspect.isfunction(member) or isinstance(member, (property, classmethod, staticmethod))
        ):
            yield name, member


MEMBERS = {
    f"{name}.{member}": value
    for name, cls in PUBLIC.items()
    if inspect.isclass(cls)
    for member, value in public_members(cls)
}


def test_every_type_of_the_library_in_a_public_signature_is_public():
    public = {*public_names(libhamiregion), "_Options"}
    for name, value in {**PUBLIC, **MEMBERS}.items():
        if inspect.isfunction(value) and value.__module__.count(".") == 1:
            module = vars(importlib.import_module(value.__module__))
            words = set(re.findall(r"\w+", " ".join(map(str, value.__annotations__.values()))))
            ours = {
                word
                for word in words & set(module)
                if getattr(module[word], "__module__", "").startswith("libhamiregion")
                and not isinstance(module[word], TypeVar)
            }
            assert ours - public == set(), name


def test_help_shows_each_name_that_the_package_gives():
    given = {*dir(libhamiregion)} - {each for each in dir(libhamiregion) if each.startswith("_")}
    modules = {name for name in given if inspect.ismodule(getattr(libhamiregion, name))}
    assert {*libhamiregion.__all__} == given - modules | {"__version__"}
    shown = pydoc.render_doc(libhamiregion, renderer=pydoc.plaintext)
    for name in ("open_region", "class Region(", "class RegionSet(", "undo("):
        assert name in shown


def test_each_public_name_method_and_property_has_a_docstring_of_its_own():
    # Not inspect.getdoc(), which takes the base class's.
    undocumented = {
        name
        for name, value in {**PUBLIC, **MEMBERS}.items()
        if not (value.__doc__ or "").strip()
        or (
            inspect.isclass(value) and value.__doc__ in {base.__doc__ for base in value.__mro__[1:]}
        )
    }
    assert undocumented == set()


def test_the_version_is_that_of_the_installed_distribution():
    assert libhamiregion.__version__ == version("libhamiregion")


@pytest.mark.slow(keep=2)
@pytest.mark.parametrize(
    ("package", "code", "extra"),
    [
        ("prometheus_client", "from libhamiregion.exporter import RegionCollector", "exporter"),
        ("yaml", "from libhamiregion.plan import *; parse_plan('')", "plan"),
        ("yaml", "from libhamiregion.plan import *; parse_plan('{}')", "plan"),
        ("yaml", "from libhamiregion.plan import *; plan_text(LimitPlan())", "plan"),
        ("ijson", "from libhamiregion.plan import *; NodePods('gpu-1')", "kubernetes"),
    ],
)
def test_an_extra_that_is_missing_is_named(package, code, extra):
    hidden = f"import sys; sys.modules[{package!r}] = None; {code}"
    done = finished([sys.executable, "-c", hidden])
    last = done.stderr.splitlines()[-1]
    assert last.startswith("ModuleNotFoundError: ")
    assert f"pip install '.[{extra}]'" in last
