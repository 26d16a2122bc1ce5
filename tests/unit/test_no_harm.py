"""What the tests themselves may not do to the machine that they run on."""

from __future__ import annotations

import ast
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterator

ROOT = Path(__file__).parents[2]
SOURCES = [
    path
    for directory in ("tests", "benchmarks", "docs", "examples")
    for path in sorted((ROOT / directory).rglob("*.py"))
]
LINKS = {"symlink_to", "hardlink_to", "symlink", "link"}


def calls(source: str) -> Iterator[tuple[str, str, int]]:
    """Name of the function or method called, its first argument as written, and the line."""
    for node in ast.walk(ast.parse(source)):
        if (
            isinstance(node, ast.Call)
            and isinstance(node.func, ast.Attribute)
            and node.func.attr in {*LINKS, "truncate"}
            and node.args
        ):
            yield ast.unparse(node.func), ast.unparse(node.args[0]), node.lineno


def links_to_the_system(source: str) -> list[int]:
    """The lines that link to a place which the test did not make. /proc is for reading alone."""
    return [
        line
        for name, target, line in calls(source)
        if name.rpartition(".")[2] in LINKS
        and target.lstrip("fbr").startswith(("'/", '"/'))
        and not target.lstrip("fbr").startswith(("'/proc", '"/proc'))
    ]


def truncations_of_what_links_lead_to(source: str) -> list[int]:
    """The lines that call os.truncate: `region_bytes.truncate` follows no link."""
    return [line for name, _, line in calls(source) if name == "os.truncate"]


def test_links_lead_to_files_of_the_tests_own_and_deeds_do_not_follow_them() -> None:
    """A deed at random that follows a link to a system file destroys it, as root."""
    for path in SOURCES:
        source = path.read_text(encoding="utf-8")
        if "link" not in source and "truncate" not in source:
            continue
        assert links_to_the_system(source) == [], path
        assert truncations_of_what_links_lead_to(source) == [], path


def test_such_a_link_and_such_a_deed_are_found() -> None:
    harmful = (
        'path.symlink_to("/etc/passwd")\nos.link(f"/etc/{name}", path)\nos.truncate(path, 0)\n'
    )
    assert links_to_the_system(harmful) == [1, 2]
    assert truncations_of_what_links_lead_to(harmful) == [3]
    assert links_to_the_system('proc.symlink_to("/proc")\npath.symlink_to(elsewhere)\n') == []
