"""What the documentation shows is what happens: every example runs."""

from __future__ import annotations

import doctest
import importlib
import pkgutil
import re
import subprocess
import sys
from pathlib import Path

import pytest

import libhamiregion
from libhamiregion import agent, host

ROOT = Path(__file__).parents[2]
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))]
FENCE = re.compile(r"^```(?P<kind>\w+)\n(?P<code>.*?)^```$", re.DOTALL | re.MULTILINE)
FLAGS = doctest.ELLIPSIS | doctest.NORMALIZE_WHITESPACE


MODULES = [
    "libhamiregion",
    *(
        module.name
        for module in pkgutil.walk_packages(libhamiregion.__path__, "libhamiregion.")
        if not module.name.endswith(("__main__", "_native", "_build"))
    ),
]


def blocks(page: Path) -> list[tuple[str, str]]:
    return [(match["kind"], match["code"]) for match in FENCE.finditer(page.read_text())]


@pytest.mark.parametrize("name", MODULES)
def test_docstrings(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    failed, _ = doctest.testmod(importlib.import_module(name), optionflags=FLAGS)
    assert failed == 0


def test_some_docstrings_have_examples() -> None:
    """Otherwise the test above would pass by finding nothing."""
    finder = doctest.DocTestFinder(exclude_empty=True)
    module = importlib.import_module("libhamiregion.units")
    assert any(found.examples for found in finder.find(module))


def run_session(code: str, names: dict[str, object], page: Path) -> None:
    session = doctest.DocTestParser().get_doctest(code, names, page.name, str(page), 0)
    runner = doctest.DocTestRunner(optionflags=FLAGS, verbose=False)
    said: list[str] = []
    runner.run(session, out=said.append, clear_globs=False)
    names.update(session.globs)
    assert not runner.failures, "".join(said)


def run_commands(code: str) -> None:
    """Run each line that begins with "$ hamiregion" and compare what it prints."""
    checker = doctest.OutputChecker()
    for part in re.split(r"^\$ ", code, flags=re.MULTILINE)[1:]:
        command, _, expected = part.partition("\n")
        program, *words = command.split()
        assert program == "hamiregion", command
        answer = subprocess.run(
            [sys.executable, "-m", "libhamiregion", *words],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            check=False,
            timeout=60,
        )
        assert checker.check_output(expected, answer.stdout, FLAGS), (
            f"$ {command}\nprints\n{answer.stdout}\nand not\n{expected}"
        )


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_page(page: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Sessions and commands run, top to bottom; the README's programs too, others compile."""
    monkeypatch.chdir(tmp_path)
    names: dict[str, object] = {}
    for kind, code in blocks(page):
        if kind == "pycon":
            run_session(code, names, page)
        elif kind == "console":
            run_commands(code)
        elif kind == "python":
            program = compile(code, str(page), "exec")
            if page.name == "README.md":
                exec(program, {})


PUBLIC = {*libhamiregion.__all__, *host.__all__, *agent.__all__}


@pytest.mark.parametrize("name", sorted(PUBLIC - {"__version__"}))
def test_reference_has_every_public_name(name: str) -> None:
    reference = (ROOT / "docs" / "api.md").read_text()
    assert re.search(rf"^\.\. (?:auto\w+|data):: {name}(?:\(\))?$", reference, re.MULTILINE)
